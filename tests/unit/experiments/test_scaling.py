"""What is said of the other seeds of the experiments on scaling is what their tables hold."""

from __future__ import annotations

import shutil

import pytest
from experiment_scripts import FOLDER, script

from dcinterp.support.errors import UserError


def test_the_multiplier_of_other_seeds_is_that_of_their_table(tmp_path):
    module, folder = script("scaling", "other_seeds"), FOLDER / "scaling"
    copy = shutil.copytree(folder, tmp_path / "scaling")
    (copy / "replication" / "more.md").unlink()
    module.main(copy)
    made, kept = ((place / "replication" / "more.md").read_text(encoding="utf-8") for place in (copy, folder))
    assert made.replace(str(copy), "experiments/scaling") == kept
    (copy / "replication.csv").unlink()
    with pytest.raises(UserError, match=r"replication\.csv has no run of every arm yet"):
        module.main(copy)
