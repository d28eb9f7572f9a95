"""What pages say is what the library says: of answers of several tokens, maps of all tokens, and files that changed."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from tests.app.opening import open_page

APP = Path(__file__).parents[2] / "app"
CITY = "< Thomas likes Moscow. Karen likes Incheon. Edward likes Washington, D.C >. Edward wants to go to the city in"


def texts(app) -> str:
    return "\n".join(element.value for element in (*app.markdown, *app.caption))


@pytest.fixture
def fixed(tmp_path) -> str:
    """A model whose heads are composed by one map for all tokens: each uses the attention of the next."""
    torch.manual_seed(0)
    own = dcinterp.load("transformer++")
    sizes = {"vocab_size": own.cfg.d_vocab, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32}
    model = DCFormerForCausalLM(DCFormerConfig(**sizes, num_hidden_layers=2, compose="static", compose_skip=False))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.post.static.weight.copy_(torch.eye(4).roll(1, 1)[None])
    place = tmp_path / "fixed"
    model.save_pretrained(place)
    own.tokenizer.save_pretrained(place)
    return str(place)


def test_the_first_token_of_an_answer_is_not_called_the_answer(app):
    open_page(app, "compare", prompt="text", text=CITY, answer="the United Kingdom", two_words="same")
    assert 'The first token "the" of "the United Kingdom": rank' in texts(app)
    assert 'The expected "the United Kingdom"' not in texts(app)
    open_page(app, "logits")
    assert 'The answer "the United Kingdom" has several tokens; this is about the first, "the".' in texts(app)


def test_a_map_of_all_tokens_is_not_said_to_share_nothing(app, fixed):
    open_page(app, "composition", model=fixed, layer="1", stage="post")
    assert not app.error
    assert "heads share by it alone, and no dynamic weights make it" in texts(app)
    assert app.selectbox(key="lender").value != app.selectbox(key="head").value, "the default is a pair that shares"
    open_page(app, "case_study")
    said = texts(app)
    assert "No other head shares" not in said or "by the map that is the same for all tokens is not counted" in said


@pytest.mark.parametrize("page", ["interventions", "edges"])
def test_a_map_of_all_tokens_is_changed_by_what_it_has(app, fixed, page):
    open_page(app, page, model=fixed)
    assert not app.error
    if page == "edges":
        assert "own attention" not in texts(app)
        (line,) = [
            link.proto.help for link in app.get("page_link") if "Opens the page Interventions" in link.proto.help
        ]
        open_page(app, "interventions", what=line.split("with the line: ")[1])
        assert not app.error
        assert "by the map of all tokens" in texts(app)


def test_a_text_is_asked_as_it_was_typed(app):
    typed = "def f(x):\n    return x\n"
    open_page(app, "attention", model="dcformer++-code", prompt="text", text=typed)
    assert not app.error
    tokens = dcinterp.predict(dcinterp.load("dcformer++-code"), typed).tokens
    assert len(app.selectbox(key="query").options) == len(tokens)
    prompt = "< Ruth has a violin. John has a dog. >. Ruth has a kind of"
    open_page(app, "attention", model="dcformer++", prompt="text", text=f"{prompt}\n")
    assert len(app.selectbox(key="query").options) == len(dcinterp.predict(dcinterp.load("dcformer++"), prompt).tokens)


def test_a_choice_that_there_was_not_takes_the_place_of_none(app):
    open_page(app, "attention", model="dcformer++", prompt="text", text="Ruth has a violin. So Ruth has a kind of")
    app.selectbox(key="model").set_value("dcformer++-code").run()
    assert not app.exception
    app.selectbox(key="model").set_value("dcformer++").run()
    assert app.segmented_control(key="prompt").value == "text"


def test_an_exchanged_file_is_read_anew_though_it_is_no_younger(app, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(SHIPPED / "dcformer++", mine)
    open_page(app, "attention", model=str(mine))

    from workbench import models

    before, weights = models.stamp(str(mine)), mine / "model.safetensors"
    times = weights.stat()
    shutil.copyfile(SHIPPED / "transformer++" / "model.safetensors", weights)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert models.stamp(str(mine)) != before
    assert models.stamp(f"{mine}::tokenizer={SHIPPED / 'dcformer++'}") != models.stamp(str(mine))
    assert models.stamp("dcformer++") == 0


def test_an_adapter_is_read_anew_when_its_base_changes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import models

    base = shutil.copytree(SHIPPED / "transformer++", tmp_path / "base")
    dcinterp.compose(base, tmp_path / "composed")
    before = models.stamp(str(tmp_path / "composed"))
    (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    assert models.stamp(str(tmp_path / "composed")) != before
    shutil.rmtree(base)
    assert models.stamp(str(tmp_path / "composed"))


def test_a_row_of_the_tasks_opens_its_prompt_in_a_model_of_texts(app):
    from workbench import examples

    chosen = examples.held_out("task12", 3)
    open_page(app, "logits", model="dcformer++-code", **examples.link("dcformer++-code", "task12", 3))
    assert (app.text_area(key="text").value, app.text_input(key="answer").value) == (chosen.prompt, chosen.answer)
    assert examples.link("dcformer++", "task12", 3) == {"task": "task12", "example": "3"}


def test_a_folder_that_was_typed_stays_where_another_takes_its_suggestion(app, tmp_path):
    open_page(app, "training")
    fields = {field.label: field for field in app.text_input}
    taken = tmp_path / fields["Folder"].value
    fields["Folder"].set_value("my-own-name")
    fields["Text to train on"].set_value("nowhere.txt")
    taken.mkdir(parents=True)
    (taken / "config.yaml").write_text("{}")
    next(button for button in app.button if button.label == "Start").click().run()
    assert "nowhere.txt" in app.error[0].value
    assert {field.label: field.value for field in app.text_input}["Folder"] == "my-own-name"


def test_a_circuit_of_another_model_is_refused_for_that_model_alone(app):
    open_page(app, "circuit", prompts="4")
    app.session_state["_circuit_refused"] = ("dcformer++", "This circuit is of transformer++.")
    app.run()
    assert [error.value for error in app.error] == ["This circuit is of transformer++."]
    app.selectbox(key="model").set_value("transformer++").run()
    assert not app.error


def test_two_models_are_compared_on_the_same_two_words(app):
    open_page(app, "compare", model="dcformer++", other="transformer++", task="task2", example="0", two_words="same")
    captions = [each.value for each in app.caption if "What each head contributes to" in each.value]
    assert len(captions) == 2
    assert len({caption.split(".")[0] for caption in captions}) == 1


def test_another_right_answer_is_not_called_wrong(app, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import examples, inputs

    number = next(n for n in range(200) if len(examples.held_out("task40", n).accepted) > 1)
    example = examples.held_out("task40", number)
    open_page(app, "logits", task="task40", example=str(number))
    against = app.text_input(key="against_word").value
    assert against not in example.accepted
    question = inputs.Question(example.prompt, example.answer, "task40", number)
    assert len(inputs.also_right("dcformer++", question)) == len(example.accepted) - 1


def test_ablations_are_named_with_what_is_put_in(app):
    open_page(app, "attribution", task="task2", example="0")
    assert re.search(r"Setting the output of this head alone to zero .* and setting it to its mean over", texts(app))
    open_page(app, "edges", task="task2", example="0")
    assert re.search(r"setting the edge to zero .* and setting it to its mean over", texts(app))


def test_interventions_say_which_prompts_they_take_values_from(app):
    open_page(app, "interventions")
    assert any("come from `task2 n=32" in each.value for each in app.caption)
    app.selectbox(key="model").set_value("dcformer++-code").run()
    assert not app.exception
    assert not app.error
    assert app.text_area(key="what").value.endswith(" zero"), "the tasks are no reference for source code"
    assert not any("come from" in each.value for each in app.caption)


def test_a_key_is_no_later_than_its_query(app):
    open_page(app, "attention", query="3", key="7")
    assert not app.exception
    assert app.selectbox(key="key").value == 3, "as links of earlier versions mean it"
    assert not app.warning
    open_page(app, "composition", query="3")
    assert not app.error


def test_a_counterfactual_is_read_as_it_was_typed(app):
    text = "def f(x):\n    return "
    open_page(app, "patching", model="dcformer++-code", prompt="text", text=text)
    assert not app.error
    app.text_area(key="counterfactual").set_value(text.replace("(x)", "(y)")).run()
    assert not app.exception
    assert not any("tokens long" in each.value for each in app.error)


def test_a_long_prompt_waits_for_a_click(app):
    open_page(app, "edges", model="dcformer++-code", prompt="text", text="x = 1\n" * 60)
    assert not app.exception
    assert any(button.label.startswith("Score all edges") for button in app.button)


def test_folders_that_cannot_be_listed_are_left_out(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(APP))
    from workbench import models

    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    for place in (tmp_path / "a", deep):
        (place / "config.json").write_text("{}")
        (place / "model.safetensors").write_bytes(b"")
    listed = models.os.scandir

    def scandir(folder):
        if Path(folder).name == "gone":
            raise FileNotFoundError(folder)
        return listed(folder)

    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(models.os, "scandir", scandir)
    assert set(models.folders(tmp_path)) == {str(tmp_path / "a"), str(deep)}
