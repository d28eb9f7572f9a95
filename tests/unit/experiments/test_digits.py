"""What the scripts of the experiments on digits say is what their tables hold."""

from __future__ import annotations

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

import dcinterp
from dcinterp.train.control.experiment_file import read_experiment


def test_the_words_on_images_are_those_of_the_table():
    """The mean over images is that over seeds, since every model is asked of the same images."""
    module, folder = script("digits_longer", "by_image"), FOLDER / "digits_longer"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment)
    found = dcinterp.compare_arms(str(folder))
    for arm, mean in zip(found.arms, found.mean, strict=True):
        assert float(module.shares(rows, arm).mean()) == pytest.approx(float(mean), abs=1e-4)
