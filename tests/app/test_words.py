"""Words that a model does not know, words in code, sets that are too large, and what a page opens on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import synthetic_tasks
from tests.app.opening import open_page

APP = Path(__file__).parents[2] / "app"
TEXT = "There are a pear, a car, a car. Which is not car? The"


def press(app, label: str):
    (button,) = (button for button in app.button if button.label == label)
    button.click().run()
    assert not app.exception


def test_a_word_with_signs_around_it_is_shown_with_them(app):
    open_page(app, "attention", prompt="text", text="Ruth has _meat_ and *wine*.")
    (error,) = app.error
    assert r"\_meat\_" in error.value, "else it is shown as the word meat, which the model knows"


def test_an_example_can_be_inserted_and_a_known_word_clicked(app):
    open_page(app, "attention", prompt="text", text="Ruth has a zebra.")
    assert "zebra" in app.error[0].value
    press(app, "Insert a random example")
    assert not app.error
    assert synthetic_tasks.solve(app.text_area(key="text").value).task_ids
    app.session_state["words"] = True
    app.text_area(key="text").set_value("Ruth has a").run()
    (words,) = (group for group in app.button_group if group.key == "known-word")
    assert "violin" in words.options or len(words.options) == 200
    words.set_value("apple").run()
    assert not app.exception
    assert app.text_area(key="text").value == "Ruth has a apple"


def test_the_space_before_an_answer_counts_where_it_makes_another_token(own_model, monkeypatch, tokenizer_folder):
    monkeypatch.syspath_prepend(str(APP))
    from transformers import AutoTokenizer

    from workbench.inputs import as_typed

    bytes_, words = (AutoTokenizer.from_pretrained(place) for place in (own_model("gpt2"), tokenizer_folder))
    assert [as_typed(bytes_, text) for text in (" Paris ", "Paris", "  ")] == [" Paris", "Paris", ""]
    assert [as_typed(words, text) for text in (" violin ", "violin")] == ["violin", "violin"]


def test_code_names_words_and_not_ids(app):
    open_page(app, "attribution", prompt="text", text=TEXT, answer="pear", **{"code-heads": "True"})
    app.session_state["code-heads"] = True
    app.run()
    (line,) = (code.value for code in app.code if code.value.startswith("dcinterp analyze"))
    assert "--target pear" in line
    assert "#" not in line


@pytest.fixture
def held_out(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import examples

    return examples.held_out


@pytest.mark.parametrize(("task", "number"), [("task2", 7), ("task71", 3)])
def test_examples_keep_the_numbers_that_stand_in_links(held_out, task, number):
    drawn = synthetic_tasks.generate(task, 1, seed=number, examples=1, split="held-out")[0].examples[0]
    assert held_out(task, number) == drawn


@pytest.mark.parametrize(
    ("page", "key"), [("composition", "set"), ("attribution", "set"), ("interventions", "part_set")]
)
@pytest.mark.parametrize("count", [100_000_000, 99_999])
def test_a_set_that_is_too_large_is_refused_before_anything_starts(app, page, key, count):
    open_page(app, page, **{key: f"all n={count}"})
    (error,) = app.error
    assert "at most 5,000" in error.value or "n must be from 1" in error.value
    assert not [b for b in app.button if b.label.startswith(("Average", "Attribute all", "Predict and measure"))]


def test_enter_in_the_form_of_a_run_starts_nothing():
    assert "enter_to_submit=False" in (APP / "app_pages" / "training.py").read_text(encoding="utf-8")


def test_training_opens_on_the_shipped_models_and_not_on_a_folder_that_lies_about(app, tmp_path):
    run = tmp_path / "runs" / "of-somebody-else"
    run.mkdir(parents=True)
    (run / "app.yaml").write_text("{}")
    open_page(app, "training")
    assert app.selectbox(key="run").value == "the shipped models"
    assert any(option.endswith("of-somebody-else") for option in app.selectbox(key="run").options)


def test_words_of_a_model_are_no_markup(monkeypatch):
    """A token may be a picture somewhere in the network, which the browser would fetch."""
    monkeypatch.syspath_prepend(str(APP))
    import streamlit as st

    from workbench import sentences, view

    token, seen = "![x](https:evil.example/p.png)", []
    for name in ("warning", "caption"):
        monkeypatch.setattr(st, name, lambda text, **_: seen.append(text))
    result = SimpleNamespace(warnings=lambda: [f"The model answers {token}."])
    view.show_warnings(result)
    seen.append(sentences.explained(SimpleNamespace(target=token, foil=token)))
    assert len(seen) == 2
    assert all("![x](" not in each and "!\\[x\\](" in each for each in seen)
