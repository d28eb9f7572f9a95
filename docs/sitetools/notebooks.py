"""Notebooks: run them in this process (torch is imported once for all), write their outputs, turn them into pages."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "analyses"
WIDTH = 640


def notebooks() -> list[Path]:
    """All notebooks of the repository."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(path: Path) -> Any:
    """The notebook with the outputs of a fresh run from top to bottom, in a folder of its own.

    Figures become PNG images with their text alternative beside them, so that outputs show without a network.

    Raises:
        RuntimeError: a cell raised; the message names the cell.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    notebook = nbformat.read(path, as_version=4)
    # The instance is what IPython's display functions write to.
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("colors", "nocolor")
    # The value of a cell is kept as data, instead of being written to the terminal behind its number.
    hook: Any = shell.displayhook
    hook.write_output_prompt = lambda: None
    with _elsewhere(), pictures():
        for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
            values: list[dict[str, Any]] = []
            hook.write_format_data = lambda data, metadata=None, values=values: values.append(data)
            with capture_output() as captured:
                result = shell.run_cell(cell.source, store_history=True)
            error = result.error_before_exec or result.error_in_exec
            if error is not None:
                raise RuntimeError(f"{path.name}, cell {number}: {type(error).__name__}: {error}") from error
            cell.execution_count = number
            cell.outputs = list(_outputs(captured, values))
    return notebook


def _outputs(captured: Any, values: list[dict[str, Any]]) -> Iterator[Any]:
    if captured.stdout.strip():
        yield nbformat.v4.new_output("stream", name="stdout", text=captured.stdout)
    for shown in [*(output.data for output in captured.outputs), *values]:
        data = {
            kind: base64.b64encode(content).decode() if isinstance(content, bytes) else content
            for kind, content in shown.items()
        }
        yield nbformat.v4.new_output("display_data", data=data)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """A scratch folder as the working directory, so that what a notebook writes stays out of the repository."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextmanager
def pictures() -> Iterator[None]:
    """Plotly figures are shown as PNG images inside the block."""
    import plotly.io as pio
    from plotly.io.base_renderers import MimetypeRenderer

    class Picture(MimetypeRenderer):
        def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, Any]:
            return picture(fig_dict)

    before = pio.renderers.default
    pio.renderers["picture"] = Picture()
    pio.renderers.default = "picture"
    try:
        yield
    finally:
        pio.renderers.default = before


def picture(figure: Any) -> dict[str, Any]:
    """A figure as an image and as its text alternative."""
    import plotly.graph_objects as go

    from dcinterp.figures.base.describe import describe
    from dcinterp.figures.base.export import image

    figure = go.Figure(_decoded(figure))
    png = base64.b64encode(small(image(figure, "png", width=WIDTH))).decode()
    return {"image/png": png, "text/plain": describe(figure).alternative}


def small(png: bytes) -> bytes:
    """The same picture in 128 colours: a third of the bytes, and figures do not have more shades than that."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _decoded(figure: Any) -> Any:
    """Plotly gives a renderer its arrays as base64 text; this returns arrays again."""
    if isinstance(figure, dict) and {"dtype", "bdata"} <= set(figure):
        array = np.frombuffer(base64.b64decode(figure["bdata"]), dtype=figure["dtype"])
        return array.reshape([int(n) for n in str(figure.get("shape", len(array))).split(",")])
    if isinstance(figure, dict):
        return {name: _decoded(value) for name, value in figure.items()}
    return [_decoded(value) for value in figure] if isinstance(figure, list | tuple) else figure


def markdown(notebook: Any, images: Path, name: str) -> str:
    """A page of the site: texts, code and outputs; images are written into `images`."""
    images.mkdir(parents=True, exist_ok=True)
    parts, pictured = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.replace("](../docs/", "](../"))  # generated pages are inside docs
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                parts.append(f"```text\n{output.text.rstrip()}\n```")
            elif "image/png" in data:
                pictured += 1
                target = images / f"{name}-{pictured}.png"
                target.write_bytes(base64.b64decode(data["image/png"]))
                alternative = re.sub(r"[\[\]\n]", " ", "".join(data.get("text/plain", "figure")))
                parts.append(f"![{alternative}]({images.name}/{target.name})")
            elif "<table" in (html := "".join(data.get("text/html", ""))):
                parts.append(_table(html))
            elif "text/plain" in data:
                text = "".join(data["text/plain"]).rstrip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _table(html: str) -> str:
    """The table of a data frame in the site's style; a block of HTML in Markdown ends at an empty line."""
    table = re.sub(r"<table[^>]*>", '<table class="docutils">', html[html.index("<table") : html.index("</table>")])
    lines = [line for line in table.split("\n") if line.strip()]
    return "\n".join(['<div class="table-wrapper docutils container numbers">', *lines, "</table>", "</div>"])


def write(paths: list[Path]) -> None:
    """Run notebooks and write the outputs into their files."""
    for path in paths:
        notebook = run(path)
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        nbformat.write(notebook, path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    write([Path(argument).resolve() for argument in sys.argv[1:]] or notebooks())
