"""The form of the page of the interventions: building a line by choosing, saying lines in words, and what they need."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

import synthetic_tasks
from dcinterp.bridge.protocol import stages_of
from dcinterp.mechanism.ablation_kinds import ABLATIONS, DEFAULT, OF_ATTENTION, kinds_in_words, takes_reference
from dcinterp.mechanism.branches import ADDED, BRANCHES, DYNAMIC_WEIGHTS
from dcinterp.support.errors import UserError
from workbench import analyses, links, models
from workbench.glossary import tip
from workbench.inputs import Question, read_ids
from workbench.markdown import escape
from workbench.task_tables import COUNTERFACTUAL_KINDS

CHOICES = {"added": "composition", **{name: f"the {BRANCHES[name].label}" for name in ADDED}, "skip": ""}
STAGES = {"pre": "attention scores", "post": "attention weights"}
CHANGES = {
    **{kind.name: kind.put for kind in ABLATIONS.values()},
    "scale=2": "is multiplied by 2",
    "counterfactual": "is replaced by its value on the counterfactual prompt",
}
CHANGES_HELP = kinds_in_words() + "".join(
    f"\n\n**{kind}**: {words}." for kind, words in CHANGES.items() if kind not in ABLATIONS
)
PARTS = ("head", "attention", "branch", "edge", "weight")


def default_line(name: str, question: Question) -> str:
    """An intervention to begin with, on a part that the model has."""
    bridge = models.require(name)
    last, stages = bridge.cfg.n_layers - 1, stages_of(bridge)
    kind = DEFAULT if has_reference(name, question) and not links.older("what") else "zero"
    if stages and has_added(bridge, last, stages[-1]):
        return f"branch {last}.{stages[-1]}.added {kind}"
    return f"head {last}.0 {kind}"


def reference_of(question: Question, lines: str, where: Any) -> str | None:
    """The set of examples that a person wants values to come from; None for that of the prompt's own task."""
    from dcinterp.mechanism.interventions import read_interventions

    if not takes_reference(one.kind for one in read_interventions(lines)):
        return None
    given = links.text(
        "Examples that values come from",
        key="reference",
        # What version 0.1 took, where no link said it.
        default=f"{question.task or 'all'} n=20 split=held-out" if links.older("reference") else "",
        where=where,
        placeholder="examples of the prompt's own task",
        help="A set such as `same-person n=20`. If empty: examples of the prompt's own task.",
    )
    return given.strip() or None


def has_reference(name: str, question: Question) -> bool:
    """Whether there are examples to take a mean over, as of a prompt of the tasks."""
    prompt = question.prompt if isinstance(question.prompt, str) else tuple(question.prompt)
    return _has_reference(name, models.stamp(name), prompt)


@st.cache_data(max_entries=256, show_spinner=False)
def _has_reference(name: str, stamp: int, prompt: str | tuple[int, ...]) -> bool:
    from dcinterp.mechanism.dataset import default_reference

    try:
        default_reference(models.model(name), prompt if isinstance(prompt, str) else list(prompt))
    except UserError:
        return False
    return True


def has_added(bridge: Any, layer: int, stage: str) -> bool:
    """Whether a stage has branches beside its base, as maps that are the same for all tokens have not."""
    return any(f"blocks.{layer}.attn.{stage}.hook_o_{branch}" in bridge.hook_dict for branch in ADDED)


def line_builder(name: str) -> None:
    """Choose a part and a change; buttons put the line among the interventions."""
    bridge = models.require(name)
    stages = stages_of(bridge)
    layers, heads = range(bridge.cfg.n_layers), range(bridge.cfg.n_heads)
    with st.expander("Build a line from menus", icon=":material/build:"):
        across = st.columns(4)
        part = links.choose("Part", PARTS if stages else PARTS[:1], key="new_part", where=across[0])
        layer = links.choose("Layer", layers, key="new_layer", default=layers[-1], help=tip("layer"), where=across[1])
        kinds = [each for each in CHANGES if part != "attention" or each.partition("=")[0] in OF_ATTENTION]
        usual = "zero" if links.older("new_kind") or part == "attention" else DEFAULT
        kind = links.choose("Change", kinds, key="new_kind", default=usual, help=CHANGES_HELP, where=across[2])
        place = str(layer)
        if part != "head":
            stage = links.choose("Stage", stages[::-1], key="new_stage", help=tip("stage"), where=across[3])
            place += f".{stage}"
        across = st.columns(4)
        if part in ("head", "attention"):
            place += f".{links.choose('Head', heads, key='new_head', help=tip('head'), where=across[0])}"
        elif part == "weight":
            weights = {"key": "new_weight", "help": tip("dynamic weights"), "where": across[0]}
            place += f".{links.choose('Weight', DYNAMIC_WEIGHTS, **weights)}"
        else:
            place += f".{links.choose('Branch', CHOICES, key='new_branch', help=tip('branches'), where=across[0])}"
        if part == "edge":
            head_from = links.choose("From head", heads, key="new_from", help=tip("sharing"), where=across[1])
            place += (
                f".{head_from}>{links.choose('To head', heads, key='new_to', help=tip('sharing'), where=across[2])}"
            )
        line = f"{part} {place} {kind}"
        st.markdown(f"The line: `{line}`")
        left, right = st.columns(2)
        left.button("Use only this line", on_click=_put, args=(line, False), width="stretch")
        right.button("Add this line", on_click=_put, args=(line, True), width="stretch")


