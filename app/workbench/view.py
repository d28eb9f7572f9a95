"""How every page shows a result: warnings, figure, the meaning of its colours, table, files, code, link."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench import links
from workbench.drawings import drawn
from workbench.glossary import tip
from workbench.heatmap import Picked, heatmap, is_heatmap
from workbench.markdown import escape
from workbench.theme import theme

if TYPE_CHECKING:
    import pandas as pd

NUMBER = re.compile(r"[-+](\d[\d.,]*|\.\d+)(e[-+]?\d+)?%?", re.IGNORECASE)
QUIET = re.compile(r"Attribution (and ablation disagree in sign|gives \S+ -?\d)")
"""Warnings that stand beside nearly every example: scores predict ablations roughly, and some always miss."""


def view(
    result: Any,
    place: str,
    /,
    *,
    kind: str = "",
    on_pick: Picked | None = None,
    caption: str = "",
    warnings: bool = True,
    table: bool = True,
    **options: Any,
) -> None:
    """Draw a result.

    Args:
        result: what an analysis returned.
        place: a name for this view, one a page.
        kind: the kind of figure, where a result has several.
        on_pick: called with (row, column) of the cell of a heatmap that was chosen by mouse or arrow keys.
        caption: what to look for, in a sentence.
        warnings: whether to show the result's warnings (off where the same result is drawn twice).
        table: whether to offer the numbers as a table.
        options: of the kind of figure.
    """
    from dcinterp.figures.base.style import THEMES

    if warnings:
        show_warnings(result)
    look = theme()
    figure, words = drawn(result, kind, look, options)
    if is_heatmap(figure):
        heatmap(
            figure, key=f"figure-{place}", outline=THEMES[look].selected, alternative=words.alternative, on_pick=on_pick
        )
    else:
        st.plotly_chart(
            figure,
            key=f"figure-{place}",
            width="stretch",
            theme=None,
            config={"displayModeBar": False},
            alt=words.alternative,
        )
    if text := " ".join(part for part in (caption, words.legend) if part):
        st.caption(text)
    footer(result, place, {"kind": kind, **options}, words.alternative, table=table, caption=text, figure=figure)
    _shown().append((result, {"kind": kind, **options}, text))


def _shown() -> list[tuple[Any, dict[str, Any], str]]:
    """(result, options of the figure, caption) of every figure of this page, in their order."""
    here = links.address()
    return here.figures.setdefault(here.page, [])


def show_warnings(result: Any) -> None:
    """What the reader must know before believing the numbers."""
    found = getattr(result, "warnings", list)()
    loud = [sentence for sentence in found if not QUIET.match(sentence)]
    if loud:
        text = escape(loud[0]) if len(loud) == 1 else "\n".join(f"- {escape(sentence)}" for sentence in loud)
        st.warning(text, icon=":material/warning:")
    if quiet := [sentence for sentence in found if QUIET.match(sentence)]:
        st.caption(f":material/info: {escape(' '.join(quiet))}")


def footer(
    result: Any,
    place: str,
    options: dict[str, Any] | None = None,
    words: str = "",
    *,
    table: bool = True,
    caption: str = "",
    figure: Any = None,
) -> None:
    """The row under a figure: table, text alternative, files, and what makes the same result elsewhere.

    What is in a popover is made when it is opened, so that a click on the page does not wait for it.

    Args:
        result: what is shown.
        place: a name for this view, one a page.
        options: of `dcinterp.figures.plot` for its figure; None for a result without one.
        words: the text alternative of the figure.
        table: whether to offer the numbers as a table.
        caption: what stands below the figure; its file has it too.
        figure: what is drawn: its own rows are the table, as a table is itself; without one those of the whole result.
    """
    parts: list[tuple[str, str, str, Callable[[], None]]] = [
        ("Export", "download", "export", lambda: files(result, place, options, caption, figure)),
        ("Reproduce", "code", "code", lambda: code(result, options)),
    ]
    if words:
        parts.insert(0, ("In words", "text_fields", "words", lambda: st.write(words)))
    if table:
        parts.insert(0, ("Table", "table", "table", lambda: numbers(result, figure)))
    with st.container(horizontal=True, gap="small"):
        for label, icon, name, fill in parts:
            opened = st.popover(
                label, icon=f":material/{icon}:", on_change="rerun", key=f"{name}-{place}", type="tertiary"
            )
            if opened.open:
                with opened:
                    fill()


def table_of(result: Any, figure: Any) -> Any:
    """What is shown as a table: a table as it is, the rows of a figure, or of the whole result where there is none."""
    import pandas as pd

    from dcinterp.figures.base.rows import rows

    if isinstance(figure, pd.DataFrame):
        return figure
    return result.to_dataframe() if figure is None else rows(figure)


def numbers(result: Any, figure: Any = None) -> None:
    """What is shown as a table."""
    frame = table_of(result, figure)
    st.dataframe(frame.head(20_000), width=900, hide_index=True)
    if len(frame) > 20_000:
        st.caption(f"The first 20,000 of {len(frame):,} rows; the files under Export have all of them.")


def files(result: Any, place: str, options: dict[str, Any] | None, caption: str = "", shown: Any = None) -> None:
    """Buttons for the figure and the numbers as files, each made when it is clicked."""
    from synthetic_tasks.csv_text import csv_text

    name = file_name(result, (options or {}).get("kind", ""))

    def figure_file(form: str) -> Callable[[], bytes]:
        def make() -> bytes:
            from dcinterp import figures
            from dcinterp.figures.base import export

            figure = figures.plot(result, theme="light", **(options or {}))
            return (
                export.page(result, figure, caption=unclicked(caption))
                if form == "html"
                else export.image(figure, form)
            )

        return make

    figure = [
        ("Web page", "html", "text/html", figure_file("html")),
        ("PNG", "png", "image/png", figure_file("png")),
        ("SVG", "svg", "image/svg+xml", figure_file("svg")),
    ]
    data = [
        ("CSV", "csv", "text/csv", lambda: csv_text(for_spreadsheets(table_of(result, shown))).encode()),
        ("Parquet", "parquet", "application/vnd.apache.parquet", lambda: parquet(result)),
        ("Result folder", "zip", "application/zip", lambda: zipped(result)),
    ]
    st.markdown(
        "**Download**",
        help="The web page opens offline. The CSV file has what is shown here (a text that a spreadsheet would take "
        "for a formula begins with an apostrophe there), the Parquet file all numbers of the result. The result folder "
        "is what `dcinterp replay` reads.",
    )
    with st.container(horizontal=True, gap="small"):
        for label, ending, kind, content in [*(figure if options is not None else []), *data]:
            key = f"download-{ending}-{place}"
            called = file_name(result) if ending in ("parquet", "zip") else name
            st.download_button(label, content, f"{called}.{ending}", kind, key=key, on_click="ignore")


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose texts no spreadsheet takes for formulas: a token or a name may begin as one does.

    Numbers stay as they are, also those that are texts, such as -1 or +5%.
    """

    def plain(value: Any) -> Any:
        begins = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
        return f"'{value}" if begins and not NUMBER.fullmatch(value) else value

    made = frame.copy()
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        made[name] = frame[name].map(plain)
    return made.rename(columns=plain)


