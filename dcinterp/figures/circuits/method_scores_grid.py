"""How well attribution methods recover planted circuits, as a method x setting heatmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from dcinterp.figures.base.grid import grid
from dcinterp.mechanism.method_tally import FORMER_QUESTIONS

if TYPE_CHECKING:  # the planted models come with transformers and all: not for the help of other analyses
    from dcinterp.analysis.circuits.method_benchmark import MethodScores

RESULT = "MethodScores"
KIND = ""

PARTS = {
    "edges": "edges of",
    "attention": "heads whose attention is used in",
    "output": "heads with an effect on the answer in",
    "branches": "branches of",
}
"""What a method has to find, by question."""

QUANTITIES = {
    "auroc": ("AUROC", "1 is perfect, 0.5 is chance"),
    "precision": ("precision", "share of the circuit among as many of the highest scores"),
    "auroc_shuffled": ("AUROC", "labels shuffled: 0.5 is expected"),
    "sign_agreement": ("agreement", "share of the signs that agree with ablation"),
    "calibration_error": ("error", "of predicted effects: 0 is exact, 1 as good as predicting none"),
}
"""A word for the colours, and what its numbers mean."""


def plot(
    result: MethodScores,
    *,
    theme: str = "light",
    question: str = "edges",
    quantity: str = "auroc",
    numbers: bool = True,
) -> go.Figure:
    """Settings downwards, methods across.

    Args:
        result: the scores.
        theme: "light" or "dark".
        question: "edges", "attention", "output" or "branches".
        quantity: "auroc", "precision", "auroc_shuffled", "sign_agreement" or "calibration_error".
        numbers: whether to write the value into each cell.
    """
    methods, values = result.of(question, quantity)
    question = FORMER_QUESTIONS.get(question, question)
    word, meaning = QUANTITIES.get(quantity, (quantity, ""))
    return grid(
        values.numpy(),
        x=methods,
        y=list(result.settings),
        x_title="method",
        y_title="planted",
        quantity=f"{word} (beyond 1 the same colour)" if float(values.nan_to_num(0).max()) > 1 else word,
        theme=theme,
        signed=False,
        # A method that is off by ten times would make all others look perfect.
        limit=1.0 if quantity != "effects" else None,
        numbers=numbers,
        height=180 + 34 * len(result.settings),
        title=f"The {PARTS.get(question, question)} planted circuits: {word}{f' ({meaning})' if meaning else ''}",
    )
