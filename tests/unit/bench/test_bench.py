"""The benchmarks measure what they say, on sizes that take no time."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dcinterp.bench import attention, models
from dcinterp.bench.released_loops import looped_attention
from dcinterp.bench.timing import peak_memory, race
from dcinterp.model.kernels import composed_attention

TINY = attention.Shape(2, 9, 4, 8)


@pytest.mark.parametrize("backward", [False, True])
def test_every_implementation_is_raced_against_plain_attention(backward: bool) -> None:
    result = attention.measure(TINY, backward=backward, rounds=2)
    names = {timing.name: timing for timing in result.timings}
    assert {attention.BASELINE, "composed, portable", "composed, released loops", "composed, as written"} <= set(names)
    assert names[attention.BASELINE].ratio == 1
    assert all(t.seconds >= t.fastest > 0 for t in result.timings)


def test_the_loops_are_composed_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcinterp.bench.released_loops.CHUNK", 4)
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    q, k, v = (random(2, 4, 9, 8) for _ in range(3))
    pre, post = (attention._weights(TINY, random) for _ in range(2))
    expected = composed_attention(q, k, v, pre, post, causal=True, implementation="eager")
    torch.testing.assert_close(looped_attention(q, k, v, pre, post), expected, atol=1e-4, rtol=1e-4)


def test_peak_memory_sees_what_a_run_holds_for_a_moment() -> None:
    peak = peak_memory(lambda: torch.ones(25_000_000).sum())
    assert peak is None or 9e7 < peak < 1.5e8


def test_ratios_are_of_medians() -> None:
    timings = race({"a": lambda: None, "b": lambda: None}, "a", rounds=3)
    assert timings[1].ratio == timings[1].seconds / timings[0].seconds


def test_models_are_raced_against_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    monkeypatch.setattr(models, "SMALL", small)
    for result in (models.measure_training(2, 8, rounds=1), models.measure_decoding(8, tokens=2, rounds=1)):
        assert result.timings[0].name == models.BASELINE
        assert len(result.timings) >= 3


def test_the_command_prints_a_table_and_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from dcinterp.cli.bench import app

    monkeypatch.setattr(attention, "SHAPES", (TINY, TINY, TINY))
    output = tmp_path / "bench.json"
    ran = CliRunner().invoke(app, ["attention", "--short", "--rounds", "1", "--output", str(output)])
    assert ran.exit_code == 0, ran.output
    assert "composed, portable" in ran.output
    records = json.loads(output.read_text())
    assert [record["what"] for record in records] == ["forward", "forward+backward"] * 2
    assert {"name", "seconds", "ratio", "fastest", "peak"} == set(records[0]["timings"][0])
