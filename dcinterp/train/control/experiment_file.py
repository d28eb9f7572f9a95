"""The file of an experiment, read and checked.

    title: Where composition recombines
    config: {...}                               # what all runs share
    config_of: another                          # a folder beside this: its config, but for what `config` says
    arms:                                       # what is compared; the first is the baseline
      - {name: plain, model.preset: tiny-transformer++}
      - {name: composed, model.preset: tiny-dcformer++}
      - {name: composed wide, tuned_as: composed, model.preset: tiny-dcformer++, model.changes.hidden_size: 96}
    tuning:
      keys: {recipe.learning_rate: [1.0e-3, 2.0e-3]}   # all combinations of these, for every arm without `tuned_as`
      seeds: [100, 101]                         # none of those below
      config: {data.puzzle.options.first: 4}    # keys of the search's runs alone, such as other pairs held out
      by: loss                                  # the column that decides, of the mean over the seeds
      best: lowest
      measure_best: highest                     # in all measures: then no verdict goes against an arm at an edge;
      at_an_edge: open                          # `marked` lets it stand, and says so
    seeds: [0, 1, 2]                            # of weights and documents
    again: {seeds: 10-19, draws: 20000}         # those of a repetition, and the bootstrap's draws there
    measures: {accuracy 1 held-out: accuracy on new pairs}    # the first is the primary one
    hypotheses:                                 # that an arm minus another is above zero, in the primary measure
      - {name: H1, arm: composed, baseline: plain}               # a list of arms stands for their mean; with
                                                # `again: 0.99` other seeds are judged by intervals at that level
    claim: {says: composing recombines, needs: [H1], same: {S1: 0.03}}   # only if H1 holds, and S1 ends below 0.03
    multiplier: {name: H2, base: transformer++, other: dcformer++}   # that a family saves compute, where arms are sizes
                                                # (`beside: [another]`: and the runs of that experiment, too;
                                                # `without: [plain 8]`: but not those of that arm)
    solved: {by: accuracy 1 seen, at: 0.95}     # the runs among which the primary measure is shown once more
    about: [what the arms are asked, in a sentence or two]
    limits: [what the numbers do not say, a sentence each]
    output: runs/recombination                  # receives the runs; the table stands beside this file

The file is `experiment.yaml` in a folder of `experiments/`, beside `protocol.md`, which says why.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.paths import path_of
from dcinterp.train.config.recipe import TrainConfig, find_config, own_folders, read_tree
from dcinterp.train.control.experiment import DRAWS, FINAL, SEEDED, Claim, Experiment, Hypothesis, Multiplier
from dcinterp.train.control.seeds import parse_seeds
from dcinterp.train.control.sweep import MOST_RUNS, TABLE, file_name, leaves, meet
from dcinterp.train.data.puzzles import open_puzzle

FILE = "experiment.yaml"
KEYS = (
    "title",
    "config_of",
    "config",
    "arms",
    "tuning",
    "seeds",
    "again",
    "measures",
    "hypotheses",
    "claim",
    "multiplier",
    "solved",
    "about",
    "limits",
    "output",
)
TUNING_KEYS = ("keys", "seeds", "config", "by", "best", "measure_best", "at_an_edge")
AGAIN_KEYS = ("seeds", "draws")
EDGE_RULES = ("open", "marked")
AS = "tuned_as"


def read_experiment(path: str | Path, *, table: str | Path | None = None) -> Experiment:
    """The experiment of a folder (or of its experiment.yaml), checked.

    Args:
        path: the folder or the file.
        table: another table of runs than results.csv beside the file; its runs get a folder of their own.

    Raises:
        UserError: a key is missing, unknown or of the wrong kind, or an arm's config is not valid.
    """
    place = Path(path)
    file = place if place.suffix in (".yaml", ".yml") else place / FILE
    file = find_config(file, "experiment", f"give the folder of one, which has a file {FILE}")
    if file.parent.name in ("", ".."):  # its name, and the folders beside it, are asked for
        file = Path(os.path.realpath(file.parent)) / file.name
    tree = read_tree(file)
    for key in tree:
        if key not in KEYS:
            raise UserError(f"Unknown key {key!r} in {file}; {nearest(str(key), KEYS)}")
    for key in ("arms", "seeds", "measures"):
        if not tree.get(key):
            raise UserError(f"{file} has no {key}; docs/experiments-how.md shows a whole file.")
    arms, tuning = tree["arms"], tree.get("tuning") or {}
    if not isinstance(arms, list) or not all(isinstance(arm, dict) and "name" in arm for arm in arms):
        raise UserError(f"The arms of {file} must be a list such as `- {{name: plain, model.preset: ...}}`.")
    _require_kinds(file, tree)
    solved, searched_keys = tree.get("solved") or {}, tuning.get("keys") or {}
    names = [file_name(str(arm["name"])) for arm in arms]
    for name in names:
        if "," in name or names.count(name) > 1:
            raise UserError(f"The arm {name!r} of {file} needs another name: one without commas, and no other's.")
    for key in ("best", "measure_best"):
        if tuning.get(key, "lowest") not in ("lowest", "highest"):
            raise UserError(f"`{key}` of {file} is {tuning[key]!r}; it is lowest or highest.")
    if str(tuning.get("by", "loss")).startswith("accuracy") and "best" not in tuning:
        raise UserError(f"`tuning` of {file} goes by {tuning['by']!r} and has no `best`; add `best: highest`.")
    if tuning.get("keys") and not tuning.get("seeds"):
        raise UserError(f"`tuning` of {file} has keys and no seeds; give it seeds that are not reported.")
    if tuning.get("at_an_edge", "open") not in EDGE_RULES:
        raise UserError(f"`at_an_edge` of {file} is {tuning['at_an_edge']!r}; it is {' or '.join(EDGE_RULES)}.")
    _require_own_keys(file, arms, searched_keys)
    tuned_as = _tuned_as(file, arms)
    seeds, searched = _numbers(file, tree["seeds"]), _numbers(file, tuning.get("seeds", []))
    again = tree.get("again") or {}
    if set(seeds) & set(searched):
        raise UserError(f"{file} tunes on seeds that it also reports ({sorted(set(seeds) & set(searched))}).")
    hypotheses = _hypotheses(
        file, tree.get("hypotheses") or [], [str(arm["name"]) for arm in arms], list(map(str, tree["measures"]))
    )
    multiplier = _multiplier(file, tree.get("multiplier"))
    called = [each.name for each in hypotheses] + ([multiplier.name] if multiplier else [])
    if twice := [name for name in called if called.count(name) > 1]:
        raise UserError(f"Two hypotheses of {file} are called {twice[0]!r}; give each a name of its own.")
    searched_values = {str(key): [_number_or_text(each) for each in values] for key, values in searched_keys.items()}
    for key, values in searched_values.items():
        if twice := [value for value in values if values.count(value) > 1]:
            raise UserError(f"The search of {file} has {twice[0]!r} of {key} twice; name each value once.")
    if (count := math.prod(map(len, searched_values.values())) * len(arms) * len(searched)) > MOST_RUNS:
        raise UserError(f"The search of {file} comes to {count:,} runs; name fewer values, arms or seeds.")
    made = Experiment(
        folder=file.parent,
        title=str(tree.get("title", file.parent.name)),
        config=_config(file, tree),
        arms={str(arm["name"]): {str(k): v for k, v in arm.items() if k not in ("name", AS)} for arm in arms},
        tuned_as=tuned_as,
        tuning_keys=searched_values,
        tuning_seeds=searched,
        tuning_config={str(key): value for key, value in (tuning.get("config") or {}).items()},
        tuned_by=str(tuning.get("by", "loss")),
        highest_is_best=tuning.get("best", "lowest") == "highest",
        measure_best=tuning.get("measure_best", ""),
        edge_marks=tuning.get("at_an_edge") == "marked",
        seeds=seeds,
        measures={str(key): str(name) for key, name in tree["measures"].items()},
        hypotheses=hypotheses,
        claim=_claim(file, tree.get("claim"), [each.name for each in hypotheses]),
        multiplier=multiplier,
        solved_by=str(solved.get("by", "")),
        solved_at=float(solved.get("at", 0.95)),
        about=tuple(map(str, tree.get("about") or ())),
        limits=tuple(map(str, tree.get("limits") or ())),
        output=path_of(tree.get("output") or f"runs/{file.parent.name}"),
        table=Path(table) if table else file.parent / TABLE,
        again_seeds=parse_seeds(str(again.get("seeds", ""))),
        again_draws=int(again.get("draws", DRAWS)),
    )
    if both := sorted({*made.again_seeds} & {*seeds, *searched}):
        raise UserError(
            f"`again` of {file} plans the seed {both[0]}, which the file reports or searches with; name other seeds."
        )
    if not made.has_own_table:
        made = replace(made, output=_place_of_runs(made))
    try:
        made.tuning_runs()
        configs = {arm: made.run(FINAL, arm, {}, seeds[0]).config for arm in made.arms}
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    for arm, config in configs.items():
        _require_model(file, arm, config)
    return made


def _require_model(file: Path, arm: str, config: TrainConfig) -> None:
    """Refuse an arm whose model cannot be made, before its runs begin; the vocabulary comes with the text."""
    try:
        if not config.model.start:
            DCFormerConfig.preset(config.model.preset, **config.model.changes)
        if any(phase.source == "puzzle" for phase in config.data.phases):
            open_puzzle(config.data.puzzle)
    except UserError as error:
        raise UserError(f"The arm {arm!r} of {file}: {error}") from error


def find_experiments() -> dict[str, Path]:
    """{name: folder} of the experiments that come with dcinterp, and of those in `experiments` where one is."""
    folders = [*own_folders("experiments"), Path("experiments")]
    found = [file.parent for folder in folders for file in sorted(folder.glob(f"*/{FILE}"))]
    return {folder.name: folder for folder in found}


def series(experiment: Experiment) -> list[Experiment]:
    """An experiment, and those whose runs are sizes of the same series as its own.

    With another table than its own, theirs are those of the same name in their folders.

    Raises:
        UserError: the file of one of them is not valid.
    """
    name = "" if experiment.has_own_table else experiment.table.name
    beside = experiment.multiplier.beside if experiment.multiplier else ()
    found = [experiment, *(read_experiment(each, table=each / name if name else None) for each in beside)]
    without = experiment.multiplier.without if experiment.multiplier else ()
    arms = [arm for each in found for arm in each.arms if arm not in without]
    if twice := [arm for arm in arms if arms.count(arm) > 1]:
        raise UserError(f"{experiment.folder} and the experiments beside it have two arms {twice[0]!r}; rename one.")
    return found


def _place_of_runs(experiment: Experiment) -> Path:
    """The folder of the runs of another table: called after its file, with a hash of its place.

    In the folder of the experiment that is its name there, so that a repository which was moved finds its runs. Earlier
    versions took the whole path.
    """
    place, home = os.path.realpath(experiment.table), os.path.realpath(experiment.folder)
    within = os.path.relpath(place, home) if place.startswith(home + os.sep) else place
    now, before = (
        experiment.output / f"{experiment.table.stem}-{hashlib.blake2b(each.encode(), digest_size=4).hexdigest()}"
        for each in (within, place)
    )
    return before if before.is_dir() and not now.is_dir() else now


def _config(file: Path, tree: Mapping[str, Any]) -> dict[str, Any]:
    """What all runs share: that of the experiment which `config_of` names, but for what the file's own says."""
    own = tree.get("config") or {}
    if "config_of" not in tree:
        return own
    other = file.parent.parent / str(tree["config_of"]) / FILE
    if not other.is_file():
        there = sorted(each.parent.name for each in other.parent.parent.glob(f"*/{FILE}"))
        raise UserError(f"`config_of` of {file} names {tree['config_of']!r}; {nearest(str(tree['config_of']), there)}")
    given = read_tree(other)
    if "config_of" in given:
        raise UserError(f"`config_of` of {file} names one that takes its own from {given['config_of']}; name that one.")
    return _merged(given.get("config") or {}, own)


