"""What the page of the interventions needs: a line built by choosing, and what goes with it."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

import synthetic_tasks
from dcinterp.mechanism.branches import ADDED, BRANCHES, DYNAMIC_WEIGHTS
from workbench import analyses, links, models, task_tools
from workbench.glossary import tip
from workbench.inputs import Question

CHOICES = {"added": "composition", **{name: f"the {BRANCHES[name].label}" for name in ADDED}, "skip": ""}
STAGES = {"pre": "scores", "post": "weights"}
CHANGES = {
    "zero": "is put to zero",
    "scale=2": "is multiplied by 2",
    "mean": "is replaced by its mean over other examples",
    "counterfactual": "is replaced by what it is on the counterfactual prompt",
}
KINDS_HELP = "\n\n".join(f"**{kind}**: it {words}." for kind, words in CHANGES.items())
PARTS = ("head", "branch", "edge", "weight")


def default(name: str) -> str:
    """An intervention to begin with that the model has."""
    bridge = models.require(name)
    last, stages = bridge.cfg.n_layers - 1, getattr(bridge, "stages", ())
    return f"branch {last}.{stages[-1]}.added zero" if stages else f"head {last}.0 zero"


def builder(name: str) -> None:
    """Choose a part and a kind of change; a button adds its line to the others."""
    bridge = models.require(name)
    stages = tuple(getattr(bridge, "stages", ()))
    layers, heads = range(bridge.cfg.n_layers), range(bridge.cfg.n_heads)
    with st.expander("Build a line by choosing", icon=":material/build:"):
        across = st.columns(4)
        part = links.choose("Part", PARTS if stages else PARTS[:1], key="new_part", where=across[0])
        layer = links.choose("Layer", layers, key="new_layer", default=layers[-1], help=tip("layer"), where=across[1])
        kind = links.choose("Change", list(CHANGES), key="new_kind", help=KINDS_HELP, where=across[2])
        place = str(layer)
        if part != "head":
            stage = links.choose("Stage", stages[::-1], key="new_stage", help=tip("stage"), where=across[3])
            place += f".{stage}"
        across = st.columns(4)
        if part == "head":
            place += f".{links.choose('Head', heads, key='new_head', help=tip('head'), where=across[0])}"
        elif part == "weight":
            weights = {"key": "new_weight", "help": tip("dynamic weights"), "where": across[0]}
            place += f".{links.choose('Weight', DYNAMIC_WEIGHTS, **weights)}"
        else:
            place += f".{links.choose('Branch', CHOICES, key='new_branch', help=tip('branches'), where=across[0])}"
        if part == "edge":
            head_from = links.choose("From head", heads, key="new_from", help=tip("lending"), where=across[1])
            place += (
                f".{head_from}>{links.choose('To head', heads, key='new_to', help=tip('lending'), where=across[2])}"
            )
        line = f"{part} {place} {kind}"
        st.markdown(f"The line: `{line}`")
        left, right = st.columns(2)
        left.button("Do only this", on_click=_put, args=(line, False), width="stretch")
        right.button("Add it to the others", on_click=_put, args=(line, True), width="stretch")


def _put(line: str, add: bool) -> None:
    before = st.session_state.get("what", "").strip()
    st.session_state.what = f"{before}\n{line}" if add and before else line


def in_words(what: str) -> str:
    """The interventions as sentences; UserError when a line is none."""
    from dcinterp.mechanism.interventions import read_interventions

    return " ".join(f"{_subject(one)} {_change(one)}{_where(one)}." for one in read_interventions(what))


def _subject(one: Any) -> str:
    layer, stage = f"layer {one.layer}", STAGES.get(one.stage, one.stage)
    if one.part == "head":
        return f"What head {one.head} of {layer} reads"
    if one.part == "weight":
        return f"The dynamic weight {one.name} of {'every head' if one.head is None else f'head {one.head}'} in {layer}"
    branch = CHOICES.get(one.name, one.name)
    if not branch:
        return f"In {layer}, what {'every head' if one.head is None else f'head {one.head}'} keeps of its own {stage}"
    if one.part == "edge":
        return f"In {layer}, what {branch} adds of head {one.head_from}'s {stage} to those of head {one.head}"
    return f"In {layer}, {'all that' if one.name == 'added' else 'what'} {branch} adds to the {stage} of every head"


def _change(one: Any) -> str:
    return f"is multiplied by {one.factor:g}" if one.kind == "scale" else CHANGES[one.kind]


def _where(one: Any) -> str:
    at = [f"{side} {place}" for side in ("query", "key") if (place := getattr(one, side)) is not None]
    return f", at {' and '.join(at)} only" if at else ""


def counterfactual(name: str, asked: Question, what: str, where: Any) -> str | None:
    """The prompt that patched values come from: a twin of the example that the person chooses; None if not needed."""
    if not re.search(r"\bcounterfactual\b", what):
        return None
    if asked.example is None:
        words = "As many tokens as the prompt has; what is patched in is what the model computes on it."
        return links.text("Counterfactual prompt", key="counterfactual", default=asked.prompt, help=words) or None
    twins = synthetic_tasks.counterfactuals(asked.example, tokenizer=models.model(name).tokenizer)
    made = {kind: twin for kind, twin in twins.items() if not isinstance(twin, synthetic_tasks.NoCounterfactual)}
    if not made:
        return None
    kind = links.choose(
        "The counterfactual changes",
        list(made),
        key="twin",
        format=lambda kind: task_tools.TWINS[kind],
        help=tip("counterfactual"),
        where=where,
    )
    where.caption(task_tools.plain(made[kind].corrupt.prompt))
    return made[kind].corrupt.prompt


def reference(what: str, asked: Question) -> str | None:
    """The set of examples that a mean is taken over: twenty of the same task."""
    return f"{asked.task or 'all'} n=20 split=held-out" if re.search(r"\bmean\b", what) else None


def predicted(name: str, prompt: str, target: Any, foil: Any, what: str) -> float | None:
    """What attribution says of a single head that is put to zero, where it is known already or quickly found."""
    found = re.fullmatch(r"\s*head (\d+)\.(\d+) zero\s*", what)
    if found is None:
        return None
    scores = analyses.run("attribute_heads", name, prompt=prompt, target=target, foil=foil)
    layer, head = map(int, found.groups())
    inside = layer < scores.scores.shape[0] and head < scores.scores.shape[1]
    return float(scores.scores[layer, head]) if inside else None
