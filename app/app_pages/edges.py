"""Whose attention was lent to whose values, through which branch, and what it did for the answer."""

import streamlit as st

from dcinterp.mechanism.branches import ADDED, BRANCHES
from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, stories
from workbench.glossary import tip
from workbench.view import show_warnings, view

WAYS = {
    "added": "all that composition adds",
    **{name: BRANCHES[name].label for name in (*ADDED, "skip")},
    "all": "everything",
}
ENDS = {
    "pre": "Left: the head whose scores are lent; middle: the head whose softmax takes them",
    "post": "Left: the head that computed the attention; middle: the head that reads with it",
}
CELLS = {
    "pre": "Rows lend their scores, columns put them through their softmax",
    "post": "Rows attend, columns use it with their values",
}
METHODS = {"ig": "integrated gradients", "gradient": "gradient x edge"}

st.title("Edges", anchor=False)
st.markdown(
    "Which head lends its attention to the head that writes the answer? An edge is one head's attention used with "
    "another head's values; its score is what that did for the answer."
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
        at_once=True,
        prompt=asked.prompt,
        target=target,
        foil=foil,
        stage=stage,
        method=method,
    )
except UserError as problem:
    inputs.refuse(problem)
if edges is None:
    links.end_page()

show_warnings(edges)
strongest = edges.top(1)
if strongest:
    wrote = stories.writer(name, asked, edges)
    into = stories.writer_sentence(edges, wrote) if wrote else ""
    st.markdown(f"{stories.edge_sentence(edges, strongest[0])} {into}")
st.subheader("From the head that attends to the answer", anchor=False, help=tip("edge", "branches"))
view(
    edges,
    "flow",
    kind="flow",
    k=shown,
    banners=False,
    caption=f"The {shown} strongest edges. {ENDS[stage]}; right: whether that spoke for the answer. Blue (projection) "
    "and cyan (gate) edges are chosen by the query token, orange and yellow ones by the key token.",
)
st.subheader("The strongest edges", anchor=False, help=tip("edge", "ablation"))
view(
    edges,
    "bars",
    k=shown,
    banners=False,
    table=False,
    caption="Each line names layer, branch, the head that lends and the head that uses it. Bars: the score; diamonds, "
    "where it was measured: what taking the edge out costs.",
)

st.subheader("From head to head", anchor=False, help=tip("lending"))
across = st.columns([1, 2, 1, 1])
first = strongest[0] if strongest else None
layer = inputs.layer(name, default=first.layer if first else -1, where=across[0])
branch = links.choose("Branch", WAYS, key="branch", format=WAYS.__getitem__, help=tip("branches"), where=across[1])
head_from = inputs.head(name, key="lender", default=first.head_from if first else 0, label="From head", where=across[2])
head = inputs.head(name, default=first.head_to if first else 0, label="To head", where=across[3])


def pick(row, column):
    st.session_state.head_from, st.session_state.head = row, column


view(
    edges,
    "map",
    kind="map",
    layer=layer,
    branch=branch,
    selected=(head_from, head),
    on_pick=pick,
    banners=False,
    table=False,
    caption=f"{CELLS[stage]}; the diagonal stays within a head. Click a cell to choose its edge.",
)
if branch in ("qp", "kp") or head_from == head:
    line = f"edge {layer}.{stage}.{branch if branch != 'all' else 'added'}.{head_from}>{head} zero"
else:
    line = f"edge {layer}.{stage}.added.{head_from}>{head} zero"
st.page_link(
    "app_pages/interventions.py",
    label=f"Take the edge from head {head_from} to head {head} out, and see what changes",
    help=f"Opens the page Interventions with: {line}",
    icon=":material/content_cut:",
    query_params=inputs.carried({"what": line}),
)
st.subheader("Which tokens the attention was lent for", anchor=False, help=tip("key"))
view(
    edges,
    "sources",
    kind="sources",
    banners=False,
    table=False,
    caption="The strongest edges, each split by the token that is looked at.",
)
if len(edges.checked):
    st.subheader("Attribution against ablation", anchor=False, help=tip("ablation"))
    view(
        edges,
        "check",
        kind="check",
        banners=False,
        table=False,
        caption="On the dashed line a score is what taking that edge out costs. In the upper left or the lower right "
        "quarter the two differ in sign: a score to distrust.",
    )
