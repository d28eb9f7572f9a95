"""Inputs that several pages share: the question, a layer, a head, a token."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

import streamlit as st

import synthetic_tasks
from dcinterp.bridge.protocol import stages_of
from dcinterp.support.errors import UserError
from synthetic_tasks.words import NO_SPACE_BEFORE
from workbench import analyses, examples, links, models
from workbench.glossary import tip
from workbench.markdown import escape, sentence

TASK, TEXT = "task", "text"
SHORT = 96
"""Tokens; prompts of the tasks have up to half as many."""
EXAMPLES_AT_MOST = 5000
"""Of an analysis that is started on a page."""
KINDS = {TASK: "An example of a task", TEXT: "My own text"}


@dataclass(frozen=True)
class Question:
    """A prompt and its answer: texts, or token ids for a model without a tokenizer.

    `task`, `number` and `source` (a position) are None for one's own text.
    """

    prompt: str | list[int]
    answer: str | int | None
    task: str | None = None
    number: int | None = None
    source: int | None = None

    @property
    def example(self) -> Any:
        """The example of a task; None for one's own text."""
        return None if self.task is None else examples.held_out(self.task, self.number or 0)


def question(name: str, *, with_answer: bool = True) -> Question:
    """The inputs for a prompt: a numbered held-out example of a task, or one's own text.

    Args:
        name: the model, which must load.
        with_answer: whether one's own text has a field for its expected answer.
    """
    bridge = models.require(name)
    if getattr(bridge.cfg, "is_visual_model", False):
        st.info(f"{name} reads images, and this page is about texts. Choose a language model in the sidebar.")
        links.end_page()
    if bridge.tokenizer is None:
        return ids_question(name, with_answer=with_answer)
    own = examples.own(name)
    kind = links.choose(
        "Prompt",
        [TEXT] if own else KINDS,
        key="prompt",
        format=KINDS.__getitem__,
        style="segmented_control",
        hidden=True,
    )
    best_task, best_number = (examples.SHOWCASE_TASKS[0], 0) if own else examples.showcase(name)
    left, right = st.columns([3, 1])
    if kind == TEXT:
        chosen = links.last("task"), links.last("example")
        looked_at = examples.held_out(chosen[0], chosen[1] or 0).prompt if chosen[0] is not None else None
        if not own and looked_at and links.suggest("text", looked_at):
            links.clear("answer")
        text = links.text(
            "Text",
            key="text",
            default=(own[0] if own else examples.held_out(best_task, best_number)).prompt,
            area=True,
            where=left,
            help="The small models of the tasks know only the words of the tasks."
            if len(own) < 2
            else f"This model {examples.made_from(name)}.",
        )
        answer = ""
        if with_answer:
            answer = links.text(
                "Expected answer (optional)",
                key="answer",
                where=right,
                help="If empty, the model's own answer is explained.",
            )
        with right:
            vocabulary(name)
            if len(own) > 1:
                own_prompts(own)
        return Question(as_meant(bridge.tokenizer, text), as_typed(bridge.tokenizer, answer) or None)
    task = links.choose(
        "Task",
        synthetic_tasks.TASKS,
        key="task",
        default=best_task,
        format=examples.label,
        where=left,
        follows=False,  # an example means the same to every model
        help="The 74 tasks of the paper: how the question selects a fact, and what it asks about that fact.",
    )
    number = links.number(
        "Example",
        0,
        9999,
        key="example",
        default=best_number if task == best_task else 0,
        where=right,
        follows=False,
        means=lambda _: task,
        help="Held-out examples by number: no shipped model was trained on them.",
    )
    example = examples.held_out(task, number)
    return Question(example.prompt, example.answer, task, number, examples.source_token(name, task, number))


def as_meant(tokenizer: Any, text: str) -> str:
    """A prompt as it was typed: what comes after a space or a line end is a question of its own.

    But models that read whole words end every document of the tasks with a line, which a pasted prompt does not mean.
    """
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return text.strip() if type(model).__name__ == "WordLevel" or not text.strip() else text


def as_typed(tokenizer: Any, answer: str) -> str:
    """An expected answer; with the space before it where that makes another token, as in most vocabularies."""
    word = answer.strip()
    if not answer.startswith(" ") or not word:
        return word
    with_space, without = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word}", word))
    return word if with_space == without else f" {word}"


