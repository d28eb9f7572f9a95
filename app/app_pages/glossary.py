"""Every term of the field that the pages use, in one sentence each."""

import streamlit as st

from workbench import links
from workbench.glossary import TERMS

st.title("Glossary", anchor=False)
st.markdown("Every term that the pages use, in a sentence; the same words stand behind the question marks.")
wanted = links.text("Search", key="search", placeholder="lending, foil, shots ...").lower()
found = {term: TERMS[term] for term in sorted(TERMS, key=str.lower) if wanted in f"{term} {TERMS[term]}".lower()}
if not found:
    st.info(f"No term has {wanted!r} in it.")
for term, words in found.items():
    st.markdown(f"**{term}**  \n{words}")
