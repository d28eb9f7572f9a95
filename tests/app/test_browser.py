"""The workbench as a person meets it: a real server, a real browser, real clicks."""

from __future__ import annotations

import json
import re
import time
import zipfile

import pytest

pytestmark = pytest.mark.browser

expect = pytest.importorskip("playwright.sync_api").expect
# What a click changes is waited for: right after it the page still shows what stood there before.
expect.set_options(timeout=60_000)

PAGES = (
    *("Case study", "Attention patterns", "Composition", "Attribution", "Compare models", "Tasks", "Hooks"),
    "Models",
)
SETTLED = "[data-testid=stApp][data-test-script-state=notRunning]"


def open_page(page, address: str, heading: str = "h3#step-7") -> None:
    page.goto(address, timeout=90_000)
    settled(page, heading)


def settled(page, heading: str = "h3#step-7") -> None:
    """Wait until the page stands whole and the script has ended."""
    page.wait_for_selector(heading, timeout=180_000)
    page.wait_for_selector(SETTLED, timeout=120_000)
    page.wait_for_timeout(400)
    assert page.locator("[data-testid=stException]").count() == 0


def go_to(page, name: str, heading: str) -> None:
    """Choose another page in the sidebar."""
    before = page.locator("h1").inner_text()
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_function("before => document.querySelector('h1')?.innerText !== before", arg=before, timeout=60_000)
    settled(page, heading)


def sentence(page, step: int):
    """Where the sentence under the heading of a step stands."""
    heading = page.locator(f"h3#step-{step}")
    return heading.locator("xpath=ancestor::*[@data-testid='stElementContainer'][1]/following-sibling::*[1]")


def sentences(page) -> list[str]:
    """The sentences of all steps."""
    return [sentence(page, step).inner_text() for step in range(1, 8)]


def comes_to_say(page, said: list[str]) -> None:
    """Wait until the sentences of all steps are these."""
    for step, text in enumerate(said, start=1):
        expect(sentence(page, step)).to_have_text(text, use_inner_text=True)


FOCUSED = """() => {
  let at = document.activeElement
  while (at.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  return at.dataset.at
}"""


def test_the_keyboard_reaches_tokens_and_small_matrices_and_a_tab_names_its_page(server, page):
    open_page(page, f"{server}/attention", "canvas[data-at]")
    expect(page).to_have_title("Attention patterns · dcinterp")
    tokens = page.locator(".tokens").first
    last = tokens.get_attribute("aria-activedescendant")
    tokens.press("Home")
    expect(tokens).to_have_attribute("aria-activedescendant", "token-0")
    settled(page, "canvas[data-at]")
    tokens.press("End")
    expect(tokens).to_have_attribute("aria-activedescendant", last)
    settled(page, "canvas[data-at]")
    stops = page.locator("canvas[data-at][tabindex='0']")
    assert stops.count() == 1, "one stop for Tab, and arrow keys from there"
    layer, head = map(int, stops.get_attribute("data-at").split())
    stops.press("ArrowRight" if head == 0 else "ArrowLeft")
    assert page.evaluate(FOCUSED) == f"{layer} {1 if head == 0 else head - 1}"
    assert stops.count() == 1


def heads(page):
    """The heatmap of the heads: the first canvas of the case study."""
    return page.locator("canvas").first


def click_cell(page, canvas, *, row: int, column: int, columns: int, until: str) -> None:
    """Click the middle of a cell until the link says so; on a busy machine the page may still be moving."""
    for _ in range(5):
        canvas.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        box = canvas.bounding_box()
        # Left of the cells stand their names, right of them 70 pixels of scale; below them names and title.
        left, right, top = box["x"] + 32, box["x"] + box["width"] - 70, box["y"] + 6
        x = left + (right - left) * (column + 0.5) / columns
        y = top + 46 * (row + 0.5)
        page.mouse.move(x - 4, y)
        page.mouse.move(x, y)
        page.mouse.click(x, y)
        for _ in range(60):
            if until in page.url:
                return
            page.wait_for_timeout(250)
    raise AssertionError(f"five clicks, and the link is still {page.url}")


def test_opens_on_a_right_answer_and_its_case_study(page, server):
    open_page(page, server)
    expect(sentence(page, 1)).to_contain_text("which is right")
    expect(sentence(page, 2)).to_contain_text(re.compile(r"Head \d of layer \d has the largest direct effect"))
    for step in range(1, 8):
        assert page.locator(f"h3#step-{step}").is_visible()