def unclicked(caption: str) -> str:
    """A caption without its sentences about clicks, which do nothing in a file."""
    return re.sub(r"(?<![^ ])Click [^.]*\.( |$)", "", caption).strip()


def code(result: Any, options: dict[str, Any] | None) -> None:
    """The command line and the Python cell that make the same result, and the link to this view."""
    call = getattr(result, "call", None)
    if call is not None:
        st.markdown("**Command line**")
        st.code(call.command(), language="bash", wrap_lines=True)
        st.markdown("**Python**")
        st.code(python_cell(result, options), language="python", wrap_lines=True)
        st.markdown("**Check it again** (after unpacking the result folder)", help=tip("replay"))
        st.code(f"dcinterp replay {file_name(result)}", language="bash")
    st.markdown("**Share link**", help=tip("share link"))
    links.share_here()


def python_cell(result: Any, options: dict[str, Any] | None) -> str:
    """The cell that makes the result and draws the same figure."""
    if options is None or not result.call.reproducible:
        return result.call.python()
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value not in (None, ""))
    return f"{result.call.python()}\ndcinterp.figures.plot(result{given})"


def file_name(result: Any, kind: str = "") -> str:
    """What a downloaded file is called, without its ending: the analysis, the model and the kind of figure."""
    call = getattr(result, "call", None)
    if call is None:
        return "-".join(filter(None, [type(result).__name__.lower(), kind]))
    model = Path(call.model).name if call.model else ""
    words = [call.analysis.replace("_", "-"), "".join(c if c.isalnum() or c in "+-." else "-" for c in model)]
    return "-".join(filter(None, [*words, kind]))


def whole_page() -> None:
    """Buttons for all figures of this page at once: a notebook that makes them again, and one web page."""
    shown = _shown()
    if not shown:
        st.caption("This page has no figures.")
        return
    page, name = links.address().page, links.address().page.lower().replace(" ", "-")

    def notebook() -> bytes:
        from dcinterp.figures.base.notebook import notebook

        return notebook(page, shown)

    def web_page() -> bytes:
        from dcinterp import figures
        from dcinterp.figures.base import export

        drawn = [
            (result, figures.plot(result, theme="light", **options), unclicked(text)) for result, options, text in shown
        ]
        return export.whole_page(page, drawn)

    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "Notebook", notebook, f"{name}.ipynb", "application/x-ipynb+json", key="page-notebook", on_click="ignore"
        )
        st.download_button("Web page", web_page, f"{name}.html", "text/html", key="page-html", on_click="ignore")
    st.caption(
        f"All {len(shown)} figures of this page: as code that makes them again, or as one page to look at offline."
    )


def parquet(result: Any) -> bytes:
    """The table as Parquet."""
    buffer = io.BytesIO()
    result.to_dataframe().to_parquet(buffer, index=False)
    return buffer.getvalue()


def zipped(result: Any) -> bytes:
    """The folder that `save` writes, as one ZIP file that unpacks into a folder of its own."""
    buffer, root = io.BytesIO(), file_name(result)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        folder = result.save(Path(place) / root)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, Path(root) / path.relative_to(folder))
    return buffer.getvalue()
