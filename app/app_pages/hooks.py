"""Every hook of the model with its shape, searchable."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import inputs, links, models
from workbench.glossary import tip
from workbench.hook_tools import code_for, hooks

st.title("Hooks", anchor=False)
st.markdown(
    "Every place in the forward pass where a value can be read or replaced. The names are those of TransformerLens; a "
    "DCFormer adds those of its composition."
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
names = [hook.name for hook in found]
# The chosen hook is part of the link; the table only shows and sets it.
chosen = links.choose("Hook", names, key="hook", help="Or click the box at the left of its row.")


def pick():
    if rows := st.session_state["hook-table"]["selection"]["rows"]:
        st.session_state.hook = names[rows[0]]


st.dataframe(
    [
        {"hook": h.name, "meaning": h.meaning, "shape": h.shape, "also": ", ".join(h.aliases), "needs": h.switch}
        for h in found
    ],
    hide_index=True,
    width="stretch",
    height=min(560, 38 + 35 * len(names)),
    on_select=pick,
    selection_mode="single-row",
    selection_default={"selection": {"rows": [names.index(chosen)]}},
    key="hook-table",
    column_config={
        "also": st.column_config.Column(help="Other names that TransformerLens knows it by."),
        "needs": st.column_config.Column(help="The switch of the bridge that turns it on; off, the hook never fires."),
    },
)
st.markdown("**Read it, and put zero in its place**")
st.code(code_for(name, found[names.index(chosen)]), language="python", wrap_lines=True)
