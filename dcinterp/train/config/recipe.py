"""The training configuration: every number of a run, read from YAML, overridden by flags, saved with the result."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from dcinterp.model.presets import preset, presets
from dcinterp.support.errors import UserError, nearest, reason
from dcinterp.support.json_files import LARGEST, require_plain_file
from dcinterp.support.paths import path_of
from dcinterp.support.ranges import Count, Decay, NotNegative, Number, Share, Tolerance, require_in_range
from dcinterp.support.text import shown
from dcinterp.support.whole_files import whole
from dcinterp.support.yaml_text import read_yaml


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Which model: a preset, and the fields of `DCFormerConfig` that differ from it.

    preset: a name that `dcinterp presets` lists.
    changes: fields of `DCFormerConfig` (or `DCViTConfig`) and their values.
    start: a trained model to start from instead: what `dcinterp compose` wrote, a folder that our decoder reads, or a
        shipped model. The preset does not count then, there are no changes, and a text is read in the model's tokens.
    train: with `start`, "all" of the model, or its "composition" alone: everything else stays as it is, bit by bit.
    """

    preset: str = "tiny-dcformer++"
    changes: dict[str, Any] = field(default_factory=dict)
    start: str = ""
    train: Literal["all", "composition"] = "all"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training on one kind of document.

    source: "tasks" (rows of the 74 tasks), "questions" (the facts of a task, then a question about each), "pairs"
        (bare name-thing pairs, then questions: the barest retrieval), "text" (`data.text`), "images" (`data.images`) or
        "puzzle" (`data.puzzle`).
    steps: optimiser steps.
    tokens: budget of tokens (of images: of images) instead of `steps`, which it replaces when it is not 0. Exact for
        text; for tasks it is divided by the mean of twenty batches, whose lengths vary.
    examples: examples of a task in a row; several numbers are drawn from with equal chance, one number a batch.
    batch_size: rows in a batch, of all processes and accumulated gradients together.
    patterns: QK patterns to draw from, one named twice twice as often; all when empty.
    tasks: of "tasks" and "questions", the tasks to draw from, by name ("task10"), less those of `data.holdout`;
        overrides `patterns`.
    score: which tokens carry loss: "all", or "answer" for the words after each question.
    gaps: of "pairs", how many filler words may stand between the two parts.
    fillers: of "pairs", the words that may stand between the two parts; a few words of the tasks when empty.
    both_ways: of "pairs", whether the thing may come first and whether the name may be asked for.
    asked: of "questions", how many questions a document asks, each about any of its facts; with 0, each fact is asked
        about once, so that the last answers can be found by elimination.
    """

    source: Literal["tasks", "questions", "pairs", "text", "images", "puzzle"] = "tasks"
    steps: int = 1000
    tokens: int = 0
    examples: tuple[int, ...] = (1,)
    batch_size: int = 64
    patterns: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    score: Literal["all", "answer"] = "all"
    gaps: tuple[int, ...] = (0,)
    fillers: tuple[str, ...] = ()
    both_ways: bool = False
    asked: int = 0


@dataclass(frozen=True, kw_only=True)
class TextSection:
    """Text to train on, for phases with `source: text`.

    path: a file or a folder of text, or a folder that `datasets.Dataset.save_to_disk` wrote.
    dataset: a name for `datasets.load_dataset`, or NAME:CONFIGURATION.
    packages: names of installed packages whose Python source is read, without tests; "python" is the standard library.
        With neither path, dataset nor packages, the files of the standard library's first level, which every machine
        has.
    column: the column of a dataset that holds the text.
    pattern: which files of a folder are read.
    tokenizer: "bytes" (a token a byte) or "bpe" (byte pairs, learnt from the training part); not used with
        `model.start`, which has a tokenizer of its own.
    vocabulary: size of the vocabulary of "bpe", the 256 bytes and 4 special tokens included.
    context: tokens in a row.
    validation_share: share of the text that is held out, chosen by a hash of what it says.
    hold_out: "pieces" of some 2,000 characters, or whole "files" (documents of a dataset).
    digest: of the tokens of both parts, as `corpus.json` beside the rows says it; training refuses others. Empty to
        take any.
    """

    path: str = ""
    dataset: str = ""
    packages: tuple[str, ...] = ()
    column: str = "text"
    pattern: str = "**/*"
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = 1024
    context: int = 128
    validation_share: float = 0.05
    hold_out: Literal["pieces", "files"] = "pieces"
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class ImageSection:
    """Images to classify, for phases with `source: images`.

    path: a folder with one subfolder of images per class, or one that `datasets.Dataset.save_to_disk` wrote.
    dataset: a name for `datasets.load_dataset`, or NAME:CONFIGURATION. With neither, the 1,797 handwritten digits that
        come with scikit-learn.
    image_column, label_column: columns of a dataset.
    size: edge in pixels that images are resized to; 0 keeps the digits' own 8 and makes other images 32.
    validation_share: share of the images that are held out, chosen by a hash of their pixels.
    """

    path: str = ""
    dataset: str = ""
    image_column: str = "image"
    label_column: str = "label"
    size: int = 0
    validation_share: float = 0.1


@dataclass(frozen=True, kw_only=True)
class PuzzleSection:
    """A small generated task of an experiment, for phases with `source: puzzle`.

    name: which one, a file of `dcinterp/train/data/puzzles`.
    options: that puzzle's own, by name (*Options of puzzles*).
    """

    name: str = "recombination"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """The documents, in order. The same section and seed give the same documents to every model.

    seed: of everything that is drawn.
    phases: stretches of training, one after the other.
    holdout: of tasks, combinations PATTERN:RELATION that no phase draws from, such as "same-person:city->country"; what
        is measured on them is called "held-out", and on the tasks that phases draw from "seen".
    """

    seed: int = 0
    phases: tuple[Phase, ...] = (Phase(),)
    holdout: tuple[str, ...] = ()
    text: TextSection = field(default_factory=TextSection)
    images: ImageSection = field(default_factory=ImageSection)
    puzzle: PuzzleSection = field(default_factory=PuzzleSection)


@dataclass(frozen=True, kw_only=True)
class RecipeSection:
    """Optimisation; the defaults are the paper's for language models (section 4.1 and appendix B), but for the
    learning rate, which suits small models. A preset of the paper brings the numbers that the paper states for it, an
    image classifier the paper's recipe for those.

    learning_rate: peak of AdamW's rate.
    compose_learning_rate_fraction: the learning rate of the composition's parameters, as a share of the others'.
    final_learning_rate_fraction: the rate at the end, as a share of the peak.
    warmup_fraction: share of the schedule over which the rate rises in a straight line.
    warmup_steps: the same in steps; replaces `warmup_fraction` when it is not 0.
    schedule_steps: length of the cosine, in steps; 0 for the length of the run. A run may be shorter than its cosine
        and end with a cooldown instead, so that a long schedule can be cut without starting again.
    cooldown_steps: last steps, over which the rate falls in a straight line to its final value; at most those after
        the warmup.
    reduction_step: from this step on, the rate is multiplied by `reduction_factor`; 0 for never. To go on from a
        checkpoint of a run whose loss diverged later.
    reduction_factor: what the rate is multiplied by from `reduction_step` on.
    beta1, beta2: AdamW's decay of its two moments.
    weight_decay: of matrices, and of the vectors lambda_q1, lambda_k1, lambda_q2 and lambda_k2 of the composition
        "differential"; biases and norms have none.
    clip: largest norm of the gradient; 0 for any.
    seed: of the initial weights.
    bf16: mixed precision; null for wherever a GPU has it. A CPU takes it too when it is true, with gain
        only where it has instructions for it and the model is wide.
    compile: run the model through `torch.compile`.
    gradient_checkpointing: compute activations twice and keep few.
    gradient_accumulation: parts that a batch is cut into, one after the other; the batch stays the same.
    threads: of one process on a CPU; 0 leaves torch's choice.
    """

    learning_rate: NotNegative = 1e-3
    compose_learning_rate_fraction: NotNegative = 1.0
    final_learning_rate_fraction: NotNegative = 0.1
    warmup_fraction: Share = 0.01
    warmup_steps: Number = 0
    schedule_steps: Number = 0
    cooldown_steps: Number = 0
    reduction_step: Number = 0
    reduction_factor: NotNegative = 1.0
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    weight_decay: NotNegative = 0.1
    clip: Tolerance = 1.0
    seed: int = 0
    bf16: bool | None = None
    compile: bool = False
    gradient_checkpointing: bool = False
    gradient_accumulation: Count = 1
    threads: Number = 0

    def learning_rate_share(self, step: int, steps: int) -> float:
        """The learning rate after `step` of `steps`, as a share of the peak: linear warmup, cosine, cooldown."""
        reduced = self.reduction_step and step >= self.reduction_step
        return self._scheduled_share(step, steps) * (self.reduction_factor if reduced else 1.0)

    def warmup(self, steps: int) -> int:
        """The steps of warmup, of a run of `steps`; at least one, whose rate is 0, where there is to be any."""
        if self.warmup_steps or not self.warmup_fraction:
            return self.warmup_steps
        return max(1, round(self.warmup_fraction * (self.schedule_steps or steps)))

    def _scheduled_share(self, step: int, steps: int) -> float:
        horizon, warmup = self.schedule_steps or steps, self.warmup(steps)
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
    """What is measured on held-out documents while a run goes on.

    every: steps between two measurements.
    answers_per_task: of tasks, scored answers of each task at least.
    examples: of tasks, in rows of how many examples; one measurement for each number.
    validation_rows: of text and images, held-out rows or images at most; of a puzzle, documents of each part.
    watch: record the spectra of the heads and the strength of every branch of the composition at each checkpoint.
    """

    every: int = 500
    answers_per_task: int = 6
    examples: tuple[int, ...] = (1, 8)
    validation_rows: int = 64
    watch: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run.

    output: folder that receives checkpoints, metrics and the trained model.
    save_every: steps between two checkpoints.
    keep_checkpoints: newest checkpoints that are kept; with 2, a damaged one costs no more than `save_every` steps.
    log_every: steps whose mean loss makes one line of the metrics.
    report_to: further places for the losses, such as tensorboard or wandb; none when empty.
    """

    output: str = "runs/model"
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    recipe: RecipeSection = field(default_factory=RecipeSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    save_every: int = 500
    keep_checkpoints: int = 2
    log_every: int = 50
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
    return build_config(read_tree(path), overrides)


def read_tree(path: str | Path) -> dict[str, Any]:
    """The keys and values of a YAML file, unchecked.

    Raises:
        UserError: the file is missing or holds something else.
    """
    path = find_config(path)
    require_plain_file(path, largest=LARGEST)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid YAML: {reason(error)}.") from error
    tree = read_yaml(text, str(path)) or {}
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold keys and values, such as `output: runs/model`.")
    return tree


OWN = ("configs", "experiments")
"""The folders that come with dcinterp: beside the package in the repository, inside it once installed."""


def own_folders(name: str) -> list[Path]:
    """Where a folder that comes with dcinterp is: one of `OWN`."""
    package = Path(__file__).parents[2]
    return [folder / name for folder in (package, package.parent) if (folder / name).is_dir()]


def find_config(path: str | Path, what: str = "training config", way: str = "give the path of a YAML file") -> Path:
    """The YAML file of a path; where there is none, the one of dcinterp itself: "configs/quick.yaml", from anywhere.

    Args:
        path: the file.
        what, way: for the message: what it holds, and how to give one.

    Raises:
        UserError: there is neither.
    """
    given = path_of(path)
    if given.exists() or given.is_symlink():
        return given
    if given.parts[:1] and given.parts[0] in OWN and ".." not in given.parts:
        for folder in own_folders(given.parts[0]):
            if (folder.parent / given).is_file():
                return folder.parent / given
    raise UserError(f"There is no {what} at {given}; {way}.")


def build_config(tree: dict[str, Any], overrides: list[str] | None = None) -> TrainConfig:
    """The run that nested dictionaries describe, as YAML would give them, with overrides on top.

    What neither says comes from the preset of the model where the paper states it, and else from the defaults.

    Raises:
        UserError: a key is unknown, or a value is of the wrong kind.
    """
    tree = unshared(tree)
    for override in overrides or []:
        apply_override(tree, override)
    sections = _build(TrainConfig, {key: value for key, value in tree.items() if key != "recipe"}, "")
    if not sections.output.strip():
        raise UserError("output is empty; name a folder for the run.")
    recipe = tree.get("recipe", {})
    if isinstance(recipe, dict):
        recipe = recipe_of_preset(sections.model.preset) | recipe
    return replace(sections, recipe=_build(RecipeSection, recipe, "recipe"))


def recipe_of_preset(name: str) -> dict[str, Any]:
    """Keys of the recipe whose value the paper states for this preset, or for its family.

    Raises:
        UserError: there is no such preset.
    """
    chosen = preset(name)
    stated = dict(chosen.training)
    if not stated and chosen.family in ("vit", "dcvit"):
        # A tiny classifier: the paper's optimiser, but its 10,000 steps of warmup would be the whole run.
        stated = {"betas": (0.9, 0.9), "weight_decay": 1e-4, "warmup_fraction": 0.1}
    recipe: dict[str, Any] = {}
    if "betas" in stated:
        recipe["beta1"], recipe["beta2"] = stated["betas"]
    for key, preset_key in _PRESET_KEYS.items():
        if preset_key in stated:
            recipe[key] = stated[preset_key]
    return recipe


_PRESET_KEYS = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "clip": "gradient_clipping",
    "warmup_fraction": "warmup_fraction",
    "warmup_steps": "warmup_steps",
    "final_learning_rate_fraction": "final_learning_rate_fraction",
}


