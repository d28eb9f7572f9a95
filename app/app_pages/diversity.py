"""How many directions the heads of a layer span together: the shared directions of their QK and OV maps."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.view import view

st.title("Head diversity", anchor=False, help=tip("diversity"))
st.markdown(
    "Do the heads of a layer do different things? Take all their maps together, QK (what looks at what) and OV (what "
    "is written), and count how many directions they need. Read off the weights alone, with no prompt."
)
HOW = (
    "How much of the variance of all maps the first directions hold. A line that rises slowly belongs to heads that "
    "use many directions: diverse heads. The dashed or dotted line is what random weights of this shape give."
)
name = st.session_state.model
models.require(name)
others = [other for other in models.known() if other != name]
other = links.choose(
    "Beside",
    ["nothing", *others],
    key="beside",
    default=others[0] if others else "nothing",
    format=models.short,
    help="Another model, drawn in the same figure.",
)
centre = links.switch(
    "Take the mean away first",
    key="centre",
    default=True,
    help="As principal components do: what all maps have in common is then not counted.",
)
try:
    own = analyses.long(
        "head_diversity", name, title=f"Take {models.short(name)} apart", key="own", at_once=True, centre=centre
    )
    if own is not None:
        view(own, "own", caption=HOW)
    if other != "nothing":
        st.subheader(f"Beside {models.short(other)}", anchor=False)
        models.require(other)
        pair = analyses.long(
            "compare_head_diversity", name, title="Compare", key="pair", at_once=True, other=other, centre=centre
        )
        if pair is not None:
            view(pair, "pair", caption="The mean over layers of each model. " + HOW)
except UserError as problem:
    inputs.refuse(problem)
