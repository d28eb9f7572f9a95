"""The workbench: theme, sidebar and navigation. Pages are files in app_pages/."""

import streamlit as st

import preload
import state

# No icons for the page: Streamlit would fetch the picture for the browser tab from the network.
st.set_page_config(page_title="dcinterp", layout="wide")
st.html("<style>h3 {padding-top: 1.2rem} [data-testid=stMainBlockContainer] {padding-top: 3.2rem}</style>")

with st.spinner("Loading PyTorch ..."):
    preload.heavy_imports()

page = st.navigation(
    [
        st.Page(
            "app_pages/case_study.py",
            title="Case study",
            url_path="case-study",
            default=True,
        )
    ]
)

with st.sidebar:
    st.markdown("## dcinterp\nLook inside a transformer whose attention heads are composed on the fly.")
    state.choose_model()

page.run()
