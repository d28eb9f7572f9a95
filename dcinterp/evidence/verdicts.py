"""What became of the hypotheses of an experiment, and of the claim that rests on them.

A hypothesis says that some arms have more of a measure than others. It is supported where the whole 95 % interval over
seeds lies above zero, refuted where it lies below, and open else. Without all planned seeds there is no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from dcinterp.analysis.training.compare_arms import ArmComparison, arms_of, compare_arms, seeds_of
from dcinterp.evidence.intervals import brackets, interval_text, one_by_one
from dcinterp.evidence.multiplier import multiplier_verdict
from dcinterp.evidence.verdict_words import (
    LEVEL,
    NO_VERDICT,
    REFUTED,
    SUPPORTED,
    WORDS,
    Verdict,
    at_level,
    error_of,
    verdict_words,
)
from dcinterp.mechanism.statistics import without_width
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import (
    REPLICATION,
    Claim,
    Experiment,
    Hypothesis,
    NoRunsYet,
    in_words,
    reported_runs,
)
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.control.seeds import whole_seeds

CLAIM = "claim"
EDGE = "†"
AGAINST = ", against an arm at an edge"
LOST = " (open if corrected)"
AT_AN_EDGE = (
    f"{EDGE} goes against an arm, or would if it were not open for that, whose best value is at an edge of what was "
    "searched, so that it may do better."
)
"""What the mark behind a verdict says. With it a verdict is open where the experiment's file asks for that."""
COLUMNS = (
    "experiment",
    "hypothesis",
    "is above zero (a multiplier: above 1)",
    "found [95 % interval]",
    "verdict",
    "with other seeds",
)

Compared: TypeAlias = Sequence[tuple[Hypothesis, ArmComparison]]
"""Hypotheses, each with the arms by the measure that it is about."""


def comparisons(experiment: Experiment) -> list[ArmComparison]:
    """The arms by every measure of the experiment, the primary one first."""
    return [comparison(experiment, measure) for measure in experiment.measures]


def comparison(experiment: Experiment, measure: str | None, baseline: str | None = None) -> ArmComparison:
    """The arms by one measure (the primary one when None), with the record of the call, for what is saved or drawn."""
    table = None if experiment.has_own_table else str(experiment.table)
    return compare_arms(str(experiment.folder), measure=measure, baseline=baseline, table=table)


def whole_comparison(experiment: Experiment, measure: str | None = None) -> ArmComparison:
    """The arms by one measure (the primary one when None), once every planned seed has a run of each.

    Raises:
        UserError: some have not: then there is no verdict.
    """
    found = arms_of(experiment, measure)
    if len(found.seeds) < found.planned:
        raise UserError(f"{whole_seeds(len(found.seeds), found.planned)}: {NO_VERDICT}.")
    return found


def verdicts(experiment: Experiment) -> list[Verdict]:
    """What became of every hypothesis, that on compute first.

    Raises:
        NoRunsYet: no run has ended yet.
    """
    return _verdicts(experiment, _compared(experiment))


def verdict_lines(experiment: Experiment) -> list[str]:
    """A line for every hypothesis, in Markdown; then one for the claim, and one on what is left of the others.

    Behind a hypothesis stands what its repetition with other seeds found, where there is one.

    Raises:
        NoRunsYet: no run has ended yet.
    """
    about, again = _compared(experiment), _again(experiment)
    beside = {
        each.name: f" With other seeds: {each.found}, {each.word}{LOST * lost}{AGAINST * each.at_an_edge}."
        for each, lost in again.verdicts
    }
    verdicts = _verdicts(experiment, about)
    lines = [each.line + beside.get(each.name, "") for each in verdicts]
    if experiment.claim is not None:
        too = f" With other seeds: {again.claim}." if again.claim else ""
        lines.append(_claim_line(experiment, experiment.claim, about) + too)
    return lines + [each.line for each in _families(experiment, about, verdicts) if each.stays]


