"""`dcinterp planted` as a person uses it."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from dcinterp.analysis.circuits.method_benchmark import MethodScores
from dcinterp.cli import verbs
from dcinterp.planted import circuits, read_plant

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
    assert "One model has no interval" in done.stdout


def test_a_misspelt_circuit_is_refused():
    done = runner.invoke(verbs, ["planted", "show", "share-by-kq"])
    assert done.exit_code != 0
    assert "did you mean" in str(done.exception)


def test_bench_prints_and_writes_what_it_measured(tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    line = [
        "planted",
        "bench",
        str(rows),
        "--kind",
        "lookup-post-kp",
        "--short",
        "--method",
        "EAP",
        "--method",
        "random",
    ]
    done = runner.invoke(verbs, [*line, "--page", str(page), "--json"])
    assert done.exit_code == 0
    found = json.loads(done.stdout)["lookup-post-kp"]
    assert set(found) == {"EAP", "random"}
    assert found["EAP"]["auroc"]["value"] > 0.9
    assert "| lookup-post-kp | 100% |" in page.read_text()
    again = runner.invoke(verbs, line)
    assert "0 more rows" in again.stderr
    assert "| EAP |" in again.stdout


def test_names_of_the_bench_are_checked(tmp_path):
    for option, says in (("--kind", "There is no kind 'chian'"), ("--method", "There is no method 'chian'")):
        done = runner.invoke(verbs, ["planted", "bench", str(tmp_path / "rows"), option, "chian"])
        assert done.exit_code != 0
        assert says in str(done.exception)
    done = runner.invoke(verbs, ["planted", "train-truth", "lookup", str(tmp_path / "out")])
    assert "There is no stated circuit 'lookup'" in str(done.exception)


def test_show_lists_planted_edges_that_attribution_misses():
    done = runner.invoke(verbs, ["planted", "show", "share-by-kp noise=0.05 seed=3", "--json"])
    assert done.exit_code == 0
    edges = json.loads(done.stdout)["edges"]
    planted = read_plant("share-by-kp noise=0.05 seed=3")
    truth = planted.truth(planted.examples(1)[0])
    assert sum(edge["planted"] != 0 for edge in edges) == sum(int((of != 0).sum()) for of in truth.stages.values())
    assert sum(edge["planted"] == 0 for edge in edges) <= 3 * len(truth.stages)


def test_a_seed_in_a_table_of_seeds_is_refused():
    done = runner.invoke(verbs, ["planted", "table", "share-by-kp seed=3", "--seeds", "1"])
    assert "names a seed, but the models of a setting have the seeds 0, 1" in str(done.exception)
