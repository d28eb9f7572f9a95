"""Edges of trained models, pooled by layer."""

import pandas as pd
import pytest
import torch

from dcinterp.evidence.pooled_edges import arm_tables, arms_alike, group_of, pooled_shares
from dcinterp.mechanism.circuit_pairs import batches, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others, run_circuits


@pytest.mark.parametrize(
    ("edge", "group"),
    [
        ("embedding -> L0H1.q", "embedding -> L0 query"),
        ("L0H1 -> L1 post weights", "L0 -> L1 post weights"),
        ("L1H0 -> L1H1 (post qp)", "L1 post qp"),
        ("L0H1 -> L0H1 (pre skip)", "L0 pre skip"),
        ("L1H1 -> logits", "L1 -> logits"),
        ("MLP 0 -> L1H0.v", "MLP 0 -> L1 value"),
    ],
)
def test_edges_are_pooled_by_layer(edge, group):
    assert group_of(edge) == group


def test_a_share_is_that_of_the_whole_effect_by_patching_the_group(shipped):
    asked = [("The dog is an", "animal", "The apple is an", "fruit")]
    rows = pooled_shares(shipped, {"thing": asked, "same": asked}, like={"same": "thing"})
    run = CircuitRun(shipped)
    pairs, _ = read_pairs(shipped, asked)
    (batch,) = batches(pairs, 4)
    kept = torch.ones(3, run.graph.size)
    kept[1] = 0
    group = "embedding -> L1 value"
    kept[2, [at for at, name in enumerate(run.graph.names) if group_of(name) == group]] = 0
    whole, none, without = (
        float(run_circuits(run, batch, Others(run, pairs, "counterfactual").of(batch), one[None])) for one in kept
    )
    found = [row["share"] for row in rows if row["group"] == group]
    assert found == pytest.approx([(whole - without) / (whole - none)] * 2, abs=1e-4)
    assert len({row["group"] for row in rows}) * 2 == len(rows)


def test_a_model_that_answers_otherwise_is_not_asked(shipped):
    assert pooled_shares(shipped, {"thing": [("The dog is an", "fruit", "The apple is an", "animal")]}) == []


def test_a_table_has_the_groups_that_carry_something_anywhere():
    rows = pd.DataFrame(
        {"seed": seed, "part": "seen", "change": change, "group": group, "share": share + 0.02 * seed}
        for seed in (0, 1)
        for change, shares in (("key", (0.2, 0.0, 0.1, 0.1, 0.08)), ("letter", (0.0, 0.9, 0.1, 0.08, 0.06)))
        for group, share in zip("abcde", shares, strict=True)
    )
    text = arm_tables(rows, ["key", "letter"])
    assert "On `seen`, 2 models" in text
    assert "| a | 0.21 [0.20, 0.22] | 0.01 [0.00, 0.02] |" in text
    assert "| c |" not in text
    # A part without the effect of a group, as one of zero has no share.
    lacking = rows[(rows["group"] != "a") | (rows["seed"] == 0)].replace({"part": {"seen": "first"}})
    other = rows[rows["group"] != "a"].replace({"part": {"seen": "second"}})
    assert "| a |  |  |" in arm_tables(pd.concat([lacking, other]), ["key", "letter"])
    assert "correlate by 1.00 (key, 4 groups), 1.00 (letter, 4 groups)" in text, "groups of nothing would agree"
    few = arm_tables(rows[rows["group"] < "d"], ["key", "letter"])
    assert "an unknown number (key, 2 groups, too few)" in few, "any two groups correlate by one"
    assert arm_tables(rows[rows["seed"] == 0], ["key"]).endswith("With one model there is none to hold it against.")
    right = arm_tables(rows.assign(seen=0.9 + 0.1 * rows["seed"]), ["key"])
    assert "On `seen`, 2 models, right in 0.90 to 1.00 of its questions" in right


def test_two_arms_are_held_against_each_other_on_the_groups_that_both_have():
    def arm(shares: dict[str, float], seeds: int) -> pd.DataFrame:
        own = [
            {"seed": seed, "group": group, "share": share} for seed in range(seeds) for group, share in shares.items()
        ]
        return pd.DataFrame(own).assign(part="seen", change="key")

    one = {"a": 0.9, "b": 0.1, "c": 0.4, "d": 0.5, "none": 0.0}
    other = {"a": 0.1, "b": 0.9, "c": 0.6, "d": 0.5, "none": 0.01, "own": 0.5}
    assert arms_alike(arm(one, 3), arm(other, 2), ["key"]) == "-1.00 (key, 4 groups)"
