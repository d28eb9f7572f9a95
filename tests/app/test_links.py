"""Links: they bring somebody else to the same view, and what they ask for in vain is said on every page."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

import dcinterp

APP = Path(__file__).parents[2] / "app"
PAGES = sorted(path.stem for path in (APP / "app_pages").glob("*.py"))
WITHOUT_MODEL = ("experiments", "glossary", "models", "planted", "training")


def follow(app, page: str, link: dict[str, str | list[str]]):
    """Open a page by a link, at once as a browser does, and not by way of the case study."""
    for key, value in link.items():
        app.query_params[key] = value
    app.switch_page(f"app_pages/{page}.py").run()
    assert not app.exception
    return app


def view(app) -> list[str]:
    """All words of the page, numbers among them, and the figures."""
    words = [element.value for kind in (app.markdown, app.caption, app.code) for element in kind]
    return [*words, *(chart.proto.spec for chart in app.get("plotly_chart"))]


def test_no_page_stops_the_whole_run():
    """What stands around a page is drawn after it: the share link, what a link asked for in vain, the running work."""
    for path in APP.rglob("*.py"):
        assert "st.stop(" not in path.read_text(encoding="utf-8"), path.name


def test_a_link_of_version_0_1_names_parts_of_a_map_as_they_were(app):
    follow(app, "composition", {"task": "task2", "part": "key_low_rank"})
    assert not any("The link asks for" in warning.value for warning in app.warning)
    assert app.session_state["part"] == "kp"


def test_a_name_in_links_stands_for_one_input():
    """A choice goes along to the next page, so what has its name there has to mean the same."""
    inputs = {}
    for path in APP.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("links."):
                given = {each.arg: each.value for each in call.keywords}
                if isinstance(key := given.get("key"), ast.Constant) and call.args:
                    inputs.setdefault(key.value, set()).add((ast.unparse(call.func), ast.unparse(call.args[0])))
    assert len(inputs) > 60
    several = {key: found for key, found in inputs.items() if len(found) > 1}
    assert not several


def test_a_link_with_a_former_name_is_followed(app):
    follow(app, "logits", {"task": "task2", "steps": "2"})
    assert app.session_state["generated"] == 2
    follow(app, "attribution", {"task": "task2", "steps": "8"})
    assert app.session_state["steps"] == 8


LINES = "branch 2.post.kp counterfactual\nedge 1.post.kp.2>3 zero"


@pytest.mark.parametrize(
    ("page", "choices"),
    [
        ("interventions", {"what": LINES, "twin": "source", "task": "task2", "weights": "frozen", "new_part": "edge"}),
        (
            "interventions",
            {
                "what": LINES,
                "prompt": "text",
                "text": "There are a pear, a car, a car. Which is not car? The",
                "counterfactual": "There are a car, a pear, a car. Which is not car? The",
            },
        ),
        ("compare", {"layer": "1", "head": "3", "which": "weights", "task": "task10", "example": "4"}),
        ("planted", {"circuit": "share-by-qp", "noise": "0.01", "roles_seed": "3", "planted_example": "2"}),
        ("tasks", {"pattern": "same-object", "transformation": "copy", "row": "7", "size": "2", "split": "train"}),
        ("hooks", {"search": "post.hook_o", "in": "1", "hook": "blocks.1.attn.post.hook_o_kg"}),
    ],
)
def test_a_share_link_restores_the_view(app, new_app, page, choices):
    follow(app, page, choices)
    assert not any("The link asks for" in warning.value for warning in app.warning)
    shared = {
        key: values if len(values) > 1 else values[0] for key, values in app.session_state["_address"].current.items()
    }
    for key, value in choices.items():
        assert shared[key] == value, "the link holds every choice"
    assert view(follow(new_app(), page, shared)) == view(app)


def test_the_counterfactual_that_a_link_names_is_the_one_that_is_patched_in(app):
    follow(app, "interventions", {"what": "branch 2.post.kp counterfactual", "twin": "source", "task": "task2"})
    first = view(app)
    app.selectbox(key="twin").set_value("position").run()
    assert not app.exception
    assert app.session_state["_address"].current["twin"] == ["position"]
    assert view(app) != first


@pytest.mark.parametrize("page", PAGES)
def test_a_dead_link_opens_every_page_and_says_what_was_not_there(app, page):
    asked = {
        "layer": "99",
        "head": "-7",
        "task": "task99",
        "example": "10000000000",
        "k": "100000",
        "top": "9" * 30,
        "seeds": "9999",
        "rows": "100000",
        "redundancy": "88",
        "member": "task0",
        "hook": "blocks.9.hook",
        "in": "77",
        "part": "soul",
        "other": "nobody",
        "which": "none",
        "pattern": "zigzag",
        "stage": "post-mortem",
        "query": "512",
    }
    follow(app, page, asked)
    title = app.session_state["_address"].page
    assert f'"{page}": "{title}"' in (APP / "streamlit_app.py").read_text(encoding="utf-8"), "another page was opened"
    assert not app.error, app.error[0].value
    said = "\n".join(warning.value for warning in app.warning)
    known = app.session_state["_address"].current
    for key in set(asked) & set(known) - {"member"}:
        assert f"{key} = " in said, (page, key)
        assert known[key] != [asked[key]]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITHOUT_MODEL])
def test_a_broken_model_is_one_sentence_on_every_page(app, monkeypatch, tmp_path, page):
    folder = shutil.copytree(
        Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "dcformer++", tmp_path / "broken"
    )
    (folder / "model.safetensors").unlink()
    monkeypatch.setenv("DCINTERP_MODELS", str(folder))
    follow(app, page, {"model": str(folder)})
    assert len(app.error) == 1
    assert "does not load" in app.error[0].value


@pytest.mark.parametrize(
    ("page", "key", "text", "message"),
    [
        ("interventions", "part_set", "task999 n=2", "task999"),
        ("interventions", "part_set", "same-person n=many", "whole numbers"),
        ("interventions", "part_set", "same-person n=1000000000000", "100,000"),
        ("interventions", "counterfactual", "There are a zebra, a car, a car. Which is not car? The", "zebra"),
        ("interventions", "counterfactual", "There are a pear.", "tokens"),
        ("hooks", "search", "hook_nothing", "hook_nothing"),
        ("models", "open", "no/such/folder", "no/such/folder"),
        ("models", "root", "/no/such/place", "/no/such/place"),
    ],
)
def test_bad_words_in_a_field_are_one_sentence(app, page, key, text, message):
    link = (
        {
            "prompt": "text",
            "text": "There are a pear, a car, a car. Which is not car? The",
            "what": "branch 2.post.kp counterfactual",
        }
        if key == "counterfactual"
        else {}
    )
    follow(app, page, link)
    app.text_input(key=key).set_value(text)
    for button in (b for b in app.button if b.label == "Look it up"):  # what Enter does in that field
        button.click()
    app.run()
    for button in (b for b in app.button if key == "part_set" and b.label.startswith("Predict and measure")):
        button.click().run()
        for _ in range(100):
            if not any(b.label == "Cancel" for b in app.button):
                break
            app.run()
    assert not app.exception
    assert len(app.error) == 1
    assert message in app.error[0].value


FRAME = """
import streamlit as st
from workbench import links

