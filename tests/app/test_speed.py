"""From a click to the updated page, on cached results: when its sentences stand, and when its last figure does.

    pytest tests/app/test_speed.py -s

prints the medians; all of it should stand within 0.3 s on a machine that does nothing else. Streamlit draws a new
Plotly chart twice, and the second time changes nothing: a figure stands when its marks and words are the last ones, and
what the browser does after that is the third number. In `make test` everything runs beside everything, so the bound
there only catches what feels broken.
"""

from __future__ import annotations

import statistics
import sys

import pytest

pytestmark = pytest.mark.browser

PRESSES = 5
BUSY_SECONDS = 3

# From the moment the browser saw the click or the key: to the sentence that was waited for, to the last change of what
# a person sees, and to the last change of the page at all.
WATCH = """
() => {
  const main = document.querySelector('[data-testid=stMain]')
  const seen = (window.seen = { from: null, said: null, stands: null, to: null, waited: '', look: '' })
  const shown = chart => getComputedStyle(chart).visibility
  const drawn = chart => [...chart.querySelectorAll('path')].map(path => path.getAttribute('d')).join()
  const charts = () => [...main.querySelectorAll('.js-plotly-plot')].map(chart => shown(chart) + drawn(chart)).join()
  const begin = event => { seen.from ??= event.timeStamp }
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


def seconds(page, act, head: int) -> tuple[float, float, float]:
    """What one act takes until the page names the head, until its figures stand, and until nothing goes on."""
    page.evaluate("waited => { Object.assign(seen, { from: null, said: null, to: null, waited }) }", said(head))
    act()
    page.wait_for_function(SETTLED, timeout=60_000)
    return tuple(page.evaluate("() => [seen.said, seen.stands, seen.to].map(time => (time - seen.from) / 1000)"))


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
    clicks, keys = [], []
    for i in range(PRESSES):
        head = 3 * i % 7
        clicks.append(seconds(page, lambda: click(head), head))  # noqa: B023
        keys.append(seconds(page, lambda: page.keyboard.press("ArrowRight"), head + 1))
    for name, times in (("click", clicks), ("arrow key", keys)):
        sentences, figures, end = (statistics.median(column) for column in zip(*times, strict=True))
        sys.stdout.write(
            f"{name}: sentences in {sentences:.2f} s, figures in {figures:.2f} s, "
            f"nothing goes on after {end:.2f} s (medians of {PRESSES})\n"
        )
        assert end < BUSY_SECONDS