def ids_question(name: str, *, with_answer: bool = True) -> Question:
    """The inputs for a prompt of a model without a tokenizer, which takes token ids."""
    left, right = st.columns([3, 1])
    last = models.model(name).cfg.d_vocab - 1
    text = links.text(
        "Token ids",
        key="ids",
        default=", ".join(str(min(number, last)) for number in (5, 6, 7, 8, 5, 6)),
        where=left,
        help=f"Whole numbers from 0 to {last}, with commas between them.",
    )
    given = links.text("Expected id (optional)", key="answer-id", where=right).strip() if with_answer else ""
    st.caption("This model came without a tokenizer. On the page Models it can be opened with that of another folder.")
    try:
        answer = read_ids(given)[:1]
        return Question(read_ids(text), answer[0] if answer else None)
    except UserError as problem:
        refuse(problem)
        raise


def read_ids(text: str) -> list[int]:
    """The token ids in a text, with commas or spaces between them.

    Raises:
        UserError: something else stands there.
    """
    words = text.replace(",", " ").strip("[] ").split()
    if wrong := [word for word in words if not re.fullmatch(r"\d{1,9}", word)]:
        raise UserError(f"{wrong[0]!r} is not a token id; write whole numbers with commas between them, as in 5, 7, 9.")
    return [int(word) for word in words]


def write_out(question: Question) -> None:
    """Show the prompt of a numbered example; one's own text stands in its field already."""
    if question.task is not None:
        right = " or ".join(f"**{escape(answer)}**" for answer in question.example.accepted)
        st.markdown(f"The prompt is `{question.prompt}`; the right answer is {right}.")


def own_prompts(own: Sequence[examples.Own]) -> None:
    """Buttons that put one of a model's own prompts into the text, with its answer."""
    listed = st.popover("Prompts", icon=":material/lightbulb:", type="tertiary")
    for number, each in enumerate(own):
        listed.button(each.about, key=f"own-prompt-{number}", on_click=put, args=(each,), type="tertiary")


def put(each: examples.Own) -> None:
    """A prompt and its answer as one's own text, as a callback."""
    st.session_state.text, st.session_state.answer = each.prompt, each.answer


LISTED_AT_ONCE = 200


def vocabulary(name: str) -> None:
    """Buttons that put an example of the tasks, or a word that a small model knows, into the text."""
    tokenizer = getattr(models.require(name), "tokenizer", None)
    if tokenizer is None or len(tokenizer) > 3000:
        return
    if examples.knows_tasks(tokenizer):
        st.button(
            "Insert a random example",
            on_click=insert_example,
            icon=":material/casino:",
            type="tertiary",
            help="A held-out example of a random task, with its right answer, in place of the text.",
        )
    words = st.popover("Words it knows", icon=":material/menu_book:", type="tertiary", on_change="rerun", key="words")
    if words.open:
        listed = sorted(
            (w for w in tokenizer.get_vocab() if w.strip() and not re.fullmatch(r"<\w+>", w)), key=str.lower
        )
        words.caption(
            f"The model knows these {len(listed)} words and signs; a text may use no others. Click one to put it at "
            "the end of the text."
        )
        part = words.text_input("Words that contain", key="words-that-contain")
        found = [each for each in listed if part.strip().lower() in each.lower()]
        words.pills(
            "Words", found[:LISTED_AT_ONCE], key="known-word", on_change=append_word, label_visibility="collapsed"
        )
        if len(found) > LISTED_AT_ONCE:
            words.caption(f"{len(found) - LISTED_AT_ONCE} more: type a part of a word above.")


def insert_example() -> None:
    """A random held-out example as one's own text, as a callback."""
    task = random.choice(list(synthetic_tasks.TASKS))
    example = examples.held_out(task, random.randrange(1000))
    put(examples.Own("", example.prompt, example.answer))


def append_word() -> None:
    """The word that was clicked at the end of the text, as a callback."""
    chosen = st.session_state.get("known-word")
    if chosen:
        text = st.session_state.get("text", "")
        joined = not text or text[-1].isspace() or chosen in NO_SPACE_BEFORE
        st.session_state.text = text + ("" if joined else " ") + chosen
        st.session_state["known-word"] = None


