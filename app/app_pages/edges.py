"""Edges: which head's attention another head uses, through which branch, and what that contributes to the answer."""

import streamlit as st

from dcinterp.figures.base.style import OF_ALL_TOKENS
from dcinterp.mechanism import edge_benchmark
from dcinterp.mechanism.branches import ADDED, BRANCHES
from dcinterp.mechanism.edge_scores import METHOD_LABELS
from dcinterp.support.errors import UserError
from workbench import analyses, case_studies, inputs, links, models, sentences
from workbench.glossary import tip
from workbench.intervention_form import has_added
from workbench.view import show_warnings, view

WAYS = {
    "added": "all that composition adds",
    **{name: BRANCHES[name].label for name in (*ADDED, "skip")},
    "all": "everything",
}
ENDS = {
    "pre": "Left: the head that shares its scores; middle: the head whose softmax uses them",
    "post": "Left: the head that computed the attention; middle: the head that uses it with its values",
}
CELLS = {
    "pre": "Rows share their scores, columns use them in their softmax",
    "post": "Rows share their attention, columns use it with their values",
}
METHODS = {name: METHOD_LABELS[name] for name in ("screened", "ablation", "recomputed", "gradient", "relp", "ig")}

st.title("Edges", anchor=False)
st.markdown(
    "Which heads share their attention with the heads that contribute to the answer? An edge is one head's attention "
    "used by a head with its values, through one branch; its score estimates what that contributes to the answer, and "
    "the strongest are measured. Before the softmax (stage *pre*) an edge carries scores in place of attention."
)
name = st.session_state.model
inputs.needs_composition(name)
question = inputs.question(name)
try:
    target, foil = inputs.target_and_foil(name, question)
except UserError as problem:
    inputs.refuse(problem)
across = st.columns([2, 2, 2])
stage = inputs.stage(name, where=across[0])
method = links.choose(
    "Method", METHODS, key="edge_rule", format=METHODS.__getitem__, help=tip("edge score"), where=across[1]
)
shown = links.number("Strongest edges", 4, 64, key="top", default=16, help=tip("edge"), where=across[2])
try:
    edges = analyses.long(
        "attribute_edges",
        name,
        title="Score all edges",
        key="edges",
        at_once=inputs.is_quick(name, question),
        prompt=question.prompt,
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
if known := edge_benchmark.describe(method, stage):
    st.caption(known)
strongest = edges.top(1)
if strongest:
    direct = case_studies.most_direct_head(name, question, edges)
    into = sentences.describe_strongest_edge_into(edges, direct.layer, direct.head) if direct else ""
    mean = sentences.with_its_mean(name, question, strongest[0].intervention.unit, edges)
    st.markdown(f"{sentences.describe_strongest_edge(edges, strongest[0], mean)} {into}")
st.subheader("From attention to the answer", anchor=False, help=tip("edge", "branches"))
view(
    edges,
    "flow",
    kind="flow",
    k=shown,
    warnings=False,
    caption=f"The {shown} strongest edges. {ENDS[stage]}; right: whether that is for or against the answer. "
    "Green edges depend on the query token, purple ones on the key token; projections are dark, gates light.",
)
st.subheader("The strongest edges", anchor=False, help=tip("edge", "ablation"))
view(
    edges,
    "bars",
    k=shown,
    warnings=False,
    caption="Each line names an edge: its branch, the head that shares and the head that uses its attention. Bars are "
    "scores; diamonds are what setting the edge to zero was measured to do.",
)

st.subheader("From head to head", anchor=False, help=tip("sharing"))
across = st.columns([1, 2, 1, 1])
first = strongest[0] if strongest else None
links.unit("layer", "branch", "lender", "head")
layer = inputs.layer(name, default=first.layer if first else -1, where=across[0])
added = has_added(models.model(name), layer, stage)
ways = WAYS if added else {"skip": OF_ALL_TOKENS, "all": WAYS["all"]}
branch = links.choose("Branch", ways, key="branch", format=ways.__getitem__, help=tip("branches"), where=across[1])
# The address calls it as version 0.1 did.
head_from = inputs.head(name, key="lender", default=first.head_from if first else 0, label="From head", where=across[2])
head = inputs.head(name, default=first.head_to if first else 0, label="To head", where=across[3])


def pick(row, column):
    st.session_state.lender, st.session_state.head = row, column


view(
    edges,
    "map",
    kind="map",
    layer=layer,
    branch=branch,
    selected=(head_from, head),
    on_pick=pick,
    warnings=False,
    caption=f"{CELLS[stage]}; the diagonal is a head with itself. Click a cell to choose its edge.",
)
if not added:
    line = f"edge {layer}.{stage}.skip.{head_from}>{head} zero"
elif branch in ("qp", "kp") or head_from == head:
    line = f"edge {layer}.{stage}.{branch if branch != 'all' else 'added'}.{head_from}>{head} zero"
else:
    line = f"edge {layer}.{stage}.added.{head_from}>{head} zero"
st.page_link(
    "app_pages/interventions.py",
    label=f"Remove the edge L{layer}H{head_from} → L{layer}H{head}, and see what changes",
    help=f"Opens the page Interventions with the line: {line}",
    icon=":material/content_cut:",
    query_params=inputs.link_choices({"what": line}),
)
st.subheader("By the token that is attended to", anchor=False, help=tip("key"))
view(
    edges,
    "sources",
    kind="sources",
    warnings=False,
    caption="The strongest edges, each split by the token that is attended to.",
)
if len(edges.checked):
    st.subheader("Attribution against ablation", anchor=False, help=tip("ablation"))
    view(
        edges,
        "check",
        kind="check",
        warnings=False,
        caption="On the dashed line a score equals the measured effect of setting that edge to zero. In the upper left "
        "and lower right quarters the two differ in sign: do not rely on those scores. Names for which there is no "
        "room are in the table, and shown when a mark is pointed at.",
    )
