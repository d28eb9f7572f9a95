"""From a click to the updated page, on cached results: when its sentences stand, and when its last figure does.

    DCINTERP_SPEED=1 pytest tests/app/test_speed.py -s

prints the medians, and with the variable those of the pages with most figures too; all of it should stand within 0.3 s
on a machine that does nothing else. Streamlit draws a new Plotly chart twice, and the second time changes nothing: a
figure stands when its marks and words are the last ones, and what the browser does after that is the third number. In
`make test` everything runs beside everything, so the bound there only catches what feels broken.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import pytest

pytestmark = pytest.mark.browser

PRESSES = 5
BUSY_SECONDS = 3

# From the moment the browser saw the click or the key: to the sentence that was waited for, to the last change of what
# a person sees, and to the last change of the page at all.
WATCH = """
() => {
  const main = document.querySelector('[data-testid=stMain]')
  const app = document.querySelector('[data-testid=stApp]')
  const seen = (window.seen = { from: null, said: null, stands: null, to: null, waited: '', look: '' })
  const shown = chart => getComputedStyle(chart).visibility
  const drawn = chart => [...chart.querySelectorAll('path')].map(path => path.getAttribute('d')).join()
  const charts = () => [...main.querySelectorAll('.js-plotly-plot')].map(chart => shown(chart) + drawn(chart)).join()
  const begin = event => { seen.from ??= event.timeStamp }
  // Heatmaps are drawn on a canvas, where no change of the page tells of it.
  for (const name of ['fillRect', 'putImageData']) {
    const draw = CanvasRenderingContext2D.prototype[name]
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      if (seen.from !== null) seen.stands = seen.to = performance.now()
      return draw.apply(this, given)
    }
  }
  new MutationObserver(() => {
    const runs = app.dataset.testScriptState !== 'notRunning'
    if (seen.from !== null && !runs) seen.ended = performance.now()
  })
    .observe(app, { attributes: true, attributeFilter: ['data-test-script-state'] })
  addEventListener('click', begin, true)
  addEventListener('keydown', begin, true)
  new MutationObserver(() => {
    if (seen.from === null) return
    seen.to = performance.now()
    const look = charts() + main.textContent
    if (look !== seen.look) seen.stands = seen.to
    seen.look = look
    if (seen.said === null && main.textContent.includes(seen.waited)) seen.said = seen.to
  })
    .observe(main, { subtree: true, childList: true, characterData: true, attributes: true })
}
"""
SETTLED = "() => seen.said !== null && performance.now() - seen.to > 500"
STILL = "() => seen.ended && performance.now() - Math.max(seen.to, seen.ended) > 700"

OPT_IN = pytest.mark.skipif("DCINTERP_SPEED" not in os.environ, reason="measures; set DCINTERP_SPEED=1 to see it")


def seconds(page, act, head: int) -> tuple[float, float, float]:
    """What one act takes until the page names the head, until its figures stand, and until nothing goes on."""
    page.evaluate("waited => { Object.assign(seen, { from: null, said: null, to: null, waited }) }", said(head))
    act()
    page.wait_for_function(SETTLED, timeout=60_000)
    return tuple(page.evaluate("() => [seen.said, seen.stands, seen.to].map(time => (time - seen.from) / 1000)"))


def crowded() -> float:
    """How many times its processor time a process takes now, for others have their turns; 1 on a quiet machine."""
    wall, own = time.perf_counter(), time.process_time()
    while time.process_time() - own < 0.3:
        pass
    return max(1.0, (time.perf_counter() - wall) / 0.3)


def said(head: int) -> str:
    return f"Head {head} of layer 0"


def test_a_click_and_a_key_update_the_page_at_once(page, server):
    page.goto(f"{server}/?cell=L0H0", timeout=90_000)
    page.wait_for_selector("h3#step-7", timeout=180_000)
    page.wait_for_timeout(1000)
    heads = page.locator("canvas").first
    heads.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.evaluate(WATCH)
    box = heads.bounding_box()
    left, right = box["x"] + 32, box["x"] + box["width"] - 70

    def click(head: int) -> None:
        page.mouse.click(left + (right - left) * (head + 0.5) / 8, box["y"] + 29)

    for head in range(1, 8):  # the first visit to a head computes its case study
        seconds(page, lambda: click(head), head)  # noqa: B023
    clicks, keys, others = [], [], [crowded()]
    for i in range(PRESSES):
        head = 3 * i % 7
        clicks.append(seconds(page, lambda: click(head), head))  # noqa: B023
        keys.append(seconds(page, lambda: page.keyboard.press("ArrowRight"), head + 1))
        others.append(crowded())
    for name, times in (("click", clicks), ("arrow key", keys)):
        sentences, figures, end = (statistics.median(column) for column in zip(*times, strict=True))
        sys.stdout.write(
            f"{name}: sentences in {sentences:.2f} s, figures in {figures:.2f} s, "
            f"nothing goes on after {end:.2f} s (medians of {PRESSES})\n"
        )
        assert end < BUSY_SECONDS * statistics.median(others)


@OPT_IN
@pytest.mark.parametrize(
    ("address", "heatmap", "keys"),
    [
        ("attention?layer=1", 1, ("ArrowDown", "ArrowUp")),
        ("composition?layer=1", 0, ("ArrowRight", "ArrowLeft")),
        ("attribution", 0, ("ArrowRight", "ArrowLeft")),
        ("ov-circuits?layer=1", 0, ("ArrowRight", "ArrowLeft")),
    ],
)
def test_another_head_on_the_pages_with_most_figures(page, server, address, heatmap, keys):
    """Another head by key: the first time, when the analyses run, and when both heads were looked at before."""
    page.goto(f"{server}/{address}", timeout=90_000)
    cells = page.locator(".frame[role=application]").nth(heatmap)
    cells.wait_for(timeout=180_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=180_000)
    page.wait_for_timeout(1500)
    cells.scroll_into_view_if_needed()
    cells.focus()
    page.evaluate(WATCH)

    def press(key: str) -> tuple[float, float]:
        page.evaluate("() => { Object.assign(seen, { from: null, ended: null, stands: null, to: null }) }")
        page.keyboard.press(key)
        page.wait_for_function(STILL, timeout=60_000)
        return tuple(page.evaluate("() => [seen.stands, seen.to].map(time => (time - seen.from) / 1000)"))

    new = [press(keys[0]) for _ in range(3)]
    known = [press(keys[(i + 1) % 2]) for i in range(2 * PRESSES)]
    for name, times in (("a new head", new), ("a head seen before", known)):
        figures, end = (statistics.median(column) for column in zip(*times, strict=True))
        sys.stdout.write(f"/{address}, {name}: figures in {figures:.2f} s, nothing goes on after {end:.2f} s\n")
        assert end < 3 * BUSY_SECONDS
