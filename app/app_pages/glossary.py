"""Every term of the field that the pages use, in one sentence each."""

import streamlit as st

from workbench import links
from workbench.glossary import TERMS

st.title("Glossary", anchor=False)
wanted = links.text("Search", key="search", placeholder="lending, foil, shots ...").lower()
found = {term: words for term, words in sorted(TERMS.items()) if wanted in term.lower() or wanted in words.lower()}
if not found:
    st.info(f"No term has {wanted!r} in it.")
for term, words in found.items():
    st.markdown(f"**{term}**  \n{words}")