def names_position(lines: str) -> bool:
    """Whether a line acts at a position of the prompt only."""
    return bool(re.search(r"\b(query|key)=", lines))


def _put(line: str, add: bool) -> None:
    before = st.session_state.get("what", "").strip()
    st.session_state.what = f"{before}\n{line}" if add and before else line


def in_words(lines: str) -> str:
    """The interventions as sentences; UserError when a line is not a valid intervention."""
    from dcinterp.mechanism.interventions import read_interventions

    return " ".join(f"{_subject(one)} {_change(one)}{_where(one)}." for one in read_interventions(lines))


def _subject(one: Any) -> str:
    layer, stage = f"layer {one.layer}", STAGES.get(one.stage, one.stage)
    if one.part == "head":
        return f"The output of head {one.head} in {layer}"
    if one.part == "attention":
        return f"All that heads use of the {STAGES.get(one.stage or 'post', stage)} of head {one.head} in {layer}"
    if one.part == "weight":
        return f"The dynamic weight {one.name} of {_heads(one)} in {layer}"
    branch = CHOICES.get(one.name, one.name)
    if not branch and one.part == "edge" and one.head_from != one.head:
        return f"In {layer}, what head {one.head} takes of head {one.head_from}'s {stage} by the map of all tokens"
    if not branch:
        return f"In {layer}, the part of its own {stage} that {_heads(one)} keeps"
    if one.part == "edge" and one.head_from == one.head:
        return f"In {layer}, what {branch} adds of head {one.head}'s own {stage} to the same head"
    if one.part == "edge":
        return f"In {layer}, what head {one.head} borrows of head {one.head_from}'s {stage} through {branch}"
    return f"In {layer}, {'all that' if one.name == 'added' else 'what'} {branch} adds to the {stage} of every head"


def _heads(one: Any) -> str:
    return "every head" if one.head is None else f"head {one.head}"


def _change(one: Any) -> str:
    return f"is multiplied by {one.factor:g}" if one.kind == "scale" else CHANGES[one.kind]


def _where(one: Any) -> str:
    at = [f"{side} {place}" for side in ("query", "key") if (place := getattr(one, side)) is not None]
    return f", at {' and '.join(at)} only" if at else ""


def counterfactual_prompt(name: str, question: Question, lines: str, where: Any) -> str | list[int] | None:
    """The prompt that patched values come from, of a kind that the person chooses; None if no line needs one."""
    if not re.search(r"\bcounterfactual\b", lines):
        return None
    if question.example is None:
        words = "As many tokens as the prompt has. The patched values are what the model computes on this prompt."
        if isinstance(question.prompt, str):
            return (
                links.text(
                    "Counterfactual prompt",
                    key="counterfactual",
                    default=question.prompt,
                    help=words,
                    means=lambda _: question.prompt,
                )
                or None
            )
        ids = ", ".join(map(str, question.prompt))
        return (
            read_ids(
                links.text(
                    "Counterfactual token ids", key="counterfactual-ids", default=ids, help=words, means=lambda _: ids
                )
            )
            or None
        )
    pairs = synthetic_tasks.counterfactuals(question.example, tokenizer=models.model(name).tokenizer)
    found = {kind: pair for kind, pair in pairs.items() if not isinstance(pair, synthetic_tasks.NoCounterfactual)}
    if not found:
        return None
    kind = links.choose(
        "The counterfactual prompt changes",
        list(found),
        key="twin",  # what the links of version 0.1 call it
        format=COUNTERFACTUAL_KINDS.__getitem__,
        help=tip("counterfactual"),
        where=where,
    )
    prompt = str(found[kind].corrupt.prompt)
    where.caption(escape(prompt))
    return prompt


def predicted_effect(name: str, prompt: str, target: Any, foil: Any, lines: str) -> float | None:
    """The attribution score of the head that the only line sets to zero.

    None for other interventions, and for a large model: nobody who looks at an intervention waits for all scores.
    """
    found = re.fullmatch(r"\s*head (\d+)\.(\d+) zero\s*", lines)
    if found is None or not analyses.small(name):
        return None
    scores = analyses.run("attribute_heads", name, prompt=prompt, target=target, foil=foil)
    layer, head = map(int, found.groups())
    inside = layer < scores.scores.shape[0] and head < scores.scores.shape[1]
    return float(scores.scores[layer, head]) if inside else None
