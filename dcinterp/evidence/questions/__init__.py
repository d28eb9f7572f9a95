"""What models of each puzzle are asked to find the edges that carry a question. A file a puzzle.

    asked = asked_about("lookup")
    rows = asked.measure(experiment, arm, model)    # of `pooled_shares`, with the accuracy of the model

A file has prompts that differ in one thing, and `CHANGES`, which says in what; its name stands in `ASKED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dcinterp.evidence.arm_circuits import PromptsOf, measure_model
from dcinterp.evidence.questions import compositional_recall, find_block, lookup, pairing, recombination
from dcinterp.support.errors import UserError, require_known
from dcinterp.train.control.experiment import FINAL, Experiment


class Asked(NamedTuple):
    """What a puzzle's prompts differ in, and what makes the rows of a model, from its experiment, arm and folder."""

    changes: Mapping[str, str]
    measure: Callable[[Experiment, str, Path], list[dict[str, Any]]]


def _of_prompts(prompts: PromptsOf, changes: Mapping[str, str]) -> Asked:
    return Asked(changes, partial(measure_model, prompts=prompts))


ASKED = {
    "compositional-recall": _of_prompts(compositional_recall.questions, compositional_recall.CHANGES),
    "find-block": _of_prompts(find_block.questions, find_block.CHANGES),
    "lookup": _of_prompts(lookup.questions, lookup.CHANGES),
    "pairing": _of_prompts(pairing.questions, pairing.CHANGES),
    "recombination": Asked(recombination.CHANGES, recombination.question_shares),
}


def asked_of(experiment: Experiment) -> Asked:
    """What the models of an experiment are asked.

    Raises:
        UserError: it has no puzzle, or one that has no questions, or does not say when a model has learnt it.
    """
    data = experiment.run(FINAL, next(iter(experiment.arms)), {}, experiment.seeds[0]).config.data
    if not any(phase.source == "puzzle" for phase in data.phases):
        raise UserError(f"{experiment.folder} trains on no puzzle, so that there are no questions to ask its models.")
    if not experiment.solved_by:
        raise UserError(f"{experiment.folder} does not say when a model has learnt it; give its file `solved: ...`.")
    require_known("puzzle with questions", data.puzzle.name, ASKED)
    return ASKED[data.puzzle.name]
