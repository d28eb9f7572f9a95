"""The benchmark of loading: what it writes is a checkpoint, and what it measures is printed."""

from pathlib import Path

import pytest

from dcinterp.bench import load
from dcinterp.checkpoints.read import read_model
from dcinterp.model import presets
from dcinterp.support.errors import UserError


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory by Linux's /proc")
@pytest.mark.usefixtures("warm_python")
def test_write_and_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = presets.Preset(
        "dcformer++-small",
        "dcformer++",
        dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=3, intermediate_size=96, vocab_size=50),
    )
    monkeypatch.setattr("dcinterp.model.config.preset", lambda name: small)
    load.write_random("dcformer++-small", tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert read_model(tmp_path).config.num_hidden_layers == 3
    load.main(["--folder", str(tmp_path)])
    assert "GB of tensors in" in capsys.readouterr().out


def test_a_load_that_is_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(load, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(UserError, match="failed: it ended with code -9; is there enough memory"):
        load.measure_load(tmp_path)


def test_what_has_no_released_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no released layout; choose a dcformer\+\+ or dcpythia one"):
        load.write_random("transformer-405m", tmp_path)
    with pytest.raises(UserError, match=r"Loading .* failed"):
        load.measure_load(tmp_path / "nothing")
