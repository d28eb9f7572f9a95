"""How heads are mixed: the map over heads at one pair of tokens, by part, and what it makes of the attention there."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, inputs, links
from workbench.glossary import tip
from workbench.view import view

PARTS = {
    "total": "whole map",
    "base": "skip and W_b",
    "query_low_rank": "query projection",
    "query_gate": "query gate",
    "key_low_rank": "key projection",
    "key_gate": "key gate",
}

st.title("Composition", anchor=False)
st.markdown(
    "At every pair of tokens, composition is a map from the heads that computed attention to the heads that use it."
)
name = st.session_state.model
inputs.needs_composition(name)
asked = inputs.question(name, with_answer=False)
try:
    words = analyses.run("predict", name, prompt=asked.prompt).tokens
except UserError as problem:
    inputs.refuse(problem)

across = st.columns(4)
layer = inputs.layer(name, where=across[0])
stage = inputs.stage(name, where=across[1])
query = inputs.position("Query token", words, key="query", help=tip("query"), where=across[2])
source = asked.source if asked.source is not None else 0
key = inputs.position("Key token", words, key="key", default=source, help=tip("key"), where=across[3])
try:
    breakdown = analyses.run(
        "compose_breakdown", name, prompt=asked.prompt, layer=layer, query=query, key=key, stage=stage
    )
    mixing = analyses.run("composition_map", name, prompt=asked.prompt, layer=layer, stage=stage, query=query, key=key)
except UserError as problem:
    inputs.refuse(problem)


def pick(row, column):
    st.session_state.lender, st.session_state.head = row, column


st.subheader("Who lends to whom", anchor=False, help=tip("composition map", "lending"))
part = links.choose(
    "Part", PARTS, key="part", format=PARTS.__getitem__, style="segmented_control", help=tip("branches")
)
picked = st.columns(2)
lender = inputs.head(name, key="lender", label="From head", where=picked[0])
head = inputs.head(name, label="To head", where=picked[1])
view(mixing, "map", part=part, selected=(lender, head), on_pick=pick, caption="Rows lend, columns receive.")
st.markdown(
    f"W[{lender}, {head}] = **{float(getattr(mixing, part)[lender, head]):+.3f}** ({PARTS[part]}); head {lender} has "
    f"**{float(breakdown.a[lender]):.3f}** here before composition."
)

st.subheader("What becomes of the attention here", anchor=False, help=tip("branches"))
view(breakdown, "branches", selected=head)

st.subheader(f"What head {head} is lent, and by which token's choice", anchor=False, help=tip("lending"))
pair = st.grid(2, min_column_width=420)
with pair.container():
    view(breakdown, "lending", kind="lending", selected=head, table=False)
with pair.container():
    side = links.choose(
        "Dynamic weights of the",
        ["key", "query"],
        key="side",
        style="segmented_control",
        format=lambda word: f"{word} token",
        help=tip("dynamic weights"),
    )
    view(breakdown, "weights", kind="weights", side=side, selected=head, table=False)

st.subheader("Motifs of this map", anchor=False, help=tip("motif"))
view(mixing, "motifs", kind="motifs", banners=False, table=False)
if told := mixing.motifs():
    st.markdown("\n".join(f"- {motif.sentence}" for motif in told[:8]))

st.subheader("Averaged over a set of examples", anchor=False, help=tip("composition map"))
SHOW = {"added": "mean of what it adds", "spread": "how much it changes", "lent": "attention that it moves"}
across = st.columns([3, 2])
texts = links.text(
    "Examples",
    key="set",
    default=f"{asked.task or 'all'} n=10",
    where=across[0],
    help="A pattern, a transformation or task numbers, then n=, seed=, shots=, split=.",
)
show = links.choose("Show", SHOW, key="show", format=SHOW.__getitem__, where=across[1])
try:
    mean = analyses.long(
        "mean_composition_map", name, title="Average the map", key="mean", examples=texts, layer=layer, stage=stage
    )
    if mean is not None:
        view(mean, "mean", show=show, selected=(lender, head), on_pick=pick)
    st.subheader("Which layers' composition matters", anchor=False, help=tip("attribution"))
    importance = analyses.long(
        "composition_importance", name, title="Attribute answers to composition", key="importance", examples=texts
    )
    if importance is not None:
        view(importance, "importance")
except UserError as problem:
    inputs.refuse(problem)