def _merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of keys and values with those of another in it; lists are exchanged whole."""
    found = dict(tree)
    for key, value in changes.items():
        inner = found.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = _merged(inner, value)
        found[key] = value
    return found


def _require_kinds(file: Path, tree: Mapping[str, Any]) -> None:
    """Refuse values that are not of the kind that their key needs, and unknown keys of the search."""
    tuning, solved = tree.get("tuning") or {}, tree.get("solved") or {}
    for key, value in {"config": tree.get("config") or {}, "tuning": tuning, "measures": tree["measures"]}.items():
        if not isinstance(value, dict):
            raise UserError(f"`{key}` of {file} must hold keys and values.")
    for key in tuning:
        if key not in TUNING_KEYS:
            raise UserError(f"Unknown key {key!r} under `tuning` in {file}; {nearest(str(key), TUNING_KEYS)}")
    if not isinstance(tuning.get("config") or {}, dict):
        raise UserError(f"`config` under `tuning` of {file} must hold keys and values.")
    searched = tuning.get("keys") or {}
    if not isinstance(searched, dict) or not all(isinstance(values, list) and values for values in searched.values()):
        raise UserError(
            f"`keys` under `tuning` of {file} must hold lists of values, "
            "such as `recipe.learning_rate: [0.001, 0.002]`."
        )
    if tuning.get("seeds") and not searched:
        raise UserError(f"`tuning` of {file} has seeds and no keys to search; give `keys`, or leave it out.")
    for key, own in product(leaves(searched) + list(SEEDED), leaves(tuning.get("config") or {})):
        if meet(key, own):
            raise UserError(f"`config` under `tuning` of {file} has {own}, but the search sets {key}; leave it out.")
    for key, seeded in product(leaves(searched), SEEDED):
        if meet(key, seeded):
            raise UserError(f"`keys` under `tuning` of {file} has {key}, but each seed sets {seeded}; leave it out.")
    known = isinstance(solved, dict) and set(solved) <= {"by", "at"}
    if not known or type(at := solved.get("at", 0.95)) not in (int, float) or not 0 < at <= 1:
        raise UserError(f"`solved` of {file} must be a column and a share, such as {{by: accuracy 1 seen, at: 0.95}}.")
    again = tree.get("again") or {}
    if not isinstance(again, dict) or not set(again) <= {*AGAIN_KEYS} or type(again.get("draws", DRAWS)) is not int:
        raise UserError(f"`again` of {file} must be seeds and draws, such as {{seeds: 10-19, draws: 20000}}.")
    if again.get("draws", DRAWS) < DRAWS:
        raise UserError(f"`again` of {file} asks for {again['draws']} draws; give at least {DRAWS}.")
    if not isinstance(tree.get("output") or "", str):
        raise UserError(f"`output` of {file} must be a folder.")
    for key in ("about", "limits"):
        if not isinstance(tree.get(key) or [], list):
            raise UserError(f"`{key}` of {file} must be a list of sentences.")


def _require_own_keys(file: Path, arms: Sequence[Mapping[str, Any]], searched: Mapping[str, Any]) -> None:
    """Refuse an arm's value of a key that the search or the seed of a run sets: that value would not count."""
    for arm in arms:
        for key, own in product(leaves(searched) + list(SEEDED), leaves(arm)):
            if meet(key, own):
                sets = "each seed" if key in SEEDED else "the search"
                raise UserError(
                    f"The arm {arm['name']!r} of {file} has {own}, but {sets} sets {key} for every arm; leave it out."
                )


