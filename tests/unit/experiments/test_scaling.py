"""What is said of the other seeds of the experiments on scaling is what their tables hold."""

from __future__ import annotations

import shutil

import pytest
from experiment_scripts import FOLDER, script

from dcinterp.evidence.compute_section import TITLE, compute_text
from dcinterp.evidence.multiplier import fit_of
from dcinterp.evidence.verdicts import required_replication
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


@pytest.mark.parametrize("name", ["scaling_smaller", "scaling_larger"])
def test_the_words_on_the_other_seeds_of_more_sizes_are_those_of_their_tables(name):
    again = required_replication(FOLDER / name)
    written = (FOLDER / name / "replication" / "more.md").read_text(encoding="utf-8")
    assert written.strip() == f"{TITLE}\n\n{compute_text(again, fit_of(again))}".strip()
