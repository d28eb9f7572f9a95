"""What the scripts of the experiments on digits say is what their tables hold."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

import dcinterp
from dcinterp.evidence.trained_models import TrainedModels
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import read_table
from dcinterp.train.control.experiment_file import read_experiment


def ranks_of(seeds: list[int], arms: tuple[str, ...] = ("ViT", "DCViT")) -> pd.DataFrame:
    """Measured ranks in which DCViT is the more diverse, by both readings."""
    columns = [
        f"{what} {words}" for what in ("qk", "ov", "random") for words in ("side by side", "on top of each other")
    ]
    return pd.DataFrame(
        [
            {"seed": seed, "arm": arm} | {column: 5 + (arm == "DCViT") + 0.01 * seed for column in columns}
            for seed in seeds
            for arm in arms
        ]
    )


def test_the_diversity_of_heads_has_no_verdict_before_all_seeds_are_there():
    module, none = script("digits", "diversity"), pd.DataFrame()
    _, told, seeds = module.summary(ranks_of([0, 1, 2]), none, "DCViT", "ViT", 3)
    assert seeds == 3
    assert told.count("**supported**") == 2
    _, told, seeds = module.summary(ranks_of([0, 1]), none, "DCViT", "ViT", 3)
    assert told.count("**interim, 2 of 3 seeds: no verdict**") == 2
    with pytest.raises(UserError, match="No seed has a trained model of both DCViT and ViT"):
        module.summary(ranks_of([0, 1], arms=("ViT",)), none, "DCViT", "ViT", 3)


def test_the_diversity_of_heads_is_refused_before_models_are_measured(tmp_path, monkeypatch):
    """With the ranks of the table in place of the models, which gives the text of the page; then a model less."""
    module, folder = script("digits", "diversity"), FOLDER / "digits"
    experiment = replace(read_experiment(folder), output=tmp_path / "runs")
    found = pd.read_csv(folder / "diversity.csv").set_index(["stage", "seed", "arm", "learning_rate"])
    table = read_table(experiment)
    key = {
        run["name"]: (run["stage"], int(run["recipe.seed"]), run["arm"], run["recipe.learning_rate"])
        for _, run in table.iterrows()
    }
    for name in (name for name, its in key.items() if its in found.index):
        (experiment.output / name / "model").mkdir(parents=True)
    monkeypatch.setattr(module, "trained_models", lambda *_: TrainedModels(experiment, tmp_path, ""))
    monkeypatch.setattr(module, "ranks", lambda model: found.loc[key[model.parent.name]].to_dict())
    module.main()
    assert (tmp_path / "more.md").read_text(encoding="utf-8") == (folder / "more.md").read_text(encoding="utf-8")
    searched = next(name for name, its in key.items() if its[0] == "tuning" and its in found.index)
    (experiment.output / searched / "model").rmdir()
    monkeypatch.setattr(module, "ranks", lambda _: pytest.fail("measured before it was refused"))
    with pytest.raises(UserError, match=r"of the search at 0\.001, and arms are compared at every rate"):
        module.main()


def test_the_words_on_images_are_those_of_the_table():
    """The mean over images is that over seeds, since every model is asked of the same images."""
    module, folder = script("digits_longer", "by_image"), FOLDER / "digits_longer"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment)
    found = dcinterp.compare_arms(str(folder))
    for arm, mean in zip(found.arms, found.mean, strict=True):
        assert float(module.shares(rows, arm).mean()) == pytest.approx(float(mean), abs=1e-4)
