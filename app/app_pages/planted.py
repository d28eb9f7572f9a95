"""Models whose circuit is known, because it was put there: what attribution finds of it, and what it misses."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, links, models, planting
from workbench.glossary import tip
from workbench.view import show_warnings, view

ROLE = "How many heads share the work of each role; with more than one they stand in for each other."
RANK = "Of the low-rank projections of the composition. " + tip("dynamic weights")

st.title("Planted circuits", anchor=False)
st.markdown(
    "The weights of these models were set by hand, so that it is known which edges make each answer. What a method of "
    "attribution finds can be held against that truth. What is chosen here takes the place of the model in the "
    "sidebar, which has no effect on this page."
)
circuits = planting.circuits()
left, right = st.columns([3, 1])
across = st.columns(4)
circuit = links.choose(
    "Circuit", circuits, key="circuit", default="share-by-kp", where=left, help="What was planted; said below."
)
noise = links.choose(
    "Noise",
    [0.0, 0.005, 0.01, 0.02, 0.05],
    key="noise",
    where=across[0],
    help="On every weight, as a share of the largest of its kind.",
)
redundancy = links.number("Heads a role", 1, 3, key="redundancy", default=1, where=across[1], help=ROLE)
rank = links.number("Rank", 1, 4, key="rank", default=1, where=across[2], help=RANK)
seed = links.number("Seed", 0, 999, key="seed", default=0, where=across[3], help="Which heads play which role.")
number = links.number("Example", 0, 99, key="question", default=0, where=right, help="Of the prompts it answers.")
st.caption(f"{circuits[circuit][0].upper()}{circuits[circuit][1:]}.")
name = planting.name_of(circuit, noise, redundancy, rank, seed)
try:
    asked = planting.example(name, number)
    bridge = models.model(name)
    said = analyses.run("predict", name, prompt=asked.prompt, answer=asked.target)
    truth = planting.true_edges(name, asked)
    st.markdown(
        f"The prompt is `{asked.prompt}`. The circuit makes **{asked.target}** win over **{asked.foil}**.",
        help=tip("target", "foil"),
    )
    view(said, "answer")
    st.subheader("The planted edges, and those that attribution finds", anchor=False, help=tip("edge", "attribution"))
    st.markdown("Planted for this prompt: " + "; ".join(planting.words(each[:4]) for each in truth) + ".")
    edges = analyses.long(
        "attribute_edges",
        name,
        title="Score all edges",
        key="planted",
        prompt=asked.prompt,
        target=asked.target,
        foil=asked.foil,
    )
except UserError as problem:
    st.error(str(problem), icon=":material/error:")
    links.end_page()
if edges is not None:
    show_warnings(edges)
    rows = planting.against_truth(truth, edges)
    hits = sum(row["planted"] == "yes" for row in rows)
    st.markdown(f"Of the **{len(truth)}** planted edges **{hits}** are among the {len(truth)} that score highest.")
    st.dataframe(rows, hide_index=True)
    if lost := planting.missed(truth, edges):
        st.caption(f"Missed: {', '.join(lost)}.")
    view(
        edges,
        "map",
        kind="map",
        layer=1,
        banners=False,
        table=False,
        caption="Layer 1: what each head's attention (row) did for the answer by the values of each head (column).",
    )
st.button("Open this model for the other pages", on_click=models.choose_now, args=(name,), icon=":material/search:")

st.subheader("Every method, held to the truth", anchor=False, help=tip("attribution", "ablation"))
seeds = links.number(
    "Models",
    1,
    16,
    key="seeds",
    default=2,
    where=st.columns([1, 3])[0],
    help="As many models of the setting above, each with a seed of its own.",
)
try:
    scores = analyses.long(
        "method_benchmark",
        None,
        title="Score the methods",
        key="methods",
        cost="about ten seconds a model",
        settings=(planting.setting(name),),
        seeds=seeds,
        examples=2,
    )
except UserError as problem:
    st.error(str(problem), icon=":material/error:")
else:
    if scores is not None:
        view(
            scores,
            "methods",
            caption="How well the scores of each method tell the planted edges from all others: 1 is perfect, 0.5 is "
            "chance. The table has heads and branches too.",
        )