def required_replication(folder: Path) -> Experiment:
    """`replication` of the experiment in a folder.

    Raises:
        UserError: no run of every arm has ended, or as `replication` says.
    """
    again = replication(read_experiment(folder))
    if again is None:
        raise UserError(f"{REPLICATION} has no run of every arm yet: `dcinterp experiment run` as in protocol.md.")
    return again


def replication(experiment: Experiment) -> Experiment | None:
    """The experiment with the table of its repetition with other seeds; None before a run of every arm has ended.

    Raises:
        UserError: the table is none of its runs, has seeds of the file, or a run that counts was made with another
            config.
    """
    table = experiment.folder / REPLICATION
    if not table.is_file():
        return None
    again = read_experiment(experiment.folder, table=table)
    try:
        seeds = seeds_of(again)
    except NoRunsYet:
        return None
    if same := sorted(set(seeds) & set(experiment.seeds)):
        raise UserError(
            f"{table} has seeds {same}, which {experiment.folder} reports itself, so that it is no repetition with "
            "other seeds; move it away, and give --seeds."
        )
    return again


def difference_line(found: ArmComparison, arms: Sequence[str], baselines: Sequence[str], level: float) -> str:
    """The mean of some arms minus that of others by one measure, with its interval at a level; no verdict."""
    apart = f"{in_words(arms, baselines)}: {interval_text(*found.between(arms, baselines, level), sign='+')}"
    return f"{found.meaning}, {apart} at {100 * level:g} %, over {len(found.seeds)} seeds"


def verdict_rows(experiments: Iterable[Experiment]) -> list[tuple[str, ...]]:
    """The hypotheses and claims of several experiments, a row each, by `COLUMNS`.

    Args:
        experiments: those without a run of every arm that has ended are left out.

    Raises:
        UserError: a table is none of its experiment's runs, lacks a measure, or has runs of another config.
    """
    rows = list[tuple[str, ...]]()
    for experiment in experiments:
        try:
            about = _compared(experiment)
        except NoRunsYet:
            continue
        name, again = experiment.folder.name, _again(experiment)
        beside = {each.name: f"{each.found}, {_brief(each, lost)}" for each, lost in again.verdicts}
        for each, lost in _corrections(experiment, about):
            asked = f"{each.of}: {each.where}"
            rows.append((name, each.name, asked, each.found, _brief(each, lost), beside.get(each.name, "")))
        if (claim := experiment.claim) is not None:
            says = f"{claim.says.removesuffix(',')} (needs {' and '.join(claim.needs)})"
            rows.append((name, CLAIM, says, "", _made(experiment, about), again.claim))
    return rows


def verdict_table(rows: Sequence[Sequence[str]], pages: str = "") -> str:
    """The rows of `verdict_rows` in Markdown, and how many hypotheses came out in which way.

    Args:
        rows: those of an experiment one after the other.
        pages: the folder of the pages of experiments, for links; none when empty.
    """
    words = Counter(_word(row[4]) for row in rows if row[1] != CLAIM)
    lines, before = list[Sequence[str]](), ""
    for name, *rest in rows:
        lines.append(["" if name == before else f"[{name}]({pages}/{name}.md)" if pages else name, *rest])
        before = name
    counts = ", ".join(f"{words[word]} {word}" for word in WORDS if words[word])
    said = f"{markdown_table(COLUMNS, lines)}\n\nOf {sum(words.values())} hypotheses: {counts or 'none'}."
    if again := [row for row in rows if row[1] != CLAIM and row[5]]:
        said += (
            f" {len(again)} of them {'was' if len(again) == 1 else 'were'} asked again of other seeds{_became(again)}."
        )
    lost = _among(Counter(_word(row[4]) for row in rows if row[4].endswith(LOST)), words)
    of_others = sum(row[5].endswith(LOST) for row in again)
    if both := [lost] * bool(lost) + [f"{of_others} of those of other seeds"] * bool(of_others):
        said += f" Corrected for the others of their page, {', and '.join(both)} would be open."
    marked = Counter(word for word in WORDS for row in rows if row[4].startswith(f"{word} {EDGE}"))
    among = _among(marked, words)
    return f"{said} {AT_AN_EDGE} It stands behind {among}." if among else said