def _hypotheses(file: Path, listed: Any, arms: list[str], measures: list[str]) -> tuple[Hypothesis, ...]:
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise UserError(f"The hypotheses of {file} must be a list such as `- {{name: H1, arm: ..., baseline: ...}}`.")
    found = []
    for each in listed:
        if not {"name", "arm", "baseline"} <= set(each) <= {"name", "arm", "baseline", "measure", "again"}:
            raise UserError(f"A hypothesis of {file} needs name, arm and baseline, and may have measure and again.")
        again = each.get("again", Hypothesis.again)
        if type(again) is not float or not 0 < again < 1:
            raise UserError(f"`again` of the hypothesis {each['name']!r} of {file} must be a level such as 0.99.")
        over, under = (
            tuple(map(str, side if isinstance(side, list) else [side])) for side in (each["arm"], each["baseline"])
        )
        if not over or not under:
            raise UserError(f"The hypothesis {each['name']!r} of {file} needs an arm and a baseline.")
        for arm in over + under:
            if arm not in arms:
                raise UserError(f"A hypothesis of {file} names the arm {arm!r}; {nearest(arm, arms)}")
        if both := set(over) & set(under):
            raise UserError(f"The hypothesis {each['name']!r} of {file} has {min(both)!r} on both sides.")
        if (measure := str(each.get("measure", ""))) and measure not in measures:
            raise UserError(f"A hypothesis of {file} is about {measure!r}; {nearest(measure, measures)}")
        found.append(Hypothesis(str(each["name"]), over, under, measure, again))
    return tuple(found)


