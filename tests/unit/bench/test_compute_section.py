"""The part of an experiment's page on compute says what planted lines are, and why there is no multiplier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from dcinterp.bench.compute_section import compute_section
from dcinterp.bench.experiment_page import page_of
from dcinterp.bench.verdicts import verdict_lines
from dcinterp.train.control.experiment import FINAL, Experiment, read_experiment

SIZES = {8: 1e12, 16: 4e12, 24: 1e13}
FAMILIES = {"plain": "transformer++", "all": "dcformer++"}


@pytest.fixture
def planted(tmp_path: Path) -> Callable[..., Experiment]:
    """An experiment of three sizes and two families, whose runs lie on lines with a multiplier for each seed."""

    def make(multipliers: list[float], level: float = 1.0, planned: int = 3) -> Experiment:
        arms = [
            {"name": f"{arm} {size}", "model.preset": f"tiny-{family}", "model.changes.hidden_size": size}
            for size in SIZES
            for arm, family in FAMILIES.items()
        ]
        config = {
            "model": {"changes": {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 0}},
            "data": {"text": {"context": 8}, "phases": [{"source": "text", "steps": 1, "batch_size": 1}]},
        }
        tree = {
            "config": config,
            "arms": arms,
            "seeds": list(range(planned)),
            "measures": {"bits_per_byte": "held-out bits a byte"},
            "multiplier": {"name": "H1", "base": "transformer++", "other": "dcformer++"},
        }
        (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(tree))
        experiment = read_experiment(tmp_path)
        rows = []
        for seed, multiplier in enumerate(multipliers):
            for arm in experiment.arms:
                name, size = arm.split()
                factor = level * multiplier**-0.05 if name == "all" else 1.0
                facts = {"stage": FINAL, "arm": arm, "status": "done", "recipe.seed": seed}
                facts |= {"family": FAMILIES[name], "flops": SIZES[int(size)], "parameters": 1.0, "loss": 1.0}
                facts["name"] = experiment.run(FINAL, arm, {}, seed).name
                rows.append(facts | {"bits_per_byte": factor * (SIZES[int(size)] / 1e15) ** -0.05})
        pd.DataFrame(rows).to_csv(experiment.table, index=False)
        return experiment

    return make


@pytest.mark.parametrize(
    ("multipliers", "says"),
    [
        ([1.5, 1.6, 1.7], "by lines 1.60 [1.37, 1.87], by pieces 1.60 [1.37, 1.87] over 3 seeds (one by one "),
        ([1.5, 1.6, 1.7], "over 3 seeds (one by one 1.50, 1.60, 1.70 and 1.50, 1.60, 1.70); **supported**."),
        ([0.7, 0.8, 1.5], "over 3 seeds (one by one 0.70, 0.80, 1.50 and 0.70, 0.80, 1.50); **open**."),
        (
            [0.6, 0.62, 0.61],
            "over 3 seeds (one by one 0.60, 0.62, 0.61 and 0.60, 0.62, 0.61); **refuted**: it is below 1.",
        ),
    ],
)
def test_a_planted_multiplier_is_judged_by_its_interval(planted, multipliers, says):
    experiment = planted(multipliers)
    (line,) = verdict_lines(experiment)
    assert line.startswith("**H1** (the compute multiplier is above 1, at ")
    assert says in line
    assert f"- {line}" in page_of(experiment, "small.svg")


@pytest.mark.parametrize("best", ["lowest", ""])
@pytest.mark.parametrize("edge", ["plain 16", "all 16"])
@pytest.mark.parametrize("multipliers", [[1.5, 1.6, 1.7], [0.6, 0.62, 0.61]])
def test_no_verdict_goes_against_a_family_at_an_edge_of_the_search(planted, monkeypatch, multipliers, edge, best):
    experiment = replace(planted(multipliers), measure_best=best)
    monkeypatch.setattr(Experiment, "chosen_at_an_edge", lambda *_: [edge])
    (line,) = verdict_lines(experiment)
    costlier = "plain 16" if multipliers[0] > 1 else "all 16"
    if best and edge == costlier:
        assert line.endswith(f"; **open**, as *{edge}* may do better with a value beyond those searched.")
    else:
        assert ("**supported**" if multipliers[0] > 1 else "**refuted**") in line


def test_the_page_has_the_lines_and_their_figure(planted):
    text = page_of(planted([1.5, 1.6, 1.7]), "small.svg")
    assert "(small-compute.svg)" in text
    assert text.count("| 1.60 [1.37, 1.87] | 1.60 [1.37, 1.87] |") == 9
    assert "| dcformer++ | +0.00% | +0.00% | +0.00% |" in text.replace("-0.00%", "+0.00%")
    assert "transformer++ falls as compute to the power of -0.0500 [-0.0500, -0.0500]" in text
    assert "transformer++ is *plain 8*, *plain 16*, *plain 24*; dcformer++ is *all 8*, *all 16*, *all 24*" in text
    assert "over 3 seeds (one by one 1.50, 1.60, 1.70 and 1.50, 1.60, 1.70)" in text


def test_without_all_seeds_there_is_no_verdict(planted):
    assert verdict_lines(planted([1.5, 1.6], planned=3))[0].endswith(
        "2 of 3 seeds have a run of every arm: no verdict."
    )


def test_a_size_that_no_seed_has_is_no_silent_gap(planted):
    experiment = planted([1.5, 1.6, 1.7])
    table = pd.read_csv(experiment.table)
    table[table["arm"] != "all 16"].to_csv(experiment.table, index=False)
    assert "No run of all 16 has ended" in verdict_lines(experiment)[0]


def test_lines_and_pieces_must_agree(planted):
    experiment = planted([1.5, 1.6, 1.7])
    table = pd.read_csv(experiment.table)
    table.loc[table["arm"] == "all 24", "bits_per_byte"] *= 1.04  # above the line, and no better than plain
    table.to_csv(experiment.table, index=False)
    (line,) = verdict_lines(experiment)
    assert "**open**" in line


def test_families_without_a_loss_in_common_have_no_multiplier(planted):
    experiment = planted([1.0, 1.0, 1.0], level=0.5)
    assert "reached no loss in common" in verdict_lines(experiment)[0]
    assert compute_section(experiment, "small-compute.svg") == ""
    assert "small-compute.svg" not in page_of(experiment, "small.svg")
