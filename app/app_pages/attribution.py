"""Which heads write the answer: integrated gradients of one example, with what they leave out."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, stories
from workbench.glossary import tip
from workbench.view import view

METHODS = {"ig": "integrated gradients", "gradient": "gradient x activation"}
ADDS = {
    "ig": "Scores of one layer add up to what its heads do together; those of different layers overlap.",
    "gradient": "A gradient says what a small change would do; the scores of a layer need not add up to anything.",
}

st.title("Attribution", anchor=False)
st.markdown(
    "Which heads write the answer? A head's score is how much of the answer's logit, against that of a wrong token, "
    "comes from its output."
)
name = st.session_state.model
asked = inputs.question(name)
try:
    prediction = analyses.run("predict", name, prompt=asked.prompt, answer=inputs.first_word(name, asked.answer))
except UserError as problem:
    inputs.refuse(problem)
target = prediction.answer_id if asked.answer else int(prediction.top_ids[0])
foils = [int(token) for token in prediction.top_ids if int(token) != target]
names = dict(zip(prediction.top_ids.tolist(), prediction.top_tokens, strict=True))

across = st.columns([2, 2, 1])
method = links.choose(
    "Method", METHODS, key="method", format=METHODS.__getitem__, help=tip("attribution"), where=across[0]
)
foil = links.choose(
    "Against",
    [*foils, -1],
    key="foil",
    default=foils[0],
    help=tip("foil"),
    where=across[1],
    format=lambda token: "nothing: the logit alone" if token < 0 else inputs.shown(names[token]),
)
points = {}
if method == "ig":
    steps = links.choose("Steps", [8, 16, 32, 64], key="steps", default=32, help=tip("completeness"), where=across[2])
    points = {"steps": steps}
try:
    with st.spinner("Integrating ..."):
        scores = analyses.run(
            "attribute_heads",
            name,
            prompt=asked.prompt,
            target=inputs.word(name, target),
            foil=None if foil < 0 else inputs.word(name, foil),
            method=method,
            **points,
        )
except UserError as problem:
    inputs.refuse(problem)

layers, heads = scores.scores.shape
cells = [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]
best = "L{}H{}".format(*scores.best)


def follow(layer, head):
    st.session_state.cell = f"L{layer}H{head}"


top_layer, top_head = scores.best
st.markdown(
    f"Head {top_head} of layer {top_layer} contributes most: **{float(scores.scores[scores.best]):+.2f}** logits of "
    f"{stories.answer_words(scores)}. Switched off alone, it costs {float(scores.ablation[scores.best]):+.2f}."
)
wrote = stories.writer(name, asked, scores)
if wrote and wrote[:2] != scores.best:
    st.markdown(
        f"Most directly, all other heads held still, head {wrote[1]} of layer {wrote[0]} writes the answer "
        f"({wrote[2]:+.2f}): that is the head which the case study follows."
    )
slot = st.container()
cell = links.choose("Head to follow", cells, key="cell", default=best, help=tip("head"))
layer, head = map(int, cell[1:].split("H"))
with slot:
    view(
        scores,
        "heads",
        selected=(layer, head),
        on_pick=follow,
        caption=f"Click a cell, or walk with the arrow keys, to follow that head. {ADDS[method]}",
    )
st.subheader(f"Where in the prompt layer {layer}, head {head} contributes", anchor=False, help=tip("attribution"))
view(
    scores,
    "positions",
    kind="positions",
    layer=layer,
    selected=head,
    banners=False,
    table=False,
    caption="Every head of this layer by the position that it writes to; framed: where the chosen head counts most.",
)

st.subheader("Over a set of examples", anchor=False, help=tip("clustered interval", "ablation"))
texts = links.text(
    "Examples",
    key="set",
    default=f"{asked.task or 'all'} n=10",
    help="A pattern, a transformation or task numbers, then n=, seed=, shots=, split=.",
)
try:
    many = analyses.long(
        "attribute_heads_over",
        name,
        title="Attribute all of them",
        key="many",
        cost="about a second each",
        examples=texts,
        method=method,
    )
    if many is not None:
        view(
            many,
            "mean",
            selected=(layer, head),
            on_pick=follow,
            caption=f"Each head's mean score over the {many.n} examples, by {METHODS[method]}. Click a cell to follow "
            "that head above.",
        )
        view(
            many,
            "intervals",
            kind="intervals",
            banners=False,
            table=False,
            caption="The heads with the largest means. A head stands out where its whole interval lies outside the "
            "grey span, which holds the largest mean of its layer when heads change places at random. The diamond is "
            "what switching the head off costs.",
        )
except UserError as problem:
    inputs.refuse(problem)
