"""A figure as a file: self-contained HTML, and PNG or SVG drawn by Matplotlib (Plotly itself would need a browser).

    export.page(result, figure)          # bytes of a page that needs no network
    export.image(figure, "svg")          # bytes; heatmaps, bars, lines, points and Sankey diagrams

What Matplotlib draws is the same data in the same colours; hover texts and buttons are left out, and so are the texts
in the cells of a heatmap of more than 400 (words that fit their cells: 2,000).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from dcinterp.figures.base.rows import rows
from dcinterp.figures.base.style import cut
from dcinterp.figures.base.traces import DRAWN, Stack, draw_shape, plain
from dcinterp.support.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
FORMATS = ("png", "svg")
LONGEST_NAME = 40
"""Characters of a name along an axis; a longer one would take the room of the figure."""


STYLE = """<style>body {font: 15px/1.45 sans-serif; max-width: 1100px; margin: 1rem auto; padding: 0 1rem}
h1 {font-size: 1.3rem} h2 {font-size: 1.1rem}
.warning {background: #fffae5; color: #7a5b00; padding: 0.5rem 0.8rem; border-radius: 0.4rem}
pre {background: #f5f5f5; padding: 0.5rem 0.8rem; white-space: pre-wrap; overflow-wrap: anywhere}
table {border-collapse: collapse} td, th {border: 1px solid #ccc; padding: 0.1rem 0.5rem; text-align: left}
summary {cursor: pointer} details div {overflow-x: auto}</style>"""
TABLE_ROWS = 400
"""Of a figure that has more, the page has no table: `result.to_dataframe()` and the files of the app have them all."""
# Plotly's button for sharing would send the figure to its makers' cloud.
SILENT = {"modeBarButtonsToRemove": ["sendChartToCloud"], "plotlyServerURL": "", "displaylogo": False}


def html(
    figure: go.Figure,
    title: str = "dcinterp",
    *,
    caption: str = "",
    warnings: Sequence[str] = (),
    command: str = "",
    alternative: str = "",
) -> bytes:
    """One HTML page with plotly.js inside: opens offline, about 5 MB.

    Args:
        figure: any figure of `dcinterp.figures.plot`.
        title: of the page, and its heading.
        caption: what is seen, below the figure.
        warnings: what to know before trusting the numbers; above the figure.
        command: the command that computes the same numbers.
        alternative: the figure in words, for screen readers.
    """
    made = f"<pre>{escape(command)}</pre>" if command else ""
    return _document(title, _figure(figure, caption=caption, warnings=warnings, alternative=alternative) + made)


def _figure(figure: go.Figure, *, caption: str, warnings: Sequence[str], alternative: str, first: bool = True) -> str:
    """A figure with what stands around it; the first of a page brings plotly.js."""
    white = go.Figure(figure).update_layout(paper_bgcolor="white", plot_bgcolor="white")
    drawn = white.to_html(include_plotlyjs=first, full_html=False, config=SILENT)
    above = "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in warnings)
    role = f' role="figure" aria-label="{escape(alternative)}"' if alternative else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    said = f"<details><summary>In words</summary><p>{escape(alternative)}</p></details>" if alternative else ""
    return f'{above}<figure style="margin: 0"><div{role}>{drawn}</div>{below}</figure>{said}{_table(figure)}'


def _table(figure: go.Figure) -> str:
    """What a figure shows as a table that opens below it; nothing where it is long, or places mean nothing."""
    cells = max(
        (np.isfinite(np.asarray(t.z, dtype=float)).sum() for t in figure.data if t.type == "heatmap"), default=0
    )
    if cells > TABLE_ROWS or figure.layout.xaxis.visible is False:
        return ""
    frame = rows(figure)
    if not 0 < len(frame) <= TABLE_ROWS:
        return ""
    from pandas import option_context

    with option_context("display.max_colwidth", None):  # or names would be cut
        table = frame.to_html(index=False, border=0, na_rep="", float_format="{:.6g}".format)
    return f"<details><summary>Table</summary><div>{table}</div></details>"


def _document(title: str, body: str) -> bytes:
    wide = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<head><meta charset="utf-8">{wide}<title>{escape(title)}</title>{STYLE}</head>'
    return (
        f'<!doctype html><html lang="en">{head}<body><main><h1>{escape(title)}</h1>{body}</main></body></html>'.encode()
    )


def page(result: Any, figure: go.Figure, *, caption: str = "") -> bytes:
    """The page of a result's figure: headed by the analysis and the model, with its warnings and what makes it again.

    Args:
        result: what an analysis returned.
        figure: one of its figures.
        caption: what is seen, below the figure.
    """
    from dcinterp.figures.base.describe import describe

    call = getattr(result, "call", None)
    title = _title(call)
    return html(
        figure,
        f"{title}: {Path(call.model).name}" if call is not None and call.model else title,
        caption=caption,
        warnings=result.warnings(),
        command=call.command() if call is not None else "",
        alternative=describe(figure).alternative,
    )


def _title(call: Any) -> str:
    """What the analysis of a call is called."""
    from dcinterp.results.registry import ANALYSES

    return ANALYSES[call.analysis].title if call is not None and call.analysis in ANALYSES else "dcinterp"


def whole_page(title: str, shown: Sequence[tuple[Any, go.Figure, str]]) -> bytes:
    """Several figures on one page with plotly.js inside once: opens offline, about 5 MB however many they are.

    Args:
        title: of the page, and its heading.
        shown: (result, its figure, what is seen) in their order.
    """
    from dcinterp.figures.base.describe import describe

    parts, said = [], set()
    for number, (result, figure, caption) in enumerate(shown):
        call = getattr(result, "call", None)
        warnings = [sentence for sentence in result.warnings() if sentence not in said]
        said.update(warnings)
        heading = f"<h2>{escape(_title(call))}</h2>" if len(shown) > 1 else ""
        parts.append(
            heading
            + _figure(
                figure, caption=caption, warnings=warnings, alternative=describe(figure).alternative, first=not number
            )
            + (f"<pre>{escape(call.command())}</pre>" if call is not None else "")
        )
    return _document(title, "".join(parts))


def image(figure: go.Figure, form: str = "png", *, width: int = 900) -> bytes:
    """The figure as an image on a white ground.

    Args:
        figure: any figure of `dcinterp.figures.plot`.
        form: "png" or "svg".
        width: in pixels of the layout, as its height is; a PNG has twice as many each way, for sharp screens.

    Raises:
        UserError: another format, or a kind of trace that is not drawn here.
    """
    return images(figure, (form,), width=width)[form]


def images(figure: go.Figure, forms: Sequence[str] = ("png", "svg"), *, width: int = 900) -> dict[str, bytes]:
    """The same in several formats, drawn and laid out once.

    Args:
        figure, width: as in `image`.
        forms: "png", "svg" or both.

    Raises:
        UserError: as in `image`.
    """
    from matplotlib import rc_context

    for form in forms:
        if form not in FORMATS:
            raise UserError(f"There is no image format {form!r}; choose png or svg.")
    drawn, made = canvas(figure, width=width), {}
    # Fonts as text: an SVG stays searchable and small. Neither date nor random names: the same figure, the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dcinterp"}):
        for form in forms:
            buffer = io.BytesIO()
            drawn.savefig(buffer, format=form, dpi=2 * DPI, metadata={"Date": None} if form == "svg" else None)
            drawn.set_layout_engine("none")  # what was laid out stays where it is
            made[form] = buffer.getvalue()
    return made


def canvas(figure: go.Figure, *, width: int = 900) -> Figure:
    """The figure as Matplotlib has it, to be saved or changed further.

    Args:
        figure, width: as in `image`.

    Raises:
        UserError: a kind of trace that is not drawn here.
    """
    from matplotlib.figure import Figure

    size = (width / DPI, (figure.layout.height or 400) / DPI)
    drawn = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    for axes_name, traces in _by_axes(figure).items():
        axes = drawn.add_subplot(*_cell(figure, axes_name))
        _draw(drawn, axes, figure, traces, axes_name)
        _panel_title(axes, figure, axes_name)
    _legend(drawn, figure, width)
    return drawn


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


def _shared(figure: go.Figure, name: str, letter: str) -> Any:
    """The axis of that name, or the one that it follows."""
    axis = _axis(figure, name, letter)
    return _axis(figure, axis.matches, letter) if axis.matches else axis


def _draw(canvas: Any, axes: Any, figure: go.Figure, traces: list[Any], names: tuple[str, str]) -> None:
    x_axis, y_axis = _shared(figure, names[0], "x"), _shared(figure, names[1], "y")
    orders = {
        letter: [str(name) for name in axis.categoryarray]
        for letter, axis in (("x", x_axis), ("y", y_axis))
        if axis.categoryorder == "array" and axis.categoryarray is not None
    }
    state = Stack(traces, figure.layout.barmode, orders)
    for trace in traces:
        if getattr(trace, "visible", True) not in (False, "legendonly"):
            DRAWN[trace.type](canvas, axes, trace, state)
    if state.bare:
        axes.set_axis_off()
        return
    axes.spines[["top", "right"]].set_visible(False)
    for drawn, axis, spine in ((axes.xaxis, x_axis, "bottom"), (axes.yaxis, y_axis, "left")):
        drawn.set_visible(axis.visible is not False)
        axes.spines[spine].set_visible(axis.visible is not False)
    if x_axis.title.text:
        axes.set_xlabel(plain(x_axis.title.text))
    # A panel that shares another's axis says neither its title nor its numbers again.
    again = y_axis is not _axis(figure, names[1], "y")
    axes.tick_params(labelleft=not again)
    if y_axis.title.text and not again:
        axes.set_ylabel(plain(y_axis.title.text))
    _ticks(axes.set_xticks, x_axis, state.categories["x"], rotate=True)
    _ticks(axes.set_yticks, y_axis, state.categories["y"], rotate=False)
    if x_axis.range is not None and not state.categories["x"]:
        axes.set_xlim(*x_axis.range)
    if y_axis.range is not None and not state.categories["y"]:
        axes.set_ylim(*y_axis.range)
    if y_axis.autorange == "reversed":
        axes.invert_yaxis()
    _scale(axes.set_xscale, axes.xaxis, x_axis)
    _scale(axes.set_yscale, axes.yaxis, y_axis)
    for shape in figure.layout.shapes:
        if all(
            (ref or own[0]).split()[0] in (own, "paper")
            for ref, own in zip((shape.xref, shape.yref), names, strict=True)
        ):
            draw_shape(axes, shape, state)
    if figure.layout.title.text:
        axes.set_title(plain(figure.layout.title.text), loc="left")


def _scale(setter: Callable[..., Any], drawn: Any, axis: Any) -> None:
    """Logarithms and per cent, as the figure has them."""
    from matplotlib.ticker import FuncFormatter, PercentFormatter, ScalarFormatter

    percent = bool(axis.tickformat) and axis.tickformat.endswith("%")
    if axis.type == "log":
        setter("log")
        low, high = drawn.get_view_interval()
        if percent:
            drawn.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        elif high < 10 * low:  # no power of ten between the ends: plain numbers
            drawn.set_major_formatter(ScalarFormatter())
            drawn.set_minor_formatter(ScalarFormatter())
    elif percent:
        drawn.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _legend(canvas: Any, figure: go.Figure, width: int) -> None:
    """One legend of all panels, in the figure's order: one for each panel would take the room of its neighbours."""
    drawn = [pair for axes in canvas.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in reversed(drawn)}
    order = list(dict.fromkeys(plain(trace.name) for trace in figure.data if trace.name))
    names = [name for name in order if name in named]
    if len(names) > 1:
        fit = int(0.95 * width / (40 + 6 * max(map(len, names))))
        look = {"frameon": False, "fontsize": 8, "ncols": min(max(fit, 1), len(names)), "loc": "outside upper left"}
        canvas.legend([named[name] for name in names], names, **look)


def _panel_title(axes: Any, figure: go.Figure, names: tuple[str, str]) -> None:
    """The text that Plotly puts above a panel: an annotation of the paper at its upper edge."""
    left, right = _domain(figure, names[0], 0)
    upper = _domain(figure, names[1], 1)[1]
    for note in figure.layout.annotations:
        above = note.yref == "paper" and note.y is not None and abs(note.y - upper) < 0.02 and not note.showarrow
        if above and note.xref == "paper" and left <= (note.x or 0) <= right and note.text:
            axes.set_title(plain(note.text), fontsize=10)


def _ticks(setter: Callable[..., Any], axis: Any, categories: list[str], *, rotate: bool) -> None:
    if axis.tickvals is not None:
        # Categories are drawn by their number.
        places = [categories.index(value) if value in categories else value for value in axis.tickvals]
        labels = [plain(str(t)) for t in (axis.ticktext if axis.ticktext is not None else axis.tickvals)]
    elif categories:
        places, labels = list(range(len(categories))), [plain(name) for name in categories]
    else:
        return
    labels = [cut(label, LONGEST_NAME) for label in labels]
    # More than forty names overlap.
    step = -(-len(places) // 40)
    long = rotate and max((len(label) for label in labels), default=0) * len(labels) / step > 90
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
    setter(places[::step], labels[::step], fontsize=8, **turned)
