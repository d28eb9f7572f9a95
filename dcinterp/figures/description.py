"""A figure in words: what its colours mean, and what a reader who cannot see it should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go


@dataclass(frozen=True)
class Description:
    """`legend`: one sentence on colours or marks; `alternative`: the text alternative of the figure."""

    legend: str
    alternative: str


def describe(figure: go.Figure) -> Description:
    """The words for any figure of `dcinterp.figures.plot`, read off its data."""
    legends, texts = [], []
    for trace in figure.data:
        words = _WORDS.get(trace.type)
        if words is not None and not _invisible(trace):
            legend, text = words(trace, figure)
            legends += [legend] if legend else []
            texts += [text] if text else []
    title = f"{figure.layout.title.text}. " if figure.layout.title.text else ""
    return Description(legend=" ".join(dict.fromkeys(legends)), alternative=title + " ".join(texts))


def _heatmap(trace: Any, figure: go.Figure) -> tuple[str, str]:
    z = np.asarray(trace.z, dtype=float)
    quantity = trace.colorbar.title.text or "value"
    x, y = _axis(trace, figure, "x"), _axis(trace, figure, "y")
    signed = (trace.zmin or 0) < 0
    full = f"{trace.zmax:.3g}" if trace.zmax is not None else "the largest"
    legend = (
        f"Colour is {quantity}: orange positive, blue negative, strongest at {full} and -{full}."
        if signed
        else f"Colour is {quantity}, from 0 (the background) to {full}."
    )
    finite = np.where(np.isfinite(z), z, np.nan)
    if not np.isfinite(finite).any():
        return legend, f"A heatmap of {quantity} without values."
    most, least = (np.unravel_index(pick(finite), z.shape) for pick in (np.nanargmax, np.nanargmin))

    def place(at: Any) -> str:
        return f"{z[at]:.3g} at {y.title or 'row'} {y.name(at[0])}, {x.title or 'column'} {x.name(at[1])}"

    size = f"{z.shape[0]} rows ({y.title or 'row'}) by {z.shape[1]} columns ({x.title or 'column'})"
    return legend, f"Heatmap of {quantity}, {size}. Largest {place(most)}; smallest {place(least)}."


def _bars(trace: Any, figure: go.Figure) -> tuple[str, str]:
    across = trace.orientation == "h"
    names, values = (trace.y, trace.x) if across else (trace.x, trace.y)
    values = np.asarray(values, dtype=float)
    title = (figure.layout.xaxis if across else figure.layout.yaxis).title.text or "value"
    if not len(values) or not np.isfinite(values).any():
        return "", ""
    top = int(np.nanargmax(np.abs(values)))
    name = f"{trace.name}, " if trace.name else ""
    return "", f"Bars: {name}{title} for {len(values)} entries, largest in size {values[top]:.3g} at {names[top]}."


def _lines(trace: Any, figure: go.Figure) -> tuple[str, str]:
    given = trace.x if trace.orientation == "h" else trace.y
    y = np.asarray([v if v is not None else np.nan for v in (given if given is not None else ())], dtype=float)
    if not len(y) or not np.isfinite(y).any():
        return "", ""
    kind = "Line" if "lines" in (trace.mode or "lines") else "Points"
    name = f" {trace.name}" if trace.name else ""
    return "", f"{kind}{name}: {len(y)} values from {y[0]:.3g} to {y[-1]:.3g}, at most {np.nanmax(y):.3g}."


def _flows(trace: Any, figure: go.Figure) -> tuple[str, str]:
    values = np.asarray(trace.link.value, dtype=float)
    if not len(values):
        return "", "A flow diagram without links."
    top = int(values.argmax())
    names = trace.node.label
    ends = f"from {names[trace.link.source[top]]} to {names[trace.link.target[top]]}"
    return (
        "The width of a band is the size of what flows.",
        f"Flow diagram of {len(values)} links between {len(names)} nodes; the widest, {values[top]:.3g}, {ends}.",
    )


_WORDS = {"heatmap": _heatmap, "bar": _bars, "scatter": _lines, "scattergl": _lines, "sankey": _flows}


@dataclass(frozen=True)
class _Axis:
    title: str
    names: tuple[Any, ...] | None

    def name(self, index: int) -> str:
        return str(self.names[index]) if self.names and index < len(self.names) else str(index)


def _axis(trace: Any, figure: go.Figure, letter: str) -> _Axis:
    layout = figure.layout[f"{letter}axis{(getattr(trace, f'{letter}axis') or letter)[1:]}"]
    given = getattr(trace, letter)
    return _Axis(layout.title.text or "", layout.ticktext or (tuple(given) if given is not None else None))


def _invisible(trace: Any) -> bool:
    return getattr(getattr(trace, "marker", None), "color", None) == "rgba(0,0,0,0)"
