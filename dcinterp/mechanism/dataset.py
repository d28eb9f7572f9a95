"""Questions to average over: examples of the tasks, or prompts of one's own with their answers.

    read_questions(bridge, "same-person n=100 seed=1 split=held-out shots=2")
    read_questions(bridge, [example, ...])                              # synthetic_tasks.Example
    read_questions(bridge, [("The dog is an", "animal", "fruit"), ...])    # prompt, target and, if wanted, foil

The text form is `TASKS key=value ...`: TASKS as in `dcinterp tasks` (ids, numbers, ranges, patterns, relations or
`all`), n examples, one of every task in turn (of fewer examples than tasks, the first tasks by number have one), and
shots worked examples before each. Without a split, facts are of both parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.prompt import Prompt, Token, decoded, first_token, token_ids
from dcinterp.support.errors import UserError, nearest

if TYPE_CHECKING:
    from synthetic_tasks import Example

Examples = str | Sequence[Any]
"""The text form, or a list of `Example`s, (prompt, target) or (prompt, target, foil)."""

KEYS = ("n", "seed", "shots", "split")
REFERENCE, REFERENCE_SEED = 32, 7
"""Examples of a reference set that nobody chose, and their seed."""
_DEFAULT = f" seed={REFERENCE_SEED} split=held-out"
MOST_EXAMPLES, MOST_SHOTS = 100_000, 1_000
"""So that a typing error does not fill the memory."""


@dataclass(frozen=True)
class Question:
    """A prompt, the answer that is explained and the wrong answer that it competes with.

    target and foil are words or token ids; foil is None if nothing competes. task is empty and example None for a
    prompt of one's own. With shots, `prompt` holds more than `example.prompt`.
    """

    prompt: Prompt
    target: Token
    foil: Token | None
    task: str = ""
    example: Example | None = None


def question_text(bridge: Bridge, question: Question) -> str:
    """The prompt of a question, also where it was given as token ids."""
    if isinstance(question.prompt, str):
        return question.prompt
    return decoded(bridge, token_ids(bridge, question.prompt)[0].tolist())


def read_questions(bridge: Bridge, examples: Examples) -> list[Question]:
    """The questions that an analysis over a dataset runs on.

    The foil of an example of the tasks is the answer that another of its facts would give (the first whose first token
    differs); None when there is no such fact.

    Raises:
        UserError: there are no examples, the text names no tasks, or an entry is neither an example nor a pair.
    """
    if isinstance(examples, str):
        made = [_of_example(bridge, example, prompt) for example, prompt in draw_examples(examples)]
    else:
        made = [_question(bridge, each) for each in examples]
    if not made:
        raise UserError("There are no examples; give at least one, or a text such as 'same-person n=20'.")
    return made


def repeats(bridge: Bridge, questions: Sequence[Question]) -> list[Hashable]:
    """What is the same for questions that repeat each other: an example's facts, else the tokens of the prompt.

    Partner tasks ask about the same facts, so that half of a set may repeat the other half.
    """
    return [
        frozenset(each.example.facts) if each.example is not None else tuple(token_ids(bridge, each.prompt)[0].tolist())
        for each in questions
    ]


def prompts(bridge: Bridge, reference: str | Sequence[Prompt]) -> list[Any]:
    """The token ids [1, pos] of a reference set: prompts, or the text form of a set of examples.

    Raises:
        UserError: the set is empty, or a prompt does not fit the model.
    """
    texts: Sequence[Any] = [p for _, p in draw_examples(reference)] if isinstance(reference, str) else reference
    if not len(texts):
        raise UserError("The reference set is empty; give prompts, or a text such as 'same-person n=20'.")
    return [token_ids(bridge, getattr(each, "prompt", each)) for each in texts]


def equal_lengths(examples: Sequence[Tensor], size: int = 16) -> list[list[int]]:
    """The numbers of the prompts [1, pos] in batches of one length, `size` at most."""
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(examples):
        by_length.setdefault(ids.shape[1], []).append(i)
    return [same[start : start + size] for same in by_length.values() for start in range(0, len(same), size)]


def default_reference(bridge: Bridge, prompt: Any, n: int = REFERENCE) -> str:
    """The reference set of a prompt for which none was given, in text form: examples of the prompt's own task.

    Of a text that no task reads, the tasks whose prompts end like it; of one that ends like none, all tasks.

    Args:
        bridge: its tokenizer decides: a model that knows all words of the tasks was made for them.
        prompt: text, token ids or an example of the tasks.

    Raises:
        UserError: the prompt is not one of the tasks, and the model was not made for them.
    """
    from synthetic_tasks import TASKS, UnsolvableLine, solve, vocabulary

    tasks = [prompt.task_id] if hasattr(prompt, "facts") else []
    if not tasks and bridge.tokenizer is not None:
        ids = token_ids(bridge, prompt)
        text = prompt if isinstance(prompt, str) else bridge.tokenizer.decode(ids[0], skip_special_tokens=True)
        last = text.rpartition("\n")[2]  # behind worked examples
        try:
            read = solve(last).task_ids
            tasks = [*(each for each in read if each in TASKS), *read][:1]
        except UnsolvableLine:
            known = bridge.tokenizer.get_vocab()
            if all(word in known for word in vocabulary()):
                tasks = _tasks_that_end_like(last)
    if not tasks:
        example = " or a text such as 'same-person n=20'," if _reads_tasks(bridge) else ""
        raise UserError(
            "There are no reference prompts for this prompt, because it is none of the tasks; give reference=, a list "
            f"of prompts{example} or choose the kind 'zero'."
        )
    names = "all" if len(tasks) == len(TASKS) else ",".join(tasks)
    return f"{names} n={max(n, len(tasks))}{_DEFAULT}"


def _reads_tasks(bridge: Bridge) -> bool:
    """Whether a model's tokenizer has tokens for the prompts of the tasks."""
    try:
        token_ids(bridge, "Thomas has a violin. Thomas has a kind of")
    except UserError:
        return False
    return True


