"""The training configuration: every number of a run, read from YAML, overridden by flags, saved with the result."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from dcinterp.errors import UserError, nearest


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Which model: a preset, and the fields of `DCFormerConfig` that differ from it."""

    preset: str = "tiny-dcformer++"
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training on one kind of document.

    source: "tasks" (rows of the 74 tasks), "questions" (the facts of a task, then a question about each) or "pairs"
        (bare name-thing pairs, then questions: the barest retrieval).
    steps: optimiser steps.
    examples: examples of a task in a row; several numbers are drawn from with equal chance, one number a batch.
    batch_size: rows in a batch.
    patterns: QK patterns to draw from, one named twice twice as often; all when empty.
    tasks: of "tasks" and "questions", the tasks to draw from, by name ("task10"); overrides `patterns`.
    score: which tokens carry loss: "all", or "answer" for the words after each question.
    gaps: of "pairs", how many filler words may stand between the two parts.
    both_ways: of "pairs", whether the thing may come first and whether the name may be asked for.
    """

    source: Literal["tasks", "questions", "pairs"] = "tasks"
    steps: int = 1000
    examples: tuple[int, ...] = (1,)
    batch_size: int = 64
    patterns: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    score: Literal["all", "answer"] = "all"
    gaps: tuple[int, ...] = (0,)
    both_ways: bool = False


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The documents, in order. The same section and seed give the same documents to every model."""

    seed: int = 0
    phases: tuple[Phase, ...] = (Phase(),)


@dataclass(frozen=True, kw_only=True)
class RecipeSection:
    """Optimisation; the defaults are the paper's for language models (section 4.1 and appendix B).

    compose_learning_rate_fraction: the learning rate of the composition's parameters, as a share of the others'.
    schedule_steps: length of the cosine, in steps; 0 for the length of the run. A run may be shorter than its cosine
        and end with a cooldown instead, so that a long schedule can be cut without starting again.
    cooldown_steps: last steps, over which the rate falls in a straight line to its final value.
    """

    learning_rate: float = 1e-3
    compose_learning_rate_fraction: float = 1.0
    final_learning_rate_fraction: float = 0.1
    warmup_fraction: float = 0.01
    schedule_steps: int = 0
    cooldown_steps: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    bf16: bool = False
    compile: bool = False
    gradient_checkpointing: bool = False
    gradient_accumulation: int = 1
    threads: int = 0

    def learning_rate_share(self, step: int, steps: int) -> float:
        """The learning rate after `step` of `steps`, as a share of the peak: linear warmup, cosine, cooldown."""
        horizon = self.schedule_steps or steps
        warmup = max(1, round(self.warmup_fraction * horizon))
        final = self.final_learning_rate_fraction

        def cosine(at: int) -> float:
            progress = min(1.0, (at - warmup) / max(1, horizon - warmup))
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))

        if step < warmup:
            return step / warmup
        cooling = step - (steps - self.cooldown_steps)
        if cooling <= 0 or not self.cooldown_steps:
            return cosine(step)
        return final + (cosine(step - cooling) - final) * (1 - cooling / self.cooldown_steps)


@dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """Accuracy on held-out rows: every how many steps, on how many scored answers of each task at least, and in rows
    of how many examples (one measurement for each number)."""

    every: int = 500
    answers_per_task: int = 6
    examples: tuple[int, ...] = (1, 8)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run. `output` is the folder that receives checkpoints, metrics and the trained model."""

    output: str = "runs/model"
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    recipe: RecipeSection = field(default_factory=RecipeSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    save_every: int = 500
    report_to: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Optimiser steps of all phases."""
        return sum(phase.steps for phase in self.data.phases)


def read_config(path: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """The run that a YAML file describes, with `key.subkey=value` overrides applied on top.

    Raises:
        UserError: the file is missing or no YAML, a key is unknown, or a value is of the wrong kind.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no training config at {path}; give the path of a YAML file.")
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold keys and values, such as `output: runs/model`.")
    for override in overrides or []:
        _override(tree, override)
    return _build(TrainConfig, tree, "")


def write_config(config: TrainConfig, path: str | Path) -> None:
    """Write the resolved run, every number included, as YAML that `read_config` reads back."""
    Path(path).write_text(yaml.safe_dump(_plain(asdict(config)), sort_keys=False), encoding="utf-8")


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise UserError(f"The override {override!r} has no '='; write it as key.subkey=value.")
    *parents, last = key.strip().split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise UserError(f"The override {override!r} goes through {parent!r}, which holds a value and not keys.")
    tree[last] = yaml.safe_load(value)


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value`, as YAML gave it, as an instance of the annotated `kind`; `where` names it in errors."""
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise UserError(f"{where or 'The config'} must hold keys and values, not {value!r}.")
        hints = typing.get_type_hints(kind)
        names = {f.name for f in fields(kind)}
        for key in value:
            if key not in names:
                place = f"in {where}" if where else "at the top level"
                raise UserError(f"Unknown key {key!r} {place} of the training config; {nearest(str(key), names)}")
        return kind(**{k: _build(hints[k], v, f"{where}.{k}" if where else k) for k, v in value.items()})
    origin = typing.get_origin(kind)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_build(item, v, f"{where}[{i}]") for i, v in enumerate(items))
    if origin is Literal:
        if value not in typing.get_args(kind):
            raise UserError(f"{where} is {value!r}; {nearest(str(value), map(str, typing.get_args(kind)))}")
        return value
    if origin in (typing.Union, types.UnionType):
        return (
            None
            if value is None
            else _build(next(a for a in typing.get_args(kind) if a is not type(None)), value, where)
        )
    return _scalar(origin or kind, value, where)


def _scalar(kind: type, value: Any, where: str) -> Any:
    # YAML reads 1e-3 as text; a person means the number.
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "keys and values"}
        raise UserError(f"{where} is {value!r}; it must be {names.get(kind, kind.__name__)}.")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