def _among(some: Counter[str], words: Counter[str]) -> str:
    """How many verdicts of each word are among some, in words."""
    return ", ".join(f"{some[word]} of the {words[word]} {word}" for word in WORDS if some[word])


def _became(rows: Sequence[Sequence[str]]) -> str:
    """What the verdicts of the first seeds became with others, in words."""
    counted = Counter((_word(row[4]), _word(row[5].rpartition(", ")[2])) for row in rows)
    told = list[str]()
    for first in WORDS:
        of = {word: counted[first, word] for word in (first, *WORDS) if counted[first, word]}
        each = ", ".join(f"{number} {word}{' again' * (word == first)}" for word, number in of.items())
        told += [f"of {sum(of.values())} {first}, {each}"] if of else []
    return f": {'; '.join(told)}"


def _word(verdict: str) -> str:
    return next(word for word in WORDS if verdict.startswith(word))


def not_repeated(experiments: Iterable[Experiment]) -> str:
    """Which experiments have no repetition with other seeds yet, and how long their reported runs took, in words.

    Args:
        experiments: those without a run of every arm that has ended are left out.
    """
    named = []
    for each in experiments:
        with suppress(NoRunsYet):
            arms_of(each)
            if replication(each) is None:
                runs = reported_runs(each)
                hours = runs["seconds"].sum(skipna=False) / 3600 if "seconds" in runs else math.nan
                named.append(f"{each.folder.name} ({'hours unknown' if math.isnan(hours) else f'{hours:.1f} h'})")
    told = "Without a repetition of their own, with the hours that their reported runs took: "
    return f"{told}{', '.join(named)}." if named else "All have a repetition with other seeds."


def _compared(experiment: Experiment) -> Compared:
    """Every hypothesis, with the arms by the measure that it is about."""
    by = {each: arms_of(experiment, each) for each in {one.measure for one in experiment.hypotheses}}
    return [(each, by[each.measure]) for each in experiment.hypotheses]


def _verdicts(experiment: Experiment, about: Compared) -> list[Verdict]:
    first = [] if experiment.multiplier is None else [multiplier_verdict(experiment)]
    return [*first, *(_verdict(experiment, *each) for each in about)]


class _Again(NamedTuple):
    """As `_corrections`, of a repetition, and what became of the claim there; empty without one."""

    verdicts: list[tuple[Verdict, bool]]
    claim: str


def _again(experiment: Experiment) -> _Again:
    """What the repetition with other seeds says; nothing without one, and of one itself."""
    repeated = replication(experiment) if experiment.has_own_table else None
    if repeated is None:
        return _Again([], "")
    about = _compared(repeated)
    return _Again(_corrections(repeated, about), _made(repeated, about))


def _made(experiment: Experiment, about: Compared) -> str:
    """Whether the claim can be made, in a word or two; empty without one."""
    if experiment.claim is None:
        return ""
    against = _against(experiment, experiment.claim, about)
    return NO_VERDICT if against is None else "not made" if against else "made"


def _corrections(experiment: Experiment, about: Compared) -> list[tuple[Verdict, bool]]:
    """Every verdict, and whether it would be open if it were corrected for the others of its family."""
    verdicts = _verdicts(experiment, about)
    lost = [name for family in _families(experiment, about, verdicts) for name in family.lost]
    return [(each, each.name in lost) for each in verdicts]


def _brief(verdict: Verdict, lost: bool) -> str:
    """The verdict in a word, with what qualifies it."""
    return verdict.word + f" {EDGE}" * verdict.at_an_edge + LOST * lost


