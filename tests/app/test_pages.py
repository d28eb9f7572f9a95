"""Every page without a browser: it runs, and bad input becomes a sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

APP = Path(__file__).parents[2] / "app"


@pytest.fixture
def app(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    for name in ("state",):
        sys.modules.pop(name, None)
    return AppTest.from_file(str(APP / "streamlit_app.py"), default_timeout=120)


def texts(app) -> str:
    return "\n".join(element.value for element in app.markdown)


def test_case_study_opens_on_a_right_answer(app):
    app.run()
    assert not app.exception
    assert not app.error
    assert "that is right" in texts(app)
    assert len(app.subheader) == 5
    assert len(app.get("plotly_chart")) == 6


@pytest.mark.parametrize("model", ["dcformer++", "transformer++"])
@pytest.mark.parametrize("task", ["task2", "task17", "task45", "task48", "task62", "task73"])
def test_every_kind_of_task_has_a_story(app, model, task):
    app.query_params["model"] = model
    app.query_params["task"] = task
    app.query_params["example"] = "5"
    app.run()
    assert not app.exception
    assert not app.error
    assert len(app.subheader) == 5
    assert bool(app.warning) == ("The model is wrong" in texts(app))


def test_choosing_head_and_source_changes_the_story(app):
    app.run()
    first = texts(app)
    app.selectbox(key="cell").set_value("L0H6").run()
    assert "Head 6 of layer 0" in texts(app)
    app.selectbox(key="source").set_value("1").run()
    assert not app.exception
    assert texts(app) != first


@pytest.mark.parametrize(
    ("text", "answer", "message"),
    [
        ("", "", "empty"),
        ("Ruth has a zebra", "", "zebra"),
        ("Ruth has a violin. " * 120, "", "shorten"),
        ("Ruth has a", "platypus", "platypus"),
    ],
)
def test_bad_text_is_one_sentence(app, text, answer, message):
    app.query_params["prompt"] = "My own text"
    app.run()
    app.text_area(key="text").set_value(text)
    app.text_input(key="answer").set_value(answer).run()
    assert not app.exception
    assert len(app.error) == 1
    assert message in app.error[0].value


def test_own_text_has_a_story_with_or_without_an_expected_answer(app):
    app.query_params["prompt"] = "My own text"
    app.run()
    app.text_area(key="text").set_value("There are a pear, a car, a car. Which is not car? The").run()
    assert not app.exception
    assert len(app.subheader) == 5
    app.text_input(key="answer").set_value("pear").run()
    assert not app.exception
    assert "pear" in texts(app)


def test_a_link_to_a_head_that_this_model_lacks_still_opens(app):
    app.query_params["cell"] = "L9H9"
    app.query_params["source"] = "999"
    app.run()
    assert not app.exception
    assert len(app.subheader) == 5


def test_a_damaged_model_given_at_the_start_is_one_sentence(app, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DCINTERP_MODELS", str(tmp_path))
    app.run()
    assert not app.exception
    assert len(app.error) == 1
