"""Head diversity: how many directions the QK and OV maps of a layer's heads span together."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.view import view

st.title("Head diversity", anchor=False, help=tip("diversity"))
st.markdown(
    "Do the heads of a layer do different things? Take all their maps together, QK (which token attends to which) and "
    "OV (what is written), and count how many directions they need. This uses the weights alone, without a prompt."
)
HOW = (
    "The share of the variance of all maps that the first directions explain. A line that rises slowly means that the "
    "heads use many directions and so are diverse. The dashed or dotted line is what random weights of this shape give."
)
AXES = (
    "The paper joins the maps of a layer without saying along which axis. Solid lines have them side by side: heads "
    "share the query side (QK) or the side they write (OV). Dash-dotted lines have them on top of each other: heads "
    "share the key side or the side they read. Quote a comparison of two models only where both agree, or say which."
)
st.markdown("**Two readings**: the maps side by side (solid) and on top of each other (dash-dotted).", help=AXES)
name = st.session_state.model
models.require(name)
others = [other for other in models.known() if other != name]
other = links.choose(
    "Compare with",
    ["nothing", *others],
    key="beside",
    default=others[0] if others else "nothing",
    format=models.short,
    help="Another model, drawn in a second figure together with this one.",
)
centre = links.switch(
    "Subtract the mean first",
    key="centre",
    default=True,
    help="As principal component analysis does: what all maps have in common is then not counted.",
)
try:
    own = analyses.long(
        "head_diversity",
        name,
        title=f"Measure the diversity of {models.short(name)}",
        key="own",
        at_once=True,
        centre=centre,
    )
    if own is not None:
        view(own, "own", caption=HOW)
    if other != "nothing":
        st.subheader(f"Compared with {models.short(other)}", anchor=False)
        models.require(other)
        pair = analyses.long(
            "compare_head_diversity",
            name,
            title="Compare",
            key="pair",
            at_once=True,
            other=models.parts(other)[0],
            stamp=models.stamp(other),
            centre=centre,
        )
        if pair is not None:
            view(pair, "pair", caption="The mean over layers of each model. " + HOW)
except UserError as problem:
    inputs.refuse(problem)
