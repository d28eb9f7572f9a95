"""A figure in words: what its colours mean, and a text alternative for those who cannot see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dcinterp.figures.base.grid import tick_names, told_apart, written
from dcinterp.figures.base.style import without_tags

LISTED_ROWS, LISTED_CELLS, LISTED_LINKS = 12, 20, 5
PLURALS = {"matrix": "matrices"}


@dataclass(frozen=True)
class Description:
    """`legend`: one sentence on colours or marks; `alternative`: the text alternative of the figure."""

    legend: str
    alternative: str


def describe(figure: go.Figure) -> Description:
    """The words for any figure of `dcinterp.figures.plot`: those that it brings in `layout.meta`, else off its data."""
    if figure.layout.meta:
        return Description(**figure.layout.meta)
    legends, texts = [], []
    for traces in _together(figure):
        legend, heading, text = SPOKEN[traces[0].type](traces, figure)
        panel = _panel(traces[0], figure)
        legends.append(legend)
        texts += [heading, f"{panel}, {text}" if panel and text else text]
    title = f"{figure.layout.title.text}." if figure.layout.title.text else ""
    return Description(
        _joined(legends), _joined([title, *texts]) if any(texts) else f"{title} No value to show.".strip()
    )


def _joined(sentences: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, sentences)))


def _together(figure: go.Figure) -> list[list[Any]]:
    """Traces that belong together: those of one name on one pair of axes."""
    known = [trace for trace in figure.data if trace.type in SPOKEN and not _decoration(trace)]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for trace in known:
        name, axes = trace.name or id(trace), (getattr(trace, "xaxis", None), getattr(trace, "yaxis", None))
        groups.setdefault((trace.type, name, axes), []).append(trace)
    return list(groups.values())


def _decoration(trace: Any) -> bool:
    """Whether a trace says nothing of its own: what cannot be seen, and lines that cannot be pointed at."""
    invisible = getattr(getattr(trace, "marker", None), "color", None) == "rgba(0,0,0,0)"
    return invisible or (trace.type.startswith("scatter") and trace.hoverinfo == "skip")


def _heatmap(traces: list[Any], figure: go.Figure) -> tuple[str, str, str]:
    (trace, *_) = traces
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
        return legend, "", f"A heatmap of {quantity} without values."
    rows, columns = (f" ({axis.title})" if axis.title else "" for axis in (y, x))
    size = f"{_count(z.shape[0], 'row')}{rows} by {_count(z.shape[1], 'column')}{columns}"
    if trace.meta:  # small matrices side by side
        down, across = (-(-places // trace.meta["step"]) for places in z.shape)
        of, one = f"{trace.meta['y']} by {trace.meta['x']}", trace.meta["size"]
        size = f"{down} by {_count(across, 'matrix')}{columns}, each {of}, {one} by {one}"
    most, least = (np.unravel_index(pick(finite), z.shape) for pick in (np.nanargmax, np.nanargmin))
    high, low = z[most], z[least]
    extremes = _alike(high, low) or (
        f"Largest {_number(high)} at {_cell(most, x, y)}{_more(finite == high)}; "
        f"smallest {_number(low)} at {_cell(least, x, y)}{_more(finite == low)}."
    )
    if endless := int(np.isinf(z).sum()):
        extremes += f" {_count(endless, 'value')} {'is' if endless == 1 else 'are'} infinite."
    return legend, f"Heatmap of {quantity}, {size}.", f"{extremes}{_written(trace, x, y)}"


def _alike(high: float, low: float) -> str:
    """The sentence for values that are all the same, or are so to three digits; empty where they differ."""
    if high == low:
        return f"Every value is {_number(high)}."
    return f"All values are about {_number(high)} ({low:.4g} to {high:.4g})." if _number(high) == _number(low) else ""


def _more(same: Any) -> str:
    """How many others have the value that was named."""
    others = int(np.sum(same)) - 1
    return f" and {_count(others, 'other')}" if others else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else PLURALS.get(noun, f'{noun}s')}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 1e-6 else "0"


def _left(number: int, noun: str) -> str:
    """What a list that stops leaves out."""
    return f" And {_count(number, f'more {noun}')}." if number > 0 else ""


def _cell(at: Any, x: _Axis, y: _Axis) -> str:
    return f"{y.place(at[0])}, {x.place(at[1])}"


def _written(trace: Any, x: _Axis, y: _Axis) -> str:
    """What is written into the cells: whole rows, or the few cells that carry a mark."""
    cells = written(trace)
    if cells is None:
        return ""
    cells = np.asarray([without_tags(str(each or "")) for each in cells.flat], dtype=object).reshape(cells.shape)
    marked = [at for at in np.ndindex(cells.shape) if cells[at]]
    if 2 * len(marked) > cells.size:
        rows = [f"{y.place(row)}: {', '.join(map(str, cells[row]))}." for row in range(min(len(cells), LISTED_ROWS))]
        return " Written in the cells: " + " ".join(rows) + _left(len(cells) - len(rows), "row")
    if not marked:
        return " No cell is marked."
    more = f"; and {len(marked) - LISTED_CELLS} more" if len(marked) > LISTED_CELLS else ""
    shown = "; ".join(f"{cells[at]} at {_cell(at, x, y)}" for at in marked[:LISTED_CELLS])
    return f" Marked cells: {shown}{more}."


def _bars(traces: list[Any], figure: go.Figure) -> tuple[str, str, str]:
    names, values, ends, category, value = _entries(traces, figure, across=traces[0].orientation == "h")
    if not names:
        return "", "", ""
    heading = f"Bars of {value.title or 'values'}{f' by {category.title}' if category.title else ''}."
    name = _plain(traces[0].name)
    if traces[0].base is not None:
        low = np.asarray(traces[0].base, dtype=float)
        sides = zip(names, low, low + values, strict=True)
        spans = [f"{category.place(n)} from {_number(a)} to {_number(b)}" for n, a, b in sides]
        more = _left(len(spans) - LISTED_CELLS, "span")
        return "", heading, f"{name or 'Spans'}: {'; '.join(spans[:LISTED_CELLS])}.{more}"
    return "", heading, _range(name, names, values, ends, category)


def _lines(traces: list[Any], figure: go.Figure) -> tuple[str, str, str]:
    across = traces[0].orientation == "h" or _words_along(_axis(traces[0], figure, "y").named(traces[0].y))
    names, values, ends, category, value = _entries(traces, figure, across=across)
    if not names:
        return "", "", ""
    (first, *more) = traces
    name = _plain(first.name)
    by = f" by {category.title}" if category.title else ""
    lines = "lines" in (first.mode or "lines")
    if more and lines:
        kind = "spans" if all(len(trace.x) == 2 for trace in traces) else "lines"
        return "", "", f"{name}: {len(traces)} {kind} between {_number(min(values))} and {_number(max(values))}."
    if _words_along(names):
        return "", f"Points of {value.title or 'values'}{by}.", _range(name, names, values, ends, category)
    if not lines:
        heading = f"Points of {value.title or 'values'} against {category.title or 'values'}."
        sideways, up = (f"from {_number(min(numbers))} to {_number(max(numbers))}" for numbers in (names, values))
        points = f"{len(values)} points" if len(values) > 1 else "one point"
        return "", heading, f"{name or 'All'}: {points}, across {sideways}, up {up}."
    at = dict.fromkeys((0, len(values) // 2, len(values) - 1))
    points = ", ".join(f"{_number(values[i])} at {names[i]:.4g}" for i in at)
    return "", f"Lines of {value.title or 'values'}{by}.", f"{name or 'Line'}: {points}."


def _range(name: str | None, names: list[Any], values: list[float], ends: list[Any], category: _Axis) -> str:
    """The largest and the smallest of named values, or all of a few, with their intervals where they have some."""

    def said(at: int) -> str:
        low, high = ends[at] or (np.nan, np.nan)
        interval = f" ({_number(low)} to {_number(high)})" if np.isfinite(low) and np.isfinite(high) else ""
        return f"{_number(values[at])}{interval} at {category.place(names[at])}"

    start = f"{name}: " if name else ""
    if len(values) <= 6:
        return f"{start}{', '.join(map(said, range(len(values))))}."
    most, least = int(np.argmax(values)), int(np.argmin(values))
    if alike := _alike(values[most], values[least]):
        return f"{start}{len(values)} values. {alike}"
    largest, smallest = (f"{said(at)}{_more([value == values[at] for value in values])}" for at in (most, least))
    return f"{start}{len(values)} values, largest {largest}, smallest {smallest}."


def _entries(
    traces: list[Any], figure: go.Figure, *, across: bool
) -> tuple[list[Any], list[float], list[tuple[float, float] | None], _Axis, _Axis]:
    """What the finite values of traces stand at, these values, their intervals, and the axes of the first two."""
    x, y = _axis(traces[0], figure, "x"), _axis(traces[0], figure, "y")
    category, value = (y, x) if across else (x, y)
    names, values, ends = [], [], []
    for trace in traces:
        at, size = (trace.y, trace.x) if across else (trace.x, trace.y)
        error = getattr(trace, "error_x" if across else "error_y", None)
        above = None if error is None else error.array
        below = above if error is None or error.arrayminus is None else error.arrayminus
        for i, (n, v) in enumerate(zip(category.named(at), () if size is None else size, strict=False)):
            if v is not None and np.isfinite(float(v)):
                names.append(n)
                values.append(float(v))
                ends.append(None if above is None else (float(v) - float(below[i]), float(v) + float(above[i])))
    return names, values, ends, _Axis(category.title, None), value


def _words_along(values: Any) -> bool:
    return values is not None and any(isinstance(v, str) for v in values)


def _flows(traces: list[Any], figure: go.Figure) -> tuple[str, str, str]:
    (trace, *_) = traces
    values = np.asarray(trace.link.value, dtype=float)
    if not len(values):
        return "", "", "A flow diagram without links."
    names, labels = [_plain(name) for name in trace.node.label], trace.link.label

    def link(i: int) -> str:
        label = labels[i] if labels is not None else f"{_number(values[i])}"
        return f"from {names[trace.link.source[i]]} to {names[trace.link.target[i]]} ({label})"

    widest = "; ".join(link(int(i)) for i in np.argsort(-values, kind="stable")[:LISTED_LINKS])
    return (
        "The width of a band is the size of what flows.",
        f"Flow diagram of {_count(len(values), 'link')} between {_count(len(names), 'node')}.",
        f"The widest: {widest}.",
    )


SPOKEN = {"heatmap": _heatmap, "bar": _bars, "scatter": _lines, "scattergl": _lines, "sankey": _flows}
"""The kinds of traces that the words speak of, and which function makes them."""


@dataclass(frozen=True)
class _Axis:
    title: str
    names: tuple[Any, ...] | None
    ticks: Mapping[Any, str] = field(default_factory=dict)

    def named(self, values: Any) -> list[Any]:
        """Values along the axis, by the names of their ticks where all of them have one."""
        given = [] if values is None else list(values)
        return [self.ticks[each] for each in given] if all(each in self.ticks for each in given) else given

    def place(self, at: Any) -> str:
        """Where something is: the axis and the name there; a title of several words would be in the way."""
        name = str(self.names[at]) if self.names and isinstance(at, int | np.integer) and at < len(self.names) else at
        name = unescape(name) if isinstance(name, str) else name
        return f"{self.title} {name}" if self.title and len(self.title.split()) <= 2 else str(name)


def _axis(trace: Any, figure: go.Figure, letter: str) -> _Axis:
    """The axis of a trace, with the names of its rows or columns where it has them."""
    layout = figure.layout[f"{letter}axis{(getattr(trace, f'{letter}axis') or letter)[1:]}"]
    given = getattr(trace, letter)
    shared = figure.layout[f"{letter}axis{layout.matches[1:]}"] if layout.matches else layout
    ticks = tick_names(layout, np.shape(trace.z)["yx".index(letter)]) if trace.type == "heatmap" else layout.ticktext
    # With fewer ticks than rows, as of a grid of small matrices, a name stands for several on purpose.
    whole = ticks is not None and len(layout.ticktext) >= len(ticks)
    names = told_apart(ticks) if ticks is not None and whole and trace.type == "heatmap" else ticks or given
    title = _plain(layout.title.text or shared.title.text)
    named = layout if layout.ticktext is not None else shared
    pairs = dict(zip(named.tickvals or (), map(str, named.ticktext or ()), strict=False))
    return _Axis(title, None if names is None else tuple(names), pairs)


def _panel(trace: Any, figure: go.Figure) -> str:
    """The title that stands above the panel of a trace, where a figure has several."""
    if trace.type == "sankey" or len({t.xaxis for t in figure.data if hasattr(t, "xaxis")}) < 2:
        return ""
    low, high = figure.layout[f"xaxis{(trace.xaxis or 'x')[1:]}"].domain or (0, 1)
    above = [n.text for n in figure.layout.annotations if n.xref == "paper" and low <= (n.x or 0) <= high and n.text]
    return _plain(above[0]) if above else ""


def _plain(text: str | None) -> str:
    return unescape((text or "").replace("<br>", " "))