def write_config(config: TrainConfig, path: str | Path) -> None:
    """Write the resolved run, every number included, as YAML that `read_config` reads back."""
    with whole(Path(path)) as place:
        place.write_text(yaml.safe_dump(_plain(asdict(config)), sort_keys=False), encoding="utf-8")


def unshared(value: Any) -> Any:
    """A copy of a tree of keys and values in which no two places are one object, as YAML's aliases are."""
    if isinstance(value, dict):
        return {key: unshared(inner) for key, inner in value.items()}
    return [unshared(inner) for inner in value] if isinstance(value, list) else value


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Put the value of `key.subkey=value` into a tree of keys and values.

    Raises:
        UserError: it has no "=", or goes through a key that holds a value.
    """
    key, equals, value = override.partition("=")
    if not equals:
        raise UserError(f"The override {shown(override)} has no '='; write it as key.subkey=value.")
    set_key(tree, key.strip(), read_yaml(value, f"The value of {shown(key.strip())}"))


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into a tree of keys and values, where `key.subkey` says.

    Raises:
        UserError: the key goes through one that holds a value.
    """
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise UserError(f"The key {shown(key)} goes through {shown(parent)}, which holds a value and not keys.")
    tree[last] = value


def _homes_of(key: str) -> str:
    """Where a key may belong that stands outside its section, such as "data.seed or recipe.seed"; empty if nowhere."""
    found = list[str]()

    def within(kind: Any, prefix: str) -> None:
        for name, hint in _hints(kind).items():
            inner = next((each for each in (hint, *typing.get_args(hint)) if is_dataclass(each)), None)
            if name == key and prefix:
                found.append(f"{prefix}{name}")
            if inner is not None:
                within(inner, f"{prefix}{name}{'' if inner is hint else '[]'}.")

    within(TrainConfig, "")
    if any(key in each.all_fields() for each in presets().values()):
        found.append(f"model.changes.{key}")
    return " or ".join(found)


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value`, as YAML gave it, as an instance of the annotated `kind`; `where` names it in errors."""
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, dict):
            raise UserError(f"{where or 'The config'} must hold keys and values, not {shown(value)}.")
        hints = _hints(kind)
        names = {f.name for f in fields(kind)}
        for key in value:
            if key not in names:
                place = f"in {where}" if where else "at the top level"
                homes = "" if where else _homes_of(str(key))
                way = f"did you mean {homes}?" if homes else nearest(str(key)[:60], names)
                raise UserError(f"Unknown key {shown(key)} {place} of the training config; {way}")
        return kind(**{k: _build(hints[k], v, f"{where}.{k}" if where else k) for k, v in value.items()})
    origin = typing.get_origin(kind)
    if origin is Annotated:  # ranges are checked of what is to be run, and not of what earlier versions ran
        return _build(typing.get_args(kind)[0], value, where)
    if origin is tuple:
        item = typing.get_args(kind)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_build(item, v, f"{where}[{i}]") for i, v in enumerate(items))
    if origin is Literal:
        known = [str(each) for each in typing.get_args(kind)]
        if value not in typing.get_args(kind):
            raise UserError(f"{where} is {shown(value)}; {nearest(str(value)[:60], known)}")
        return value
    if origin in (typing.Union, types.UnionType):
        return (
            None
            if value is None
            else _build(next(a for a in typing.get_args(kind) if a is not type(None)), value, where)
        )
    return _scalar(origin or kind, value, where)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a section's fields; Python evaluates them anew at every call, and a page reads many configs."""
    return typing.get_type_hints(kind, include_extras=True)


def require_ranges(recipe: RecipeSection) -> None:
    """Refuse a recipe whose numbers are not in the ranges of their types.

    Raises:
        UserError: the message names the key.
    """
    for name, kind in _hints(RecipeSection).items():
        require_in_range(f"recipe.{name}", getattr(recipe, name), kind)


SEEDS = 2**32
"""How many numpy has."""


def require_counts(config: TrainConfig) -> None:
    """Refuse numbers of a run that count something, and are too small or too large for that.

    Raises:
        UserError: the message names the key.
    """
    counts: dict[str, int] = {key: getattr(config, key) for key in ("save_every", "keep_checkpoints", "log_every")}
    counts |= {
        f"evaluation.{key}": getattr(config.evaluation, key) for key in ("every", "validation_rows", "answers_per_task")
    }
    many = {"evaluation.examples": (config.evaluation.examples, 1)}
    from_zero = {"data.seed": config.data.seed, "recipe.seed": config.recipe.seed}
    for number, phase in enumerate(config.data.phases):
        from_zero |= {f"data.phases[{number}].{key}": getattr(phase, key) for key in ("asked", "tokens")}
        many |= {f"data.phases[{number}].{key}": (getattr(phase, key), n) for key, n in (("examples", 1), ("gaps", 0))}
        counts |= {f"data.phases[{number}].{key}": getattr(phase, key) for key in ("steps", "batch_size")}
    for key, (values, least) in many.items():
        if not values or min(values) < least:
            raise UserError(f"{key} is {list(values)}; it must be numbers of at least {least}.")
    for key, value in counts.items():
        if value < 1:
            raise UserError(f"{key} is {value}; it must be at least 1.")
    for key, value in from_zero.items():
        if value < 0:
            raise UserError(f"{key} is {value}; it must be 0 or more.")
    for key, value, most in (
        ("recipe.seed", config.recipe.seed, SEEDS - 1),
        ("recipe.threads", config.recipe.threads, 4096),
        ("data.text.vocabulary", config.data.text.vocabulary, LARGEST_VOCABULARY),
    ):
        if value > most:
            raise UserError(f"{key} is {value}; it must be at most {most:,}.")


LARGEST_VOCABULARY = 1_000_000
"""Several times what any model has; room for all of it is taken before a text is read."""


def long_warmup(config: TrainConfig) -> str | None:
    """The warning for a run that ends within its warmup, so that its rate never reaches what the recipe says.

    Of a run whose phases are budgets of tokens it is not known before its data are open.
    """
    recipe, steps = config.recipe, config.steps
    if any(phase.tokens for phase in config.data.phases) or not (recipe.warmup_steps or recipe.warmup_fraction):
        return None
    if (warmup := recipe.warmup(steps)) < steps or steps < 2:
        return None
    return (
        f"The warmup is {warmup:,} steps long and the run {steps:,}, so the learning rate only reaches "
        f"{recipe.learning_rate_share(steps - 1, steps):.0%} of recipe.learning_rate; set a smaller "
        "recipe.warmup_steps, or train for longer."
    )


READ_KEYS: dict[str, tuple[str, ...]] = {
    "tasks": ("examples", "patterns", "tasks", "score"),
    "questions": ("patterns", "tasks", "score", "asked"),
    "pairs": ("gaps", "fillers", "both_ways", "score"),
    "text": (),
    "images": (),
    "puzzle": ("score",),  # answers alone are scored there, whatever it says
}
"""{source of a phase: the keys that it alone reads}, beside its length and batch size."""


def require_read_keys(config: TrainConfig) -> None:
    """Refuse values that no document of a phase would follow.

    Raises:
        UserError: a phase sets a key that its source does not read.
    """
    for number, phase in enumerate(config.data.phases):
        for key in dict.fromkeys(key for keys in READ_KEYS.values() for key in keys):
            if key not in READ_KEYS[phase.source] and getattr(phase, key) != getattr(Phase(), key):
                raise UserError(
                    f"data.phases[{number}].{key} does nothing with the source {phase.source!r}; leave it out."
                )


def require_cooldown(config: TrainConfig) -> None:
    """Refuse a cooldown that begins before the warmup has ended: it falls from a rate that no step had.

    Args:
        config: a run whose budgets of tokens have been turned into steps.

    Raises:
        UserError: the message names the most steps that it may have.
    """
    cooldown, asked = config.recipe.cooldown_steps, config.recipe.warmup_steps or config.recipe.warmup_fraction
    warmup = config.recipe.warmup(config.steps) if asked else 0
    if cooldown and cooldown > config.steps - warmup:
        raise UserError(
            f"recipe.cooldown_steps is {cooldown}; it must be at most {max(0, config.steps - warmup)}: the run has "
            f"{config.steps} steps, of which the first {warmup} are its warmup."
        )


LARGEST_NUMBER = 2**53
"""Of whole numbers: what a float, as in a table, still tells from its neighbours."""


def _scalar(kind: type, value: Any, where: str) -> Any:
    # YAML reads 1e-3 as text; a person means the number.
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
        except OverflowError:
            raise UserError(f"{where} is {shown(value)}, which is too large.") from None
    if kind is int and isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise UserError(f"{where} is {shown(value)}, which is too large.")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "keys and values"}
        raise UserError(f"{where} is {shown(value)}; it must be {names.get(kind, kind.__name__)}.")
    if isinstance(value, dict) and (wrong := [key for key in value if not isinstance(key, str)]):
        raise UserError(f"{where} has the key {shown(wrong[0])}; keys are names.")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