def _claim(file: Path, given: Any, names: list[str]) -> Claim | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not {"says", "needs"} <= set(given) <= {"says", "needs", "same"}:
        raise UserError(f"`claim` of {file} needs `says` and `needs`, and may have `same`, such as {{S1: 0.03}}.")
    needs, same = given["needs"], given.get("same") or {}
    numbers = isinstance(same, dict) and all(type(m) in (int, float) and math.isfinite(m) for m in same.values())
    if not isinstance(needs, list) or not needs or not numbers:
        raise UserError(
            f"`needs` of the claim of {file} must be a list such as [H1, H2], and `same` such as {{S1: 0.03}}."
        )
    for name in (*needs, *same):
        if name not in names:
            raise UserError(f"The claim of {file} names the hypothesis {name!r}; {nearest(str(name), names)}")
    return Claim(str(given["says"]), tuple(map(str, needs)), {str(name): float(most) for name, most in same.items()})


def _multiplier(file: Path, given: Any) -> Multiplier | None:
    if given is None:
        return None
    needed = {"name", "base", "other"}
    if not isinstance(given, dict) or not needed <= set(given) <= needed | {"beside", "without"}:
        raise UserError(
            f"`multiplier` of {file} needs name, base and other: two families, such as transformer++; and may have "
            "`beside`, a list of other experiments, and `without`, a list of arms."
        )
    named, without = given.get("beside") or [], given.get("without") or []
    if not isinstance(named, list) or not isinstance(without, list):
        raise UserError(
            f"`beside` of the multiplier of {file} must be a list of experiments, such as [scaling], and `without` a "
            "list of arms."
        )
    beside = tuple(file.parent.parent / str(name) for name in named)
    if len({file.parent.name, *(folder.name for folder in beside)}) < 1 + len(beside):
        raise UserError(f"`beside` of the multiplier of {file} names itself, or one twice; its runs would count twice.")
    for folder in beside:
        if not (folder / FILE).is_file():
            raise UserError(f"`beside` of the multiplier of {file} names {folder.name!r}; there is no {folder / FILE}.")
    name, base, other = (str(given[key]) for key in ("name", "base", "other"))
    return Multiplier(name, base, other, beside, tuple(map(str, without)))


def _tuned_as(file: Path, arms: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """{arm: the arm whose values it takes}."""
    found = {str(arm["name"]): str(arm[AS]) for arm in arms if AS in arm}
    own = [str(arm["name"]) for arm in arms if AS not in arm]
    for arm, other in found.items():
        if other not in own:
            raise UserError(
                f"`{AS}` of the arm {arm!r} of {file} must name an arm that is searched; {nearest(other, own)}"
            )
    return found


def _number_or_text(value: Any) -> Any:
    """A value of a search, where YAML reads 1e-3 as text and a person means the number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _numbers(file: Path, values: Any) -> tuple[int, ...]:
    if isinstance(values, str):
        with suppress(UserError):
            return parse_seeds(values)
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise UserError(
            f"The seeds of {file} must be a list of whole numbers from 0 on, such as [0, 1, 2], or text such as 0-2."
        )
    if len(set(values)) < len(values):
        raise UserError(f"The seeds of {file} have one twice; name each once.")
    return tuple(values)