def examples_set(label: str, *, key: str, default: str, **options: Any) -> str:
    """The text form of a set of examples; the page ends where it is none, before any work begins."""
    from dcinterp.mechanism.dataset import read_selection

    text = links.text(
        label,
        key=key,
        default=default,
        help="A QK pattern, a transformation or task numbers, followed by any of n=, seed=, shots=, split=; at most "
        f"n={EXAMPLES_AT_MOST}. Examples are one of every task in turn; with fewer than there are tasks, the first "
        "tasks by number have one.",
        **options,
    )
    try:
        if (count := read_selection(text).n) > EXAMPLES_AT_MOST:
            raise UserError(
                f"n={count:,} examples take too long for a page: give at most {EXAMPLES_AT_MOST:,} here, or use the "
                "command line."
            )
    except UserError as problem:
        refuse(problem)
    return text


SAMPLE_WORDS = (
    "violin lime beetle gun jacket apple dog horse car shirt milk gold London Paris king red music water house book"
).split()
"""Of the tasks first, then everyday words, which most tokenizers know as a whole."""


def known_words(name: str, count: int = 5) -> str:
    """The first sample words that are one token in this model; ids for a model without a tokenizer."""
    from dcinterp.mechanism.prompt import word_tokens

    bridge = models.model(name)
    if bridge.tokenizer is None:
        return ", ".join(str(min(number, bridge.cfg.d_vocab - 1)) for number in range(5, 5 + count))
    found = []
    for word in (*SAMPLE_WORDS, *(piece.strip("Ġ▁") for piece in own_pieces(bridge.tokenizer))):
        try:
            found += [word] if len(word_tokens(bridge, word)) == 1 else []
        except UserError:
            continue
        if len(found) == count:
            break
    return ", ".join(found)


def own_pieces(tokenizer: Any) -> list[str]:
    """The tokens of a tokenizer that look like words, as it spells them, the longest first."""
    known = tokenizer.get_vocab()
    # Those of a puzzle are no words, as a8=0 or red-key-B.
    words = [token for token in known if re.fullmatch(r"[Ġ▁]?[A-Za-z]{2,}", token)] or known.keys() - set(
        tokenizer.all_special_tokens
    )
    return sorted(words, key=lambda token: (-len(token), token))[:50]


def splits_words(name: str) -> bool:
    """Whether the model's tokenizer may make several tokens of one word."""
    tokenizer = models.model(name).tokenizer
    core = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer is not None and type(getattr(core, "model", None)).__name__ != "WordLevel"


def layer(name: str, *, key: str = "layer", default: int = -1, where: Any = st) -> int:
    """A layer of the model; the last unless another is chosen."""
    count = models.model(name).cfg.n_layers
    return links.choose(
        "Layer",
        range(count),
        key=key,
        default=default % count,
        help=tip("layer"),
        where=where,
        means=lambda _: name,
    )


def head(name: str, *, key: str = "head", default: int = 0, label: str = "Head", where: Any = st) -> int:
    """A head of a layer."""
    count = models.model(name).cfg.n_heads
    return links.choose(
        label,
        range(count),
        key=key,
        default=min(default, count - 1),
        help=tip("head"),
        where=where,
        means=lambda _: name,
    )


def cell(name: str, label: str, *, default: str | tuple[int, int], first: Sequence[str] = (), **options: Any) -> str:
    """A head of the whole model, as L1H6; `first` are words that stand for one."""
    cfg = models.model(name).cfg
    cells = [*first, *(f"L{layer}H{head}" for layer in range(cfg.n_layers) for head in range(cfg.n_heads))]
    chosen = default if isinstance(default, str) else "L{}H{}".format(*default)
    # Heads of two models do not correspond, even where they have the same number.
    return links.choose(label, cells, key="cell", default=chosen, means=lambda _: name, **options)


def stage(name: str, *, key: str = "stage", where: Any = st) -> str:
    """A stage of composition that the model has."""
    stages = models.model(name).stages
    default = "post" if "post" in stages else stages[0]
    return links.choose(
        "Stage",
        stages,
        key=key,
        default=default,
        style="segmented_control",
        help=tip("stage"),
        where=where,
    )


def position(
    label: str,
    tokens: Sequence[str],
    *,
    key: str,
    default: int = -1,
    until: int | None = None,
    help: str = "",
    where: Any = st,
) -> int:
    """A position of the prompt, shown with its token; of those up to `until`, as the keys that a query sees."""
    count = len(tokens) if until is None else until + 1
    return links.choose(
        label,
        range(count),
        key=key,
        default=min(default % len(tokens), count - 1),
        format=lambda at: f"{at}: {shown(tokens[at])}",
        help=help or None,
        where=where,
        means=lambda at: read_up_to(tokens, at),
    )


def read_up_to(tokens: Sequence[str], at: int) -> tuple[str, ...]:
    """What a position stands for: the tokens that the model has read there. No later token changes that."""
    return tuple(tokens[: at + 1])


