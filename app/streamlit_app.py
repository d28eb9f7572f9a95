"""The workbench: theme, sidebar and navigation. A page is one file in app_pages/ and one line here."""

import streamlit as st

import preload

PAGES = {
    "Inspect": {
        "case_study": "Case study",
        "attention": "Attention patterns",
        "composition": "Composition",
        "attribution": "Attribution",
        "edges": "Edges",
        "logits": "Logits by part",
        "ov_circuits": "OV circuits",
        "diversity": "Head diversity",
    },
    "Test": {
        "interventions": "Interventions",
        "patching": "Patching",
        "circuit": "Circuit",
        "compare": "Compare models",
        "planted": "Planted circuits",
    },
    "Data and training": {
        "tasks": "Tasks",
        "training": "Training",
        "experiments": "Experiments",
    },
    "Reference": {
        "models": "Models",
        "hooks": "Hooks",
        "glossary": "Glossary",
    },
}

# No icons for the page: Streamlit would fetch the picture for the browser tab from the network.
st.set_page_config(page_title="dcinterp", layout="wide")
st.html(
    "<style>h3 {padding-top: 1.2rem} [data-testid=stMainBlockContainer] {padding-top: 3.2rem}"
    # Captions explain figures: Streamlit's own grey is too faint to read.
    " [data-testid=stCaptionContainer] {opacity: 0.8}"
    # A table of text that is wider than its column scrolls by itself, so that none of it is cut off.
    " [data-testid=stMarkdownContainer] table {display: block; width: fit-content; max-width: 100%; overflow-x: auto}"
    # On a laptop's screen the model and running work should be visible under the list of pages without scrolling.
    " [data-testid=stSidebarHeader] {height: 2.75rem; margin-bottom: 0} [data-testid=stSidebarNavLink] {margin: 0}"
    " [data-testid=stSidebarNavSeparator] {padding-top: 0.5rem}"
    " [data-testid=stSidebarUserContent] {padding-top: 0; padding-bottom: 2rem}"
    # Beside the sidebar a narrow window has no room for wide margins.
    " @media (max-width: 1100px) {[data-testid=stMainBlockContainer] {padding-left: 2rem; padding-right: 2rem}}</style>"
)

with st.spinner("Loading PyTorch ..."):
    preload.heavy_imports()

from workbench import jobs, links, models, training  # noqa: E402
from workbench.glossary import tip  # noqa: E402
from workbench.page_top import begin_at_top  # noqa: E402
from workbench.theme import follow_theme  # noqa: E402
from workbench.view import whole_page  # noqa: E402

page = st.navigation(
    {
        section: [
            st.Page(
                f"app_pages/{name}.py",
                title=title,
                url_path=name.replace("_", "-"),
                default=name == "case_study",
            )
            for name, title in pages.items()
        ]
        for section, pages in PAGES.items()
    },
    expanded=True,
)
# The tab, the history and what is spoken at a change of page name the page.
st.set_page_config(page_title=f"{page.title} · dcinterp")
links.begin(page.title)

with st.sidebar:
    with st.container(gap=None):  # they have no height and should take no space
        follow_theme()
        begin_at_top(page.title)
        jobs.visit()
    models.choose_model()
    running = jobs.place()
    training_runs = st.container()
    with st.popover("Share this view", icon=":material/link:", width="stretch"):
        st.caption(tip("share link"))
        links.share_here()
    exported = st.container()
notices = st.container()

complete = True
try:
    page.run()
except links.PageEnd:
    pass
except BaseException:
    # The script was interrupted, by a click say: its inputs are not all known.
    complete = False
    raise
finally:
    if complete:
        links.end()
        with notices:
            links.notices()
        with exported:
            opened = st.popover(
                "Save this page", icon=":material/download:", width="stretch", on_change="rerun", key="save-page"
            )
            if opened.open:
                with opened:
                    whole_page()
        with running.container():
            jobs.sidebar()
        if page.title != "Training":
            with training_runs:
                training.sidebar()
