"""An experiment: the same question asked of several arms, each tuned by the same search, over many seeds.

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
    measures: {accuracy 1 held-out: accuracy on new pairs}    # the first is the primary one
    hypotheses:                                 # that an arm minus another is above zero, in the primary measure
      - {name: H1, arm: composed, baseline: plain}               # a list of arms stands for their mean
    claim: {says: composing recombines, needs: [H1], same: {S1: 0.03}}   # only if H1 holds, and S1 ends below 0.03
    multiplier: {name: H2, base: transformer++, other: dcformer++}   # that a family saves compute, where arms are sizes
                                                # (`beside: [another]`: and the runs of that experiment, too;
                                                # `without: [plain 8]`: but not those of that arm)
    solved: {by: accuracy 1 seen, at: 0.95}     # the runs among which the primary measure is shown once more
    about: [what the arms are asked, in a sentence or two]
    limits: [what the numbers do not say, a sentence each]
    output: runs/recombination                  # receives the runs; the table stands beside this file

The file is `experiment.yaml` in a folder of `experiments/`, beside `protocol.md`, which says why. Runs go seed by seed
through all arms; what is compared are the seeds of which every arm has a run. `results.csv` in the same folder has a
row per finished run and is kept with the repository: what stands there, made with the same config, is not run again.
`replication.csv` beside it is the table of a repetition with other seeds; the page shows what became of each hypothesis
there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from dcinterp.support.digest import json_digest
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress
from dcinterp.train.config.recipe import find_config, own_folders, read_tree
from dcinterp.train.control.engines import LOCAL
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.control.sweep import TABLE, Sweep, SweepRun, file_name, make_run, read_results, run_sweep

FILE = "experiment.yaml"
KEYS = (
    "title",
    "config_of",
    "config",
    "arms",
    "tuning",
    "seeds",
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
EDGE_RULES = ("open", "marked")
SEEDED = ("recipe.seed", "data.seed")
LOCK = ".experiment"
REPLICATION = "replication.csv"
TUNING, FINAL = "tuning", "final"
AS = "tuned_as"
ADDED: tuple[dict[str, Any], ...] = (
    {"data.text.packages": [], "data.text.hold_out": "pieces", "data.text.digest": ""},
    {"data.holdout": []},
)
"""Keys that configs did not have when runs of the tables were made, with what they did then, the oldest first. Who adds
a key adds it here: a test asks that every run of a table is still known."""


@dataclass(frozen=True)
class Hypothesis:
    """That the mean of `arms` minus that of `baselines` is above zero, in a measure (the primary one when empty)."""

    name: str
    arms: tuple[str, ...]
    baselines: tuple[str, ...]
    measure: str = ""


@dataclass(frozen=True)
class Claim:
    """What an experiment says only if all of `needs` are supported, and each of `same` ends below its number.

    says: what follows "that". needs, same: names of hypotheses; `same` are those about what must not differ by more.
    """

    says: str
    needs: tuple[str, ...]
    same: dict[str, float]


@dataclass(frozen=True)
class Multiplier:
    """That the family `base` needs more compute than `other` for the same loss, the primary measure.

    beside: folders of experiments whose runs are sizes of the same series. without: arms of any of them that are not.
    """

    name: str
    base: str
    other: str
    beside: tuple[Path, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """What an experiment.yaml says.

    arms: names and the keys that make them. tuned_as: arms that take the values that the search chose for another.
    tuning_keys: values that are searched, by key. tuning_config: keys that only runs of the search have. measure_best:
    "lowest" or "highest", which is better in the measures, to tell what a verdict goes against; else "". edge_marks: a
    verdict against an arm at an edge of its search stays and says so, where else it is open. measures: columns of the
    table and what they are called; the first is the primary one.
    """

    folder: Path
    title: str
    config: dict[str, Any]
    arms: dict[str, dict[str, Any]]
    tuned_as: dict[str, str]
    tuning_keys: dict[str, list[Any]]
    tuning_seeds: tuple[int, ...]
    tuning_config: dict[str, Any]
    tuned_by: str
    highest_is_best: bool
    measure_best: str
    edge_marks: bool
    seeds: tuple[int, ...]
    measures: dict[str, str]
    hypotheses: tuple[Hypothesis, ...]
    claim: Claim | None
    multiplier: Multiplier | None
    solved_by: str
    solved_at: float
    about: tuple[str, ...]
    limits: tuple[str, ...]
    output: Path
    table: Path

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return next(iter(self.arms))

    @property
    def solved_part(self) -> str:
        """The part of a puzzle that `solved_by` is the accuracy on; empty without it."""
        return self.solved_by.rpartition(" ")[2]

    @property
    def searched_arms(self) -> list[str]:
        """The arms that have a search of their own."""
        return [arm for arm in self.arms if arm not in self.tuned_as]

    def run(self, stage: str, arm: str, chosen: Mapping[str, Any], seed: int) -> SweepRun:
        """One run of an arm."""
        own = self.tuning_config if stage == TUNING else {}
        keys = self.arms[arm] | own | dict(chosen) | dict.fromkeys(SEEDED, seed)
        return make_run(self.config, self.output, self.run_name(stage, arm, chosen, seed), keys)

    def run_name(self, stage: str, arm: str, chosen: Mapping[str, Any], seed: int) -> str:
        """The name of a `run`, which says all that sets it apart; without making its config."""
        parts = [stage, arm, *(f"{key.split('.')[-1]}={value}" for key, value in chosen.items()), f"seed={seed}"]
        return file_name(",".join(parts))

    def tuning_runs(self) -> list[SweepRun]:
        """Every arm that is searched at every value, seed by seed."""
        return [self.run(TUNING, arm, values, seed) for seed, arm, values in self._search()]

    def _search(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """(seed, arm, values) of every run of the search."""
        return product(self.tuning_seeds, self.searched_arms, self.searched())

    @property
    def has_own_table(self) -> bool:
        """Whether the table is results.csv beside the file, and not that of a repetition."""
        return self.table.resolve() == (self.folder / TABLE).resolve()

    def fresh_seeds(self) -> str:
        """As many seeds as it has, after its own and those of its repetition, such as "20-29".

        Raises:
            UserError: the repetition is no table of runs.
        """
        again = read_table(replace(self, table=self.folder / REPLICATION))
        run = again.loc[again["stage"] == FINAL, SEEDED[0]] if len(again) else []
        last = max([*self.seeds, *map(int, run)])
        return f"{last + 1}-{last + len(self.seeds)}"

    def counted(self, table: pd.DataFrame) -> pd.DataFrame:
        """The reported runs that count: those that ended, of every arm at the values that the search chose.

        They are of the seeds that the file names; in the table of a repetition, of all seeds.

        Raises:
            UserError: no run has ended, a run of the search is missing, or one that counts was made with another
                config.
        """
        rows = table[(table["stage"] == FINAL) & (table["status"] == "done")] if len(table) else table
        if not len(rows):
            raise UserError(
                f"No run of {self.folder} has ended yet; start them with: dcinterp experiment run {self.folder}"
            )
        there = sorted(set(rows["recipe.seed"].astype(int)))
        seeds = tuple(seed for seed in there if seed in self.seeds or not self.has_own_table)
        runs = {run.name: run for run in replace(self, seeds=seeds).final_runs(table)}
        rows = rows[rows["name"].isin(runs)]
        self._require_config([runs[name] for name in rows["name"]], rows)
        return rows

    def _require_config(self, runs: Sequence[SweepRun], table: pd.DataFrame) -> None:
        """Refuse rows of these runs that were made with another config; rows without a digest are believed.

        Raises:
            UserError: there is such a row.
        """
        if "digest" not in table:
            return
        made = table.set_index("name")["digest"].dropna()
        for run in runs:
            if run.name in made.index and made.loc[run.name] not in digests(run):
                raise UserError(
                    f"{self.table} has a run {run.name!r} that was made with another config; take its row out, or "
                    "give another --table."
                )

    def choose(self, table: pd.DataFrame) -> dict[str, dict[str, Any]]:
        """The best values of every arm, by the rows of its tuning runs.

        Raises:
            UserError: a run of the search is missing or failed.
        """
        if not self.tuning_keys:
            return {arm: {} for arm in self.arms}
        if len(table) and self.tuned_by not in table:
            raise UserError(f"{self.table} has no column {self.tuned_by!r}; {nearest(self.tuned_by, table.columns)}")
        done = table[table["status"] == "done"].set_index("name")[self.tuned_by].dropna() if len(table) else {}
        wanted = (self.run_name(TUNING, arm, values, seed) for seed, arm, values in self._search())
        missing = [name for name in wanted if name not in done]
        if missing:
            raise UserError(f"{len(missing)} runs of the search are missing, such as {missing[0]}; run it again.")

        losses = table.set_index("name")["loss"] if "loss" in table else done * 0

        def rank(arm: str, values: dict[str, Any]) -> tuple[float, float]:
            """The lowest is the best; where the measure ties, as at 100 %, the training loss decides."""
            names = [self.run_name(TUNING, arm, values, seed) for seed in self.tuning_seeds]
            reached, loss = (math.fsum(float(column[name]) for name in names) for column in (done, losses))
            return (-reached if self.highest_is_best else reached), loss

        best = {arm: min(self.searched(), key=partial(rank, arm)) for arm in self.searched_arms}
        return {arm: best[self.tuned_as.get(arm, arm)] for arm in self.arms}

    def chosen_at_an_edge(self, table: pd.DataFrame) -> list[str]:
        """The arms whose best value is the lowest or the highest that was searched: one beyond may be better."""
        ends: dict[str, tuple[Any, Any]] = {
            key: (min(tried), max(tried))
            for key, tried in self.tuning_keys.items()
            if len(tried) > 1 and all(type(each) in (int, float) for each in tried)
        }
        chosen = self.choose(table)
        return [arm for arm in self.arms if any(chosen[arm][key] in both for key, both in ends.items())]

    def worse_at_an_edge(self, hypothesis: Hypothesis, side: int) -> list[str]:
        """The arms that a verdict goes against and whose best value is at an edge of the search; none by default.

        Args:
            hypothesis: whose difference was measured.
            side: of zero where its interval lies, 1 or -1; 0 where there is no verdict.
        """
        if not self.measure_best or not side:
            return []
        worse = hypothesis.baselines if (side > 0) == (self.measure_best == "highest") else hypothesis.arms
        return [arm for arm in self.chosen_at_an_edge(read_table(self)) if arm in worse]

    def costlier_at_an_edge(self, multiplier: Multiplier, side: int) -> list[str]:
        """As `worse_at_an_edge`, of the sizes of the family that a verdict on a compute multiplier goes against.

        Args:
            multiplier: what was measured.
            side: of 1 where its intervals lie, 1 or -1; 0 where there is no verdict.
        """
        if not self.measure_best or not side:
            return []
        family = multiplier.base if side > 0 else multiplier.other
        found = []
        for each in self.series():
            table = read_table(each)
            counted = each.counted(table)
            of_family = set(counted.loc[counted["family"] == family, "arm"])
            found += [arm for arm in each.chosen_at_an_edge(table) if arm in of_family - set(multiplier.without)]
        return found

    def series(self) -> list[Experiment]:
        """This one, and those whose runs are sizes of the same series."""
        return [self, *map(read_experiment, self.multiplier.beside if self.multiplier else ())]

    def searched(self) -> list[dict[str, Any]]:
        """All combinations of the values that are searched."""
        return [dict(zip(self.tuning_keys, values, strict=True)) for values in product(*self.tuning_keys.values())]

    def final_runs(self, table: pd.DataFrame) -> list[SweepRun]:
        """Every arm at its best values, seed by seed."""
        chosen = self.choose(table)
        return [self.run(FINAL, arm, chosen[arm], seed) for seed in self.seeds for arm in self.arms]


def read_experiment(path: str | Path, *, table: str | Path | None = None) -> Experiment:
    """The experiment of a folder (or of its experiment.yaml), checked.

    Args:
        path: the folder or the file.
        table: another table of runs than results.csv beside the file; its runs get a folder of their own.

    Raises:
        UserError: a key is missing, unknown or of the wrong kind, or an arm's config is not valid.
    """
    place = Path(path)
    file = find_config(place if place.suffix in (".yaml", ".yml") else place / FILE)
    tree = read_tree(file)
    for key in tree:
        if key not in KEYS:
            raise UserError(f"Unknown key {key!r} in {file}; {nearest(str(key), KEYS)}")
    for key in ("arms", "seeds", "measures"):
        if not tree.get(key):
            raise UserError(f"{file} has no {key}; dcinterp/train/control/experiment.py shows a whole file.")
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
    if tuning.get("keys") and not tuning.get("seeds"):
        raise UserError(f"`tuning` of {file} has keys and no seeds; give it seeds that are not reported.")
    if tuning.get("at_an_edge", "open") not in EDGE_RULES:
        raise UserError(f"`at_an_edge` of {file} is {tuning['at_an_edge']!r}; it is {' or '.join(EDGE_RULES)}.")
    tuned_as = _tuned_as(file, arms)
    seeds, searched = _numbers(file, tree["seeds"]), _numbers(file, tuning.get("seeds", []))
    if set(seeds) & set(searched):
        raise UserError(f"{file} tunes on seeds that it also reports ({sorted(set(seeds) & set(searched))}).")
    hypotheses = _hypotheses(file, tree.get("hypotheses") or [], [str(arm["name"]) for arm in arms])
    made = Experiment(
        folder=file.parent,
        title=str(tree.get("title", file.parent.name)),
        config=_config(file, tree),
        arms={str(arm["name"]): {str(k): v for k, v in arm.items() if k not in ("name", AS)} for arm in arms},
        tuned_as=tuned_as,
        tuning_keys={str(key): [_number_or_text(each) for each in values] for key, values in searched_keys.items()},
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
        multiplier=_multiplier(file, tree.get("multiplier")),
        solved_by=str(solved.get("by", "")),
        solved_at=float(solved.get("at", 0.95)),
        about=tuple(map(str, tree.get("about") or ())),
        limits=tuple(map(str, tree.get("limits") or ())),
        output=Path(tree.get("output") or f"runs/{file.parent.name}") / (_mark(table) if table else ""),
        table=Path(table) if table else file.parent / TABLE,
    )
    made.tuning_runs()
    for arm in made.arms:
        made.run(FINAL, arm, {}, seeds[0])
    return made


def _mark(table: str | Path) -> str:
    """A name for the runs of another table: that of its file, and a hash of its place."""
    return f"{Path(table).stem}-{hashlib.blake2b(str(Path(table).resolve()).encode(), digest_size=4).hexdigest()}"


def find_experiments() -> dict[str, Path]:
    """{name: folder} of the experiments that come with dcinterp, and of those in `experiments` where one is."""
    folders = [*own_folders("experiments"), Path("experiments")]
    found = [file.parent for folder in folders for file in sorted(folder.glob(f"*/{FILE}"))]
    return {folder.name: folder for folder in found}


def run_experiment(
    experiment: Experiment,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    seeds: tuple[int, ...] = (),
    engine: str = LOCAL,
    keep_search: bool = False,
) -> pd.DataFrame:
    """Run what is not in the table yet, tuning first, and return the table.

    Args:
        experiment: what `read_experiment` gave.
        jobs: runs at a time.
        progress: called as runs end; raising `Cancelled` stops the others, which go on at the next call.
        seeds: other seeds than the file's, to repeat the experiment in a table of its own.
        engine: where the runs run, as `run_sweep` has it.
        keep_search: for another table than the experiment's own: do not search again, but take its rows of the search.

    Raises:
        UserError: other seeds would join the experiment's own table, or were tuned on; a row of the table was made
            with another config; another process runs the experiment into this table; or runs failed (then the others
            ended, and are in the table).
    """
    if seeds and experiment.has_own_table:
        raise UserError("Other seeds need a table of their own, since the file says which are reported; give --table.")
    if set(seeds) & set(experiment.tuning_seeds):
        raise UserError(f"{sorted(set(seeds) & set(experiment.tuning_seeds))} are seeds of the search; give others.")
    experiment = replace(experiment, seeds=seeds or experiment.seeds)
    run = partial(_run_missing, experiment, jobs=jobs, progress=progress, engine=engine)
    experiment.output.mkdir(parents=True, exist_ok=True)
    with lock_run(experiment.output, file=LOCK, way_out="give another --table"):
        if keep_search:
            _take_search(experiment)
        run(experiment.tuning_runs(), TUNING)
        return run(experiment.final_runs(read_table(experiment)), FINAL)


def _take_search(experiment: Experiment) -> None:
    """Put the search's rows of the experiment's own table into its other one, where they are not there yet."""
    own, there = read_table(replace(experiment, table=experiment.folder / TABLE)), read_table(experiment)
    rows = own[own["stage"] == TUNING] if len(own) else own
    rows = rows[~rows["name"].isin(there["name"])] if len(there) else rows
    if len(rows):
        _write(pd.concat([rows, there], ignore_index=True), experiment.table)


def read_table(experiment: Experiment) -> pd.DataFrame:
    """The rows of the runs that are finished; no rows without a table.

    Raises:
        UserError: the file is no table of runs.
    """
    if not experiment.table.is_file():
        return pd.DataFrame()
    # Names such as 1 or None, and digests such as 38e177, are text.
    text = dict.fromkeys(("stage", "arm", "name", "status", "family", "digest"), str)
    give = "give a table of `dcinterp experiment run`"
    needed = ("stage", "arm", "name", "status")
    return read_results(experiment.table, needed, give, dtype=text, keep_default_na=False, na_values=[""])


def _run_missing(
    experiment: Experiment, runs: list[SweepRun], stage: str, *, jobs: int, progress: Progress | None, engine: str
) -> pd.DataFrame:
    before = read_table(experiment)
    done = before[before["status"] == "done"].set_index("name") if len(before) else before
    experiment._require_config(runs, before)
    missing = tuple(run for run in runs if run.name not in done.index)

    def write_finished(done: int, total: int, message: str = "") -> None:
        _join(experiment, stage, missing)
        if progress is not None:
            progress(done, total, message)

    if missing:
        place = experiment.output / stage
        rows = run_sweep(Sweep(place, missing, jobs), progress=write_finished, engine=engine)
        _join(experiment, stage, missing)
        failed = rows[rows["status"] == "failed"]
        if len(failed):
            first = failed.iloc[0]
            raise UserError(
                f"{len(failed)} of {len(missing)} runs failed, such as {first['name']} ({first['message']}). The "
                f"others are kept in {experiment.table}, and the logs are in {place}."
            )
    return read_table(experiment)


def digest(run: SweepRun) -> str:
    """A hash of what a run is made from, whatever folder it is in."""
    return json_digest(_tree(run))


def digests(run: SweepRun) -> list[str]:
    """The hashes that a run of this config may have: today's, and those from before the keys of `ADDED`."""
    tree = _tree(run)
    found = [json_digest(tree)]
    for group in reversed(ADDED):
        for path, former in group.items():
            *folders, key = path.split(".")
            at: Any = tree
            for folder in folders:
                at = at and at[folder]
            if at and at.pop(key) != former:
                return found
        found.append(json_digest(tree))
    return found