def _claim_line(experiment: Experiment, claim: Claim, about: Compared) -> str:
    """Whether the claim can be made, and what stands against it."""
    needs = f"{' and '.join(claim.needs)} {'are' if len(claim.needs) > 1 else 'is'} supported"
    if claim.same:
        are, interval = ("is", "an interval that ends") if len(claim.same) == 1 else ("are", "intervals that end")
        most = " and ".join(dict.fromkeys(f"{most:+g}" for most in claim.same.values()))
        needs += f", and that {' and '.join(claim.same)} {are} not refuted, with {interval} below {most}"
    head = f"**The claim** that {claim.says} needs that {needs}"
    against = _against(experiment, claim, about)
    if against is None:
        return f"{head}: no verdict before all {about[0][1].planned} seeds are there."
    return f"{head}: **not made** ({'; '.join(against)})." if against else f"{head}: **made**."


def _against(experiment: Experiment, claim: Claim, about: Compared) -> list[str] | None:
    """What stands against the claim; None before all planned seeds are there."""
    against, by = [], {each.name: (each, found) for each, found in about}
    for name in (*claim.needs, *claim.same):
        hypothesis, found = by[name]
        if len(found.seeds) < max(2, found.planned):
            return None
        _, low, high = found.between(hypothesis.arms, hypothesis.baselines, _level(experiment, hypothesis))
        side = _concluded(experiment, hypothesis, low, high)
        if without_width(low, high):
            against.append(f"{name} has no interval")
            continue
        if name in claim.needs and side < 1:
            against.append(f"{name} is {'refuted' if side < 0 else 'open'}")
        if name in claim.same and high >= claim.same[name]:
            against.append(f"the interval of {name} ends at {high:+.3f}")
        if name in claim.same and high < 0:
            found_so = "is refuted" if side < 0 else "lies below zero"
            against.append(f"{name} {found_so}, so {' and '.join(claim.needs)} may only say what was learnt")
    return against


class _Family(NamedTuple):
    """Hypotheses that are one family of tests, and what becomes of verdicts when they are corrected for that.

    tests: how many. stays: of those that are supported or refuted, whether they would be. what: what the tests are, in
    words.
    """

    tests: int
    stays: dict[str, bool]
    what: str

    @property
    def lost(self) -> list[str]:
        """Those that would be open."""
        return [name for name, stays in self.stays.items() if not stays]

    @property
    def line(self) -> str:
        """What the correction would change, in Markdown."""
        kept = [name for name, stays in self.stays.items() if stays]
        said = [f"{' and '.join(kept)} would come out as above"] if kept else []
        said += [f"{' and '.join(self.lost)} would be open"] if self.lost else []
        level = f"intervals of {family_level(self.tests):.1%}"
        return f"Corrected for being {self.what} (Bonferroni: {level}), {'; '.join(said)}."


def _families(experiment: Experiment, about: Compared, verdicts: Iterable[Verdict]) -> list[_Family]:
    """The hypotheses besides the claim, with that on a multiplier; and those that the claim names, if it is not made.

    A claim that is made asks for all of its hypotheses together, which needs no correction.
    """
    claim = experiment.claim
    named = () if claim is None else (*claim.needs, *claim.same)
    besides = [each for each in about if each[0].name not in named]
    tests = len(besides) + (experiment.multiplier is not None)
    stays = _multiplier_stays(experiment, tests, verdicts) | _stay(experiment, besides, tests)
    found = [_Family(tests, stays, f"{tests} tests")]
    if claim is not None and _against(experiment, claim, about):
        own = [each for each in about if each[0].name in named]
        stays, what = _stay(experiment, own, len(own)), f"{len(own)} tests of a claim that is not made"
        found.append(_Family(len(own), stays, what))
    return [each for each in found if each.tests > 1]


def _multiplier_stays(experiment: Experiment, tests: int, verdicts: Iterable[Verdict]) -> dict[str, bool]:
    """As `_stay`, of the hypothesis on a multiplier."""
    concluded = [each.name for each in verdicts if each.word in (SUPPORTED, REFUTED)]
    if experiment.multiplier is None or experiment.multiplier.name not in concluded:
        return {}
    corrected = multiplier_verdict(experiment, family_level(tests))
    return {experiment.multiplier.name: corrected.word in (SUPPORTED, REFUTED)}


