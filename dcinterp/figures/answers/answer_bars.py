"""The most likely next tokens as bars."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.figures.base.style import THEMES, axis, common_layout, visible_apart
from dcinterp.support.ranges import Count

RESULT = "Prediction"
KIND = ""


def plot(result: Prediction, *, theme: str = "light", shown: Count = 5) -> go.Figure:
    """The `shown` most likely tokens, the expected answer in the colour of the text.

    Args:
        result: the prediction.
        theme: "light" or "dark".
        shown: how many tokens.
    """
    # Rows are numbered, with the tokens as their names, so that tokens that look the same do not fall together.
    tokens = visible_apart(result.top_tokens[:shown])
    rows = [str(row) for row in range(len(tokens))]
    right = [int(i) == result.answer_id for i in result.top_ids[:shown]]
    bars = go.Bar(
        x=result.probability[:shown].tolist(),
        y=rows,
        orientation="h",
        marker={"color": [THEMES[theme].text if hit else THEMES[theme].muted for hit in right]},
        text=[f"{p:.1%}" for p in result.probability[:shown].tolist()],
        textposition="outside",
        cliponaxis=False,
        hovertext=tokens,
        hovertemplate="%{hovertext}: %{x:.2%}<extra></extra>",
    )
    layout = common_layout(theme, 70 + 30 * len(tokens)) | {
        # Beside the longest bar stands its number.
        "margin": {"l": 8, "r": 48, "t": 12, "b": 8},
        "xaxis": axis("probability of the next token", range=[0, 1.02], tickformat=".0%"),
        "yaxis": axis(autorange="reversed", type="category", tickvals=rows, ticktext=tokens, ticklabelstandoff=5),
    }
    return go.Figure(bars, layout)