def reference_warnings(reference: str | None) -> list[str]:
    """That a prompt was given reference prompts of all tasks by `default_reference`, as no task is like it."""
    if reference is None or not (reference.startswith("all n=") and reference.endswith(_DEFAULT)):
        return []
    return [
        "The prompt ends like those of no task, so what takes the place of parts comes from prompts of all 74 tasks; "
        "give reference=, a list of prompts like this one, for a closer stand-in."
    ]


def _tasks_that_end_like(text: str) -> list[str]:
    """The tasks with an example whose last words are those of this text, as many as possible."""
    from synthetic_tasks import TASKS, generate, words

    asked = words(text)[::-1]

    def alike(example: Example) -> int:
        pairs = zip(asked, words(example.prompt)[::-1], strict=False)
        return next((n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), len(asked))

    ends = {
        name: max(alike(row.examples[0]) for row in generate(task, 4, REFERENCE_SEED, examples=1))
        for name, task in TASKS.items()
    }
    return [name for name, same in ends.items() if same == max(ends.values())]


def counterfactual_prompts(bridge: Bridge, questions: Sequence[Question], kind: str) -> list[str | None]:
    """Every question's counterfactual prompt, behind the question's own shots; None where it has none.

    Args:
        kind: what it changes: question, source, relation, polarity or position (see synthetic_tasks.corrupt).

    Raises:
        UserError: there is no such kind, a question is not an example of the tasks, or none of them has one.
    """
    from synthetic_tasks import KINDS, NoCounterfactual, corrupt

    if kind not in KINDS:
        raise UserError(f"There is no counterfactual {kind!r}; {nearest(kind, KINDS)}")
    made: list[str | None] = []
    for question in questions:
        if question.example is None:
            raise UserError(
                "Only examples of the tasks have counterfactual prompts; choose 'zero' or 'mean' for your own prompts."
            )
        try:
            changed = corrupt(question.example, kind, tokenizer=bridge.tokenizer).corrupt  # type: ignore[arg-type]
            made.append(str(question.prompt).removesuffix(question.example.prompt) + changed.prompt)
        except NoCounterfactual:
            made.append(None)
    if not any(made):
        raise UserError(
            f"None of the examples has a counterfactual prompt of kind {kind!r}; choose another kind, 'zero' or 'mean'."
        )
    return made


