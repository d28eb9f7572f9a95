"""What a resumed run may change: whatever it has not been trained under yet."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import DataSection, Phase, RecipeSection, TrainConfig

SCHEDULE: dict[str, Any] = {
    "learning_rate": 1.0,
    "final_learning_rate_fraction": 1.0,
    "warmup_fraction": 0.0,
    "warmup_steps": 0,
    "schedule_steps": 0,
    "cooldown_steps": 0,
    "reduction_step": 0,
    "reduction_factor": 1.0,
}
"""Settings that affect the weights only through the learning rates, which are compared step by step."""


def differences(old: TrainConfig, new: TrainConfig) -> dict[str, list[Any]]:
    """{key: [old value, new value]} of everything that differs."""
    before, after = _leaves(asdict(old)), _leaves(asdict(new))
    keys = [*before, *(key for key in after if key not in before)]
    return {k: [before.get(k), after.get(k)] for k in keys if before.get(k) != after.get(k)}


def check_resumable(old: TrainConfig, new: TrainConfig, done: int, where: Path) -> None:
    """Refuse to continue a run of `old` after `done` steps with `new`, unless those steps would have been the same.

    Free to differ are phases that have not begun, the length of the run and of the phase it is in, saving and
    reporting, the schedule from here on, and what is measured, unless the run has ended: nothing would measure it anew.

    Raises:
        UserError: something differs that the run has been trained under; the sentence names it.
    """
    wrong = [
        *_other(old.model, new.model, "model"),
        *_other(_without_schedule(old.recipe), _without_schedule(new.recipe), "recipe"),
        *_other(replace(old.data, phases=()), replace(new.data, phases=()), "data"),
    ]
    wrong += _phases(old.data, new.data, done)
    if done >= new.steps:
        before, after = (replace(each.evaluation, every=1, watch=False) for each in (old, new))
        wrong += _other(before, after, "evaluation")
    if not wrong and (step := _rates_differ(old, new, done)) is not None:
        wrong = [f"the learning rate of step {step + 1} ({_why(old, new, done)})"]
    if wrong:
        raise UserError(
            f"The run in {where} was trained for {done} steps with other settings: {', '.join(wrong)}. Resume it with "
            "those, or choose another output folder."
        )


def record(path: Path, **values: Any) -> None:
    """Append a line to the history of a run."""
    cut_short = path.is_file() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * bool(cut_short) + json.dumps(values) + "\n")


def _other(old: Any, new: Any, section: str) -> list[str]:
    before, after = _leaves(asdict(old)), _leaves(asdict(new))
    return [
        f"{section}.{key} was {before.get(key)!r}, not {after.get(key)!r}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _without_schedule(recipe: RecipeSection) -> RecipeSection:
    return replace(recipe, **SCHEDULE)


def _phases(old: DataSection, new: DataSection, done: int) -> list[str]:
    """The first step, of those done, whose batch would have come from another phase."""
    old_phases, new_phases = _phases_begun(old, done), _phases_begun(new, done)
    for number, (before, after) in enumerate(zip(old_phases, new_phases, strict=False)):
        if before != after:
            was, now = (dict(asdict(phase), steps=taken) for phase, taken in (before, after))
            key = next(key for key in was if was[key] != now[key])
            return [f"data.phases[{number}].{key} was {was[key]!r}, not {now[key]!r}"]
    if len(old_phases) != len(new_phases):
        return [f"data.phases had {len(old_phases)} begun, not {len(new_phases)}"]
    return []


def _phases_begun(section: DataSection, done: int) -> list[tuple[Phase, int]]:
    """Every phase that has begun, and how many of the steps done were taken in it."""
    begun, start = [], 0
    for phase in section.phases:
        taken = min(phase.steps, done - start)
        if taken > 0:
            begun.append((replace(phase, steps=1, tokens=0), taken))
        start += phase.steps
    return begun


def _rates_differ(old: TrainConfig, new: TrainConfig, done: int) -> int | None:
    for step in range(done):
        before, after = (c.recipe.learning_rate * c.recipe.learning_rate_share(step, c.steps) for c in (old, new))
        if before != after:
            return step
    return None


def _why(old: TrainConfig, new: TrainConfig, done: int) -> str:
    """Which setting of the schedule made the rate of a step another one, and the way out where it is the length."""
    pairs = [(key, getattr(old.recipe, key), getattr(new.recipe, key)) for key in SCHEDULE if key != "schedule_steps"]
    if changed := [f"recipe.{key} was {was!r}, not {now!r}" for key, was, now in pairs if was != now]:
        return ", ".join(changed)
    cooling = old.steps - old.recipe.cooldown_steps
    if old.recipe.cooldown_steps and done > cooling:
        return f"its cooldown had begun, at step {cooling:,} of {old.steps:,}, so it cannot be made longer or shorter"
    return f"for another length, set recipe.schedule_steps: {old.recipe.schedule_steps or old.steps}"


def _leaves(tree: Any, where: str = "") -> dict[str, Any]:
    """A nested value as {dotted key: value}; lists of sections by their number."""
    if isinstance(tree, dict):
        inner = [(f"{where}.{key}" if where else key, value) for key, value in tree.items()]
    elif isinstance(tree, tuple | list) and tree and isinstance(tree[0], dict):
        inner = [(f"{where}[{number}]", value) for number, value in enumerate(tree)]
    else:
        return {where: list(tree) if isinstance(tree, tuple) else tree}
    return {key: value for name, branch in inner for key, value in _leaves(branch, name).items()}