def test_a_click_follows_a_head_keys_walk_on_and_the_link_restores_it(page, server, browser):
    open_page(page, server)
    click_cell(page, heads(page), row=0, column=5, columns=8, until="cell=L0H5")
    settled(page)
    expect(sentence(page, 2)).to_contain_text("Head 5 of layer 0")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("location.search.includes('cell=L1H5')", timeout=60_000)
    settled(page)
    expect(sentence(page, 2)).to_contain_text("Head 5 of layer 1")
    settled(page)
    said = sentences(page)
    page.get_by_text("Share this view").click()
    link = page.locator("[data-testid=stCode]").first.inner_text().strip()
    assert "cell=L1H5" in link
    assert "example=" in link, "a shared link holds the defaults too"
    other = browser.new_context().new_page()
    open_page(other, link)
    comes_to_say(other, said)
    other.context.close()


def test_a_click_on_the_map_chooses_both_of_its_heads(page, server):
    open_page(page, f"{server}/composition?task=task2&example=0", "canvas")
    canvas, main = heads(page), page.locator("[data-testid=stMain]")
    canvas.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    # The cell at the top left: the names of the rows stand left of it, and the title above.
    canvas.click(position={"x": 60, "y": 40})
    expect(main).to_contain_text(re.compile(r"Here head 0 uses \S+ times the attention of head 0 "))
    settled(page, "canvas")
    page.keyboard.press("ArrowDown")
    expect(main).to_contain_text(re.compile(r"Here head 0 uses \S+ times the attention of head 1 "))


def test_back_goes_back_one_choice(page, server):
    open_page(page, server)
    first = sentence(page, 2).inner_text()
    click_cell(page, heads(page), row=0, column=2, columns=8, until="cell=L0H2")
    settled(page)
    expect(sentence(page, 2)).to_contain_text("Head 2 of layer 0")
    page.go_back()
    expect(sentence(page, 2)).to_have_text(first, use_inner_text=True)
    assert "cell" not in page.url


def test_own_text_with_an_unknown_word_is_one_sentence(page, server):
    open_page(page, f"{server}/?prompt=text")
    box = page.get_by_label("Text", exact=True)
    box.fill("< Ruth has a zebra. >. Ruth has a kind of")
    box.press("Control+Enter")
    # The summary of the text before gives way, and nothing else is said.
    expect(page.locator("[data-testid=stAlert]")).to_have_count(1)
    expect(page.locator("[data-testid=stAlert]")).to_contain_text("does not know the word 'zebra'")
    expect(page.locator("h3#step-2")).to_have_count(0)


def test_the_baseline_model_has_a_case_study_without_sharing(page, server):
    open_page(page, f"{server}/?model=transformer%2B%2B", "h3#step-6")
    expect(page.locator("[data-testid=stMain]")).to_contain_text("steps about shared attention and gates do not apply")
    expect(page.locator("h3#step-5")).to_have_count(0)


def test_a_link_that_asks_for_what_is_not_there_says_so(page, server):
    open_page(page, f"{server}/?cell=L9H9")
    expect(page.locator("[data-testid=stAlert]").first).to_contain_text("cell = 'L9H9'")


def test_files_of_a_view_are_whole(page, server, tmp_path):
    open_page(page, f"{server}/attribution", "h3")
    page.get_by_role("button", name="Export").first.click()
    for label, check in (
        ("PNG", lambda data: data.startswith(b"\x89PNG")),
        ("SVG", lambda data: b"<svg" in data),
        ("CSV", lambda data: b"layer,head" in data),
        ("Parquet", lambda data: data.startswith(b"PAR1")),
        ("Web page", lambda data: b"plotly" in data and b'src="http' not in data),
    ):
        with page.expect_download(timeout=90_000) as waiting:
            page.get_by_role("button", name=label, exact=True).click()
        assert check(waiting.value.path().read_bytes()), label
    with page.expect_download(timeout=90_000) as waiting:
        page.get_by_role("button", name="Result folder").click()
    waiting.value.save_as(tmp_path / "result.zip")
    names = zipfile.ZipFile(tmp_path / "result.zip").namelist()
    (record,) = (name for name in names if name.endswith("/result.json") and name.count("/") == 1)
    call = json.loads(zipfile.ZipFile(tmp_path / "result.zip").read(record))["call"]
    assert call["analysis"] == "attribute_heads"
    assert call["model"] == "dcformer++"


def test_pointing_at_a_token_shows_what_the_head_attends_to(page, server):
    open_page(page, f"{server}/attention", "canvas")
    chips = page.locator(".tokens span")
    chips.nth(5).hover()
    note = page.locator(".note").first
    expect(note).to_contain_text("(position 5) uses attention at")
    chips.nth(5).click()
    page.wait_for_function("location.search.includes('query=5')", timeout=60_000)


