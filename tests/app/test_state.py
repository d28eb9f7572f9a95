"""Another example, task, text or model: what stood at its default follows, what means something else is reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.opening import open_page

APP = Path(__file__).parents[2] / "app"
BACK = "Back at the default"

FRAME = """
import streamlit as st
from workbench import links

def page():
    prompt = st.text_input("prompt", "the pear is red", key="prompt").split()
    best = len(prompt[0])
    links.choose("Position", range(len(prompt)), key="at", default=len(prompt) - 1, means=lambda at: prompt[: at + 1])
    links.unit("one", "two")
    links.number("One", 0, 99, key="one", default=best)
    links.number("Two", 0, 99, key="two", default=best + 1)
    links.text("Set", key="set", default=prompt[0])

page = st.navigation([st.Page(page, title="A page")])
links.begin(page.title)
notices = st.container()
page.run()
links.end()
with notices:
    links.notices()
"""


@pytest.fixture
def frame(monkeypatch, tmp_path, as_served):
    from streamlit.testing.v1 import AppTest

    monkeypatch.syspath_prepend(str(APP))
    return AppTest.from_string(FRAME, default_timeout=60).run()


def values(app) -> tuple:
    state = app.session_state
    return state["at"], state["one"], state["two"], state["set"]


def said(app) -> list[str]:
    return [caption.value.rpartition(": ")[2] for caption in app.caption if BACK in caption.value]


def put(app, prompt: str):
    return app.text_input(key="prompt").set_value(prompt).run()


def test_what_stands_at_its_default_follows_it_in_silence(frame):
    assert values(frame) == (3, 3, 4, "the")
    put(frame, "these pears")
    assert values(frame) == (1, 5, 6, "these")
    assert said(frame) == []


def test_a_position_is_kept_while_everything_before_it_is_the_same(frame):
    frame.selectbox(key="at").set_value(1).run()
    put(frame, "the pear was green")
    assert values(frame)[0] == 1
    assert said(frame) == []
    put(frame, "one pear was green")
    assert values(frame)[0] == 3
    assert said(frame) == ["Position."]


def test_what_was_reset_is_said_until_something_else_is_looked_at(frame):
    frame.selectbox(key="at").set_value(1).run()
    put(frame, "one pear is red")
    assert said(frame) == ["Position."]
    frame.run()
    assert said(frame) == ["Position."], "work that ends draws the page anew"
    frame.number_input(key="one").set_value(9).run()
    assert said(frame) == []


def test_the_parts_of_one_choice_stay_together(frame):
    frame.number_input(key="one").set_value(9).run()
    put(frame, "these pears")
    assert values(frame)[1:3] == (9, 4), "not 9 and 6, which nobody chose"


def test_a_text_of_ones_own_stays(frame):
    frame.text_input(key="set").set_value("same-person n=3").run()
    put(frame, "these pears")
    assert values(frame)[3] == "same-person n=3"
    assert said(frame) == []


def test_the_next_example_takes_no_positions_over(app):
    open_page(app, "attention", task="task2", example="0")
    app.selectbox(key="query").set_value(7)
    app.selectbox(key="head").set_value(3).run()
    assert said(app) == []
    first = app.selectbox(key="query").options
    app.number_input(key="example").set_value(1).run()
    assert app.selectbox(key="query").options != first
    assert app.selectbox(key="query").value == len(app.selectbox(key="query").options) - 1
    assert app.selectbox(key="head").value == 3, "a head is the same in every prompt"
    assert said(app) == ["From the token."]
    assert not app.exception


def test_another_task_begins_at_its_first_example_and_another_model_at_its_own_heads(app):
    open_page(app, "attention", task="task2", example="0")
    app.number_input(key="example").set_value(7)
    app.selectbox(key="head").set_value(3).run()
    app.selectbox(key="task").set_value("task10").run()
    assert app.number_input(key="example").value == 0
    assert said(app) == ["Example."]
    app.selectbox(key="model").set_value("transformer++").run()
    assert app.selectbox(key="task").value == "task10", "an example means the same to every model"
    assert app.selectbox(key="head").value == 0
    assert said(app) == ["Head."]


def test_what_another_page_changed_is_noticed_on_the_way_back(app):
    open_page(app, "attention", task="task2", example="0")
    app.selectbox(key="query").set_value(7).run()
    app.query_params.clear()  # as Streamlit does in a browser
    app.switch_page("app_pages/logits.py").run()
    app.number_input(key="example").set_value(1).run()
    assert said(app) == [], "nothing on this page was reset"
    app.query_params.clear()
    app.switch_page("app_pages/attention.py").run()
    assert app.selectbox(key="query").value == len(app.selectbox(key="query").options) - 1
    assert said(app) == ["From the token."]


def test_a_head_that_was_left_at_the_default_of_one_page_is_no_choice_on_another(app):
    open_page(app, "logits", task="task2", example="0")
    assert app.session_state["cell"].startswith("L")
    app.query_params.clear()  # as Streamlit does in a browser
    app.switch_page("app_pages/case_study.py").run()
    assert app.selectbox(key="cell").value == "strongest"


def test_interventions_stay_unless_they_name_a_position(app):
    open_page(app, "interventions", task="task2", example="0", what="head 1.3 zero")
    app.number_input(key="example").set_value(1).run()
    assert app.text_area(key="what").value == "head 1.3 zero"
    assert app.session_state["part_set"] == "task2 n=3"
    app.text_area(key="what").set_value("edge 1.post.kp.2>3 zero key=4").run()
    app.number_input(key="example").set_value(2).run()
    assert app.text_area(key="what").value == "branch 2.post.added mean"
    assert said(app) == ["Interventions."]
    app.selectbox(key="task").set_value("task10").run()
    assert app.session_state["part_set"] == "task10 n=3"


def test_a_text_that_nobody_edited_is_that_of_the_example_looked_at_last(app):
    open_page(app, "attention", task="task2", example="0")
    texts = []
    for number in (0, 3):
        app.segmented_control(key="prompt").set_value("task").run()
        app.number_input(key="example").set_value(number).run()
        app.segmented_control(key="prompt").set_value("text").run()
        texts.append(app.text_area(key="text").value)
    assert texts[0] != texts[1]
    app.text_area(key="text").set_value("Ruth has a violin.").run()
    app.segmented_control(key="prompt").set_value("task").run()
    app.number_input(key="example").set_value(4).run()
    app.segmented_control(key="prompt").set_value("text").run()
    assert app.text_area(key="text").value == "Ruth has a violin."