def _tree(run: SweepRun) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(json.dumps(asdict(replace(run.config, output="")), default=str))
    return tree


def _join(experiment: Experiment, stage: str, runs: Sequence[SweepRun]) -> None:
    """Put the finished rows of a sweep into the table of the experiment."""
    made = experiment.output / stage / TABLE
    if not made.is_file():
        return
    rows = pd.read_csv(made)
    digests = {run.name: digest(run) for run in runs}
    rows = rows[(rows["status"] == "done") & rows["name"].isin(digests)].drop(columns=["message"])
    if not len(rows):
        return
    before = read_table(experiment)
    arms = {file_name(arm): arm for arm in experiment.arms}
    rows.insert(0, "arm", [arms[name.split(",")[1]] for name in rows["name"]])
    rows.insert(0, "stage", stage)
    rows["digest"] = [digests[name] for name in rows["name"]]
    kept = before[~before["name"].isin(rows["name"])] if len(before) else before
    _write(pd.concat([kept, rows], ignore_index=True), experiment.table)


def _write(rows: pd.DataFrame, table: Path) -> None:
    """At once, so that a table is never half there."""
    aside = table.with_name(f".{table.name}")
    rows.to_csv(aside, index=False)
    aside.replace(table)


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of a text such as "10-19" or "3,5"; none of an empty one.

    Raises:
        UserError: it is neither.
    """
    if not text.strip():
        return ()
    found: list[int] = []
    for part in [part.strip() for part in text.split(",") if part.strip()] or [text]:
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdigit() or not last.isdigit() or not 0 <= int(last) - int(first) <= 9999:
            raise UserError(f"{text!r} names no seeds; write them as 10-19 or as 3,5.")
        found += range(int(first), int(last) + 1)
    return tuple(dict.fromkeys(found))


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
    known = isinstance(solved, dict) and set(solved) <= {"by", "at"}
    if not known or type(solved.get("at", 0.95)) not in (int, float):
        raise UserError(f"`solved` of {file} must be a column and a share, such as {{by: accuracy 1 seen, at: 0.95}}.")
    for key in ("about", "limits"):
        if not isinstance(tree.get(key) or [], list):
            raise UserError(f"`{key}` of {file} must be a list of sentences.")


def _hypotheses(file: Path, listed: Any, arms: list[str]) -> tuple[Hypothesis, ...]:
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise UserError(f"The hypotheses of {file} must be a list such as `- {{name: H1, arm: ..., baseline: ...}}`.")
    found = []
    for each in listed:
        if not {"name", "arm", "baseline"} <= set(each) <= {"name", "arm", "baseline", "measure"}:
            raise UserError(f"A hypothesis of {file} needs name, arm and baseline, and may have a measure.")
        over, under = (
            tuple(map(str, side if isinstance(side, list) else [side])) for side in (each["arm"], each["baseline"])
        )
        if not over or not under:
            raise UserError(f"The hypothesis {each['name']!r} of {file} needs an arm and a baseline.")
        for arm in over + under:
            if arm not in arms:
                raise UserError(f"A hypothesis of {file} names the arm {arm!r}; {nearest(arm, arms)}")
        found.append(Hypothesis(str(each["name"]), over, under, str(each.get("measure", ""))))
    return tuple(found)


def _claim(file: Path, given: Any, names: list[str]) -> Claim | None:
    if given is None:
        return None
    if not isinstance(given, dict) or not {"says", "needs"} <= set(given) <= {"says", "needs", "same"}:
        raise UserError(f"`claim` of {file} needs `says` and `needs`, and may have `same`, such as {{S1: 0.03}}.")
    needs, same = given["needs"], given.get("same") or {}
    numbers = isinstance(same, dict) and all(type(most) in (int, float) for most in same.values())
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


def values_text(values: Mapping[str, Any]) -> str:
    """Values of a search in words, such as "learning_rate 0.002, compose_rank 2"."""
    return ", ".join(f"{key.split('.')[-1]} {value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A value of a search in words: a number without zeros at its end, or the text."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _number_or_text(value: Any) -> Any:
    """A value of a search, where YAML reads 1e-3 as text and a person means the number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _numbers(file: Path, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise UserError(f"The seeds of {file} must be a list of whole numbers, such as [0, 1, 2].")
    if len(set(values)) < len(values):
        raise UserError(f"The seeds of {file} have one twice; name each once.")
    return tuple(values)
