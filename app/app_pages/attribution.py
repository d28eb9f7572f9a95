"""How much every head contributes to the answer: attribution on one example or a set, and what it leaves out."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, case_studies, inputs, links, sentences
from workbench.glossary import tip
from workbench.view import view

METHODS = {"ig": "integrated gradients", "gradient": "gradient x activation"}
ADDS = {
    "ig": "The scores of one layer sum to what its heads do together; scores of different layers overlap.",
    "gradient": "A gradient predicts what a small change would do; the scores of a layer need not sum to anything.",
}

EACH = (
    "Of every example the answer is compared with one that another of its facts would give, whatever is chosen above; "
    "the heads start from zero."
)

st.title("Attribution", anchor=False)
st.markdown(
    "How much does each head contribute to the answer? A head's score estimates how much of the logit difference "
    "between the answer and a wrong token comes from the head's output; the effects of ablations, further down, are "
    "measured.",
    help=tip("logit difference"),
)
name = st.session_state.model
question = inputs.question(name)
try:
    prediction = analyses.run("predict", name, prompt=question.prompt, answer=inputs.first_word(name, question))
except UserError as problem:
    inputs.refuse(problem)
target = prediction.answer_id if question.answer is not None else int(prediction.top_ids[0])
right = {target, *inputs.also_right(name, question)}
foils = [int(token) for token in prediction.top_ids if int(token) not in right]
names = dict(zip(prediction.top_ids.tolist(), prediction.top_tokens, strict=True))

across = st.columns([2, 2, 1])
method = links.choose(
    "Method", METHODS, key="method", format=METHODS.__getitem__, help=tip("attribution"), where=across[0]
)
foil = links.choose(
    "Compared with",
    [*foils, -1],
    key="foil",
    default=foils[0],
    help=tip("foil", "logit difference"),
    where=across[1],
    format=lambda token: "nothing: the logit alone" if token < 0 else inputs.shown(names[token]),
    means=lambda token: "" if token < 0 else names[token],
)
points = {}
if method == "ig":
    steps = links.choose("Steps", [8, 16, 32, 64], key="steps", default=32, help=tip("completeness"), where=across[2])
    points = {"steps": steps}
try:
    scores = analyses.long(
        "attribute_heads",
        name,
        title="Attribute the answer to heads",
        key="one",
        at_once=inputs.is_quick(name, question),
        prompt=question.prompt,
        target=inputs.word(name, target),
        foil=None if foil < 0 else inputs.word(name, foil),
        method=method,
        **points,
    )
except UserError as problem:
    inputs.refuse(problem)
if scores is None:
    links.end_page()


def follow(layer, head):
    st.session_state.cell = f"L{layer}H{head}"


top_layer, top_head = scores.best
st.markdown(
    f"Head {top_head} of layer {top_layer} contributes most: **{float(scores.scores[scores.best]):+.2f}** to "
    f"{sentences.explained(scores)}. Setting the output of this head alone to zero "
    f"{sentences.change_by(float(scores.ablation[scores.best]), scores)}"
    f"{sentences.with_its_mean(name, question, f'head {top_layer}.{top_head}', scores)}.",
    help=tip("attribution", "ablation"),
)
direct = case_studies.most_direct_head(name, question, scores)
if direct and direct[:2] != scores.best:
    st.markdown(
        f"The largest direct effect on the answer, with all other heads unchanged, is that of head {direct.head} of "
        f"layer {direct.layer} ({direct.effect:+z.2f}, with its output {direct.replaced}). Against this foil, the case "
        "study follows that head.",
        help=tip("direct effect"),
    )
slot = st.container()
cell = inputs.cell(name, "Head to follow", default=scores.best, help=tip("head"))
layer, head = map(int, cell[1:].split("H"))
with slot:
    view(
        scores,
        "heads",
        selected=(layer, head),
        on_pick=follow,
        caption=f"Click a cell, or move with the arrow keys, to follow that head. {ADDS[method]}",
    )
st.subheader(f"Where in the prompt layer {layer}, head {head} contributes", anchor=False, help=tip("attribution"))
view(
    scores,
    "positions",
    kind="positions",
    layer=layer,
    selected=head,
    warnings=False,
    caption="The contribution of every head of this layer, by the position whose output it changes. The frame marks "
    "where the chosen head contributes most.",
)

st.subheader("Over a set of examples", anchor=False, help=tip("clustered interval", "ablation"))
texts = inputs.examples_set(
    "Examples",
    key="set",
    default=f"{question.task or 'all'} n=10",
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
            caption=f"Each head's mean score over the {many.n} examples, by {METHODS[method]}. {EACH} Click a cell to "
            "follow that head above.",
        )
        view(
            many,
            "intervals",
            kind="intervals",
            warnings=False,
            caption="The heads with the largest means. A head stands out if its whole interval lies outside the grey "
            "bar, the middle 95 % of the largest mean of its layer when heads change places at random. The diamond is "
            f"the effect of setting the head to zero. {EACH}",
        )
except UserError as problem:
    inputs.refuse(problem)
