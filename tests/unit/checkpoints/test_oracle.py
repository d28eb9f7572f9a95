"""The plain reference against the model on every family and ablation, and what `dcinterp verify` makes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from dcinterp.checkpoints.oracle import plain_forward
from dcinterp.checkpoints.verify import verify
from dcinterp.cli.verify import command
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

Build = Callable[..., DCFormerForCausalLM]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (f"tiny-{name}", {})
    for name in ("transformer", "transformer++", "pythia", "dcformer", "dcformer++", "dcpythia")
}
CASES |= {
    name: ("tiny-dcformer++", changes)
    for name, changes in {
        "pre": dict(compose_stages=("pre",)),
        "post": dict(compose_stages=("post",)),
        "query-wise": dict(compose_key_wise=False),
        "key-wise": dict(compose_query_wise=False),
        "no-gate": dict(compose_gate=False),
        "no-projection": dict(compose_projection=False),
        "no-skip": dict(compose_skip=False),
        "static": dict(compose_static=True),
        "talking-heads": dict(compose="static", compose_skip=False),
        "rank-3": dict(compose_rank=3),
        "groups": dict(compose_groups=2, compose_static=True),
        "windows": dict(attention_windows=(3, None)),
        "gated groups": dict(mlp_gate_groups=4),
    }.items()
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_plain_reference(case: str, model: Build) -> None:
    preset, changes = CASES[case]
    built = model(preset, **changes)
    ids = torch.randint(0, 29, (2, 8), generator=torch.Generator().manual_seed(1))
    run = plain_forward(built.config, built.state_dict(), ids)
    with torch.no_grad():
        got = built(ids, output_hidden_states=True)
    torch.testing.assert_close(got.logits, run.logits, atol=1e-10, rtol=0)
    torch.testing.assert_close(got.hidden_states[1], run.streams[0], atol=1e-10, rtol=0)
    assert set(run.stages) == {(layer, stage) for layer in range(2) for stage in built.config.stages}


def test_verify_a_good_model(model: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model(dtype=torch.float32, attention_windows=(3, None)).save_pretrained(tmp_path)
    report = verify(tmp_path)
    assert report.largest < 1e-4
    assert len(report.layers) == 2
    assert set(report.layers[0]) == {"stream", "pre in", "pre out", "post in", "post out"}
    command(tmp_path)
    out = capsys.readouterr().out
    assert "agrees with the plain reference" in out
    assert "logits, decoded with the cache" in out


def test_verify_finds_the_layer_that_differs(model: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    built = model(dtype=torch.float32, num_hidden_layers=3)
    built.save_pretrained(good)
    with torch.no_grad():
        built.model.layers[1].self_attn.post.key.up.mul_(1.5)
    built.save_pretrained(bad)
    report = verify(bad, against=good)
    assert report.layers[0]["stream"] == 0
    assert report.layers[1]["post in"] == 0
    assert report.layers[1]["post out"] > 1e-3
    with pytest.raises(typer.Exit):
        command(bad, against=good)
    assert "DIFFERS from" in capsys.readouterr().out


def test_verify_refuses_models_of_different_shapes(model: Build, tmp_path: Path) -> None:
    model(dtype=torch.float32).save_pretrained(tmp_path / "a")
    model(dtype=torch.float32, compose_stages=("pre",)).save_pretrained(tmp_path / "b")
    with pytest.raises(UserError, match="models of different shapes; give two folders of the same model"):
        verify(tmp_path / "a", against=tmp_path / "b")


def test_verify_refuses_models_of_different_depths(model: Build, tmp_path: Path) -> None:
    model(dtype=torch.float32).save_pretrained(tmp_path / "a")
    model(dtype=torch.float32, num_hidden_layers=3).save_pretrained(tmp_path / "b")
    for one, other in (("a", "b"), ("b", "a")):
        with pytest.raises(UserError, match="models of different shapes; give two folders of the same model"):
            verify(tmp_path / one, against=tmp_path / other)
