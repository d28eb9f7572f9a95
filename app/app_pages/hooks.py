"""Every hook of the model with its shape, searchable."""

import streamlit as st

from dcinterp.errors import UserError
from workbench import inputs, links, models
from workbench.glossary import tip
from workbench.hook_tools import code_for, hooks

st.title("Hooks", anchor=False)
st.markdown(
    "Every place in the forward pass where a value can be read or replaced. The names are TransformerLens's, and more."
)
name = st.session_state.model
bridge = models.require(name)
across = st.columns([3, 1])
words = links.text(
    "Search",
    key="search",
    where=across[0],
    placeholder="post.hook_o, pattern, resid ...",
    help="All words must be in the name, an alias or the meaning; * and ? make a pattern for a whole name.",
)
layer = links.choose(
    "Layer", ["all", *range(bridge.cfg.n_layers)], key="in", default="all", help=tip("layer"), where=across[1]
)
try:
    found = hooks(name, words, None if layer == "all" else int(layer))
except UserError as problem:
    inputs.refuse(problem)
st.caption(f"{len(found)} hooks", help=tip("hook"))
picked = st.dataframe(
    [
        {"hook": h.name, "shape": h.shape, "meaning": h.meaning, "also": ", ".join(h.aliases), "needs": h.switch}
        for h in found
    ],
    hide_index=True,
    width="stretch",
    height=560,
    on_select="rerun",
    selection_mode="single-row",
    key="hook-table",
)
rows = picked["selection"]["rows"]
st.markdown("**Use it**")
st.code(code_for(name, found[rows[0] if rows and rows[0] < len(found) else 0]), language="python")
