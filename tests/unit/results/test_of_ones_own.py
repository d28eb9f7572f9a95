"""Analyses, results and figures that somebody writes beside the repository's, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import pytest

import dcinterp
from dcinterp import figures
from dcinterp.results.registry import ANALYSES, analysis
from dcinterp.results.result import Result, load_result
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import Phase
from dcinterp.train.data import puzzles
from dcinterp.train.data.task_choice import choose_tasks

PROMPT = "There are tea, meat, meat. Which is not meat? The"


@dataclass(frozen=True)
class Counted(Result):
    """How many tokens a prompt has."""

    tokens: int
    prompt: str


del Result.kinds["Counted"]  # the tests of all kinds are of the repository's


@pytest.fixture
def alone(monkeypatch):
    """What a test registers is gone afterwards."""
    from dcinterp.results import registry

    assert ANALYSES
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(Result, "kinds", dict(Result.kinds))


@pytest.mark.usefixtures("alone")
def test_a_result_of_another_package_says_what_to_import(tmp_path, monkeypatch):
    @analysis(title="Tokens", question="How many?", guide="analyses.md", example={"prompt": "a"})
    def count_tokens(bridge: Any, prompt: str) -> Counted:
        return Counted(tokens=len(bridge.to_tokens(prompt)[0]), prompt=prompt)

    monkeypatch.setitem(Result.kinds, "Counted", Counted)
    folder = count_tokens(dcinterp.load("dcformer++"), prompt=PROMPT).save(tmp_path / "counted")
    assert load_result(folder).prompt == PROMPT
    record = json.loads((folder / "result.json").read_text())
    assert not record["call"].get("public", False)
    del Result.kinds["Counted"]
    with pytest.raises(
        UserError,
        match=f"holds a Counted of {__name__}; install that package, or import {__name__} first, and then load it",
    ):
        load_result(folder)


def test_a_result_without_tensors_is_one_row():
    found = Counted(tokens=3, prompt="a b c")
    assert found.to_dataframe().to_dict("records") == [{"tokens": 3, "prompt": "a b c"}]
    assert "1 of 1 rows" in found._repr_html_()


def test_a_result_without_a_figure_is_not_called_none():
    with pytest.raises(UserError, match=r"Counted has no figure; read its table\(\)"):
        figures.plot(Counted(tokens=3, prompt="a"))
    with pytest.raises(UserError, match="There is no figure for a str; give what an analysis returned"):
        figures.plot("words")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("settings", [{"needs_composition": True}, {}])
def test_a_model_by_another_name_is_refused_where_the_analysis_is_declared(settings):
    with pytest.raises(TypeError, match="takes a model, and its first parameter is 'model'; call it 'bridge'"):

        @analysis(title="A", question="B?", guide="analyses.md", example={}, **settings)
        def of_a_model(model: Any, prompt: str) -> Counted:
            return Counted(tokens=0, prompt=prompt)


def test_an_option_of_a_figure_without_a_type_is_taken(monkeypatch):
    class Mine:
        @staticmethod
        def plot(result, *, theme="light", top=3):
            return go.Figure(layout={"title": {"text": f"{top}"}})

    monkeypatch.setattr(figures, "kinds", lambda: {("Counted", ""): Mine})
    assert figures.plot(Counted(tokens=3, prompt="a"), top=5).layout.title.text == "5"


def test_two_puzzles_of_one_name_are_refused(monkeypatch):
    class Child(puzzles.PUZZLES["pairing"]):
        """Without a name of its own."""

    module = type("module", (), {"Parent": puzzles.PUZZLES["pairing"], "Child": Child})
    monkeypatch.setattr(puzzles, "import_module", lambda _: module)
    with pytest.raises(UserError, match="and Child are both the puzzle 'pairing'; give one another name"):
        puzzles._scan()


def test_a_task_beside_the_74_is_named_as_one():
    from synthetic_tasks import EXTRA_TASKS

    for name in (next(iter(EXTRA_TASKS)), "same-person+city->country+city+person-first"):
        with pytest.raises(UserError, match="Runs train on the 74 tasks alone"):
            choose_tasks(Phase(source="tasks", steps=1, batch_size=1, tasks=(name,)))
