"""The canvas heatmap alone in a browser, without the app around it: what is wide, and what a frame covers."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.browser

APP = Path(__file__).parents[2] / "app"
WIDTH = 900
GREY, FRAME = (200, 200, 200), (0, 128, 0)


@pytest.fixture
def draw(page, monkeypatch):
    """Draws a heatmap of so many rows and columns with this cell chosen; what was drawn before is drawn anew."""
    monkeypatch.syspath_prepend(str(APP))
    from workbench.heatmap import HTML

    files = {name: (APP / "workbench" / f"heatmap.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    page.set_content(f"<style>{files['css']}</style><div id=here style='width: {WIDTH}px'>{HTML}</div>")
    page.add_script_tag(
        type="module", content=files["js"].replace("export default function", "window.heatmap = function")
    )
    page.wait_for_function("window.heatmap !== undefined")

    def drawn(rows: int, columns: int, selected: list[int] | None) -> None:
        data = {
            "z": base64.b64encode(np.zeros((rows, columns), dtype=np.float32).tobytes()).decode(),
            "rows": rows,
            "columns": columns,
            "x": [f"w{i}" for i in range(columns)],
            "y": [f"head {i}" for i in range(rows)],
            "xTitle": "key",
            "yTitle": "",
            "quantity": "attention",
            "zmin": -1,
            "zmax": 1,
            "colours": [[0, GREY], [1, GREY]],
            "title": "",
            "text": None,
            "words": False,
            "selected": selected,
            "height": 40 * min(rows, 20),
            "outline": f"#{bytes(FRAME).hex()}",
            "alternative": "Weights.",
            "active": True,
        }
        page.evaluate(
            "data => heatmap({data, parentElement: document.querySelector('#here'), setTriggerValue: () => {}})", data
        )

    return drawn


def scrolled(page) -> int:
    return page.locator(".frame").evaluate("frame => frame.scrollLeft")


def pixels(page) -> np.ndarray:
    """What is on the canvas, [y, x, red green blue]."""
    url = page.locator(".cells").evaluate("canvas => canvas.toDataURL()")
    picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGBA")
    return np.asarray(picture)[..., :3].astype(int)


def test_a_wide_heatmap_is_scrolled_to_the_chosen_cell_again_when_another_is_chosen(page, draw):
    draw(3, 700, [1, 680, 1, 1])
    at_end = scrolled(page)
    assert at_end > 500
    page.locator(".frame").evaluate("frame => frame.scrollTo(300, 0)")
    draw(3, 700, [1, 680, 1, 1])
    assert scrolled(page) == 300, "what a person scrolls to stays, while nothing else is chosen"
    draw(3, 700, [2, 680, 1, 1])
    assert scrolled(page) == at_end
    draw(3, 700, [2, 0, 1, 1])
    assert scrolled(page) == 0
    page.locator(".frame").focus()
    for _ in range(450):
        page.keyboard.press("ArrowRight")
    assert scrolled(page) > 100, "the keys do not walk out of sight"


def test_a_wide_heatmap_shows_that_it_goes_on_and_keeps_the_names_of_its_rows(page, draw):
    draw(3, 300, [1, 299, 1, 1])
    assert not page.locator(".more").is_visible()
    assert not page.locator(".names").is_visible()
    draw(3, 700, [1, 0, 1, 1])
    assert page.locator(".more").is_visible()
    assert not page.locator(".names").is_visible()
    draw(3, 700, [1, 699, 1, 1])
    assert not page.locator(".more").is_visible()
    assert page.locator(".names").is_visible()
    assert page.locator(".names").bounding_box()["x"] == page.locator(".frame").bounding_box()["x"]


@pytest.mark.parametrize(("rows", "columns"), [(300, 300), (40, 100), (3, 300), (20, 45), (3, 8)])
def test_the_frame_leaves_two_thirds_of_every_cell(page, draw, rows, columns):
    draw(rows, columns, None)
    bare = pixels(page)
    where = [rows // 2, columns // 2]
    draw(rows, columns, [*where, 1, 1])
    left, top, width, height = box(bare, rows, columns)
    # White or green on grey; what the browser has smoothed counts as covered from the half on.
    covered = (np.abs(pixels(page) - bare) > 27).any(-1)
    assert covered.any()
    for row in range(where[0] - 1, where[0] + 2):
        for column in range(where[1] - 1, where[1] + 2):
            x, y = left + column * width, top + row * height
            share = covered[round(y) : round(y + height), round(x) : round(x + width)].mean()
            assert share <= 0.34, (row, column, share)


def box(bare: np.ndarray, rows: int, columns: int) -> tuple[float, float, float, float]:
    """Left and top of the cells, and the width and height of one, from where the picture has their colour."""
    ys, xs = np.nonzero((bare == GREY).all(-1))
    # The scale stands 12 pixels right of the last cell.
    xs = np.unique(xs)
    xs = xs[: np.argmax(np.diff(xs, append=xs[-1] + 99) > 5) + 1]
    return xs[0], ys.min(), (xs[-1] + 1 - xs[0]) / columns, (ys.max() + 1 - ys.min()) / rows
