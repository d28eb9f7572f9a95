"""`dcinterp planted` as a person uses it."""

from __future__ import annotations

from typer.testing import CliRunner

from dcinterp.analysis.circuits.method_benchmark import MethodScores
from dcinterp.cli import verbs
from dcinterp.planted import circuits

runner = CliRunner()


def test_list_shows_every_circuit_with_an_example():
    done = runner.invoke(verbs, ["planted", "list"])
    assert done.exit_code == 0
    for name in circuits():
        assert f"{name}: " in done.stdout
    assert done.stdout.count("<bos>") == len(circuits())


def test_show_puts_the_planted_signs_beside_the_scores():
    done = runner.invoke(verbs, ["planted", "show", "gate-by-qg seed=2"])
    assert done.exit_code == 0
    _, _, edges = done.stdout.partition("edge, planted sign")
    lines = [line.split() for line in edges.splitlines()[1:]]
    signed = [line for line in lines if line[1] != "."]
    assert [line[1] for line in lines[:5]] == [line[1] for line in signed], "the planted edges come first"
    assert sorted(line[1] for line in signed) == ["+1", "+1", "+1", "+1", "-1"]
    for _, sign, score in signed:
        assert float(score) * int(sign) > 1


def test_table_prints_what_it_saves(tmp_path):
    folder = tmp_path / "scores"
    done = runner.invoke(verbs, ["planted", "table", "share-by-kp", "--seeds", "1", "--save", str(folder)])
    assert done.exit_code == 0
    scores = MethodScores.load(folder)
    assert scores.markdown("edges", "auroc") in done.stdout
    assert "Intervals over fewer than 5 models are unreliable" in done.stdout


def test_a_misspelt_circuit_is_refused():
    done = runner.invoke(verbs, ["planted", "show", "share-by-kq"])
    assert done.exit_code != 0
    assert "did you mean" in str(done.exception)
