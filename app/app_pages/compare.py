"""Two models on one prompt, side by side: what they say, where a head looks, which heads write the answer."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.view import view

WHICH = {"weights": "weights before", "composed": "weights after", "scores": "scores before"}

st.title("Compare", anchor=False)
st.markdown("One prompt, two models: a DCFormer and its plain twin by default, which saw the same documents.")
name = st.session_state.model
others = [other for other in models.known() if other != name]
if not others:
    st.info("Open another model on the page Models first.", icon=":material/info:")
    st.stop()
other = links.choose("The other model", others, key="other", format=models.short)
asked = inputs.question(name)
models.require(other)
both = (name, other)
layers = min(models.model(each).cfg.n_layers for each in both)
heads = min(models.model(each).cfg.n_heads for each in both)


def side_by_side(title, draw, *terms):
    st.subheader(title, anchor=False, help=tip(*terms))
    places = st.grid(2, min_column_width=420)
    for number, each in enumerate(both):
        with places.container():
            st.markdown(f"**{models.short(each)}**")
            try:
                draw(each, number)
            except UserError as problem:
                st.error(str(problem), icon=":material/error:")


def prediction(each, number):
    said = analyses.run("predict", each, prompt=asked.prompt, answer=inputs.first_word(each, asked.answer))
    if asked.answer:
        st.caption(f'"{asked.answer}" has rank {said.rank} ({said.answer_probability:.1%}).')
    view(said, f"answer-{number}")


def pattern(each, number):
    whole = analyses.run("attention_patterns", each, prompt=asked.prompt, layer=layer)
    view(whole, f"pattern-{number}", head=head, which=which, caption="Each on its own scale.")


def attribution(each, number):
    target, foil = inputs.target_and_foil(each, asked)
    with st.spinner("Integrating ..."):
        scores = analyses.run("attribute_heads", each, prompt=asked.prompt, target=target, foil=foil, steps=16)
    view(scores, f"heads-{number}", selected=(layer, head), on_pick=pick)


def pick(row, column):
    if row < layers and column < heads:
        st.session_state.layer, st.session_state.head = row, column


side_by_side("What they say", prediction, "logit")
across = st.columns([1, 1, 3])
layer = links.choose("Layer", range(layers), key="layer", default=layers - 1, help=tip("layer"), where=across[0])
head = links.choose("Head", range(heads), key="head", default=0, help=tip("head"), where=across[1])
which = links.choose(
    "Show",
    WHICH,
    key="which",
    default="composed",
    format=WHICH.__getitem__,
    style="segmented_control",
    where=across[2],
    help=tip("scores", "weights"),
)
side_by_side(f"Where head {head} of layer {layer} looks", pattern, "attention", "composition")
side_by_side("Which heads write the answer", attribution, "attribution")
