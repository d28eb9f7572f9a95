"""How the answer comes about at one position, depth by depth: the target and the most likely tokens of the output."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.answers.logit_lens import LogitLens
from dcinterp.figures.base.style import SERIES, axis, bare, common_layout
from dcinterp.mechanism.prompt import position

RESULT = "LogitLens"
KIND = "depths"


def plot(result: LogitLens, *, theme: str = "light", pos: int | None = None) -> go.Figure:
    """Probability of the target and of the most likely token, from the embedding to the output.

    Args:
        result: the lens.
        theme: "light" or "dark".
        pos: the position; that where the target is the answer without.
    """
    at = result.position if pos is None else position(pos, len(result.tokens), "Position")
    target = bare(result.target)
    lines = {
        f'target "{target}"': (result.target_probability[:, at], [target] * len(result.depths)),
        "most likely token": (result.probability[:, at, 0], [bare(row[at][0]) for row in result.top_tokens]),
    }
    traces = [
        go.Scatter(
            x=list(result.depths),
            y=values.tolist(),
            text=names,
            mode="lines+markers",
            name=name,
            line={"color": colour, "dash": dash},
            hovertemplate="%{x}: %{text}<br>probability %{y:.3f}<extra></extra>",
        )
        for (name, (values, names)), colour, dash in zip(lines.items(), SERIES, ("solid", "dot"), strict=False)
    ]
    layout = common_layout(theme, 300) | {
        "xaxis": axis("stream", type="category"),
        "yaxis": axis("probability", range=[-0.03, 1.05]),
    }
    return go.Figure(traces, layout)
