"""What models of each puzzle are asked to find the edges that carry a question. A file a puzzle.

    asked = asked_of(experiment)
    rows = asked.measure(experiment, arm, model)    # of `pooled_shares`, with the accuracy of the model

A file names its `PUZZLE`, has prompts that differ in one thing, says in `CHANGES` in what, and has `measure`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import FINAL, Experiment


class Asked(NamedTuple):
    """What a puzzle's prompts differ in, and what makes the rows of a model, from its experiment, arm and folder."""

    changes: Mapping[str, str]
    measure: Callable[[Experiment, str, Path], list[dict[str, Any]]]


def _scan() -> dict[str, Asked]:
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    return {each.PUZZLE: Asked(each.CHANGES, each.measure) for each in modules}


ASKED = _scan()
"""By the name that `data.puzzle.name` gives; a new one is a file in this folder."""


def asked_of(experiment: Experiment) -> Asked:
    """What the models of an experiment are asked.

    Raises:
        UserError: an arm has no puzzle, or another one than others, or one that has no questions.
    """
    data = {arm: experiment.run(FINAL, arm, {}, experiment.seeds[0]).config.data for arm in experiment.arms}
    for arm, each in data.items():
        if not any(phase.source == "puzzle" for phase in each.phases):
            raise UserError(
                f"{arm} of {experiment.folder} trains on no puzzle, so that it has no questions to be asked."
            )
    puzzle, *others = dict.fromkeys(each.puzzle.name for each in data.values())
    if others:
        raise UserError(
            f"The arms of {experiment.folder} have several puzzles, {puzzle} and {others[0]}; give each a folder."
        )
    if puzzle not in ASKED:
        raise UserError(
            f"Models of the puzzle {puzzle!r} have no questions yet; add a file to dcinterp/evidence/questions."
        )
    return ASKED[puzzle]
