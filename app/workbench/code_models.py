"""The shipped pair of models of source code, on the page Training: how they learnt, and how well they read files."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses
from workbench.glossary import FAVOURS_AFTER, SIZE_ALONE, tip
from workbench.markdown import sentence
from workbench.view import view

COMPOSED, BASELINE = "dcformer++-code", "transformer++-code"
SIDE_BY_SIDE = 420


def show() -> None:
    """Loss, branches, spectra and edges over training, and the loss on files that neither has read."""
    st.caption(
        f"`{COMPOSED}` and `{BASELINE}` read the same Python source in the same order; the second has no composition. "
        "One seed of each: what differs between them may differ as much between two seeds."
    )
    beside = st.grid(2, min_column_width=SIDE_BY_SIDE, gap="medium")
    curves = {name: analyses.fresh("loss_curves", run=name) for name in (COMPOSED, BASELINE)}
    values = [float(x) for one in curves.values() for of in (one.training_loss, one.validation_loss) for x in of]
    between = (0.95 * min(values), 1.03 * max(values))
    for name, one in curves.items():
        with beside.container():
            st.subheader(f"The loss of {name}", anchor=False, help=tip("loss", "held-out file"))
            view(one, f"loss-{name}", caption="Thick: on held-out files.", between=between)
    beside = st.grid(2, min_column_width=SIDE_BY_SIDE, gap="medium")
    with beside.container():
        st.subheader("Size of what each branch adds", anchor=False, help=tip("branches", "stage"))
        strengths = analyses.fresh("training_strengths", run=COMPOSED)
        caption = (
            "Mean size of what a branch adds to attention: solid before the softmax (pre), dashed after it (post). "
            f"{SIZE_ALONE}"
        )
        view(strengths, "code-strengths", caption=caption)
    with beside.container():
        st.subheader("How many directions the heads use", anchor=False, help=tip("diversity"))
        spectra = analyses.fresh("training_diversity", run=COMPOSED)
        caption = "Share of the variance of all heads' QK and OV products that the first principal components hold."
        view(spectra, "code-spectra", caption=caption)
    st.subheader("When edges started to matter", anchor=False, help=tip("edge", "checkpoint"))
    edges = _edges()
    caption = (
        "Thick: the loss on held-out files. The others: by how much it rises when an edge is replaced by its mean, of "
        f"{len(edges.edges)} that mattered most at the end on other rows; solid before the softmax, dashed after it. "
        f"{FAVOURS_AFTER}"
    )
    view(edges, "code-edges", caption=caption)
    st.subheader("The loss on files that neither has read", anchor=False, help=tip("held-out file"))
    try:
        losses = analyses.long(
            "text_loss",
            COMPOSED,
            text="python",
            other=BASELINE,
            files=20,
            tokens=1024,
            title="Read 20 held-out files of Python's library",
            key="code-loss",
        )
    except UserError as problem:
        st.info(sentence(problem), icon=":material/info:")
        return
    if losses is not None:
        st.markdown(losses.sentence())
        view(losses, "code-loss", caption="`repeated`: the token has followed the same token before in its row.")


@st.cache_resource(show_spinner=False)
def _edges() -> Any:
    """The measurement that ships with the model: it needs the checkpoints, which do not."""
    from dcinterp.checkpoints.names import SHIPPED
    from dcinterp.results.result import load_result

    return load_result(SHIPPED / COMPOSED / "training_edges")
