"""The page Experiments, of an experiment whose runs are still to come."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.app.opening import open_page

FOLDER = Path(__file__).parents[2] / "experiments"


def test_an_experiment_without_runs_shows_what_it_asks(app, write_experiment):
    """Which is no error: a protocol stands before its results."""
    folder = write_experiment(Path("experiments/soon"), {"plain": [0.1], "composed": [0.2]})
    (folder / "results.csv").unlink()
    (folder / "protocol.md").write_text("# Soon\n\nNothing was run yet.\n", encoding="utf-8")
    open_page(app, "experiments", experiment="soon")
    assert not app.exception
    assert not app.error
    assert any("start them with: dcinterp experiment run experiments/soon" in info.value for info in app.info)
    assert any("Nothing was run yet." in text.value for text in app.markdown)


def test_pictures_of_a_protocol_are_links(app, write_experiment):
    """The browser of whoever looks would fetch them from anywhere."""
    folder = write_experiment(Path("experiments/soon"), {"plain": [0.1], "composed": [0.2]})
    said = "# Soon\n\n![a picture](https://example.org/a.png) and ![other][ref]; not so!\n\n[ref]: b.png\n"
    (folder / "protocol.md").write_text(said, encoding="utf-8")
    open_page(app, "experiments", experiment="soon")
    (shown,) = [text.value for text in app.markdown if "a picture" in text.value]
    assert "\\![a picture](https://example.org/a.png) and \\![other][ref]; not so!" in shown
    assert not re.search(r"(?<!\\)!\[", shown)


@pytest.mark.parametrize("before", ["", "\\", "\\\\", "\\\\\\", "`a\\`"])
def test_no_backslash_brings_a_picture_back(before):
    from markdown_it import MarkdownIt

    from workbench.markdown import without_pictures

    assert "<img" not in MarkdownIt().render(without_pictures(f"{before}![x](https://example.org/p.png)"))


def test_every_hypothesis_is_listed_when_asked_for(app, write_experiment):
    write_experiment(Path("experiments/ours"), {"plain": [0.1, 0.2, 0.15], "composed": [0.3, 0.41, 0.36]})
    open_page(app, "experiments", experiment="ours", all="True")
    assert not app.exception
    row = next(row for row in app.dataframe[0].value.to_dict("records") if row["experiment"] == "ours")
    assert (row["hypothesis"], row["verdict"]) == ("H1", "supported")
    assert "composed minus plain: accuracy on new pairs" in row.values()
    assert row["found [95 % interval]"].startswith("+0.207 [")


def test_ways_that_return_are_listed_when_asked_for(app):
    """Those of lookup, which comes with dcinterp."""
    open_page(app, "experiments", experiment="lookup", ways="True")
    assert not app.exception
    rows = app.dataframe[0].value.set_index(["experiment", "arm"])
    composed = rows.loc[("lookup, seeds 300 to 309", "DCMHA")]
    assert (composed["learnt it"], composed["looked into"]) == ("10 of 10", "10")
    assert "relation: L1 post weights (10)" in composed["largest way, in how many of them"]
    assert any("lookup_schedule, seeds 340 to 349" in each.value for each in app.caption)


def test_a_repetition_stands_beside_the_verdicts(app):
    """That of digits, which comes with dcinterp."""
    open_page(app, "experiments", experiment="digits")
    assert not app.exception
    assert "With other seeds" in [each.value for each in app.subheader]
    lines = [text.value for text in app.markdown if text.value.startswith("- **H2**")]
    assert len(lines) == len(set(lines)) == 2
    (asked,) = {each for code in app.code for each in re.findall(r"--seeds (\d+-\d+) --keep-search", code.value)}
    first, last = map(int, asked.split("-"))
    assert last - first == 9
    tables = (pd.read_csv(file) for file in FOLDER.glob("*/re*.csv"))
    used = {int(seed) for table in tables if "recipe.seed" in table for seed in table["recipe.seed"]}
    assert 19 in used, "of its repetition"
    assert not used & set(range(first, last + 1)), "neither those nor the first ones, nor others'"


def test_what_the_search_saw_can_be_read(app):
    open_page(app, "experiments", experiment="digits")
    assert "What the search for the best values saw" in [each.label for each in app.expander]
    tables = [text.value for text in app.markdown if "bold is what it chose" in text.value]
    assert len(tables) == 1
    assert "| ViT wider |" in tables[0]
    limits = [text.value for text in app.markdown if "At an edge of what was tried" in text.value]
    assert len(limits) == 1


def test_no_search_shows_none(app):
    open_page(app, "experiments", experiment="birth")
    assert not app.exception
    assert "What the search for the best values saw" not in [each.label for each in app.expander]
