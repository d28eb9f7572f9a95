"""What the page of the interventions needs: a line built by choosing, and what goes with it."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

import synthetic_tasks
from workbench import analyses, models
from workbench.glossary import tip
from workbench.inputs import Question

NAMES = ("added", "qp", "kp", "qg", "kg", "skip")
WEIGHTS = ("w_q1", "w_q2", "w_qg", "w_k1", "w_k2", "w_kg")
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
        part = across[0].selectbox("Part", PARTS if stages else PARTS[:1], key="new-part")
        layer = across[1].selectbox("Layer", layers, key="new-layer", index=len(layers) - 1, help=tip("layer"))
        kind = across[2].selectbox("Change", ["zero", "scale=2", "mean", "counterfactual"], key="new-kind")
        stage = across[3].selectbox("Stage", stages[::-1], key="new-stage", help=tip("stage")) if part != "head" else ""
        across = st.columns(4)
        place = str(layer)
        if part == "head":
            place += f".{across[0].selectbox('Head', heads, key='new-head', help=tip('head'))}"
        elif part == "weight":
            weight = across[0].selectbox("Weight", WEIGHTS, key="new-weight", help=tip("dynamic weights"))
            place += f".{stage}.{weight}"
        else:
            place += f".{stage}.{across[0].selectbox('Branch', NAMES, key='new-branch', help=tip('branches'))}"
        if part == "edge":
            lender = across[1].selectbox("From head", heads, key="new-from", help=tip("lending"))
            place += f".{lender}>{across[2].selectbox('To head', heads, key='new-to', help=tip('lending'))}"
        line = f"{part} {place} {kind}"
        left, right = st.columns(2)
        left.button(f"Do only this: {line}", on_click=_put, args=(line, False), width="stretch")
        right.button("Add it to the others", on_click=_put, args=(line, True), width="stretch")


def _put(line: str, add: bool) -> None:
    before = st.session_state.get("what", "").strip()
    st.session_state.what = f"{before}\n{line}" if add and before else line


def counterfactual(name: str, asked: Question, where: Any) -> str | None:
    """The prompt that patched values come from: a twin of the example that the person chooses."""
    if asked.example is None:
        return where.text_input("Counterfactual prompt", "", help=tip("counterfactual")) or None
    twins = synthetic_tasks.twins(asked.example, tokenizer=models.model(name).tokenizer)
    made = {kind: twin for kind, twin in twins.items() if not isinstance(twin, synthetic_tasks.NoTwin)}
    if not made:
        return None
    kind = where.selectbox("Counterfactual changes the", list(made), key="twin", help=tip("counterfactual"))
    where.caption(made[kind].corrupt.prompt)
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
