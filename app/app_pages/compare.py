"""Two models on one prompt, side by side: their answers, their attention, their head scores."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models, sentences
from workbench.glossary import tip
from workbench.markdown import escape, sentence
from workbench.view import view

WHICH = {"weights": "weights before", "composed": "weights after", "scores": "scores before"}

EXPLAINED = {"same": "the same two words in both", "own": "each model's own answer and foil"}

st.title("Compare models", anchor=False)
st.markdown(
    "One prompt, two models. Of a shipped pair, both were trained on the same documents in the same order, one run "
    "each. They differ in composing the heads, and with it in parameters and compute; one pair of runs does not tell "
    "these, or chance, apart.",
    help=tip("baseline model"),
)
name = st.session_state.model
others = [other for other in models.known() if other != name]
if not others:
    st.info("Open another model on the page Models first.", icon=":material/info:")
    links.end_page()
other = links.choose("The other model", others, key="other", default=models.partner(name), format=models.short)
question = inputs.question(name)
inputs.write_out(question)
models.require(other)
both = (name, other)
layers = min(models.model(each).cfg.n_layers for each in both)
heads = min(models.model(each).cfg.n_heads for each in both)


def side_by_side(draw):
    places = st.grid(2, min_column_width=420)
    for number, each in enumerate(both):
        with places.container():
            st.markdown(f"**{escape(models.short(each))}**")
            try:
                draw(each, number)
            except UserError as problem:
                st.error(sentence(problem), icon=":material/error:")


def draw_prediction(each, number):
    first = inputs.first_word(each, question)
    prediction = analyses.run("predict", each, prompt=question.prompt, answer=first)
    if question.answer is not None:
        token = escape(inputs.shown(prediction.answer))
        said = "The expected" if inputs.is_whole(first, question) else f'The first token "{token}" of'
        st.caption(
            f'{said} "{escape(str(question.answer))}": rank {prediction.rank}, probability '
            f"{prediction.answer_probability:.1%}."
        )
    view(prediction, f"answer-{number}")


def draw_pattern(each, number):
    whole = analyses.run("attention_patterns", each, prompt=question.prompt, layer=layer)
    shown, words = which, "Each model has its own colour scale."
    if which == "composed" and not whole.stages:
        shown, words = "weights", "The heads of this model are not composed: these are the weights after the softmax."
    view(whole, f"pattern-{number}", head=head, which=shown, caption=words)


def two_words(each):
    """The target and the foil of the first model, for the other one too: else the maps would answer two questions."""
    if each == name or explained == "own":
        return inputs.target_and_foil(each, question)
    try:
        return [inputs.same_word(each, word) for word in inputs.target_and_foil(name, question)]
    except UserError:  # it does not know them
        return inputs.target_and_foil(each, question)


def draw_scores(each, number):
    target, foil = two_words(each)
    scores = analyses.long(
        "attribute_heads",
        each,
        title=f"Attribute {models.short(each)}",
        key=f"attribute-{number}",
        at_once=inputs.is_quick(each, question),
        prompt=question.prompt,
        target=target,
        foil=foil,
        steps=16,
    )
    if scores is not None:
        about = f"What each head contributes to {sentences.explained(scores)}."
        view(scores, f"heads-{number}", selected=(layer, head), on_pick=pick, caption=about)


def pick(row, column):
    if row < layers and column < heads:
        st.session_state.layer, st.session_state.head = row, column


st.subheader("What they answer", anchor=False, help=tip("logit"))
side_by_side(draw_prediction)
st.subheader("What a head attends to", anchor=False, help=tip("attention", "composition"))
across = st.columns([1, 1, 3])
own = {"means": lambda _: name}
layer = links.choose("Layer", range(layers), key="layer", default=layers - 1, help=tip("layer"), where=across[0], **own)
head = links.choose("Head", range(heads), key="head", default=0, help=tip("head"), where=across[1], **own)
which = links.choose(
    "Show",
    WHICH,
    key="which",
    default="composed",
    format=WHICH.__getitem__,
    style="segmented_control",
    where=across[2],
    help="Before or after composition. Where heads are not composed, both are the same.\n\n" + tip("scores", "weights"),
)
st.caption("Heads of different models do not correspond to each other, even where they have the same number.")
side_by_side(draw_pattern)
st.subheader("Which heads contribute to the answer", anchor=False, help=tip("attribution"))
explained = links.choose(
    "What is explained",
    EXPLAINED,
    key="two_words",
    default="own" if links.older("two_words") else "same",
    format=EXPLAINED.__getitem__,
    style="segmented_control",
    help=tip("foil", "logit difference"),
)
st.caption("Click a head to see its attention above.")
side_by_side(draw_scores)
