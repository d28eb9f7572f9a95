"""Planted circuits: models whose circuit is known because it was built in, and what attribution finds of it."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, links, models, planted_models
from workbench.glossary import tip
from workbench.markdown import sentence
from workbench.view import show_warnings, view

ROLE = "How many heads play each role. With more than one, they can replace each other."
RANK = "The rank of the low-rank projections of the composition.\n\n" + tip("dynamic weights")

st.title("Planted circuits", anchor=False)
st.markdown(
    "The weights of these models were set by hand, so it is known which edges produce each answer, and what an "
    "attribution method finds can be compared with the truth. This page uses the planted model chosen here, not the "
    "model in the sidebar."
)
circuits = planted_models.circuits()
left, right = st.columns([3, 1])
across = st.columns(4)
circuit = links.choose(
    "Circuit",
    circuits,
    key="circuit",
    default="share-by-kp",
    where=left,
    help="What was planted; the sentence below describes it.",
)
noise = links.choose(
    "Noise",
    [0.0, 0.005, 0.01, 0.02, 0.05],
    key="noise",
    where=across[0],
    help="Added to every weight, as a fraction of the largest weight of its kind.",
)
redundancy = links.number("Heads per role", 1, 3, key="redundancy", default=1, where=across[1], help=ROLE)
rank = links.number("Rank", 1, 4, key="rank", default=1, where=across[2], help=RANK)
seed = links.number(
    "Seed", 0, 999, key="roles_seed", default=0, where=across[3], help="Decides which heads play which role."
)
number = links.number(
    "Example",
    0,
    99,
    key="planted_example",
    default=0,
    where=right,
    help="The number of a prompt that the circuit answers.",
)
st.caption(f"{circuits[circuit][0].upper()}{circuits[circuit][1:]}.")
name = planted_models.name_of(circuit, noise, redundancy, rank, seed)
try:
    example = planted_models.example(name, number)
    bridge = models.model(name)
    prediction = analyses.run("predict", name, prompt=example.prompt, answer=example.target)
    truth = planted_models.true_edges(name, example)
    st.markdown(
        f"The prompt is `{example.prompt}`. The circuit prefers **{example.target}** to **{example.foil}**.",
        help=tip("target", "foil"),
    )
    view(prediction, "answer")
    st.subheader("Planted edges and attributed edges", anchor=False, help=tip("edge", "attribution"))
    st.markdown("Planted for this prompt: " + "; ".join(planted_models.edge_label(each[:4]) for each in truth) + ".")
    edges = analyses.long(
        "attribute_edges",
        name,
        title="Score all edges",
        key="planted",
        at_once=True,
        prompt=example.prompt,
        target=example.target,
        foil=example.foil,
        method="ig",
    )
except UserError as problem:
    st.error(sentence(problem), icon=":material/error:")
    links.end_page()
if edges is not None:
    show_warnings(edges)
    rows = planted_models.compare_with_truth(truth, edges)
    hits = sum(row["planted"] == "yes" for row in rows)
    st.markdown(
        f"Of the **{len(truth)}** planted edges, **{hits}** are among the {len(truth)} with the highest scores."
    )
    st.dataframe(rows, hide_index=True)
    if lost := planted_models.missed_edges(truth, edges):
        st.caption(f"Missed: {', '.join(lost)}.")
    view(
        edges,
        "map",
        kind="map",
        layer=1,
        warnings=False,
        caption="Layer 1: what each head's attention (row), used with each head's values (column), contributes to the "
        "answer.",
    )
st.button("Open this model on the other pages", on_click=models.choose_now, args=(name,), icon=":material/search:")

st.subheader("All attribution methods compared with the truth", anchor=False, help=tip("attribution", "ablation"))
seeds = links.number(
    "Models",
    1,
    16,
    key="seeds",
    default=2,
    where=st.columns([1, 3])[0],
    help="How many models with the settings above, each with its own seed.",
)
try:
    scores = analyses.long(
        "method_benchmark",
        None,
        title="Score the methods",
        key="methods",
        cost="about ten seconds per model",
        settings=(planted_models.setting(name),),
        seeds=seeds,
        examples=2,
    )
except UserError as problem:
    st.error(sentence(problem), icon=":material/error:")
else:
    if scores is not None:
        view(
            scores,
            "methods",
            caption="AUROC: the chance that a planted edge scores above another one; 1 is perfect, 0.5 is chance. "
            "The Parquet file also has heads and branches.",
        )
