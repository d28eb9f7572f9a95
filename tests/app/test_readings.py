"""What pages say is what the library says: of answers of several tokens, maps of all tokens, and files that changed."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from tests.app.opening import open_page

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
    open_page(app, "compare", prompt="text", text=CITY, answer="the United Kingdom")
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