def shown(token: str) -> str:
    """A token with its spaces and line breaks made visible."""
    from dcinterp.figures.base.style import visible

    return unescape(visible(token))


def is_quick(name: str, question: Question) -> bool:
    """Whether the model is so small and the prompt so short that work on it may start without a click.

    Raises:
        UserError: the prompt does not fit the model.
    """
    return analyses.small(name) and len(analyses.run("predict", name, prompt=question.prompt).tokens) <= SHORT


def refuse(problem: Exception) -> None:
    """Show what is wrong in one sentence and end the page."""
    st.error(sentence(problem), icon=":material/error:")
    links.end_page()


def needs_composition(name: str) -> None:
    """End the page with a sentence when the model's heads are not composed."""
    if not stages_of(models.require(name)):
        st.info(
            f"The heads of {name} are not composed, so there is nothing to show here. Choose a DCFormer in the "
            "sidebar, such as dcformer++.",
            icon=":material/info:",
        )
        links.end_page()


def require_tokenizer(name: str) -> None:
    """End the page with a sentence when the model has no tokenizer."""
    if getattr(models.require(name), "tokenizer", None) is None:
        st.info(
            f"{models.short(name)} has no tokenizer, so it cannot read text. On the page Models it can be opened with "
            "the tokenizer of another folder.",
            icon=":material/info:",
        )
        links.end_page()


def first_word(name: str, question: Question) -> str | int | None:
    """The first token of the answer, which is where the model has to choose; UserError when it does not know it.

    What a person typed is read as it is written, as the case study reads it; the answer of a task stands after a space.
    """
    from dcinterp.mechanism.objective import answer_tokens
    from dcinterp.mechanism.prompt import first_token

    answer, bridge = question.answer, models.model(name)
    if answer is None:
        return None
    return word(name, first_token(bridge, answer) if question.task else answer_tokens(bridge, answer)[0])


def also_right(name: str, question: Question) -> set[int]:
    """First tokens of the other right answers of an example of the tasks: neither wrong, nor a foil."""
    from dcinterp.mechanism.prompt import first_token

    if question.example is None:
        return set()
    bridge, found = models.model(name), set()
    for answer in question.example.accepted:
        try:
            found.add(first_token(bridge, answer))
        except UserError:  # a word that this model lacks
            continue
    return found - {first_token(bridge, question.example.answer)}


def is_whole(first: str | int | None, question: Question) -> bool:
    """Whether the first token of the answer is all of it."""
    return str(first).strip() == str(question.answer).strip()


def word(name: str, token: int) -> str | int:
    """What a person calls a token, so that code and command lines can be read; the id if no word does."""
    from dcinterp.mechanism.prompt import token_word

    return token_word(models.model(name), token)


def same_word(name: str, given: str | int) -> str | int:
    """What a model calls a word of another one, as it stands in a text.

    Raises:
        UserError: it is no single token of this model, or the other one has no word for it.
    """
    from dcinterp.mechanism.prompt import tokens_in_text

    tokens = () if isinstance(given, int) else tokens_in_text(models.model(name), given)
    if len(tokens) != 1:
        raise UserError(f"{given!r} is no single token of {name}.")
    return word(name, tokens[0])


def target_and_foil(name: str, question: Question) -> tuple[str | int, str | int]:
    """The answer's first token (the model's own when none is expected) and the strongest wrong one.

    Raises:
        UserError: the prompt or the answer does not fit the model.
    """
    first = first_word(name, question)
    prediction = analyses.run("predict", name, prompt=question.prompt, answer=first)
    if question.answer is not None and not is_whole(first, question):
        st.caption(
            f'The answer "{escape(str(question.answer))}" has several tokens; this is about the first, '
            f'"{escape(shown(prediction.answer))}".'
        )
    target = prediction.answer_id if question.answer is not None else int(prediction.top_ids[0])
    right = {target, *also_right(name, question)}
    return word(name, target), word(name, next(int(token) for token in prediction.top_ids if int(token) not in right))


def link_choices(more: dict[str, str]) -> dict[str, str | list[str]]:
    """The choices that a link to another page holds: the model, the question, and `more`."""
    common = ("model", "prompt", "task", "example", "text", "answer", "ids", "answer-id")
    kept = {key: values[0] for key, values in links.address().current.items() if key in (*common, *links.SINCE_0_2)}
    return {**links.SINCE_0_2, **kept, **more}
