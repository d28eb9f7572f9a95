"""The workbench: theme, sidebar and navigation. Pages are files in app_pages/."""

import streamlit as st

import state

st.set_page_config(page_title="dcinterp", page_icon=":material/hub:", layout="wide")
st.html("<style>h3 {padding-top: 1.2rem} [data-testid=stMainBlockContainer] {padding-top: 3.2rem}</style>")

page = st.navigation(
    [
        st.Page(
            "app_pages/case_study.py",
            title="Case study",
            icon=":material/auto_stories:",
            url_path="case-study",
            default=True,
        )
    ]
)

with st.sidebar:
    st.markdown("## dcinterp\nLook inside a transformer whose attention heads are composed on the fly.")
    state.choose_model()

page.run()
