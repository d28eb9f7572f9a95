"""Opening models: a hub id that is in the local cache, one that is not, and folders that are damaged."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import huggingface_hub.constants
import pytest

import dcinterp
import dcinterp.checkpoints.hub

SHIPPED = Path(dcinterp.__file__).parent / "checkpoints" / "shipped"
NAME = "somebody/dcformer-mini"


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    """A cache as the hub's client lays it out, with one model in it."""
    root = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    shutil.copytree(SHIPPED / "dcformer++", root / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return root


def texts(app) -> str:
    return "\n".join(element.value for element in app.markdown)


def models_page(app, **link: str):
    for key, value in link.items():
        app.query_params[key] = value
    app.switch_page("app_pages/models.py").run()
    assert not app.exception
    return app


def current(app) -> dict[str, list[str]]:
    """What the share link holds."""
    return app.session_state["_address"].current


def look_up(app):
    """What Enter does in the field, which belongs to a form."""
    (button,) = (b for b in app.button if b.label == "Look it up")
    return button.click().run()


def test_a_cached_hub_id_is_described_opened_and_looked_into(app, hub_cache):
    models_page(app)
    app.text_input(key="open").set_value(NAME)
    look_up(app)
    assert not app.error
    assert texts(app).count("807,040") == 2, "the shipped one and this one, before it is loaded"
    assert texts(app).count("3.23 MB of weights") == 2
    (button,) = (b for b in app.button if b.label == "Open it")
    button.click().run()
    assert app.selectbox(key="model").value == NAME
    app.switch_page("app_pages/case_study.py").run()
    assert not app.exception
    assert not app.error
    assert "which is right" in texts(app)
    assert len(app.subheader) == 7
    assert current(app)["model"] == [NAME]


@pytest.fixture
def bare(tmp_path):
    """A tiny model of transformers without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=509, **sizes)).save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_model_without_a_tokenizer_takes_ids_or_that_of_another_folder(app, bare):
    models_page(app, open=str(bare))
    assert any("It has no tokenizer" in caption.value for caption in app.caption)
    app.text_input(key="tokenizer").set_value(str(bare)).run()
    assert "has no tokenizer" in app.error[0].value
    app.text_input(key="tokenizer").set_value("dcformer++").run()
    (button,) = (b for b in app.button if b.label == "Open it")
    button.click().run()
    named = f"{bare}::tokenizer=dcformer++"
    assert app.selectbox(key="model").value == named
    app.switch_page("app_pages/attribution.py").run()
    assert not app.exception
    assert not app.error
    assert current(app)["model"] == [named]


ON_IDS = ["case_study", "attention", "attribution", "interventions", "compare", "ov_circuits", "hooks", "tasks"]


@pytest.mark.parametrize("page", ON_IDS)
def test_pages_show_a_model_of_bare_token_ids(app, bare, page):
    app.query_params["model"] = str(bare)
    app.switch_page(f"app_pages/{page}.py").run()
    assert not app.exception
    assert not app.error, app.error[0].value
    if page not in ("ov_circuits", "hooks", "tasks"):
        app.text_input(key="ids").set_value("1, 2, 3, 2").run()
        assert not app.exception
        assert not app.error
        for expected in (field for field in app.text_input if field.key == "answer-id"):
            expected.set_value("9").run()
            assert not app.exception
            assert not app.error
        app.text_input(key="ids").set_value("1, violin").run()
        assert "'violin' is not a token id" in app.error[0].value


def test_a_link_to_a_large_model_is_not_followed_unasked(app, bare, monkeypatch):
    from workbench import models

    monkeypatch.setattr(models, "WITHOUT_ASKING", 1000)
    app.query_params["model"] = str(bare)
    app.run()
    assert app.selectbox(key="model").value != str(bare)
    assert any("of memory: open it on the page Models" in warning.value for warning in app.warning)
    app.switch_page("app_pages/models.py").run()
    assert app.text_input(key="open").value == str(bare)
    assert any(b.label == "Open it" for b in app.button)


def test_a_link_to_a_planted_model_of_any_size_is_one_sentence(app):
    app.query_params["model"] = "planted:share-by-kp,heads=100000000"
    app.run()
    assert not app.exception
    (error,) = app.error
    assert "heads is 100000000; a planted model has at most 64" in error.value


def test_a_link_to_a_cached_hub_id_opens_it(app, hub_cache):
    app.query_params["model"] = NAME
    app.run()
    assert not app.exception
    assert not any("The link asks for" in warning.value for warning in app.warning)
    assert app.selectbox(key="model").value == NAME
    assert "which is right" in texts(app)


@pytest.mark.parametrize("name", ["nobody/not-there", "gpt2"])
def test_a_hub_id_is_looked_up_only_when_the_person_says_so(app, hub_cache, monkeypatch, name):
    def asked():
        raise AssertionError("the hub was asked")

    with monkeypatch.context() as patch:
        patch.setattr(dcinterp.checkpoints.hub, "reach_hub", asked)
        models_page(app, open=name)
        assert app.text_input(key="open").value == name
        assert any(f"{name} is not on this machine: press Enter" in info.value for info in app.info)
        assert not app.error
    look_up(app)
    (error,) = app.error
    assert "not in the local cache, and HF_HUB_OFFLINE" in error.value
    assert not any(b.label == "Open it" for b in app.button)


@pytest.mark.parametrize("hub", ["closed", "silent"])
def test_a_hub_that_does_not_answer_is_one_sentence(app, hub_cache, monkeypatch, hub):
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        if hub == "silent":
            there.listen()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{there.getsockname()[1]}")
        monkeypatch.setattr(dcinterp.checkpoints.hub, "HUB_SECONDS", 1.0)
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        models_page(app)
        began = time.monotonic()
        app.text_input(key="open").set_value(f"nobody/{hub}")
        look_up(app)
        assert time.monotonic() - began < 10
        assert not app.exception
        (error,) = app.error
        assert "cannot be reached" in error.value


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "not json"])
def test_a_broken_folder_is_refused_before_it_is_opened(app, tmp_path, damage):
    folder = shutil.copytree(SHIPPED / "dcformer++", tmp_path / "broken")
    weights = folder / "model.safetensors"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        (folder / "config.json").write_text("{")
    models_page(app, open=str(folder))
    assert len(app.error) == 1
    assert not any(b.label == "Open it" for b in app.button)