def draw_examples(text: str) -> list[tuple[Example, str]]:
    """(example, prompt with its shots) for the text form of a set of examples.

    Raises:
        UserError: a task, key or value is unknown.
    """
    from synthetic_tasks import generate

    chosen = read_selection(text)
    rounds = -(-chosen.n // len(chosen.tasks))
    split: Any = chosen.split
    try:
        rows = [generate(task, rounds, chosen.seed, examples=chosen.shots + 1, split=split) for task in chosen.tasks]
    except (ValueError, KeyError) as error:
        raise UserError(str(error.args[0])) from error
    # One of every task in turn, so that they are spread evenly where there are as many as tasks.
    return [(row.examples[-1], with_shots(row.examples)) for turn in zip(*rows, strict=True) for row in turn][
        : chosen.n
    ]


@dataclass(frozen=True)
class Selection:
    """What the text form of a set of examples says."""

    tasks: Sequence[Any]
    n: int
    seed: int
    shots: int
    split: str | None


def read_selection(text: str) -> Selection:
    """The text form of a set of examples, before any of them is drawn.

    Raises:
        UserError: a task, key or value is unknown, or a number beside names may be either.
    """
    from synthetic_tasks import TASKS
    from synthetic_tasks.selection import chosen
    from synthetic_tasks.split import check_split

    words = text.split()
    options = {"n": "20", "seed": "0", "shots": "0", "split": ""}
    for word in (each for each in words if "=" in each):
        key, _, value = word.partition("=")
        if key not in options:
            raise UserError(f"There is no {key!r} in {text!r}; {nearest(key, KEYS)}")
        options[key] = value
    try:
        n, seed, shots = (int(options[key]) for key in KEYS[:3])
    except ValueError as error:
        raise UserError(f"n, seed and shots must be whole numbers; in {text!r} one is not.") from error
    if not 1 <= n <= MOST_EXAMPLES or not 0 <= shots <= MOST_SHOTS:
        raise UserError(
            f"n must be from 1 to {MOST_EXAMPLES:,} and shots from 0 to {MOST_SHOTS}; in {text!r} they are not."
        )
    named = [each for each in words if "=" not in each]
    number = next((each for each in named if each.isdigit()), None)
    if number is not None and not all(set(each) <= set("0123456789-,") for each in named):
        task = f"task{number} for the task, or " if f"task{number}" in TASKS else ""
        raise UserError(f"In {text!r}, what {number} means is open; write {task}n={number} for so many examples.")
    names = ",".join(named)
    try:
        tasks = list(TASKS.values()) if names in ("", "all") else chosen(names)
        check_split(options["split"] or None)
    except (ValueError, KeyError) as error:
        raise UserError(str(error.args[0])) from error
    return Selection(tasks, n, seed, shots, options["split"] or None)


def with_shots(examples: Sequence[Example]) -> str:
    """The prompt of the last example with the others, answered, on the lines before it, as in the tasks' rows."""
    *before, last = examples
    if not before:
        return last.prompt
    return "\n" + "".join(f"{example.text}\n" for example in before) + last.prompt


def other_answers(example: Example) -> list[str]:
    """The answers that the facts beside the source would give, wrong ones only, in the order of the text."""
    from synthetic_tasks import find

    grammar = find(example.task_id).grammar
    facts = (fact for place, fact in enumerate(example.facts) if place != example.source)
    answers = [grammar.accepted(*fact)[0] for fact in facts if grammar.defined(fact.item)]
    return [answer for answer in dict.fromkeys(answers) if answer not in example.accepted]


def _question(bridge: Bridge, each: Any) -> Question:
    if hasattr(each, "facts"):
        return _of_example(bridge, each, each.prompt)
    if not isinstance(each, tuple | list) or not 2 <= len(each) <= 3:
        raise UserError(f"{each!r} is not a valid question; give an example of the tasks, or (prompt, target[, foil]).")
    prompt, target, *foil = each
    return Question(prompt, target, foil[0] if foil else None)


def _of_example(bridge: Bridge, example: Example, prompt: str) -> Question:
    target = first_token(bridge, example.answer)
    foils = (first_token(bridge, answer) for answer in other_answers(example))
    foil = next((token for token in foils if token != target), None)
    return Question(prompt, target, foil, example.task_id, example)
