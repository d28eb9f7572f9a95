"""Light or dark, as the person chose it; figures follow when the choice changes."""

from __future__ import annotations

import streamlit as st

# The theme sets the page's colour as a CSS variable. A transition of that colour is how the browser tells of a change,
# whatever made it: the menu, or the operating system at dusk.
_component = st.components.v2.component(
    "dcinterp_theme",
    html='<div class="watched"></div>',
    css=".watched { height: 0; background: var(--st-background-color); transition: background-color 1ms; }",
    js="""
const seen = new WeakMap()

export default function ({ parentElement, setTriggerValue }) {
  const watched = parentElement.querySelector(".watched")
  const colour = () => getComputedStyle(watched).backgroundColor
  if (!seen.has(parentElement)) seen.set(parentElement, colour())
  watched.ontransitionend = () => {
    if (colour() === seen.get(parentElement)) return
    seen.set(parentElement, colour())
    setTriggerValue("changed", colour())
  }
}
""",
)


def theme() -> str:
    """ "light" or "dark", whichever the person looks at."""
    return "dark" if st.context.theme.type == "dark" else "light"


def follow_theme() -> None:
    """Run the page again when the theme changes: Streamlit itself recolours its own elements only."""
    if theme() == "dark":
        # On the light orange of the dark theme Streamlit's white letters cannot be read.
        st.html("<style>[data-testid^=stBaseButton-primary] {color: #1c1a17 !important}</style>")
    _component(key="theme", on_changed_change=lambda: None)
