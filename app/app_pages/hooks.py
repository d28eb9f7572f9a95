"""Every hook of the model with its shape, searchable."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import inputs, links, models
from workbench.glossary import tip
from workbench.hook_search import code_for_hook, find_hooks

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
    help="Finds hooks that have all these words in their name, an alias or their meaning. With * or ? the text is a "
    "pattern for the whole name.",
)
layer = links.choose(
    "Layer", ["all", *range(bridge.cfg.n_layers)], key="in", default="all", help=tip("layer"), where=across[1]
)
try:
    found = find_hooks(name, words, None if layer == "all" else int(layer))
except UserError as problem:
    inputs.refuse(problem)
st.caption(f"{len(found)} hooks", help=tip("hook"))
names = [hook.name for hook in found]
# The chosen hook is part of the link; the table only shows and sets it.
chosen = links.choose("Hook", names, key="hook", help="Or click the box at the left of its row in the table.")


def pick():
    if rows := st.session_state["hook-table"]["selection"]["rows"]:
        st.session_state.hook = names[rows[0]]


st.dataframe(
    [
        {"hook": h.name, "meaning": h.meaning, "shape": h.shape, "aliases": ", ".join(h.aliases), "needs": h.switch}
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
        "aliases": st.column_config.Column(help="Other names that TransformerLens knows the hook by."),
        "needs": st.column_config.Column(
            help="The bridge's switch that turns the hook on; without it, it never fires."
        ),
    },
)
st.markdown("**Read the value, or replace it with zero**")
st.code(code_for_hook(name, found[names.index(chosen)]), language="python", wrap_lines=True)
