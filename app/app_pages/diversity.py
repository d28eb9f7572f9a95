"""How many directions the heads of a layer span together: the shared directions of their QK and OV maps."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.view import view

st.title("Head diversity", anchor=False, help=tip("diversity"))
st.markdown("Read off the weights alone, with no prompt: how much of all heads' maps the first directions explain.")
name = st.session_state.model
models.require(name)
centre = links.switch("Take the mean away first", key="centre", default=True, help="As principal components do.")
others = [other for other in models.known() if other != name]
other = links.choose(
    "Beside",
    ["nothing", *others],
    key="beside",
    default=others[0] if others else "nothing",
    format=models.short,
    help="Another model, drawn in the same figure.",
)
try:
    own = analyses.long("head_diversity", name, title=f"Take {models.short(name)} apart", key="own", centre=centre)
    if own is not None:
        view(own, "own")
    if other != "nothing":
        st.subheader(f"Beside {models.short(other)}", anchor=False)
        models.require(other)
        pair = analyses.long("compare_head_diversity", name, title="Compare", key="pair", other=other, centre=centre)
        if pair is not None:
            view(pair, "pair")
except UserError as problem:
    inputs.refuse(problem)
