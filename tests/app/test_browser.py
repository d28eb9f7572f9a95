"""The case study as a person meets it: a real server, a real browser, real clicks."""

from __future__ import annotations

import re
import time

import pytest

pytestmark = pytest.mark.browser


def open_page(page, address: str) -> None:
    page.goto(address)
    settled(page)


def settled(page) -> None:
    """Wait until the whole story stands and the script has ended."""
    page.wait_for_selector("h3#step-5", timeout=120_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=60_000)
    page.wait_for_timeout(400)


def sentence(page, step: int) -> str:
    """The sentence under the heading of a step."""
    heading = page.locator(f"h3#step-{step}")
    block = heading.locator("xpath=ancestor::*[@data-testid='stElementContainer'][1]/following-sibling::*[1]")
    return block.inner_text()


def click_cell(page, chart, *, row: int, column: int, rows: int, columns: int, until: str) -> None:
    """Click the middle of a cell of a grid until the link says so; on a busy machine the page may still be moving."""
    for _ in range(5):
        chart.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        box = chart.locator(".heatmaplayer").bounding_box()
        x = box["x"] + box["width"] * (column + 0.5) / columns
        y = box["y"] + box["height"] * (row + 0.5) / rows
        # As a hand does: Plotly learns from the movement what lies under the pointer.
        page.mouse.move(x - 5, y)
        page.mouse.move(x, y)
        page.wait_for_timeout(500)
        page.mouse.click(x, y)
        for _ in range(20):
            if until in page.url:
                return
            page.wait_for_timeout(250)
    raise AssertionError(f"five clicks, and the link is still {page.url}")


def test_opens_on_a_right_answer_and_tells_five_steps(page, server):
    open_page(page, server)
    assert "that is right" in sentence(page, 1)
    assert re.search(r"Head \d of layer \d writes most", sentence(page, 2))
    for step in range(1, 6):
        assert page.locator(f"h3#step-{step}").is_visible()
    assert page.locator(".js-plotly-plot").count() == 6
    assert page.locator("[data-testid=stException]").count() == 0


def test_a_click_on_a_head_follows_it_and_the_link_restores_it(page, server, browser):
    open_page(page, server)
    click_cell(page, page.locator(".js-plotly-plot").nth(1), row=0, column=5, rows=3, columns=8, until="cell=L0H5")
    page.wait_for_function(
        "document.querySelector('h3#step-2').closest('[data-testid=stMain]').innerText.includes('Head 5 of layer 0')"
    )
    settled(page)
    told = sentence(page, 3)
    other = browser.new_context().new_page()
    open_page(other, page.url)
    assert "Head 5 of layer 0" in sentence(other, 2)
    assert sentence(other, 3) == told
    other.context.close()


def test_own_text_with_an_unknown_word_is_one_sentence(page, server):
    open_page(page, f"{server}/?prompt=My+own+text")
    box = page.get_by_label("Text", exact=True)
    box.fill("< Ruth has a zebra. >. Ruth has a kind of")
    box.press("Control+Enter")
    alert = page.locator("[data-testid=stAlert]").first
    alert.wait_for(timeout=30_000)
    assert "does not know the word 'zebra'" in alert.inner_text()
    assert page.locator("[data-testid=stException]").count() == 0


def test_the_twin_has_a_story_without_lending(page, server):
    open_page(page, f"{server}/?model=transformer%2B%2B")
    assert "not composed" in sentence(page, 3)
    assert "without composition" in sentence(page, 4)


def test_a_new_example_is_told_within_five_seconds(page, server):
    open_page(page, server)
    before = sentence(page, 1), page.locator(".chips").inner_text()
    began = time.monotonic()
    page.get_by_label("Example", exact=True).fill("3001")
    page.get_by_label("Example", exact=True).press("Enter")
    page.wait_for_function("text => document.querySelector('.chips').innerText !== text", arg=before[1], timeout=20_000)
    settled(page)
    # Five seconds on a quiet machine; the tests may share the cores with others.
    assert time.monotonic() - began < 15
