"""A page begins at its top: Streamlit keeps the scroll position of the page before."""

from __future__ import annotations

import streamlit as st

# The name stands in the document: this element may be made anew with a page. The first page is left to its anchor.
_component = st.components.v2.component(
    "dcinterp_page_top",
    html="<div></div>",
    js="""
export default function ({ data }) {
  const seen = document.documentElement.dataset
  if (seen.page && seen.page !== data.page) document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0)
  seen.page = data.page
}
""",
)


def begin_at_top(page: str) -> None:
    """Scroll to the top where this page is another one than the browser showed before; a rerun stays where it is."""
    _component(key="page top", data={"page": page})
