"""A figure as a file: self-contained HTML, and PNG or SVG drawn by Matplotlib (Plotly itself would need a browser).

    export.html(figure)                  # bytes of a page that needs no network
    export.image(figure, "svg")          # bytes; heatmaps, bars, lines, points and Sankey diagrams

What Matplotlib draws is the same data in the same colours; hover texts and buttons are left out.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dcinterp.errors import UserError

DPI = 100
FORMATS = ("png", "svg")


def html(figure: go.Figure, title: str = "dcinterp") -> bytes:
    """One HTML page with plotly.js inside: opens offline, about 5 MB."""
    page = go.Figure(figure)
    page.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    text = page.to_html(include_plotlyjs=True, full_html=True)
    return text.replace("<head>", f"<head><title>{_escaped(title)}</title>", 1).encode()


def image(figure: go.Figure, form: str = "png", *, width: int = 900) -> bytes:
    """The figure as an image on a white ground.

    Args:
        figure: any figure of `dcinterp.figures.plot`.
        form: "png" or "svg".
        width: in pixels; the height is that of the figure's layout.

    Raises:
        UserError: another format, or a kind of trace that is not drawn here.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if form not in FORMATS:
        raise UserError(f"There is no image format {form!r}; choose png or svg.")
    height = figure.layout.height or 400
    # Fonts as text: an SVG stays searchable and small.
    with rc_context({"svg.fonttype": "none"}):
        canvas = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained", facecolor="white")
        for axes_name, traces in _by_axes(figure).items():
            axes = canvas.add_subplot(*_cell(figure, axes_name))
            _draw(canvas, axes, figure, traces, axes_name)
            _panel_title(axes, figure, axes_name)
        _legend(canvas)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=form, dpi=2 * DPI)
    return buffer.getvalue()


