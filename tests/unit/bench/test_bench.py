"""The benchmarks measure what they say, on sizes that take no time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dcinterp.bench import attention, models
from dcinterp.bench.record import machine, page_tables, read_record
from dcinterp.bench.released_loops import looped_attention
from dcinterp.bench.timing import peak_memory, race
from dcinterp.model.kernels import composed_attention
from dcinterp.support.errors import UserError

TINY = attention.Shape(2, 9, 4, 8)
KERNEL_RECORD = Path(__file__).parents[3] / "docs" / "kernel-bench.json"


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


SMALL = models.ModelShape(32, 1, 4, 32)


def test_models_are_raced_against_the_baseline_and_llama() -> None:
    for result in (
        models.measure_training(SMALL, 2, 8, rounds=1),
        models.measure_prefill(SMALL, 8, rounds=1),
        models.measure_decoding(SMALL, 8, tokens=2, rounds=1),
    ):
        assert [each.name for each in result.timings[:2]] == [models.BASELINE, models.LLAMA]
        assert len(result.timings) >= 4


def test_llama_is_what_the_baseline_is() -> None:
    """The same function of the same weights, so that their times compare the code and nothing else."""
    ours, theirs = models.build(SMALL, "eager", compose="none").eval(), models.build_llama(SMALL).eval()
    theirs.load_state_dict(ours.state_dict())
    ids = models._text(2, 9)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SHAPES", (TINY,))
    monkeypatch.setattr(attention, "LONG", attention.Shape(1, 17, 2, 8))
    for name, each in (("TRAINING", (SMALL, 2, 8)), ("PREFILL", (SMALL, 8)), ("DECODING", (SMALL, 8))):
        monkeypatch.setattr(models, name, (each,))


@pytest.mark.usefixtures("little")
def test_all_measurements_go_into_a_file_and_from_there_into_a_page(tmp_path: Path) -> None:
    from dcinterp.cli.bench import app

    file, page, threads = tmp_path / "bench.json", tmp_path / "page.md", torch.get_num_threads()
    page.write_text("Before.\n\n<!-- bench: of bench.json -->\nOld.\n<!-- end -->\n\nAfter.\n")
    part = ["all", "--rounds", "1", "--threads", "1", "--json", str(file)]
    assert CliRunner().invoke(app, [*part, "--only", "decoding"]).exit_code == 0
    (first,) = read_record(file)["measurements"]
    ran = CliRunner().invoke(app, [*part, "--page", str(page)])
    assert ran.exit_code == 0, ran.output
    found = read_record(file)["measurements"]
    assert first in found, "what the file has is not measured again"
    assert [each["kind"] for each in found] == ["decoding", *["attention"] * 4, "training step", "prefill"]
    assert torch.get_num_threads() == threads
    assert page.read_text().startswith("Before.\n\n<!-- bench: of bench.json -->\n")
    assert page.read_text().endswith(f"{page_tables(read_record(file))}\n<!-- end -->\n\nAfter.\n")
    assert "### Decoding, one thread" in ran.output
    assert set(tmp_path.iterdir()) == {file, page}
    held = json.loads(file.read_text())
    held["measurements"][0]["job"] += ", "  # as names once ended
    file.write_text(json.dumps(held))
    assert CliRunner().invoke(app, part).exit_code == 0
    assert read_record(file) == held, "nor what it has by an older name"
    again = CliRunner().invoke(app, ["all", "--read", "--json", str(file)])
    assert again.output.strip() == page_tables(read_record(file))
    other = CliRunner().invoke(app, ["all", "--rounds", "2", "--json", str(file)])
    assert isinstance(other.exception, UserError)
    assert "by other rounds" in str(other.exception)


@pytest.mark.parametrize("lost", ["machine", "rounds", "measurements", "torch", "job", "timings", "seconds"])
def test_a_record_without_a_part_of_it_is_no_measurement(tmp_path: Path, lost: str) -> None:
    from dcinterp.cli.bench import app

    file = tmp_path / "bench.json"
    record = json.loads(KERNEL_RECORD.read_text(encoding="utf-8"))
    first = record["measurements"][0]
    for place in (record, record["machine"], first, first["timings"][0]):
        place.pop(lost, None)
    file.write_text(json.dumps(record))
    ran = CliRunner().invoke(app, ["all", "--read", "--json", str(file)])
    assert isinstance(ran.exception, UserError)
    assert f"{file} holds no measurements" in str(ran.exception)


@pytest.mark.usefixtures("little")
def test_a_page_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    from dcinterp.cli.bench import app

    file, page = tmp_path / "bench.json", tmp_path / "page.md"
    page.write_text("No marks.\n")
    ran = CliRunner().invoke(app, ["all", "--rounds", "1", "--json", str(file), "--page", str(page)])
    assert isinstance(ran.exception, UserError)
    assert "to write tables between" in str(ran.exception)
    assert not file.exists()


def test_a_cell_is_the_multiple_of_the_first_median() -> None:
    timings = [{"name": "a", "seconds": 0.002, "ratio": 1.0}, {"name": "b", "seconds": 0.003, "ratio": 1.5}]
    measured = {"kind": "prefill", "label": "T8", "what": "", "threads": 2, "load": 0.5, "timings": timings}
    made = page_tables({"machine": dict.fromkeys(machine(), "?"), "rounds": 3, "measurements": [measured]})
    assert "### Prefill, 2 threads\n\n|  | a: ms | b: x |\n| --- | --- | --- |\n| T8 | 2.0 | 1.50 |" in made
    assert "0.5 to 0.5" in made


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


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("verb", "label", "what"),
    [
        ("train", "width 32, 1 layers, B2 T8", "training step"),
        ("prefill", "width 32, 1 layers, T8", "prefill"),
        ("decode", "width 32, 1 layers, 8 cached", "16 tokens decoded"),
    ],
)
def test_the_verbs_of_models_measure_what_they_are_named_after(verb: str, label: str, what: str) -> None:
    from dcinterp.cli.bench import app

    found = {}
    for options in ([], ["--fast"]):
        ran = CliRunner().invoke(app, [verb, "--rounds", "1", "--json", *options])
        assert ran.exit_code == 0, ran.output
        (record,) = json.loads(ran.output)
        assert (record["label"], record["what"]) == (label, what)
        found[bool(options)] = {timing["name"] for timing in record["timings"]}
    assert found[False] - found[True] >= {"DCFormer++, as written"}
    assert found[True] >= {models.BASELINE, models.LLAMA}
