"""Whose attention was lent to whose values, through which branch, and what it did for the answer."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, inputs, links
from workbench.glossary import tip
from workbench.view import show_banners, view

BRANCHES = {
    "added": "all that lend",
    "qp": "query projection",
    "kp": "key projection",
    "qg": "query gate",
    "kg": "key gate",
    "skip": "own attention",
    "all": "everything",
}
METHODS = {"ig": "integrated gradients", "gradient": "gradient x edge"}

st.title("Edges", anchor=False)
st.markdown(
    "An edge is one head's attention used with another head's values. Its score is what that did for the answer."
)
name = st.session_state.model
inputs.needs_composition(name)
asked = inputs.question(name)
try:
    target, foil = inputs.target_and_foil(name, asked)
except UserError as problem:
    inputs.refuse(problem)
across = st.columns([2, 2, 2])
stage = inputs.stage(name, where=across[0])
method = links.choose(
    "Method", METHODS, key="method", format=METHODS.__getitem__, help=tip("attribution"), where=across[1]
)
shown = links.number("Strongest edges", 4, 64, key="top", default=16, help=tip("edge"), where=across[2])
try:
    edges = analyses.long(
        "attribute_edges",
        name,
        title="Score all edges",
        key="edges",
        cost="seconds for the shipped models",
        prompt=asked.prompt,
        target=target,
        foil=foil,
        stage=stage,
        method=method,
    )
except UserError as problem:
    inputs.refuse(problem)
if edges is None:
    st.stop()

show_banners(edges)
st.subheader("The flow", anchor=False, help=tip("edge", "branches"))
view(
    edges,
    "flow",
    kind="flow",
    k=shown,
    banners=False,
    caption=("Blue and cyan edges are chosen by the query token, orange and yellow ones by the key token."),
)
st.subheader("The strongest", anchor=False, help=tip("edge"))
view(edges, "bars", k=shown, banners=False, table=False)

st.subheader("From head to head", anchor=False, help=tip("lending"))
across = st.columns([1, 3])
layer = inputs.layer(name, where=across[0])
branch = links.choose(
    "Branch", BRANCHES, key="branch", format=BRANCHES.__getitem__, help=tip("branches"), where=across[1]
)
across = st.columns(2)
lender = inputs.head(name, key="lender", label="From head", where=across[0])
head = inputs.head(name, label="To head", where=across[1])


def pick(row, column):
    st.session_state.lender, st.session_state.head = row, column


view(
    edges,
    "map",
    kind="map",
    layer=layer,
    branch=branch,
    selected=(lender, head),
    on_pick=pick,
    banners=False,
    table=False,
)
if branch in ("qp", "kp") or lender == head:
    line = f"edge {layer}.{stage}.{branch if branch != 'all' else 'added'}.{lender}>{head} zero"
else:
    line = f"edge {layer}.{stage}.added.{lender}>{head} zero"
st.page_link(
    "app_pages/interventions.py",
    label=f"Take this edge out ({line})",
    icon=":material/content_cut:",
    query_params=inputs.carried({"what": line}),
)
st.subheader("Which tokens it was lent for", anchor=False, help=tip("key"))
view(edges, "sources", kind="sources", banners=False, table=False)
if len(edges.checked):
    st.subheader("Attribution against ablation", anchor=False, help=tip("ablation"))
    view(edges, "check", kind="check", banners=False, table=False)
