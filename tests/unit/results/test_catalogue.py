"""The list that help and completion read is that of the registry, and a file that does not fit is named."""

from __future__ import annotations

import sys

import pytest

from dcinterp import figures
from dcinterp.results import catalogue
from dcinterp.results.catalogue import homes, import_all, own_kinds, titles
from dcinterp.results.registry import ANALYSES
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError

GOOD = "x = 1\n\n@analysis(title='Mine')\ndef mine(bridge): ...\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    for part in ("one", "other"):
        (tmp_path / part).mkdir()
    homes.cache_clear()
    titles.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    homes.cache_clear()
    titles.cache_clear()


def test_the_list_is_the_registry():
    assert titles() == {name: entry.title for name, entry in ANALYSES.items()}


def test_two_analyses_of_one_name_are_refused(folder):
    for part in ("one", "other"):
        (folder / part / "mine.py").write_text(GOOD)
    with pytest.raises(UserError, match="Two analyses are called mine"):
        homes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("mine(", "other("), "no function called mine"),
        (GOOD.replace("title='Mine'", ""), "needs title="),
        (GOOD.replace("'Mine'", "TITLE"), "needs title="),
        (f"{GOOD}def", r"does not load \(line 5"),
    ],
)
def test_a_file_that_does_not_fit_is_named(folder, text, says):
    (folder / "one" / "mine.py").write_text(text)
    with pytest.raises(UserError, match=says) as refused:
        titles()
    assert "mine.py" in str(refused.value)


def test_an_analysis_that_does_not_import_is_named(monkeypatch):
    def broken(module: str) -> None:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(catalogue, "import_module", broken)
    with pytest.raises(UserError, match=r"dcinterp/analysis/answers/predict\.py does not load \(RuntimeError: it is"):
        catalogue.import_analysis("dcinterp.analysis.answers.predict")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("RESULT = 'Prediction'", "needs RESULT and KIND"),
        ("RESULT, KIND = dict, ''\ndef plot(result, *, theme): ...", "needs RESULT and KIND"),
        ("RESULT, KIND = 'Prediction', ''", "needs RESULT and KIND"),
        ("RESULT, KIND = 'Prediction', ''\ndef plot(result, *, theme): ...", "draws the same figure"),
        ("RESULT = ", "does not load"),
    ],
)
def test_a_figure_that_does_not_fit_is_named(tmp_path, monkeypatch, text, says):
    (tmp_path / "mine_of_this_test.py").write_text(text)
    monkeypatch.delitem(sys.modules, "dcinterp.figures.mine_of_this_test", raising=False)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    figures.kinds.cache_clear()
    try:
        with pytest.raises(UserError, match=says) as refused:
            figures.kinds()
    finally:
        figures.kinds.cache_clear()
    assert "mine_of_this_test" in str(refused.value)


def test_the_kinds_that_files_define_are_those_that_are_registered():
    """Other classes of these files are free for packages."""
    import_all()
    ours = {name for name, kind in Result.kinds.items() if kind.__module__.startswith("dcinterp.")}
    assert own_kinds() == ours
