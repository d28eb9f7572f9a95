"""What every head writes when it reads a word, whatever made it look there."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.view import view

st.title("OV circuits", anchor=False)
st.markdown("A head's values and output together are a map from the word it reads to the words it promotes.")
name = st.session_state.model
bridge = models.require(name)
inputs.require_tokenizer(name)
across = st.columns([1, 1, 3, 1])
layer = inputs.layer(name, where=across[0])
head = inputs.head(name, where=across[1])
words = links.text(
    "Words it reads",
    key="words",
    default="violin, lime, beetle, gun, jacket",
    where=across[2],
    help="With commas between them; each must be one token of this model.",
)
k = links.number("Tokens", 1, 1000, key="k", default=10, help="How many promoted tokens.", where=across[3])
listed = [word.strip() for word in words.split(",") if word.strip()]
st.subheader(f"What layer {layer}, head {head} promotes", anchor=False, help=tip("OV circuit"))
try:
    view(analyses.run("ov_top_tokens", name, layer=layer, head=head, words=listed, k=k), "tokens", shown=min(k, 12))
except UserError as problem:
    st.error(str(problem), icon=":material/error:")

st.subheader("Every head against every transformation", anchor=False, help=tip("transformation", "OV circuit"))
st.caption(
    "How often the right value of a relation (the class of a thing, the country of a city ...) is among the tokens "
    "that a head promotes most, less what random pairs of words give."
)


def pick(row, column):
    heads = bridge.cfg.n_heads
    st.session_state.layer, st.session_state.head = divmod(column, heads)


try:
    table = analyses.long(
        "ov_transformations",
        name,
        title="Score all heads",
        key="transformations",
        cost="seconds for a small model",
    )
except UserError as problem:
    inputs.refuse(problem)
if table is not None:
    view(table, "transformations", on_pick=pick, caption="Click a column to see that head above.")