def _by_axes(figure: go.Figure) -> dict[tuple[str, str], list[Any]]:
    """Traces by the pair of axes that they stand on, in the order of the figure."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for trace in figure.data:
        if trace.type not in DRAWN:
            raise UserError(f"A {trace.type} trace has no image here; download the HTML instead.")
        names = (getattr(trace, "xaxis", None) or "x", getattr(trace, "yaxis", None) or "y")
        groups.setdefault(names, []).append(trace)
    return groups


def _cell(figure: go.Figure, names: tuple[str, str]) -> tuple[int, int, int]:
    """(rows, columns, index) of a subplot, from the domains of its axes."""
    pairs = list(_by_axes(figure))
    starts = [(_domain(figure, x, 0)[0], -_domain(figure, y, 1)[0]) for x, y in pairs]
    columns = sorted({x for x, _ in starts})
    rows = sorted({y for _, y in starts})
    x, y = starts[pairs.index(names)]
    return len(rows), len(columns), rows.index(y) * len(columns) + columns.index(x) + 1


def _domain(figure: go.Figure, name: str, which: int) -> tuple[float, float]:
    return _axis(figure, name, "xy"[which]).domain or (0.0, 1.0)


def _axis(figure: go.Figure, name: str, letter: str) -> Any:
    return figure.layout[f"{letter}axis{name[1:]}"]


def _draw(canvas: Any, axes: Any, figure: go.Figure, traces: list[Any], names: tuple[str, str]) -> None:
    x_axis, y_axis = _axis(figure, names[0], "x"), _axis(figure, names[1], "y")
    state = _Stack(traces, figure.layout.barmode)
    for trace in traces:
        if getattr(trace, "visible", True) not in (False, "legendonly"):
            DRAWN[trace.type](canvas, axes, trace, state)
    if state.bare:
        axes.set_axis_off()
        return
    axes.spines[["top", "right"]].set_visible(False)
    if x_axis.title.text:
        axes.set_xlabel(_plain(x_axis.title.text))
    if y_axis.title.text:
        axes.set_ylabel(_plain(y_axis.title.text))
    _ticks(axes.set_xticks, x_axis, state.categories["x"], rotate=True)
    _ticks(axes.set_yticks, y_axis, state.categories["y"], rotate=False)
    if x_axis.range is not None and not state.categories["x"]:
        axes.set_xlim(*x_axis.range)
    if y_axis.range is not None and not state.categories["y"]:
        axes.set_ylim(*y_axis.range)
    if y_axis.autorange == "reversed":
        axes.invert_yaxis()
    if x_axis.type == "log":
        axes.set_xscale("log")
    if y_axis.type == "log":
        axes.set_yscale("log")
    for shape in figure.layout.shapes:
        _shape(axes, shape, state)
    if figure.layout.title.text:
        axes.set_title(_plain(figure.layout.title.text), loc="left")


def _legend(canvas: Any) -> None:
    """One legend of all panels: one for each panel would take the room of its neighbours."""
    drawn = [pair for axes in canvas.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in reversed(drawn)}
    names = list(dict.fromkeys(label for _, label in drawn))
    if len(names) > 1:
        handles = [named[name] for name in names]
        canvas.legend(handles, names, frameon=False, fontsize=8, ncols=3, loc="outside upper left")


def _panel_title(axes: Any, figure: go.Figure, names: tuple[str, str]) -> None:
    """The text that Plotly puts above a panel: an annotation of the paper at its upper edge."""
    left, right = _domain(figure, names[0], 0)
    upper = _domain(figure, names[1], 1)[1]
    for note in figure.layout.annotations:
        above = note.yref == "paper" and note.y is not None and abs(note.y - upper) < 0.02 and not note.showarrow
        if above and note.xref == "paper" and left <= (note.x or 0) <= right and note.text:
            axes.set_title(_plain(note.text), fontsize=10)


class _Stack:
    """What traces of one pair of axes share: the names on a categorical axis and where stacked bars have got to."""

    def __init__(self, traces: list[Any], barmode: str | None) -> None:
        self.stacked = barmode in ("relative", "stack")
        self.bars = [t for t in traces if t.type == "bar"]
        self.tops: dict[tuple[float, bool], float] = {}
        self.categories: dict[str, list[str]] = {"x": [], "y": []}
        self.bare = False

    def places(self, values: Any, letter: str) -> np.ndarray:
        """Numbers along an axis; words get numbers in the order in which they come."""
        items = [] if values is None else list(values)
        if not any(isinstance(v, str) for v in items):
            return np.asarray(items, dtype=float)
        known = self.categories[letter]
        known += [v for v in dict.fromkeys(map(str, items)) if v not in known]
        return np.asarray([known.index(str(v)) for v in items], dtype=float)


def _heatmap(canvas: Any, axes: Any, trace: Any, state: _Stack) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    z = np.asarray(trace.z, dtype=float)
    stops = [(float(at), _colour(colour)) for at, colour in trace.colorscale]
    colours = LinearSegmentedColormap.from_list("figure", stops)
    mesh = axes.pcolormesh(
        z, cmap=colours, vmin=trace.zmin, vmax=trace.zmax, edgecolors="none", rasterized=z.size > 5000
    )
    # Cells are centred on whole numbers, as in the figure.
    mesh.set_transform(_shifted(axes))
    axes.set_xlim(-0.5, z.shape[1] - 0.5)
    axes.set_ylim(z.shape[0] - 0.5, -0.5)
    if (trace.texttemplate or trace.text is not None) and z.size <= 400:
        text = np.asarray(trace.text) if trace.text is not None else None
        middle = (trace.zmax or 1) * 0.6
        for (row, column), value in np.ndenumerate(z):
            if np.isfinite(value):
                shown = str(text[row, column]) if text is not None else f"{value:.2f}"
                colour = "white" if abs(value) > middle else "black"
                axes.text(column, row, shown, ha="center", va="center", fontsize=7, color=colour)
    if trace.showscale is not False:
        bar = canvas.colorbar(mesh, ax=axes, shrink=0.95, pad=0.02)
        bar.outline.set_visible(False)
        if trace.colorbar.title.text:
            bar.set_label(_plain(trace.colorbar.title.text))


def _shifted(axes: Any) -> Any:
    from matplotlib.transforms import Affine2D

    return Affine2D().translate(-0.5, -0.5) + axes.transData


def _bar(canvas: Any, axes: Any, trace: Any, state: _Stack) -> None:
    across = trace.orientation == "h"
    at, size = (trace.y, trace.x) if across else (trace.x, trace.y)
    places, values = state.places(at, "y" if across else "x"), np.asarray(size, dtype=float)
    width = 0.75
    if not state.stacked and len(state.bars) > 1:
        width /= len(state.bars)
        places = places + width * (state.bars.index(trace) - (len(state.bars) - 1) / 2)
    starts = np.zeros_like(values)
    if state.stacked:
        for i, (place, value) in enumerate(zip(places, values, strict=True)):
            starts[i] = state.tops.get((place, value >= 0), 0.0)
            state.tops[place, value >= 0] = starts[i] + value
    colours = _colours(trace.marker.color, len(values))
    error = _errors(trace.error_x if across else trace.error_y)
    options = {"color": colours, "label": _plain(trace.name) if trace.name else None}
    if across:
        axes.barh(places, values, width, left=starts, xerr=error, **options)
    else:
        axes.bar(places, values, width, bottom=starts, yerr=error, **options)
    for i, text in enumerate(trace.text if isinstance(trace.text, tuple | list | np.ndarray) else ()):
        if across:
            axes.text(values[i], places[i], f" {text}", va="center", fontsize=8)
        else:
            axes.text(places[i], values[i], str(text), ha="center", va="bottom", fontsize=8)


def _scatter(canvas: Any, axes: Any, trace: Any, state: _Stack) -> None:
    invisible = trace.marker.color == "rgba(0,0,0,0)"
    if trace.mode == "markers" and invisible:
        return
    x, y = state.places(trace.x, "x"), state.places(trace.y, "y")
    mode, label = trace.mode or "lines", _plain(trace.name) if trace.name and trace.showlegend is not False else None
    if trace.fill in ("toself", "tonexty") and trace.fillcolor:
        axes.fill(x, y, color=_colour(trace.fillcolor), linewidth=0, label=label)
        return
    if "lines" in mode:
        dashes = {"dash": "--", "dot": ":", "dashdot": "-."}.get(trace.line.dash or "", "-")
        axes.plot(x, y, dashes, color=_colour(trace.line.color), linewidth=0.7 * (trace.line.width or 2), label=label)
        label = None
    if "markers" in mode:
        symbol = {"diamond": "D", "square": "s", "x": "x", "cross": "+"}.get(str(trace.marker.symbol), "o")
        size = trace.marker.size if isinstance(trace.marker.size, int | float) else 6
        values = trace.marker.color if not isinstance(trace.marker.color, str) else None
        colour = _colours(trace.marker.color, len(x)) if values is None or _named(values) else np.asarray(values, float)
        axes.scatter(x, y, s=(0.8 * size) ** 2, c=colour, marker=symbol, label=label, zorder=3)
    for which, error in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if (bars := _errors(error)) is not None:
            axes.errorbar(x, y, fmt="none", **{which: bars}, ecolor="#888888", elinewidth=1)
    if "text" in mode and trace.text is not None:
        texts = [trace.text] * len(x) if isinstance(trace.text, str) else trace.text
        for a, b, text in zip(x, y, texts, strict=False):
            axes.annotate(_plain(str(text)), (a, b), fontsize=7, xytext=(3, 3), textcoords="offset points")


def _histogram(canvas: Any, axes: Any, trace: Any, state: _Stack) -> None:
    axes.hist(np.asarray(trace.x, float), bins=trace.nbinsx or 30, color=_colour(trace.marker.color), label=trace.name)


def _sankey(canvas: Any, axes: Any, trace: Any, state: _Stack) -> None:
    """Nodes in columns by their distance from a source, links as bands as wide as their value."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    state.bare = True
    source, target, value = (np.asarray(v) for v in (trace.link.source, trace.link.target, trace.link.value))
    labels = list(trace.node.label)
    column = np.zeros(len(labels), dtype=int)
    for _ in labels:
        for a, b in zip(source, target, strict=True):
            column[b] = max(column[b], column[a] + 1) if column[a] < len(labels) else column[b]
    out, into = (np.zeros(len(labels)) for _ in range(2))
    np.add.at(out, source, value)
    np.add.at(into, target, value)
    size = np.maximum(np.maximum(out, into), 1e-9)
    gap = 0.04 * max(size[column == c].sum() for c in set(column))
    bottom, ends = np.zeros(len(labels)), {c: 0.0 for c in set(column)}
    for node in range(len(labels)):
        bottom[node] = ends[column[node]] - size[node]
        ends[column[node]] = bottom[node] - gap
    used_out, used_in = bottom + size, bottom + size
    colours = _colours(trace.link.color, len(value), "#bbbbbb")
    for a, b, width, colour in zip(source, target, value, colours, strict=True):
        x0, x1 = column[a] + 0.06, float(column[b])
        y0, y1 = used_out[a], used_in[b]
        used_out[a] -= width
        used_in[b] -= width
        middle = (x0 + x1) / 2
        points = [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
        points += [(x1, y1 - width), (middle, y1 - width), (middle, y0 - width), (x0, y0 - width)]
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3]
        axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=0.7, linewidth=0))
    node_colours = _colours(trace.node.color, len(labels), "#555555")
    for node, label in enumerate(labels):
        axes.add_patch(_rectangle(column[node], bottom[node], 0.06, size[node], node_colours[node]))
        axes.text(column[node] + 0.08, bottom[node] + size[node] / 2, _plain(label), va="center", fontsize=8)
    axes.set_xlim(-0.05, column.max() + 0.6)
    axes.set_ylim(min(ends.values()), gap)