def test_nothing_is_asked_of_the_network(page, server):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_page(page, server)
    foreign = [url for url in asked if not url.startswith((server, server.replace("http", "ws"), "data:", "blob:"))]
    assert foreign == []


@pytest.mark.parametrize(("width", "scheme"), [(1440, "dark"), (900, "light")])
def test_every_page_fits_its_window(browser, server, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page = context.new_page()
    open_page(page, server)
    for name in PAGES:
        if name != "Case study":
            go_to(page, name, "h1")
        wide = page.evaluate(
            "() => { const main = document.querySelector('[data-testid=stMain]');"
            " return main.scrollWidth - main.clientWidth }"
        )
        assert wide <= 2, (name, width)
    if width == 900:  # tables of text that are wider than their column
        open_page(page, f"{server}/experiments?experiment=birth", "h1")
        page.locator("table").first.wait_for()
        beyond = page.evaluate(
            "() => [...document.querySelectorAll('table')].map(table =>"
            " table.getBoundingClientRect().right - table.parentElement.getBoundingClientRect().right)"
        )
        assert beyond
        assert max(beyond) <= 1, beyond
    context.close()


def test_a_new_example_is_shown_within_five_seconds(page, server):
    open_page(page, server)
    before = page.locator(".tokens").first.inner_text()
    began = time.monotonic()
    page.get_by_label("Example", exact=True).fill("3001")
    page.get_by_label("Example", exact=True).press("Enter")
    for _ in range(400):
        if page.locator(".tokens").first.inner_text() != before:
            break
        page.wait_for_timeout(50)
    settled(page)
    # Five seconds on a quiet machine; the tests may share the cores with others.
    assert time.monotonic() - began < 20


def test_a_choice_goes_along_to_other_pages_and_back(page, server):
    open_page(page, f"{server}/?task=task29&example=3&cell=L1H2")
    said = sentence(page, 1).inner_text()
    for name, heading in (("Composition", "canvas"), ("Edges", "h1"), ("Case study", "h3#step-7")):
        go_to(page, name, heading)
        expect(page).to_have_url(re.compile("task=task29"))
        expect(page).to_have_url(re.compile("example=3(&|$)"))
    expect(page).to_have_url(re.compile("cell=L1H2"))
    expect(sentence(page, 1)).to_have_text(said, use_inner_text=True)


def test_a_text_of_ones_own_goes_along_to_other_pages(page, server):
    text = "< Mary has a dog. John has a banana. Robert has a car. >. John has a kind of"
    open_page(page, f"{server}/?prompt=text&text={text}")
    for name, heading in (("Composition", "canvas"), ("Attribution", "canvas")):
        go_to(page, name, heading)
        expect(page.get_by_label("Text", exact=True)).to_have_value(text)


def test_back_from_the_intervention_of_a_case_study_is_the_case_study_again(page, server):
    open_page(page, f"{server}/?task=task2&example=0")
    said = sentences(page)
    page.get_by_role("link", name=re.compile("Ablate the attention that head")).click()
    page.wait_for_function("document.querySelector('h1')?.innerText === 'Interventions'", timeout=60_000)
    settled(page, "h1")
    expect(page).to_have_url(re.compile("what=edge"))
    page.go_back()
    page.wait_for_function("document.querySelector('h1')?.innerText !== 'Interventions'", timeout=60_000)
    settled(page)
    comes_to_say(page, said)


def scrolled(page) -> int:
    """How far down the page is scrolled."""
    return page.locator("[data-testid=stMain]").evaluate("main => main.scrollTop")


def test_another_page_begins_at_its_top_and_a_rerun_stays_where_it_is(page, server):
    open_page(page, f"{server}/?task=task2&example=0")
    expect(page.get_by_role("link", name=re.compile("Ablate the attention that head"))).to_be_visible()
    click_cell(page, heads(page), row=0, column=5, columns=8, until="cell=L0H5")
    settled(page)
    link = page.get_by_role("link", name=re.compile("Ablate the attention that head"))
    link.scroll_into_view_if_needed()
    there = scrolled(page)
    assert there > 500
    page.get_by_label("Example", exact=True).evaluate("box => box.focus({preventScroll: true})")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("example=1"))
    settled(page)
    assert scrolled(page) > 500, "a new example is read where the one before was"
    link.click()
    expect(page.locator("h1")).to_have_text("Interventions")
    settled(page, "h1")
    assert scrolled(page) == 0
    page.go_back()
    expect(page.locator("h1")).not_to_have_text("Interventions")
    settled(page)
    assert scrolled(page) == 0


def test_a_link_to_a_step_shows_that_step(page, server):
    open_page(page, f"{server}/?task=task2&example=0#step-5")
    expect(page.locator("h3#step-5")).to_be_in_viewport()
    assert scrolled(page) > 500
