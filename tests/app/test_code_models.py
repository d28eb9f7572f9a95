"""The pages on the models of source code: text of their own instead of tasks, prompts to look at, and their logs."""

from __future__ import annotations

import json

from dcinterp.checkpoints.names import SHIPPED
from tests.app.opening import open_page

NAME = "dcformer++-code"
PROMPTS = json.loads((SHIPPED / NAME / "prompts.json").read_text(encoding="utf-8"))


def test_a_model_of_source_code_is_shown_text_and_no_tasks(app):
    open_page(app, "attention", model=NAME)
    assert app.text_area(key="text").value == PROMPTS[0]["prompt"]
    assert not app.error
    assert not [box for box in app.selectbox if box.key == "task"]


def test_one_of_its_prompts_can_be_put_into_the_text(app):
    open_page(app, "attribution", model=NAME)
    app.button(key="own-prompt-1").click().run()
    assert not app.exception
    assert app.text_area(key="text").value == PROMPTS[1]["prompt"]
    assert app.text_input(key="answer").value == PROMPTS[1]["answer"]
    assert not app.error


def test_the_circuit_page_says_why_it_has_nothing_to_rank(app):
    open_page(app, "circuit", model=NAME)
    (said,) = app.info
    assert "trained on source code" in said.value


def test_the_training_page_has_their_logs(app):
    open_page(app, "training", run="the shipped models of source code")
    assert not app.error
    assert [heading.value for heading in app.subheader][:2] == [
        "The loss of dcformer++-code",
        "The loss of transformer++-code",
    ]
    assert any("Read 20 held-out files" in button.label for button in app.button)


def test_a_model_of_a_puzzle_is_shown_its_own_prompts(app):
    prompts = json.loads((SHIPPED / "dcformer++-pairing" / "prompts.json").read_text(encoding="utf-8"))
    open_page(app, "case_study", model="dcformer++-pairing")
    assert not app.exception
    assert app.text_area(key="text").value == prompts[0]["prompt"]
    assert not app.error
    assert not [each for each in app.button if each.label == "Insert a random example"], "it knows no words of tasks"