def _rectangle(x: float, y: float, width: float, height: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, linewidth=0)


DRAWN: dict[str, Callable[[Any, Any, Any, _Stack], None]] = {
    "heatmap": _heatmap,
    "bar": _bar,
    "scatter": _scatter,
    "scattergl": _scatter,
    "histogram": _histogram,
    "sankey": _sankey,
}
"""How each kind of trace is drawn: a new one is one function and one line here."""


def _shape(axes: Any, shape: Any, state: _Stack) -> None:
    x, y = (state.places([getattr(shape, f"{c}0"), getattr(shape, f"{c}1")], c) for c in "xy")
    colour, width = _colour(shape.line.color), 0.7 * (shape.line.width if shape.line.width is not None else 2)
    if shape.type == "line":
        whole_x, whole_y = "domain" in (shape.xref or ""), "domain" in (shape.yref or "")
        if whole_x:
            axes.axhline(y[0], color=colour, linewidth=width)
        elif whole_y:
            axes.axvline(x[0], color=colour, linewidth=width)
        else:
            axes.plot(x, y, color=colour, linewidth=width)
    elif shape.type == "rect":
        face = _colour(shape.fillcolor) if shape.fillcolor else "none"
        opacity = shape.opacity if shape.opacity is not None else 1
        if "domain" in (shape.yref or ""):
            axes.axvspan(x[0], x[1], facecolor=face, alpha=opacity, linewidth=0)
        elif "domain" in (shape.xref or ""):
            axes.axhspan(y[0], y[1], facecolor=face, alpha=opacity, linewidth=0)
        else:
            corner, size = (min(x), min(y)), (abs(x[1] - x[0]), abs(y[1] - y[0]))
            patch = _rectangle(*corner, *size, face)
            patch.set(edgecolor=colour if width else "none", linewidth=width, zorder=4)
            axes.add_patch(patch)


