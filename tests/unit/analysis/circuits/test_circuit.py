"""`circuit` and `faithfulness`: what results say, against runs of the model and numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import dcinterp
from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.mechanism.circuit_pairs import batches, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others, Scoring, score_edges
from dcinterp.mechanism.faithfulness import (
    FRACTIONS,
    LITTLE_WAY,
    NO_WAY,
    cmd,
    cpr,
    faithfulness_interval,
    faithfulness_of,
    keep_top,
    node_ranking,
    way_warnings,
)
from dcinterp.support.errors import UserError

SET = "task0 n=6"


@pytest.fixture(scope="module")
def scored(shipped):
    return dcinterp.circuit(shipped, SET, steps=3)


@pytest.fixture(scope="module")
def curve(shipped):
    return dcinterp.faithfulness(shipped, SET, steps=3, draws=1)


@torch.no_grad()
def test_the_ends_are_the_model_and_the_counterfactual_prompt(shipped, scored):
    pairs, _ = read_pairs(shipped, SET)
    for i, pair in enumerate(pairs):
        for found, ids in ((scored.metric, pair.ids), (scored.patched, pair.other)):
            logits = shipped(ids)[0, -1]
            assert float(found[i]) == pytest.approx(float(logits[pair.target] - logits[pair.foil]), abs=1e-3)
    assert scored.prompts == tuple(pair.prompt for pair in pairs)


def test_the_circuit_is_the_edges_of_largest_mean(shipped, scored):
    assert len(scored.edges) == CircuitGraph.of(shipped).size == 1774
    assert int(scored.kept.sum()) == scored.size == round(0.05 * 1774)
    assert scored.mean[scored.kept].abs().min() >= scored.mean[~scored.kept].abs().max()
    assert not (scored.connected & ~scored.kept).any()
    table = scored.table()
    assert table["kept"].tolist() == [True] * scored.size + [False] * (1774 - scored.size)
    assert f"{scored.faithfulness:.0%} of the way" in scored.sentence()
    # A few percent of the edges go most of the way on a task that the model can do; random ones go nowhere.
    assert scored.faithfulness > 0.7
    assert not any("f says nothing" in warning for warning in scored.warnings())
    turned = dataclasses.replace(scored, metric=scored.patched, patched=scored.metric)
    assert any("f says nothing" in warning for warning in turned.warnings())


def test_small_circuits_do_what_the_model_does_and_random_ones_do_not(curve):
    assert curve.f[:, -1].tolist() == pytest.approx([1, 1, 1])
    assert curve.kept.tolist() == [2, 4, 9, 18, 35, 89, 177, 355, 887, 1774]
    found = dict(zip(curve.rankings, curve.cmd.tolist(), strict=True))
    assert found["edges"] < found["nodes"] < found["random"]
    assert found["edges"] < 0.05
    assert found["random"] > 0.5
    for i in range(3):
        assert float(curve.cmd[i]) == pytest.approx(cmd(FRACTIONS, curve.f[i].tolist()))
        assert float(curve.cpr[i]) == pytest.approx(cpr(FRACTIONS, curve.f[i].tolist()))
    assert (curve.low[:, :-1] <= curve.f[:, :-1] + 1e-6).all()
    assert curve.smallest in curve.kept.tolist()
    assert f"CMD is {found['edges']:.3f}" in curve.sentence()


def test_areas_by_hand():
    # Of f = the share itself: halves of the unit square, and the trapezoids are exact.
    assert cpr(FRACTIONS, FRACTIONS) == pytest.approx(0.5)
    assert cmd(FRACTIONS, FRACTIONS) == pytest.approx(0.5)
    # Perfect from the first measured circuit on: what is left is the first interval, from f = 0 at 0.
    assert cmd(FRACTIONS, [1.0] * 10) == pytest.approx(0.0005)
    assert cpr(FRACTIONS, [1.0] * 10) == pytest.approx(0.9995)
    # A circuit that overshoots counts for CPR and against CMD.
    assert cpr([0.5, 1.0], [2.0, 1.0]) == pytest.approx(0.5 + 0.75)
    assert cmd([0.5, 1.0], [2.0, 1.0]) == pytest.approx(0.5 + 0.25)


def test_f_is_a_ratio_of_means_with_an_interval_around_it():
    none, whole = torch.tensor([-1.0, -3.0, -2.0, -2.0]), torch.tensor([3.0, 5.0, 2.0, 2.0])
    kept = torch.stack([none, whole, (none + whole) / 2, whole + torch.tensor([1.0, -1.0, 1.0, -1.0])])
    f = faithfulness_of(kept, none, whole)
    assert f.tolist() == pytest.approx([0, 1, 0.5, 1])
    low, high = faithfulness_interval(kept, none, whole, level=0.95, seed=0, groups=[0, 1, 2, 3])
    # The first three have the same f on every prompt; the last does not.
    assert torch.allclose(low[:3], f[:3], atol=1e-6)
    assert torch.allclose(high[:3], f[:3], atol=1e-6)
    assert low[3] < 1 < high[3]


def test_rankings_by_hand(make_bridge):
    graph = CircuitGraph.of(make_bridge("tiny-transformer++", hidden_size=32, num_attention_heads=2))
    assert keep_top(torch.tensor([0.0, 3.0, 1.0, 2.0]), [0.25, 0.5]).tolist() == [[0, 1, 0, 0], [0, 1, 0, 1]]
    scores = torch.zeros(graph.size)
    for name, score in (("L0H1 -> logits", 2.0), ("L0H1 -> L1H0.q", -1.0), ("L1H0 -> logits", 3.0)):
        scores[graph.find(name)] = score
    found = node_ranking(graph, scores)
    # The head L0H1 has 2 - 1, and L1H0 has 3; the edge between them is as high as the lower.
    assert float(found[graph.find("L0H1 -> logits")]) == 1
    assert float(found[graph.find("L1H0 -> logits")]) == 3
    assert float(found[graph.find("L0H1 -> L1H0.v")]) == 1
    assert float(found[graph.find("L0H0 -> L1H0.v")]) == 0


def test_keys_and_values_that_heads_share_come_as_high_as_the_highest_of_these(make_bridge):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    graph = CircuitGraph.of(make_bridge("tiny-transformer++", **sizes))
    scores = torch.zeros(graph.size)
    for name, score in (("embedding -> L0H0.q", 9.0), ("L1H3 -> logits", 5.0), ("L1H1 -> logits", 2.0)):
        scores[graph.find(name)] = score
    found = node_ranking(graph, scores)
    for side in "kv":  # those of the second pair of heads are L1H1.k and L1H1.v
        assert float(found[graph.find(f"embedding -> L1H1.{side}")]) == 5
        assert float(found[graph.find(f"embedding -> L1H0.{side}")]) == 2
    assert float(found[graph.find("embedding -> L1H1.q")]) == 2


@torch.no_grad()
def test_each_task_is_ranked_on_and_measured_on(shipped):
    """A set of several tasks has them in turns."""
    pairs, _ = read_pairs(shipped, "1,40 n=20")
    halves = ranked_and_measured(pairs)
    for half in halves:
        assert {pair.task for pair in half} == {"task1", "task40"}
    assert not {pair.repeats for pair in halves[0]} & {pair.repeats for pair in halves[1]}
    one, _ = read_pairs(shipped, "1 n=8")
    groups = list(dict.fromkeys(pair.repeats for pair in one))
    assert {pair.repeats for pair in ranked_and_measured(one)[0]} == set(groups[::2]), "as ever, of one task"


def test_a_pair_of_ones_own_that_comes_twice_is_no_other_pair(shipped):
    own = ("The dog is an", "animal", "The apple is an", "fruit")
    with pytest.raises(UserError, match="share all their facts"):
        ranked_and_measured(read_pairs(shipped, [own] * 4)[0])


def test_a_denominator_that_may_be_none_is_said():
    metric, patched = torch.tensor([0.07, -0.16, 0.08, 0.12]), torch.zeros(4)
    assert way_warnings(metric, patched, 0.95) == [LITTLE_WAY]
    assert way_warnings(metric, metric, 0.95) == [NO_WAY]
    assert way_warnings(metric + float("nan"), patched, 0.95) == [NO_WAY]
    assert not way_warnings(5 + metric, patched, 0.95)


def test_prompts_that_repeat_each_other_do_not_make_a_denominator_surer():
    metric, sets = torch.tensor([2.0] * 10 + [0.1] * 10), [0] * 10 + [1] * 10
    assert not way_warnings(metric, torch.zeros(20), 0.95)
    assert way_warnings(metric, torch.zeros(20), 0.95, sets) == [LITTLE_WAY]
    assert way_warnings(metric, torch.zeros(20), 0.95, [0] * 20) == [LITTLE_WAY]


def test_results_keep_which_prompts_repeat_each_other(shipped):
    found = dcinterp.circuit(shipped, "same-person n=6", steps=1)
    assert found.repeats is not None
    assert len(found.repeats) == len(found.prompts)
    assert len(set(found.repeats)) < len(found.repeats), "partner tasks ask about the same facts"
    # Surely above zero if all six count, and not if there are two of them.
    likely = dataclasses.replace(found, metric=torch.tensor([2.0] * 3 + [1.0] * 3), patched=torch.zeros(6))
    assert LITTLE_WAY not in dataclasses.replace(likely, repeats=None).warnings()
    assert LITTLE_WAY in dataclasses.replace(likely, repeats=(0, 0, 0, 1, 1, 1)).warnings()


def test_all_results_of_circuits_keep_them(shipped):
    asked, edge = "same-person n=6", ["embedding -> logits"]
    for found in (
        dcinterp.circuit_answers(shipped, asked, edge),
        dcinterp.faithfulness(shipped, asked, steps=1, draws=1),
    ):
        assert len(found.repeats) == len(found.metric)
        n = len(found.metric)
        likely = dataclasses.replace(found, metric=1 + torch.arange(n) / 1000, patched=torch.zeros(n))
        assert LITTLE_WAY not in dataclasses.replace(likely, repeats=None).warnings()
        assert LITTLE_WAY in dataclasses.replace(likely, repeats=(0,) * n).warnings()


def test_means_take_the_place_of_the_counterfactual(shipped):
    pairs, _ = read_pairs(shipped, SET)
    run = CircuitRun(shipped)
    alone = [pairs[0], *(pair for pair in pairs if pair.ids.shape != pairs[0].ids.shape)]
    with pytest.raises(UserError, match=r"there is one alone of .* tokens"):
        Others(run, alone, "mean")
    lengths = [pair.ids.shape[1] for pair in pairs]
    pairs = [pair for pair, length in zip(pairs, lengths, strict=True) if lengths.count(length) > 1]
    others = Others(run, pairs, "mean", batch_size=2)
    batch = max(batches(pairs, 16), key=lambda each: len(each.places))
    written = run(batch.ids)[1].written
    assert len(batch.places) > 2
    assert torch.allclose(others.of(batch).written, written.mean(1, keepdim=True).expand_as(written), atol=1e-4)
    scores = score_edges(run, pairs, Scoring("eap", "mean"))
    assert scores.abs().max() > 0
    with pytest.raises(UserError, match="no contrast 'zero'"):
        Others(run, pairs, "zero")


def test_prompts_of_ones_own_and_refusals(shipped, twin):
    own = [("The dog is an", "animal", "The apple is an", "fruit")] * 2
    found = dcinterp.circuit(shipped, own, method="eap", contrast="mean")
    assert found.n == 2
    assert math.isfinite(found.faithfulness) or found.patched.equal(found.metric)
    with pytest.raises(UserError, match="share all their facts"):
        dcinterp.faithfulness(shipped, own[:1])
    assert dcinterp.circuit(twin, SET, method="eap").edge_kinds.count("post skip") == 16