def _stay(experiment: Experiment, about: Compared, tests: int) -> dict[str, bool]:
    """Which verdicts stay when corrected for so many tests: of hypotheses that have all their seeds and are not open.

    None where all go by intervals as wide as a correction's.
    """
    found = dict[str, bool]()
    if all(_level(experiment, each) >= family_level(tests) for each, _ in about):
        return found
    for each, compared in about:
        level = _level(experiment, each)
        if len(compared.seeds) < max(2, compared.planned):
            continue
        if _concluded(experiment, each, *compared.between(each.arms, each.baselines, level)[1:]):
            ends = compared.between(each.arms, each.baselines, max(level, family_level(tests)))[1:]
            found[each.name] = bool(side_of_zero(*ends))
    return found


def family_level(tests: int) -> float:
    """Of an interval when that many hypotheses are one family (Bonferroni)."""
    return 1 - error_of(tests)


def level_of_family(experiment: Experiment) -> float:
    """Of an interval when all hypotheses are one family; of other seeds, that of the file where it is higher."""
    level = family_level(len(experiment.hypotheses))
    return level if experiment.has_own_table else max(level, *(each.again for each in experiment.hypotheses))


def side_of_zero(low: float, high: float) -> int:
    """On which side of zero an interval lies: 1 above, -1 below, 0 where it includes zero, has no width, or is none."""
    return 0 if without_width(low, high) else (low > 0) - (high < 0)


def _concluded(experiment: Experiment, hypothesis: Hypothesis, low: float, high: float) -> int:
    """As `side_of_zero`, and 0 where the arm that this goes against is at an edge, unless that is only marked."""
    side = side_of_zero(low, high)
    return 0 if not experiment.edge_marks and experiment.worse_at_an_edge(hypothesis, side) else side


def _level(experiment: Experiment, hypothesis: Hypothesis) -> float:
    """Of the interval that a verdict goes by, which may be another with other seeds."""
    return LEVEL if experiment.has_own_table else hypothesis.again


def _verdict(experiment: Experiment, hypothesis: Hypothesis, found: ArmComparison) -> Verdict:
    """The difference that a hypothesis is about, and whether the interval supports it."""
    level = _level(experiment, hypothesis)
    mean, low, high = found.between(hypothesis.arms, hypothesis.baselines)
    decides, said = (low, high), interval_text(mean, low, high, sign="+")
    if level != LEVEL and not (math.isnan(low) or without_width(low, high)):
        decides = found.between(hypothesis.arms, hypothesis.baselines, level)[1:]
        said += f",{at_level(level)} {brackets(*decides, sign='+')}"
    side = side_of_zero(*decides)
    edge = experiment.worse_at_an_edge(hypothesis, side)
    other = "the difference has the other sign"
    word, says = verdict_words(side, refuted=other, at_an_edge=edge, marks=experiment.edge_marks, level=level)
    why_none = ""
    if len(found.seeds) < found.planned:
        why_none = f"interim, {len(found.seeds)} of {found.planned} seeds"
    elif math.isnan(low):
        why_none = "one seed"
    elif without_width(low, high) and abs(mean) > 1e-12:
        why_none = "the same in all seeds, so that there is no interval"
    few = one_by_one(found.by_seed(hypothesis.arms, hypothesis.baselines).tolist(), form="+.3f")
    return Verdict(
        name=hypothesis.name,
        of=hypothesis.difference,
        above="zero",
        where=found.meaning,
        found=said,
        over=f"{len(found.seeds)} seed{'s' * (len(found.seeds) != 1)}{few}",
        says=f"{why_none}: {NO_VERDICT}" if why_none else says,
        word=NO_VERDICT if why_none else word,
        at_an_edge=bool(edge) and not why_none,
    )
