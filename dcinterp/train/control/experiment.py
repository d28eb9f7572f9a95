"""An experiment: the same question asked of several arms, each tuned by the same search, over many seeds.

Runs go seed by seed through all arms; what is compared are the seeds of which every arm has a run. Beside the file
that says all this (dcinterp.train.control.experiment_file), `results.csv` has a row per finished run and is kept with
the repository. `replication.csv` is the table of a repetition with other seeds.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from dcinterp.support.digest import json_digest
from dcinterp.support.errors import UserError, nearest
from dcinterp.train.config.recipe import own_folders
from dcinterp.train.control.seeds import parse_seeds
from dcinterp.train.control.sweep import TABLE, SweepRun, file_name, make_run, read_results
from dcinterp.train.loop.metrics_file import MADE_WITH

SEEDED = ("recipe.seed", "data.seed")
REPLICATION, PROTOCOL = "replication.csv", "protocol.md"
PLANNED_AGAIN = re.compile(r"^again:\s.*?\bseeds: *[\"']?([0-9,-]+)", re.MULTILINE | re.DOTALL)
"""Where the file of an experiment names the seeds of its repetition."""
DRAWS = 1000
"""Of the bootstrap, behind an interval."""
TUNING, FINAL = "tuning", "final"
DIVERGED = "diverged"
"""The status of a run of the search whose loss or weights became NaN or infinite: its value is the worst."""
ENDED = ("done", DIVERGED)
"""What the status of a run says that is not to be run again."""


class NoRunsYet(UserError):
    """No run of an experiment has ended yet, or none of every arm: there is nothing to say, and nothing is wrong."""


ADDED: tuple[dict[str, Any], ...] = (
    {"data.text.packages": [], "data.text.hold_out": "pieces", "data.text.digest": ""},
    {"data.holdout": []},
)
"""Keys that configs did not have when runs of the tables were made, with what they did then, the oldest first. Who adds
a key adds it here: a test asks that every run of a table is still known."""
_KEPT: dict[bytes, tuple[str, ...]] = {}
"""Digests of runs, by what their configs are made from."""


def in_words(arms: Sequence[str], baselines: Sequence[str]) -> str:
    """The difference between some arms and others, such as "plain minus all"."""
    arm, baseline = (" and ".join(side) for side in (arms, baselines))
    several = len(arms) > 1 or len(baselines) > 1
    return f"the mean of {arm} minus that of {baseline}" if several else f"{arm} minus {baseline}"


@dataclass(frozen=True)
class Hypothesis:
    """That the mean of `arms` minus that of `baselines` is above zero, in a measure (the primary one when empty).

    again: the level of the interval by which a repetition with other seeds is judged, such as 0.99.
    """

    name: str
    arms: tuple[str, ...]
    baselines: tuple[str, ...]
    measure: str = ""
    again: float = 0.95

    @property
    def difference(self) -> str:
        """What is said to be above zero, in words."""
        return in_words(self.arms, self.baselines)

    def by_seed(self, values: pd.DataFrame) -> pd.Series:
        """The difference, row by row of a table such as [seed, arm]."""
        return values[list(self.arms)].mean(axis=1) - values[list(self.baselines)].mean(axis=1)


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
    table and what they are called; the first is the primary one. again_seeds, again_draws: the seeds of its repetition,
    where they are planned, and the draws of the bootstrap there.
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
    again_seeds: tuple[int, ...] = ()
    again_draws: int = DRAWS

    @property
    def is_repetition(self) -> bool:
        """Whether the table is that of its repetition, replication.csv beside the file."""
        return os.path.realpath(self.table) == os.path.realpath(self.folder / REPLICATION)

    def planned(self, there: Collection[int]) -> int:
        """How many seeds its table is to have, if it has runs of these.

        Of a repetition whose seeds the file does not name, as many as the experiment has, or as there are.
        """
        if self.has_own_table:
            return len(self.seeds)
        if self.is_repetition and self.again_seeds:
            return len({*self.again_seeds, *there})
        return max(len(self.seeds), len({*there}))

    @property
    def draws(self) -> int:
        """Of the bootstrap, behind each interval."""
        return self.again_draws if self.is_repetition else DRAWS

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
        keys = self._keys(stage, arm, chosen, seed)
        return make_run(self.config, self.output, self.run_name(stage, arm, chosen, seed), keys)

    def _keys(self, stage: str, arm: str, chosen: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """What a run sets in the config."""
        own = self.tuning_config if stage == TUNING else {}
        return self.arms[arm] | own | dict(chosen) | dict.fromkeys(SEEDED, seed)

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
        # Not resolve(), which fails where links lead to each other.
        return os.path.realpath(self.table) == os.path.realpath(self.folder / TABLE)

    @property
    def folder_text(self) -> str:
        """Its folder as commands name it: of an experiment that comes with dcinterp, as seen from the repository."""
        if self.folder.resolve().parent in [own.resolve() for own in own_folders("experiments")]:
            return f"experiments/{self.folder.name}"
        return shlex.quote(str(self.folder))

    @property
    def replication_folder(self) -> Path:
        """What was measured of the models of its repetition."""
        return (self.folder / REPLICATION).with_suffix("")

    def fresh_seeds(self) -> str:
        """As many seeds as it has, after its own and those of its repetition, such as "20-29".

        Those of tables beside it are passed over, as some of them have runs of the same arms.

        Raises:
            UserError: the repetition is no table of runs.
        """
        again = read_table(replace(self, table=self.folder / REPLICATION))
        run = again.loc[again["stage"] == FINAL, SEEDED[0]] if len(again) else []
        first, taken = max([*self.seeds, *self.again_seeds, *map(int, run)]) + 1, self._seeds_beside()
        while used := taken & set(range(first, first + len(self.seeds))):
            first = max(used) + 1
        return f"{first}-{first + len(self.seeds) - 1}"

    def _seeds_beside(self) -> set[int]:
        """Seeds of the runs of the experiments beside this one, and of those that they plan.

        A file that is no such table has none.
        """
        found = set[int]()
        for file in (*self.folder.parent.glob(f"*/{TABLE}"), *self.folder.parent.glob(f"*/{REPLICATION}")):
            if not file.is_file():  # a pipe would be waited for without end
                continue
            with file.open(encoding="utf-8", newline="") as text, suppress(ValueError, IndexError, csv.Error):
                rows = csv.reader(text)
                column = next(rows, []).index(SEEDED[0])
                found |= {int(float(row[column])) for row in rows if row and row[column]}
        for file in self.folder.parent.glob("*/experiment.yaml"):
            with suppress(OSError, ValueError):
                planned = PLANNED_AGAIN.search(file.read_text(encoding="utf-8")) if file.is_file() else None
                found |= set(parse_seeds(planned[1])) if planned else set()
        return found

    def counted(self, table: pd.DataFrame) -> pd.DataFrame:
        """The reported runs that count: those that ended, of every arm at the values that the search chose.

        They are of the seeds that the file names; in the table of a repetition, of all seeds.

        Raises:
            NoRunsYet: no run has ended.
            UserError: a run of the search is missing, it or one that counts was made with another config, or there is
                no such table of a repetition.
        """
        rows = table[(table["stage"] == FINAL) & (table["status"] == "done")]
        if not len(rows):
            if not self.has_own_table and not self.table.is_file():
                raise UserError(
                    f"There is no table {self.table}; `dcinterp experiment run {self.folder_text} --seeds ... --table "
                    f"{shlex.quote(str(self.table))}` makes it."
                )
            raise NoRunsYet(
                f"No run of {self.folder} has ended yet; start them with: dcinterp experiment run {self.folder}"
            )
        if SEEDED[0] not in rows:
            raise UserError(f"{self.table} has no column {SEEDED[0]!r}; give a table of `dcinterp experiment run`.")
        own = rows[rows["arm"].isin(self.arms)]  # a row of a former arm may lack anything
        there = sorted(set(own["recipe.seed"].dropna().astype(int)))
        seeds = tuple(seed for seed in there if seed in self.seeds or not self.has_own_table)
        chosen = self.choose(table)
        named = {
            self.run_name(FINAL, arm, chosen[arm], seed): (FINAL, arm, chosen[arm], seed)
            for seed, arm in product(seeds, self.arms)
        }
        rows = rows[rows["name"].isin(named)]
        # Those of the search too: what it chose is in no config of a reported run.
        search = {
            self.run_name(TUNING, arm, values, seed): (TUNING, arm, values, seed)
            for seed, arm, values in self._search()
        }
        asked = search | {name: named[name] for name in rows["name"]}
        self._require_digests({name: partial(self._digests, *run) for name, run in asked.items()}, table)
        return rows

    def require_rows(self, table: pd.DataFrame) -> None:
        """Refuse a table that somebody edited: one in which a run has two rows, or a row is not what its name says.

        And that of another experiment, which has no row of a run of this one.

        Raises:
            UserError: there is such a row, or it is such a table.
        """
        names = table["name"].dropna()
        if len(again := names[names.duplicated()]):
            raise UserError(f"{self.table} has two rows of the run {again.iloc[0]!r}; take one of them out.")
        named = {
            self.run_name(stage, arm, values, 0).removesuffix("0"): {"stage": stage, "arm": arm} | values
            for stage, arm, values in product((TUNING, FINAL), self.arms, self.searched())
        }
        if len(names) and not any(f"{name.rpartition('=')[0]}=" in named for name in names):
            # A file whose arms were all renamed has no runs yet.
            kind = NoRunsYet if self.has_own_table else UserError
            raise kind(
                f"No row of {self.table} is a run of {self.folder}: it is the table of another experiment, or of other "
                "arms and values than the file has now; give another --table, or move it away."
            )
        read = table.columns.intersection(["stage", "arm", "name", *SEEDED, *self.tuning_keys])
        for row in table.loc[names.index, read].to_dict("records"):
            name, _, seed = row["name"].rpartition("=")
            if f"{name}=" not in named or not seed.isdigit():
                continue  # of another arm or search: it does not count
            for column, value in (named[f"{name}="] | dict.fromkeys(SEEDED, int(seed))).items():
                if column in row and not _is_cell(row[column], value):
                    raise UserError(
                        f"{self.table} has {row[column]!r} as {column} in the row of {row['name']!r}, whose name says "
                        f"{value!r}; put the cell right, or take the row out."
                    )

    def require_config(self, runs: Sequence[SweepRun], table: pd.DataFrame) -> None:
        """Refuse rows of these runs that were made with another config; rows without a digest are believed.

        Raises:
            UserError: there is such a row.
        """
        self._require_digests({run.name: partial(digests, run) for run in runs}, table)

    def _require_digests(self, known: Mapping[str, Callable[[], Sequence[str]]], table: pd.DataFrame) -> None:
        """The same, of the digests that runs of these names may have."""
        made = table.set_index("name")["digest"].dropna().to_dict() if "digest" in table else {}
        for name, allowed in known.items():
            if name in made and made[name] not in allowed():
                raise UserError(
                    f"{self.table} has a run {name!r} that was made with another config; take its row out, or "
                    "give another --table."
                )

    def _digests(self, stage: str, arm: str, chosen: Mapping[str, Any], seed: int) -> tuple[str, ...]:
        """`digests` of a `run`, made once: a page asks for those of all runs again and again."""
        key = sha256(repr((ADDED, self.config, self._keys(stage, arm, chosen, seed))).encode()).digest()
        if key not in _KEPT:
            _KEPT[key] = tuple(digests(self.run(stage, arm, chosen, seed)))
        return _KEPT[key]

    def choose(self, table: pd.DataFrame) -> dict[str, dict[str, Any]]:
        """The best values of every arm, by the rows of its tuning runs.

        Raises:
            UserError: a run of the search is missing or failed.
        """
        if not self.tuning_keys:
            return {arm: {} for arm in self.arms}
        measured = bool(len(table)) and bool((table["status"] != DIVERGED).any())
        if measured and self.tuned_by not in table:
            raise UserError(f"{self.table} has no column {self.tuned_by!r}; {nearest(self.tuned_by, table.columns)}")
        diverged = set(table.loc[table["status"] == DIVERGED, "name"]) if len(table) else set()
        done = table[table["status"] == "done"].set_index("name")[self.tuned_by].dropna() if measured else {}
        wanted = (self.run_name(TUNING, arm, values, seed) for seed, arm, values in self._search())
        missing = [name for name in wanted if name not in done and name not in diverged]
        if missing:
            raise UserError(f"{len(missing)} runs of the search are missing, such as {missing[0]}; run it again.")

        losses = table.set_index("name")["loss"] if "loss" in table or not measured else done * 0

        def rank(arm: str, values: dict[str, Any]) -> tuple[float, float]:
            """The lowest is the best; where the measure ties, as at 100 %, the training loss decides."""
            names = [self.run_name(TUNING, arm, values, seed) for seed in self.tuning_seeds]
            if not diverged.isdisjoint(names):
                return math.inf, math.inf
            reached, loss = (math.fsum(float(column[name]) for name in names) for column in (done, losses))
            return (-reached if self.highest_is_best else reached), loss

        best = {arm: min(self.searched(), key=partial(rank, arm)) for arm in self.searched_arms}
        if lost := [arm for arm, values in best.items() if rank(arm, values)[0] == math.inf]:
            raise UserError(
                f"Of {lost[0]}, runs diverged at every value of the search; give lower ones of `tuning.keys`."
            )
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
        if not self.measure_best or not side or not self.tuning_keys:
            return []
        worse = hypothesis.baselines if (side > 0) == (self.measure_best == "highest") else hypothesis.arms
        return [arm for arm in self.chosen_at_an_edge(read_table(self)) if arm in worse]

    def searched(self) -> list[dict[str, Any]]:
        """All combinations of the values that are searched."""
        return [dict(zip(self.tuning_keys, values, strict=True)) for values in product(*self.tuning_keys.values())]

    def final_runs(self, table: pd.DataFrame) -> list[SweepRun]:
        """Every arm at its best values, seed by seed."""
        chosen = self.choose(table)
        return [self.run(FINAL, arm, chosen[arm], seed) for seed in self.seeds for arm in self.arms]


def read_table(experiment: Experiment) -> pd.DataFrame:
    """The rows of the runs that are finished; no rows without a table.

    Raises:
        UserError: the file is no table of runs, or as `Experiment.require_rows`.
    """
    needed = ["stage", "arm", "name", "status"]
    if not experiment.table.is_file():
        return pd.DataFrame(columns=needed)
    # Names such as 1 or None, and digests such as 38e177, are text.
    text = dict.fromkeys(("stage", "arm", "name", "status", "family", "digest", *MADE_WITH), str)
    give = "give a table of `dcinterp experiment run`"
    table = read_results(experiment.table, needed, give, dtype=text, keep_default_na=False, na_values=[""])
    experiment.require_rows(table)
    for column in table.columns.intersection(SEEDED):
        if table[column].dtype.kind == "f" and (table[column] % 1 == 0).all():  # of earlier versions, such as 660.0
            table[column] = table[column].astype(int)
    return table


def joined(*tables: pd.DataFrame) -> pd.DataFrame:
    """The rows of tables below each other; beside one without rows pandas would make floats of whole numbers."""
    return pd.concat([each for each in tables if len(each)] or tables[-1:], ignore_index=True)


def _is_cell(cell: Any, value: Any) -> bool:
    """Whether a table's cell is a value, which it may have as text, or with a point where it was a whole number."""
    if value is None:
        return bool(pd.isna(cell))
    with suppress(TypeError, ValueError):
        return float(cell) == float(value)
    return str(cell) == str(value)


def reported_runs(experiment: Experiment) -> pd.DataFrame:
    """The rows of the reported runs that count, of its table.

    Raises:
        UserError: as `Experiment.counted`, or the file is no table of runs.
    """
    return experiment.counted(read_table(experiment))


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


def values_text(values: Mapping[str, Any]) -> str:
    """Values of a search in words, such as "learning_rate 0.002, compose_rank 2"."""
    return ", ".join(f"{key.split('.')[-1]} {value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A value of a search in words: a number without zeros at its end, or the text."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
