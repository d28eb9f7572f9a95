"""Ablation of branches: against the same weights without composition, and its statistics by hand."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp import UserError
from dcinterp.analysis.intervention.branch_ablation import APART, REFERENCE_ROWS, _table, default_parts, hooks_of
from dcinterp.bridge import wrap
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.checkpoints.read import read_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM


@pytest.fixture(scope="module")
def at_its_mean(shipped):
    return dcinterp.branch_ablation(shipped, tasks="56,57", parts=["all"], rows=2, examples=4, resamples=50)


@pytest.fixture(scope="module")
def without_everything(at_its_mean):
    """Zero, which stands beside the default."""
    return at_its_mean.zero


def test_without_all_it_is_the_same_weights_in_a_model_that_does_not_compose(shipped, without_everything):
    trained = read_model(SHIPPED / "dcformer++")
    config = DCFormerConfig.from_dict(trained.config.to_dict() | {"compose": "none"})
    plain = DCFormerForCausalLM(config)
    plain.load_state_dict({k: v for k, v in trained.state_dict().items() if ".pre." not in k and ".post." not in k})
    tasks = ("task56", "task57")
    rows = [row for task in tasks for row in synthetic_tasks.generate(task, 2, 1, examples=4, split="held-out")]
    expected = synthetic_tasks.evaluate(wrap(plain, shipped.tokenizer), rows, bootstrap=0).accuracy
    assert float(without_everything.accuracy[1, 0]) == pytest.approx(expected)
    intact = synthetic_tasks.evaluate(shipped, rows, bootstrap=0).accuracy
    assert float(without_everything.accuracy[0, 0]) == pytest.approx(intact)
    assert intact != expected, "on these rows composition matters, or the test shows nothing"


def test_what_the_result_says(without_everything):
    result = without_everything
    assert result.parts == ("intact", "all")
    assert result.patterns == ("different-in-set",)
    assert result.answers.tolist() == [8]
    assert result.clusters.tolist() == [2]
    assert any("rest on only 2 independent rows" in sentence for sentence in result.warnings())
    assert torch.equal(result.change, result.accuracy - result.accuracy[:1])
    assert float(result.guess[0]) == pytest.approx(1 / 3)


def frame(correct):
    return pd.DataFrame({"correct": correct, "cluster": ["a#0", "a#0", "b#0", "b#0"]})


def test_changes_and_intervals_by_hand():
    """Cluster a loses both answers, cluster b none: two clusters leave nearly everything open."""
    frames = {"intact": frame([True, True, True, False]), "part": frame([False, False, True, False])}
    table = _table(frames, [True] * 4)
    assert table["accuracy"].tolist() == [0.75, 0.25]
    assert table["change"].tolist() == [0, -0.5]
    assert (float(table["change_low"][0]), float(table["change_high"][0])) == (0, 0)
    assert -1 <= float(table["change_low"][1]) < -0.9
    assert float(table["change_high"][1]) > 0.3
    assert float(table["low"][0]) < 0.1
    assert float(table["high"][1]) > 0.9


def test_one_cluster_has_no_interval_and_nothing_is_certain():
    table = _table({name: frame([True, True, False, False])[:2] for name in ("intact", "part")}, [True] * 2)
    assert bool(table["low"].isnan().all())
    assert bool(table["change_high"][1].isnan())


def test_a_certain_change_leaves_out_zero(without_everything):
    low, high = float(without_everything.change_low[1, 0]), float(without_everything.change_high[1, 0])
    assert without_everything.certain("all", "different-in-set") == (high < 0 or low > 0)
    assert not without_everything.certain("intact", "different-in-set")


def test_parts_name_the_hooks_of_their_branches(bridge, make_bridge):
    assert default_parts(bridge) == [
        "pre.qp", "pre.kp", "pre.qg", "pre.kg", "post.qp", "post.kp", "post.qg", "post.kg", "pre", "post", "all"
    ]  # fmt: skip
    assert hooks_of(bridge, "1.post.kp") == ["blocks.1.attn.post.hook_o_kp"]
    assert len(hooks_of(bridge, "post.kp")) == 2
    assert len(hooks_of(bridge, "0.pre")) == 4
    assert len(hooks_of(bridge, "all")) == 16
    assert default_parts(make_bridge(compose_gate=False, compose_stages=("post",))) == ["post.qp", "post.kp", "all"]


def test_the_default_is_the_mean_over_other_rows_of_each_task(shipped, at_its_mean):
    """Against hooks written by hand: one mean map for every branch and task, over rows that are not scored."""
    assert (at_its_mean.kind, at_its_mean.reference, at_its_mean.unmatched) == ("mean", REFERENCE_ROWS, None)
    correct = []
    for task in ("task56", "task57"):
        rows = synthetic_tasks.generate(task, 2, 1, examples=4, split="held-out")
        others = synthetic_tasks.generate(task, REFERENCE_ROWS, 1 + APART, examples=4, split="held-out")
        assert not {row.text for row in rows} & {row.text for row in others}
        caches = [shipped.run_with_cache(shipped.to_tokens(row.prompt))[1] for row in others]
        hooks = []
        for layer in range(3):
            for stage in ("pre", "post"):
                at, seen = f"blocks.{layer}.attn.{stage}.hook_", {}
                hooks.append((f"{at}in", lambda a, hook, seen=seen: seen.update(attention=a)))
                for side in "qk":
                    pairs = [(c[f"{at}w_{side}1"][0], c[f"{at}w_{side}2"][0]) for c in caches]
                    low_rank = torch.cat([torch.einsum("prf,prh->pfh", *pair) for pair in pairs]).mean(0)
                    gate = torch.cat([c[f"{at}w_{side}g"][0] for c in caches]).mean(0)
                    for name, mean in ((f"{side}p", low_rank), (f"{side}g", torch.diag(gate))):
                        hooks.append(
                            (
                                f"{at}o_{name}",
                                lambda o, hook, mean=mean, seen=seen: torch.einsum(
                                    "bfts,fh->bhts", seen["attention"], mean
                                ),
                            )
                        )
        with shipped.hooks(fwd_hooks=hooks):
            correct += list(synthetic_tasks.evaluate(shipped, rows, bootstrap=0).to_dataframe()["correct"])
    assert float(at_its_mean.accuracy[1, 0]) == pytest.approx(sum(correct) / len(correct))
    assert float(at_its_mean.accuracy[1, 0]) != float(at_its_mean.zero.accuracy[1, 0]), "else the test shows nothing"


def test_zero_stands_beside_in_the_table_and_is_said_where_it_is_the_kind(at_its_mean, without_everything):
    table = at_its_mean.table()
    assert table["change_at_zero"].tolist() == without_everything.change.flatten().tolist()
    assert (without_everything.kind, without_everything.zero, without_everything.reference) == ("zero", None, 0)
    assert any("never trained in" in sentence for sentence in without_everything.warnings())
    assert not any("never trained in" in sentence for sentence in at_its_mean.warnings())


@pytest.mark.parametrize("kind", ["resample", "resample-token", "rotate"])
def test_the_other_kinds_run_on_rows_too(bridge, kind):
    result = dcinterp.branch_ablation(
        bridge, tasks="56", parts=["post"], kind=kind, rows=1, examples=3, resamples=10, batch_size=2
    )
    assert (result.kind, result.zero.kind) == (kind, "zero")
    assert (result.unmatched is None) == (kind == "rotate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": ["post.kq"]}, "post.kp"),
        ({"parts": ["middle"]}, "no part 'middle'"),
        ({"parts": ["7.post"]}, "no part '7.post'"),
        ({"tasks": "same-persn"}, "no task is called"),
        ({"kind": "means"}, "mean"),
    ],
)
def test_refuses_with_a_sentence(bridge, arguments, message):
    with pytest.raises(UserError, match=message):
        dcinterp.branch_ablation(bridge, **arguments)


def test_a_plain_transformer_has_nothing_to_remove(twin):
    with pytest.raises(UserError, match="Load a DCFormer"):
        dcinterp.branch_ablation(twin)


@pytest.mark.parametrize("kind", ["resample", "resample-token"])
def test_what_takes_the_place_of_a_branch_does_not_hang_on_the_padding_of_a_batch(shipped, kind):
    given = {"tasks": "same-person", "parts": ["all"], "kind": kind, "rows": 1, "examples": 2, "resamples": 5}
    one, four = (dcinterp.branch_ablation(shipped, batch_size=size, **given) for size in (1, 4))
    assert torch.equal(one.accuracy, four.accuracy)
    assert one.unmatched == four.unmatched