page = st.navigation([st.Page("one.py"), st.Page("two.py")])
links.begin(page.title)
page.run()
links.end()
"""
PAGE = """
import streamlit as st
from workbench import links

links.number("A number of page {name}", 0, 10, key="number", default=1)
if st.session_state.get("interruptions", 0):
    st.session_state.interruptions -= 1
    st.rerun()
"""


def two_pages(monkeypatch, folder):
    """An app of two pages with one input each, opened at the first."""
    from streamlit.testing.v1 import AppTest

    monkeypatch.syspath_prepend(str(APP))
    (folder / "frame.py").write_text(FRAME)
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(PAGE.format(name=name))
    return AppTest.from_file(str(folder / "frame.py"), default_timeout=60).run()


@pytest.mark.parametrize("interruptions", [0, 1, 3])
def test_a_page_that_is_interrupted_while_it_is_first_drawn_takes_the_choices_over(
    monkeypatch, tmp_path, as_served, interruptions
):
    app = two_pages(monkeypatch, tmp_path)
    app.number_input(key="number").set_value(7).run()
    app.session_state["interruptions"] = interruptions
    app.query_params.clear()  # as Streamlit does in a browser
    app.switch_page("two.py").run()
    assert app.session_state["interruptions"] == 0
    assert app.number_input(key="number").label == "A number of page two"
    assert app.number_input(key="number").value == 7
    assert app.query_params["number"] == "7"
    app.number_input(key="number").set_value(4).run()
    assert app.number_input(key="number").value == 4


@pytest.mark.parametrize("interruptions", [0, 1])
def test_a_click_that_overtakes_the_new_address_is_no_link_to_the_old_one(
    monkeypatch, tmp_path, as_served, interruptions
):
    app = two_pages(monkeypatch, tmp_path)
    app.number_input(key="number").set_value(7).run()
    app.query_params.clear()  # the browser asks before it has the address of 7
    app.session_state["interruptions"] = interruptions
    app.number_input(key="number").set_value(4).run()
    assert app.number_input(key="number").value == 4
    assert app.query_params["number"] == "4"
    app.query_params["number"] = "7"  # it has the first of the two now
    app.number_input(key="number").set_value(5).run()
    assert app.number_input(key="number").value == 5


def test_back_to_an_address_that_was_just_written_over_is_followed(monkeypatch, tmp_path, as_served):
    app = two_pages(monkeypatch, tmp_path)
    app.number_input(key="number").set_value(7).run()
    app.query_params.clear()
    monkeypatch.setattr("workbench.links._is_back", lambda: True)
    app.run()
    assert app.number_input(key="number").value == 1