def _ticks(setter: Callable[..., Any], axis: Any, categories: list[str], *, rotate: bool) -> None:
    if axis.tickvals is not None:
        places = list(axis.tickvals)
        labels = [_plain(str(t)) for t in (axis.ticktext if axis.ticktext is not None else places)]
    elif categories:
        places, labels = list(range(len(categories))), [_plain(name) for name in categories]
    else:
        return
    # More than forty names overlap.
    step = -(-len(places) // 40)
    long = rotate and max((len(label) for label in labels), default=0) * len(labels) / step > 90
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
    setter(places[::step], labels[::step], fontsize=8, **turned)


def _errors(error: Any) -> np.ndarray | None:
    if error is None or error.array is None:
        return None
    above = np.asarray(error.array, dtype=float)
    below = above if error.arrayminus is None else np.asarray(error.arrayminus, dtype=float)
    return np.nan_to_num(np.stack([below, above])).clip(min=0)


def _named(colours: Any) -> bool:
    return any(isinstance(c, str) for c in colours)


def _colours(given: Any, count: int, default: str = "#4477aa") -> list[Any]:
    """One colour a mark, from one colour for all, a list of them, or nothing."""
    if given is None or isinstance(given, str):
        return [_colour(given, default)] * count
    return [_colour(c, default) if isinstance(c, str) else default for c in given]


def _colour(colour: str | None, default: str = "#4477aa") -> Any:
    """A Plotly colour as Matplotlib takes it: names and #rrggbb as they are, rgb(a) as numbers."""
    if not colour:
        return default
    if not colour.startswith("rgb"):
        return colour
    parts = [float(p) for p in colour[colour.index("(") + 1 : -1].split(",")]
    return (*(p / 255 for p in parts[:3]), parts[3] if len(parts) > 3 else 1.0)


def _plain(text: str) -> str:
    """Text without HTML tags, and with dollar signs that Matplotlib would read as mathematics escaped."""
    import re

    return re.sub(r"<[a-z/][^>]*>", " ", text).replace("$", r"\$")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
