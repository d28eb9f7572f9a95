"""Every page without a browser: it runs on both shipped models, and bad input becomes a sentence."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import dcinterp
from tests.app.opening import open_page

APP = Path(__file__).parents[2] / "app"
PAGES = sorted(path.stem for path in (APP / "app_pages").glob("*.py"))
QUESTIONS = ["case_study", "attention", "composition", "attribution", "edges", "interventions", "compare"]
QUESTIONS += ["logits", "patching"]


def texts(app) -> str:
    return "\n".join(element.value for element in app.markdown)


def test_every_page_is_in_the_navigation():
    source = (APP / "streamlit_app.py").read_text(encoding="utf-8")
    for name in PAGES:
        assert f'"{name}":' in source


def test_no_remark_stands_alone_in_a_page():
    """Streamlit shows a text or a name that stands alone, unless its magic is off."""
    for page in sorted((APP / "app_pages").glob("*.py")):
        _, *statements = ast.parse(page.read_text(encoding="utf-8")).body
        alone = [
            each.lineno for each in statements if isinstance(each, ast.Expr) and not isinstance(each.value, ast.Call)
        ]
        assert not alone, f"{page.name}, line {alone[0]}"
    config = tomllib.loads((APP / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert config["runner"]["magicEnabled"] is False


def test_pages_of_others_cannot_drive_the_workbench(tmp_path):
    """Not by a name of theirs that stands for this machine, nor by settings in the folder that it is started in."""
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text("[server]\nenableCORS = false\nenableAgentApi = true\n")
    program = (
        f"from streamlit import config; config._main_script_path = {str(APP / 'asgi.py')!r}; "
        "config.get_config_options(force_reparse=True); "
        "from streamlit.web.server.starlette.starlette_websocket import _is_origin_allowed as allowed; "
        "hosts = [f'{name}:8501' for name in ('127.0.0.1', 'localhost', 'foreign.example')]; "
        "own = [allowed(f'http://{host}', host) for host in hosts]; "
        "print(own, config.get_option('server.enableCORS'), config.get_option('server.enableAgentApi'))"
    )
    said = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[True, True, False] True False"


@pytest.mark.parametrize("model", ["dcformer++", "transformer++", "dcformer++-lookup", "planted:share-by-kp"])
def test_every_page_runs(app, model):
    open_page(app, "case_study", model=model)
    # A planted model has words of its own, and no other model knows them.
    for name in [page for page in PAGES if not (model.startswith("planted:") and page == "compare")]:
        if name != "case_study":
            app.switch_page(f"app_pages/{name}.py").run()
        assert not app.exception, name
        assert not app.error, (name, app.error[0].value)
        assert app.title, name


def test_case_study_opens_on_a_right_answer(app):
    app.run()
    assert not app.exception
    assert not app.error
    assert "which is right" in texts(app)
    assert len(app.subheader) == 7


@pytest.mark.parametrize("model", ["dcformer++", "transformer++"])
@pytest.mark.parametrize("task", ["task2", "task45", "task62", "task73"])
def test_every_kind_of_task_has_a_case_study(app, model, task):
    open_page(app, "case_study", model=model, task=task, example="5")
    assert not app.exception
    assert not app.error
    assert app.selectbox(key="task").value == task
    assert len(app.subheader) == (7 if model == "dcformer++" else 4)  # without composition three steps do not apply
    wrong = any("answers this example wrongly" in warning.value for warning in app.warning)
    assert wrong == ("The model is wrong" in texts(app))


def test_choosing_head_and_source_changes_the_case_study(app):
    app.run()
    first = texts(app)
    app.selectbox(key="cell").set_value("L0H6").run()
    assert "Head 6 of layer 0" in texts(app)
    app.selectbox(key="source").set_value("1").run()
    assert not app.exception
    assert texts(app) != first


@pytest.mark.parametrize("page", QUESTIONS)
def test_bad_text_is_one_sentence_on_every_page_that_takes_some(app, page):
    open_page(app, page, prompt="text")
    for text, message in (
        ("", "empty"),
        ("Ruth has a zebra", "zebra"),
        ("Ruth has a violin. " * 120, "shorten"),
    ):
        app.text_area(key="text").set_value(text).run()
        assert not app.exception
        assert app.error, (page, text[:20])
        assert all(message in error.value for error in app.error)


def test_the_parts_of_the_logit_are_chosen_by_head_and_the_lens_by_place(app):
    open_page(app, "logits", cell="L1H3", depth="layer 0", place="2", middle="True", which_lens="divergence")
    assert not app.exception
    assert not app.error
    assert "Head 3 of layer 1 adds" in texts(app)
    assert "layer 0 gives" in texts(app)
    assert "attention 0" in app.selectbox(key="depth").options


def test_patching_reads_the_cell_that_a_link_names_in_both_directions(app):
    link = {"site": "attn_out", "at_layer": "1", "at": "3", "group": "post: branches", "head_site": "post.kp"}
    open_page(app, "patching", **link, cell="L1H2")
    assert not app.exception
    assert not app.error
    assert "The attention output of layer 1 at" in texts(app)
    assert "Head 2 of layer 1, key projection (post.kp): restores" in texts(app)
    app.segmented_control(key="direction").set_value("noising").run()
    assert not app.error
    assert "Head 2 of layer 1, key projection (post.kp): takes away" in texts(app)
    app.segmented_control(key="prompt").set_value("text").run()
    assert not app.exception
    assert any("Change the counterfactual prompt" in info.value for info in app.info)
    app.text_area(key="counterfactual").set_value("Ruth").run()
    assert any("give two prompts with as many tokens" in error.value for error in app.error)


def test_an_unknown_answer_is_one_sentence(app):
    open_page(app, "case_study", prompt="text")
    app.text_input(key="answer").set_value("platypus").run()
    assert not app.exception
    assert len(app.error) == 1
    assert "platypus" in app.error[0].value


def test_a_text_of_ones_own_starts_with_the_example_that_was_looked_at(app):
    open_page(app, "case_study", task="task29", example="2")
    app.segmented_control(key="prompt").set_value("text").run()
    assert not app.exception
    assert "Brasília" in app.text_area(key="text").value


def test_the_words_that_a_small_model_knows_can_be_looked_up(app):
    open_page(app, "case_study", prompt="text")
    assert not [group for group in app.button_group if group.key == "known-word"]
    app.session_state["words"] = True
    app.run()
    (listed,) = [group.options for group in app.button_group if group.key == "known-word"]
    assert "apricot" in listed
    assert "<unk>" not in listed


def test_own_text_has_a_case_study_with_or_without_an_expected_answer(app):
    open_page(app, "case_study", prompt="text", text="There are a pear, a car, a car. Which is not car? The")
    assert not app.exception
    assert len(app.subheader) == 7
    app.text_input(key="answer").set_value("pear").run()
    assert not app.exception
    assert "pear" in texts(app)


def test_a_dead_link_opens_and_says_what_was_not_there(app):
    open_page(app, "case_study", cell="L9H9", source="999", example="-3", task="task99")
    assert not app.exception
    assert len(app.subheader) == 7
    said = "\n".join(warning.value for warning in app.warning)
    for key in ("cell = 'L9H9'", "source = '999'", "example = '-3'", "task = 'task99'"):
        assert key in said


def test_a_link_to_a_model_that_is_not_there_says_so(app):
    open_page(app, "case_study", model="owner/unheard-of")
    assert not app.exception
    assert "model = 'owner/unheard-of'" in app.warning[0].value
    assert app.selectbox(key="model").value == "dcformer++"


def test_a_link_to_a_model_folder_opens_it(app, tmp_path):
    folder = shutil.copytree(
        Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "dcformer++", tmp_path / "mine"
    )
    open_page(app, "attribution", model=str(folder))
    assert not app.exception
    assert not app.error
    assert app.selectbox(key="model").value == str(folder)


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "no config", "not json"])
def test_a_broken_folder_is_one_sentence(app, monkeypatch, tmp_path, damage):
    folder = shutil.copytree(
        Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "dcformer++", tmp_path / "broken"
    )
    weights, config = folder / "model.safetensors", folder / "config.json"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif damage == "no config":
        config.unlink()
    else:
        config.write_text("{")
    monkeypatch.setenv("DCINTERP_MODELS", str(folder))
    open_page(app, "case_study", model=str(folder))
    assert not app.exception
    assert len(app.error) == 1
    assert "does not load" in app.error[0].value
    app.switch_page("app_pages/models.py").run()
    assert not app.exception
    assert app.error


def look_up(app):
    """What Enter does in the field for a path or a hub id, which belongs to a form."""
    next(button for button in app.button if button.label == "Look it up").click().run()


def test_models_says_the_size_before_it_opens(app, tmp_path):
    shutil.copytree(
        Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "transformer++", tmp_path / "runs" / "mine"
    )
    open_page(app, "models")
    app.text_input(key="open").set_value("runs/mine")
    look_up(app)
    assert "733,312" in texts(app).replace("transformer++", "")
    (button,) = (b for b in app.button if b.label == "Open it")
    button.click().run()
    assert not app.exception
    assert app.selectbox(key="model").value == str(tmp_path / "runs" / "mine")
    app.text_input(key="open").set_value("runs/nothing-here/at/all")
    look_up(app)
    assert app.error[0].value == "There is no folder runs/nothing-here/at/all; check the path."


def test_huge_numbers_and_unknown_words_are_refused_in_a_sentence(app):
    open_page(app, "ov_circuits", k="100000")
    assert not app.exception
    assert "k = '100000'" in "\n".join(warning.value for warning in app.warning)
    app.number_input(key="k").set_value(1000).run()
    assert not app.exception
    assert not app.error
    app.text_input(key="words").set_value("violin, zebra").run()
    assert "zebra" in app.error[0].value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("head 9.0 zero", "no layer 9"),
        ("head 0.77 zero", "no head 77"),
        ("edge", "no intervention"),
        ("branch 1.post.zz zero", "no branch"),
        ("", "no intervention"),
    ],
)
def test_a_bad_intervention_is_one_sentence(app, line, message):
    open_page(app, "interventions")
    app.text_area(key="what").set_value(line).run()
    assert not app.exception
    assert len(app.error) == 1
    assert message in app.error[0].value


def test_an_intervention_shows_before_and_after(app):
    open_page(app, "interventions")
    app.text_area(key="what").set_value("head 2.0 zero").run()
    assert not app.exception
    assert not app.error
    assert "The model answered" in texts(app)
    assert "The prompt is `" in texts(app)
    assert "weights" in app.session_state


def test_a_model_without_composition_is_not_asked_about_its_dynamic_weights(app):
    open_page(app, "interventions", model="transformer++")
    assert not app.exception
    assert "weights" not in app.session_state
    assert "The model answered" in texts(app)


def test_hooks_are_found_by_words_and_the_unknown_is_refused(app):
    open_page(app, "hooks", search="post.hook_o_kp")
    names = list(app.dataframe[0].value["hook"])
    assert names == [f"blocks.{layer}.attn.post.hook_o_kp" for layer in range(3)]
    app.text_input(key="search").set_value("hook_nothing").run()
    assert not app.exception
    assert app.error


def finished(app, seconds: float = 120.0) -> None:
    """Run the page again until the work that it waits for is over."""
    until = time.monotonic() + seconds
    while any(button.label == "Cancel" for button in app.button):
        assert time.monotonic() < until, "the work does not end"
        time.sleep(0.3)
        app.run()


def test_predictions_are_held_against_measurements(app):
    open_page(app, "interventions", part="head", part_set="task2 n=1")
    start(app, "Predict and measure")
    finished(app, 240)
    assert not app.exception
    assert not app.error
    assert any("calibration" in chart.proto.id for chart in app.get("plotly_chart"))


def start(app, label: str) -> None:
    (button,) = (b for b in app.button if b.label.startswith(label))
    button.click().run()


def test_tasks_are_evaluated_in_the_background(app):
    open_page(app, "tasks", scope="this family", rows="1", pattern="different-in-set", transformation="copy")
    start(app, "Evaluate")
    finished(app)
    assert not app.exception
    assert not app.error
    assert "answers are right" in texts(app)


def test_work_can_be_cancelled(app):
    open_page(app, "tasks", rows="50", seed="77")
    start(app, "Evaluate")
    next(b for b in app.button if b.label == "Cancel").click().run()
    finished(app)
    assert not app.exception
    assert "cancelled after" in "\n".join(info.value for info in app.info)


def test_the_case_study_of_a_large_model_waits_for_a_click_and_shows_its_progress(app, monkeypatch):
    from workbench import analyses

    monkeypatch.setattr(analyses, "SMALL", 0)
    open_page(app, "case_study", task="task2", example="7")
    assert not app.subheader
    start(app, "Run the case study (3 layers, 24 heads")
    finished(app)
    assert not app.exception
    assert len(app.subheader) == 7
    app.selectbox(key="cell").set_value("L0H6").run()
    assert not app.subheader
    start(app, "Follow this choice")
    finished(app)
    assert not app.exception
    assert "Head 6 of layer 0" in texts(app)


def test_a_source_that_is_not_read_offers_the_token_that_is(app):
    open_page(app, "case_study", task="task30", example="0")
    assert "hardly attends" in app.info[0].value
    (button,) = (button for button in app.button if button.label.startswith("Follow"))
    button.click().run()
    assert not app.exception
    assert "hardly attends" not in app.info[0].value
    assert not [button for button in app.button if button.label.startswith("Follow")]


@pytest.mark.parametrize("page", ["attribution", "edges"])
def test_pages_name_the_head_that_the_case_study_follows(app, page, shipped):
    from workbench import examples

    open_page(app, page, task="task2", example="4")
    example = examples.held_out("task2", 4)
    study = dcinterp.case_study(shipped, example, contrast="runner-up")
    target, foil = study.attribution.target, study.attribution.foil
    assert (study.layer, study.head) != dcinterp.attribute_heads(shipped, example.prompt, target, foil).best
    named = [text.value for text in app.markdown if f"head {study.head} of layer {study.layer}" in text.value]
    assert len(named) == 1
    assert "largest direct effect" in named[0]
    if page == "attribution":
        assert f"({float(study.direct[study.layer, study.head]):+.2f}, with its output" in named[0]
        return
    scored = dcinterp.attribute_edges(shipped, example.prompt, target, foil)
    (edge,) = scored.top(1, head_to=(study.layer, study.head))
    label = f"**L{edge.layer}H{edge.head_from} → L{study.layer}H{study.head}** through the"
    assert label in named[0]
    assert f"{edge.score:+.2f}" in named[0]


def test_edges_are_scored_and_drawn(app):
    open_page(app, "edges")
    finished(app, 240)
    assert not app.exception
    assert not app.error
    assert len(app.get("plotly_chart")) >= 3


@pytest.mark.usefixtures("warm_python")
def test_a_run_is_started_watched_and_looked_into(app, tmp_path):
    open_page(app, "training")
    app.text_input[0].set_value(str(tmp_path / "run"))
    app.number_input[0].set_value(1)
    app.number_input[1].set_value(10)
    (button,) = (b for b in app.button if b.label == "Start")
    button.click().run()
    assert not app.exception
    assert not app.error
    until = time.monotonic() + 240
    while not (tmp_path / "run" / "model" / "config.json").is_file():
        assert time.monotonic() < until, (tmp_path / "run" / "app.log").read_text()
        time.sleep(1)
    app.run()
    assert not app.exception
    assert app.selectbox(key="run").value == str(tmp_path / "run")
    assert any(b.label == "Look inside this checkpoint" for b in app.button)


def test_a_run_into_a_full_folder_or_without_its_text_is_refused(app, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    open_page(app, "training")
    for folder, text, message in (("full", "", "not empty"), ("new", "missing.txt", "no text at missing.txt")):
        app.text_input[0].set_value(str(tmp_path / folder))
        app.text_input[1].set_value(text)
        (button,) = (b for b in app.button if b.label == "Start")
        button.click().run()
        assert not app.exception
        assert message in app.error[0].value
    assert not (tmp_path / "new").exists()


def test_a_run_that_failed_under_an_earlier_app_says_why(app, tmp_path):
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "app.yaml").write_text("{}")
    (run / "app.log").write_text("It takes about 3 seconds here.\ndcinterp: novel.txt is no UTF-8 text; convert it.\n")
    open_page(app, "training", run=str(run))
    assert app.error[0].value == "novel.txt is no UTF-8 text; convert it."
    labels = {"Start again", "Resume"} & {button.label for button in app.button}
    assert labels == {"Start again"}, "there is no checkpoint to go on from"
    (run / "app.log").write_text("dcinterp: stopped\n")
    app.run()
    assert not app.error, "a run that was asked to end did not fail"


def test_a_gradient_has_no_steps_and_does_not_hide_what_it_misses(app):
    open_page(app, "attribution")
    assert app.selectbox(key="steps").value == 32
    app.selectbox(key="method").set_value("gradient").run()
    assert not app.exception
    assert "steps" not in {box.key for box in app.selectbox}
    assert any("use integrated gradients" in warning.value for warning in app.warning)


def test_scores_are_called_scores(app):
    open_page(app, "edges", stage="pre")
    finished(app, 240)
    assert re.search(r"shares its scores with head \d; the softmax of head \d uses them", texts(app))
    open_page(app, "composition", stage="pre")
    assert app.selectbox(key="show").options == ["mean of what composition adds", "how much it varies"]
    assert not app.exception


def test_figures_carry_their_text_alternative(app):
    app.run()
    heatmaps = [json.loads(each.proto.json or "{}") for each in app.get("bidi_component") if each.proto.json]
    described = [h["alternative"] for h in heatmaps if "alternative" in h]
    assert described
    assert all("Heatmap of" in words for words in described)
