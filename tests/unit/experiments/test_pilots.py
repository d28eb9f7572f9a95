"""Scripts that may read a part of a pilot alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

from dcinterp.support.errors import UserError

EIGHT = "recombination_tasks_mechanisms_eight_heads"


def put(module: object, folder: Path, rows: list[dict[str, object]]) -> None:
    """The experiment in another place, with a pilot of these rows."""
    text = (FOLDER / EIGHT / "experiment.yaml").read_text(encoding="utf-8")
    (folder / EIGHT).mkdir()
    (folder / EIGHT / "experiment.yaml").write_text(text, encoding="utf-8")
    (folder / "recombination_tasks").symlink_to(FOLDER / "recombination_tasks")
    if rows:
        pd.DataFrame(rows).to_csv(folder / EIGHT / "pilot.csv", index=False)
    module.HERE = folder / EIGHT  # type: ignore[attr-defined]


def test_it_says_how_much_plain_models_learnt_and_nothing_else(tmp_path, capsys):
    module = script(EIGHT, "pilot")
    row = {"stage": "final", "status": "done", "recipe.seed": 760, "data.seed": 760, "loss": 0.25, "seconds": 600.0}
    held = {"accuracy 1 held-out": 0.777, "accuracy 1 same-person": 0.666}
    rows = [
        row | held | {"arm": arm, "name": f"final,{arm},seed=760", "accuracy 1 seen": seen}
        for arm, seen in (("plain", 0.89996), ("DCMHA", 0.9712))
    ]
    put(module, tmp_path, rows)
    module.main()
    said = capsys.readouterr().out
    assert said == "*plain* has 0.89996 of the tasks seen: not enough (0.9).\nSeconds: plain 600, DCMHA 600.\n"


def test_a_run_that_diverged_is_not_enough(tmp_path, capsys):
    module = script(EIGHT, "pilot")
    row = {"stage": "final", "status": "diverged", "recipe.seed": 760, "data.seed": 760, "seconds": 3.0}
    put(module, tmp_path, [row | {"arm": "plain", "name": "final,plain,seed=760"}])
    module.main()
    assert capsys.readouterr().out == "*plain* diverged: not enough (0.9).\nSeconds: plain 3.\n"


def test_without_a_run_of_the_arm_that_decides_it_says_so(tmp_path):
    module = script(EIGHT, "pilot")
    put(module, tmp_path, [])
    with pytest.raises(UserError, match=r"must have one run of \*plain\* that ended"):
        module.main()
