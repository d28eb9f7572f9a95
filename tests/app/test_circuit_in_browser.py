"""The page of circuits in a browser: an edge is clicked, a node pinned, and the circuit saved, loaded and exported."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.browser

expect = pytest.importorskip("playwright.sync_api").expect
SETTLED = "[data-testid=stApp][data-test-script-state=notRunning]"


def saved(page, key: str, folder) -> dict:
    """The file that a button of the page gives."""
    page.wait_for_selector(SETTLED, timeout=120_000)  # while the page is drawn, old and new buttons stand in it
    with page.expect_download(timeout=90_000) as download:
        page.locator(f".st-key-{key} button").first.click()
    path = folder / f"{key}.json"
    download.value.save_as(path)
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_circuit_is_clicked_noted_saved_exported_and_loaded(page, server, tmp_path):
    page.goto(f"{server}/circuit?prompts=4&edges_kept=35", timeout=90_000)
    edges, size = page.locator(".circuit .edge"), page.get_by_text("edges kept and the others patched")
    expect(size).to_contain_text("With 35 of 1,774", timeout=180_000)
    expect(edges).to_have_count(35, timeout=90_000)
    page.wait_for_selector(SETTLED, timeout=120_000)
    strongest = edges.last
    name = strongest.get_attribute("data-name")
    strongest.locator(".felt").dispatch_event("click")
    expect(size).to_contain_text("With 34 of 1,774", timeout=90_000)
    expect(page.get_by_text(f"With {name} taken out, f goes from")).to_be_visible(timeout=90_000)
    expect(edges).to_have_count(35)  # it stays to be put back
    page.locator('.circuit .node[data-name="MLP 2"]').dispatch_event("click")
    page.get_by_role("button", name="Pin MLP 2").click(timeout=90_000)
    expect(page.get_by_role("button", name="Unpin MLP 2")).to_be_visible(timeout=90_000)
    record, graph = saved(page, "save-circuit", tmp_path), saved(page, "export-graph", tmp_path)
    assert (record["size"], record["switched"], record["pinned"]) == (35, [name], ["MLP 2"])
    assert {edge["name"] for edge in record["edges"]} == {part["name"] for li in graph["links"] for part in li["edges"]}
    assert len(record["edges"]) == 34
    assert len(graph["qParams"]["pinnedIds"]) == 1
    # Another visit, where the file brings all of it back.
    page.goto(f"{server}/circuit?prompts=4&edges_kept=18", timeout=90_000)
    expect(size).to_contain_text("With 18 of 1,774", timeout=90_000)
    page.get_by_role("button", name="Load", exact=True).click()
    page.locator("input[type=file]").set_input_files(tmp_path / "save-circuit.json")
    expect(size).to_contain_text("With 34 of 1,774", timeout=90_000)
    expect(page.locator('.circuit .node.pinned[data-name="MLP 2"]')).to_have_count(1, timeout=90_000)
    assert page.locator("[data-testid=stException]").count() == 0
