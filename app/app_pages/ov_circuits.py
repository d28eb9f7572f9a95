"""OV circuits: what every head writes when it attends to a word, whatever made it attend there."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, examples, inputs, links, models
from workbench.glossary import tip
from workbench.markdown import sentence
from workbench.view import view

st.title("OV circuits", anchor=False)
st.markdown(
    "What does a head write when it attends to a word? Its value and output weights together map the word to the "
    "tokens that it promotes, whatever made the head attend there."
)
READINGS = (
    "The paper counts the first MLP as part of the embedding of a word. In a run the heads of layer 0 stand before "
    "that MLP. The paper can be read either way, so layer 0 is shown in both; later layers read words through the MLP."
)


def in_app(problem):
    """What is wrong, with the control of this page where the library names its argument."""
    return str(problem).replace(
        "choose 'first' for multi_token", 'switch on "Represent longer words by their first token"'
    )


name = st.session_state.model
bridge = models.require(name)
across = st.columns([1, 1, 3, 1])
layer = inputs.layer(name, where=across[0])
head = inputs.head(name, where=across[1])
words = links.text(
    "Words attended to",
    key="words",
    default=inputs.known_words(name),
    where=across[2],
    help="Separated by commas. A model without a tokenizer takes token ids.",
)
k = links.number("Tokens", 1, 1000, key="k", default=10, help="How many promoted tokens are listed.", where=across[3])
listed = [word.strip() for word in words.split(",") if word.strip()]
several = {}
if inputs.splits_words(name):
    first = links.switch(
        "Represent longer words by their first token",
        key="first-token",
        help="This model's tokenizer takes many words apart. When this is off, such words are refused here, and left "
        "out below.",
    )
    several = {"multi_token": "first"} if first else {}
st.subheader(f"What layer {layer}, head {head} promotes", anchor=False, help=tip("OV circuit"))
try:
    given = listed if bridge.tokenizer is not None else inputs.read_ids(words)
    if layer == 0:
        st.markdown("**As in a run**: the heads of layer 0 read the embedding of a word alone.", help=READINGS)
    view(
        analyses.run("ov_top_tokens", name, layer=layer, head=head, words=given, k=k, **several),
        "tokens",
        shown=min(k, 12),
        caption="One row per word; from left to right, the tokens with the largest logits. A head that copies puts the "
        "word itself first; one that transforms puts its class, its country or its use first.",
    )
    if layer == 0:
        st.markdown("**Through the first MLP**: the word as the later layers read it.", help=READINGS)
        view(
            analyses.run("ov_top_tokens", name, layer=layer, head=head, words=given, k=k, mlp0="always", **several),
            "tokens-mlp0",
            shown=min(k, 12),
            caption="The same head and words in the other reading. Where the tables differ, say which one you quote.",
        )
except UserError as problem:
    st.error(sentence(in_app(problem)), icon=":material/error:")

inputs.require_tokenizer(name)
st.subheader("What every head does to words", anchor=False, help=tip("transformation", "OV circuit"))


def pick(row, column):
    heads = bridge.cfg.n_heads
    st.session_state.layer, st.session_state.head = divmod(column, heads)


through = links.switch("Layer 0 reads words through the first MLP", key="mlp0", default=False, help=READINGS)
try:
    table = analyses.long(
        "ov_transformations",
        name,
        **({"mlp0": "always"} if through else {}),
        title="Score all heads",
        key="transformations",
        at_once=True,
        cost="seconds for a small model",
        **several,
    )
except UserError as problem:
    if not examples.own(name) or examples.knows_tasks(bridge.tokenizer):
        inputs.refuse(UserError(in_app(problem)))
    st.info(
        f"Relations between words are those of the tasks, and this model {examples.made_from(name)}.",
        icon=":material/info:",
    )
    links.end_page()
if table is not None:
    view(
        table,
        "transformations",
        on_pick=pick,
        warnings=False,
        selected=layer * bridge.cfg.n_heads + head,
        caption="How often the right value of a relation (the class of a thing, the country of a city) is among the "
        "tokens that a head promotes most; the colour is this minus the same for random pairs of words, the number (in "
        "percent, where it is more than chance) the share itself. Click a column to see that head above.",
    )
    if left_out := table.warnings():
        with st.expander("Pairs of words that were left out"):
            st.markdown("\n".join(f"- {sentence}" for sentence in left_out))
