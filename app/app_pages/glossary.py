"""Every term of the field that the pages use, in a sentence or two each."""

import streamlit as st

from workbench import links
from workbench.glossary import find_terms
from workbench.markdown import escape

st.title("Glossary", anchor=False)
st.markdown("The terms that the pages use. The same sentences appear behind the question marks.")
wanted = links.text("Search", key="term", placeholder="sharing, foil, shots ...")
found = find_terms(wanted)
if not found:
    st.info(escape(f"No term contains {wanted!r}."))
for term, sentence in found.items():
    st.markdown(f"**{term}**  \n{sentence}")
