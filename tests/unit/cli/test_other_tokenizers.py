"""`--tokenizer` where a model is listed or opened: the tokenizer of another folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dcinterp.checkpoints.names import SHIPPED
from dcinterp.cli import app, hooks
from dcinterp.support.errors import UserError

OTHER = "dcformer++"


@pytest.fixture
def opened(monkeypatch):
    """The models that the app would open, without a server."""
    from streamlit.web import cli as streamlit

    monkeypatch.setattr(streamlit, "main", lambda *given, **options: None)
    monkeypatch.setattr(app, "_say_when_ready", lambda *given: None)
    monkeypatch.setenv(app.MODELS_VARIABLE, "")

    def names(*models: str, **options: str) -> list[str]:
        app.command(list(models), port=0, **options)
        return os.environ[app.MODELS_VARIABLE].splitlines()

    return names


def test_the_app_opens_models_with_another_tokenizer(opened, monkeypatch):
    folder = SHIPPED / "transformer++"
    monkeypatch.chdir(SHIPPED)
    mark = app.TOKENIZER_MARK
    assert opened("./transformer++", tokenizer=OTHER) == [f"{folder}{mark}{SHIPPED / OTHER}"]
    monkeypatch.chdir(Path.home())
    # A planted model has a colon in its name.
    assert opened(str(folder), "planted:share-by-kp") == [str(folder), "planted:share-by-kp"]
    assert opened(str(folder), tokenizer=OTHER) == [f"{folder}{mark}{OTHER}"]


def test_a_tokenizer_that_cannot_be_read_is_refused_before_the_start(opened, tmp_path):
    with pytest.raises(UserError, match="has no tokenizer"):
        opened("transformer++", tokenizer=str(tmp_path))
    with pytest.raises(UserError, match="for the models that are named"):
        opened(tokenizer=OTHER)


def test_hooks_reads_with_another_tokenizer(capsys, tmp_path):
    hooks.command("transformer++", match="hook_embed", tokenizer=OTHER)
    assert "hook_embed" in capsys.readouterr().out
    with pytest.raises(UserError, match="has no tokenizer"):
        hooks.command("transformer++", tokenizer=str(tmp_path))
