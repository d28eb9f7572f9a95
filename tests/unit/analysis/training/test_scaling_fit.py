"""Scaling fits give back planted power laws, and refuse points that support none."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dcinterp
from dcinterp.cli import verbs
from dcinterp.results.result import load_result
from dcinterp.support.errors import UserError

SIZES = [1e15, 3e15, 1e16, 3e16, 1e17]


def law(family, coefficient, exponent, sizes=SIZES, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    return [(family, c, coefficient * c**-exponent * np.exp(noise * random.normal())) for c in sizes]


def planted(multiplier, noise=0.0, seed=0):
    """The second family reaches with C what the first reaches with multiplier * C."""
    return law("transformer++", 30, 0.05, noise=noise, seed=seed) + law(
        "dcformer++", 30 * multiplier**-0.05, 0.05, noise=noise, seed=seed + 1
    )


def test_planted_laws_come_back_exactly():
    fit = dcinterp.scaling_fit(planted(1.8))
    assert fit.exponent == pytest.approx((0.05, 0.05))
    assert fit.multiplier.tolist() == pytest.approx([1.8] * len(fit.loss))
    assert fit.multiplier_low.tolist() == pytest.approx([1.8] * len(fit.loss))
    assert "transformer++ needs 1.80 times the compute of dcformer++" in fit.sentence()


def test_a_multiplier_that_grows_with_compute():
    points = law("transformer++", 30, 0.05) + law("dcformer++", 33, 0.055)
    fit = dcinterp.scaling_fit(points)
    assert fit.exponent == pytest.approx((0.05, 0.055))
    assert (fit.multiplier[:-1] > fit.multiplier[1:]).all(), "lowest loss first"
    for loss, base, other in zip(fit.loss, fit.base_flops, fit.other_flops, strict=True):
        assert 30 * float(base) ** -0.05 == pytest.approx(float(loss))
        assert 33 * float(other) ** -0.055 == pytest.approx(float(loss))


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(40):
        fit = dcinterp.scaling_fit(planted(1.5, noise=0.01, seed=10 * seed), resamples=300, seed=seed)
        middle = len(fit.loss) // 2
        covered += float(fit.multiplier_low[middle]) <= 1.5 <= float(fit.multiplier_high[middle])
    assert 30 <= covered <= 40


def table_of_seeds(path, multipliers, noise=0.0):
    """The results.csv of an experiment: three seeds of both families, and a run of the search that is far off."""
    rows = [
        {"stage": "tuning", "status": "done", "family": "dcformer++", "flops": 1e15, "bits": 99.0, "recipe.seed": 9}
    ]
    for seed, multiplier in enumerate(multipliers):
        shift = np.exp(noise * np.random.default_rng(seed).normal())  # of a seed: all of its runs, both families
        rows += [
            {"stage": "final", "status": "done", "family": f, "flops": c, "bits": shift * loss, "recipe.seed": seed}
            for f, c, loss in planted(multiplier)
        ]
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


def test_over_seeds_every_seed_has_a_multiplier_of_its_own(tmp_path):
    fit = dcinterp.scaling_fit(table_of_seeds(tmp_path / "a.csv", [1.5, 1.8, 2.1]), loss="bits", over="seeds")
    logs = np.log([1.5, 1.8, 2.1])
    error = 4.302653 * logs.std(ddof=1) / 3**0.5
    assert fit.seeds == (0, 1, 2)
    assert fit.measure == "bits"
    assert fit.multiplier.tolist() == pytest.approx([np.exp(logs.mean())] * len(fit.loss))
    assert fit.multiplier_low.tolist() == pytest.approx([np.exp(logs.mean() - error)] * len(fit.loss))
    assert fit.multiplier_high.tolist() == pytest.approx([np.exp(logs.mean() + error)] * len(fit.loss))
    assert fit.exponent == pytest.approx((0.05, 0.05))
    assert (fit.base_flops / fit.other_flops).tolist() == pytest.approx(fit.multiplier.tolist())
    assert "over 3 seeds" in fit.sentence()
    assert load_result(fit.save(tmp_path / "fit")).seeds == (0, 1, 2)


def test_what_both_families_of_a_seed_share_is_no_doubt_about_the_multiplier(tmp_path):
    table = table_of_seeds(tmp_path / "a.csv", [1.5, 1.5, 1.5], noise=0.01)
    by_seed, by_run = (dcinterp.scaling_fit(table, loss="bits", over=over) for over in ("seeds", "runs"))
    assert by_seed.multiplier_high.tolist() == pytest.approx([1.5] * len(by_seed.loss))
    assert float(by_run.multiplier_high[0]) > 1.52


def test_pieces_are_not_put_off_by_a_curve(tmp_path):
    """The truth flattens, the same for both; the second family reaches each loss with less compute."""
    rows = [
        {"status": "done", "family": f, "flops": c / factor, "bits": 1 + 30 * c**-0.1, "recipe.seed": seed}
        for seed in range(2)
        for f, factor in (("transformer++", 1.0), ("dcformer++", 1.5))
        for c in SIZES
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    arguments = {"loss": "bits", "over": "seeds"}
    fit = dcinterp.scaling_fit(str(tmp_path / "a.csv"), through="pieces", **arguments)
    assert fit.multiplier.tolist() == pytest.approx([1.5] * len(fit.loss))
    with pytest.raises(UserError, match="need over='seeds'"):
        dcinterp.scaling_fit(planted(1.5), through="pieces")


def test_over_seeds_a_multiplier_is_not_read_beyond_the_largest_run(tmp_path):
    """The last run of the second family is below its line, so its line does not reach that loss within its runs."""
    path = table_of_seeds(tmp_path / "a.csv", [1.5, 1.5])
    table = pd.read_csv(path)
    table.loc[(table["family"] == "dcformer++") & (table["flops"] == SIZES[-1]), "bits"] *= 0.97
    table.to_csv(path, index=False)
    fit = dcinterp.scaling_fit(path, loss="bits", over="seeds")
    assert float(fit.other_flops.max()) <= SIZES[-1] * (1 + 1e-9)
    assert float(fit.base_flops.max()) <= SIZES[-1] * (1 + 1e-9)


def test_over_seeds_only_whole_seeds_count(tmp_path):
    path = table_of_seeds(tmp_path / "a.csv", [1.5, 1.8, 2.1])
    table = pd.read_csv(path)
    table.drop(table.index[-1]).to_csv(path, index=False)
    whole = dcinterp.scaling_fit(path, loss="bits", over="seeds")
    assert whole.seeds == (0, 1)
    assert len(whole.points) == 2 * len(table) // 3, "the others are in no line, so they are no points either"
    twin = table[(table["family"] == "dcformer++") & (table["flops"] == table["flops"].min())].assign(arm="twin")
    arms = pd.concat([table.assign(arm="size"), twin])
    arms.to_csv(path, index=False)
    assert dcinterp.scaling_fit(path, loss="bits", over="seeds").seeds == (0, 1, 2)
    arms.iloc[:-1].to_csv(path, index=False)
    found = dcinterp.scaling_fit(path, loss="bits", over="seeds")
    assert found.seeds == (0, 1), "the last seed lacks an arm that costs what another one does"
    table.assign(arm=[f"run {number}" for number in range(len(table))]).to_csv(path, index=False)
    assert dcinterp.scaling_fit(path, loss="bits", over="seeds").seeds == (0, 1, 2), "arms may be named after runs"
    table[table["recipe.seed"].isin((0, 9))].to_csv(path, index=False)
    with pytest.raises(UserError, match="both families: 1"):
        dcinterp.scaling_fit(path, loss="bits", over="seeds")
    with pytest.raises(UserError, match=r"need a table with the column 'recipe\.seed'"):
        dcinterp.scaling_fit(planted(1.5), over="seeds")
    with pytest.raises(UserError, match="choose from runs, seeds"):
        dcinterp.scaling_fit(planted(1.5), over="tokens")


def test_no_difference_is_said_to_be_none():
    fit = dcinterp.scaling_fit(planted(1.0, noise=0.02, seed=3))
    assert "no difference is shown" in fit.sentence()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (law("transformer++", 30, 0.05), "No finished run is of the family 'dcformer"),
        (planted(1.5)[:2] + planted(1.5)[5:], "2 amounts of compute"),
        (law("transformer++", 30, -0.05) + law("dcformer++", 30, 0.05), "does not fall with compute"),
        (law("transformer++", 30, 0.05, [1e15, 1.1e15, 1.2e15]) + law("dcformer++", 30, 0.05), "factor of 1.20"),
        (law("transformer++", 30, 0.05) + law("dcformer++", 10, 0.05), "no loss in common"),
        ([("transformer++", 1e15, -1.0)] * 3 + law("dcformer++", 30, 0.05), "positive, finite"),
        ("missing.csv", "no table at missing.csv"),
    ],
)
def test_refuses_with_the_reason(points, message):
    with pytest.raises(UserError, match=message):
        dcinterp.scaling_fit(points)


def sweep_table(path, points):
    """The results.csv of a sweep; the validation loss is that of the points."""
    rows = [{"name": f"run {i}", "status": "done", "family": f, "flops": c, "loss": 9.0, "validation_loss": value}
            for i, (f, c, value) in enumerate(points)]  # fmt: skip
    table = pd.DataFrame(rows)
    table.to_csv(path, index=False)
    return table


def test_from_the_table_of_a_sweep(tmp_path):
    table = sweep_table(tmp_path / "results.csv", planted(1.7))
    bad = pd.DataFrame([{"name": "bad", "status": "failed", "family": "dcformer++"}])
    pd.concat([table, bad]).to_csv(tmp_path / "results.csv", index=False)
    figure = tmp_path / "figure.html"
    ran = CliRunner().invoke(verbs, ["scaling", str(tmp_path / "results.csv"), "--figure", str(figure)])
    assert ran.exit_code == 0, ran.output
    assert "1.70 times the compute of" in ran.output
    assert "plotly" in figure.read_text()


def test_a_run_counts_once(tmp_path):
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    table = sweep_table(path, planted(1.7))
    again = table.iloc[:1]
    for row in (again, again.assign(validation_loss=1.0)):
        pd.concat([table, row]).to_csv(other, index=False)
        with pytest.raises(UserError, match=r"The run run 0 is in .*b\.csv twice; take one of its rows out"):
            dcinterp.scaling_fit(str(other))
    nameless = table.drop(columns="name")
    pd.concat([nameless, nameless.iloc[:1]]).to_csv(other, index=False)
    with pytest.raises(UserError, match=r"A run of transformer\+\+ with 1000000000000000.0 FLOPs is in .* twice"):
        dcinterp.scaling_fit(str(other))
    with pytest.raises(UserError, match="A table is named twice"):
        dcinterp.scaling_fit([str(path), str(tmp_path / "." / "a.csv")])
    again.to_csv(other, index=False)
    with pytest.raises(UserError, match="The run run 0 is in more than one of the tables"):
        dcinterp.scaling_fit([str(path), str(other)])
    sweep_table(other, planted(1.7, noise=0.01))
    fit = dcinterp.scaling_fit([str(path), str(other)])
    assert len(fit.points) == 20, "of two sweeps runs may have the same names"


def test_a_validation_loss_that_is_missing_is_not_made_up_by_another_loss(tmp_path):
    path = tmp_path / "a.csv"
    table = sweep_table(path, planted(1.7))
    table.loc[[1, 3], "validation_loss"] = float("nan")
    table.to_csv(path, index=False)
    with pytest.raises(UserError, match=r"a\.csv has no validation_loss in 2 of its rows \(line 3, 5\)"):
        dcinterp.scaling_fit(str(path))
    assert len(dcinterp.scaling_fit(str(path), loss="validation_loss").points) == 8, "by a column that was named"
    losses = table["loss"].to_numpy() * [value for _, _, value in planted(1.7)]
    for without in (table.assign(validation_loss=float("nan")), table.drop(columns="validation_loss")):
        without.assign(loss=losses).to_csv(path, index=False)
        assert dcinterp.scaling_fit(str(path)).measure == "loss"
    table.drop(columns=["loss", "validation_loss"]).to_csv(path, index=False)
    with pytest.raises(UserError, match="has no column 'validation_loss' or 'loss'; name the one"):
        dcinterp.scaling_fit(str(path))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("log_coefficient", [1e6, 1.0], "at no loss that a run could have"),
        ("points", [["transformer++", -1.0, 2.0]], "no positive, finite compute and loss"),
        ("points", [["transformer++", 10**400, 2.0]], "points is"),
        ("families", ["transformer++", "somebody"], "no run of somebody"),
    ],
)
def test_lines_that_no_runs_have_are_not_read_back(tmp_path, field, value, said):
    folder = dcinterp.scaling_fit(planted(1.8), resamples=20).save(tmp_path / "fit")
    record = json.loads((folder / "result.json").read_text())
    record["fields"][field] = value
    (folder / "result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=said):
        load_result(folder)


def test_where_lines_may_not_fall_the_interval_has_no_end():
    sizes = [1e15, 2e15, 4e15]
    points = [("transformer++", c, loss) for c, loss in zip(sizes, (3.0, 2.75, 2.7), strict=True)]
    points += [("dcformer++", c, loss) for c, loss in zip(sizes, (2.95, 2.71, 2.66), strict=True)]
    fit = dcinterp.scaling_fit(points)
    assert fit.multiplier_high.isinf().all()
    assert "to no bound)" in fit.sentence()


def test_pieces_join_runs_in_the_order_of_their_compute():
    from dcinterp.analysis.training.scaling_fit import _Fit

    flops, losses = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 2.5, 2.6, 2.4])
    fit = _Fit(flops, losses, np.array([-0.1, 3.0]))
    found = fit.log_flops(np.array([3.0, 2.8, 2.6, 2.5, 2.45, 2.4]), "pieces")
    assert found.tolist() == pytest.approx([1.0, 1.4, 1.8, 2.0, 7.0, 8.0])
