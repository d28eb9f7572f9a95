"""The page of an experiment: its numbers as tables, and which of its hypotheses hold."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from scipy.special import betaincinv

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.analysis.training.edge_starts import CURVES
from dcinterp.evidence.compute_section import TITLE as COMPUTE_TITLE
from dcinterp.evidence.compute_section import compute_section
from dcinterp.evidence.intervals import difference_text, interval_text
from dcinterp.evidence.made_with import made_with_line
from dcinterp.evidence.verdict_words import LEVEL
from dcinterp.evidence.verdicts import comparison, comparisons, replication, verdict_lines
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import (
    DIVERGED,
    ENDED,
    FINAL,
    PROTOCOL,
    REPLICATION,
    TUNING,
    Experiment,
    read_table,
    value_text,
    values_text,
)
from dcinterp.train.control.seeds import seeds_text

MEASUREMENTS = (
    "by_combination",
    "by_image",
    "circuits",
    "curves",
    "diversity",
    "first_asked",
    "learning",
    "mechanism",
    "routes",
)
"""Names of tables that scripts with the option `--table` make of trained models."""

MORE = "more*.md"
"""Files beside the table with what other commands of the experiment printed; the page ends with them."""

MORE_AGAIN = ", with other seeds\n\nAsked again, when what the first seeds say was known.\n"
MORE_FIRST = (
    ", with other seeds\n\n"
    "Asked of these seeds alone, when what the first ones say was known; of those it was not asked.\n"
)
"""What such a text of a repetition has in its heading and below it: where the first seeds have one as well, or not."""

HEAD = """# {title}

{about}{protocol}This page is made from the table of the runs, by

    dcinterp experiment run {folder}
    dcinterp experiment page {folder}

{planned}To see whether the differences come again, give other seeds, and a table of their own{again}:

    dcinterp experiment run {folder} --seeds {others} --table again.csv
    dcinterp experiment show {folder} --table again.csv

{apart}{beside}{measured}"""

ASKED = "`{folder}/protocol.md` says what is asked, of which models, and how"
CHANGES = """; what was changed after the first run is listed at
its end, with what was known then"""
PLANNED = "Planned is a repetition with seeds {seeds}{ended}, "
BY_PROTOCOL = "by the commands of `{folder}/protocol.md`.\n\n"
BY_COMMAND = """by

    dcinterp experiment run {folder} --seeds {seeds}{keep} --table {folder}/{table}

"""
BESIDE = """The multiplier needs the sizes of {names} with the same seeds, too, in a table of the same name in that
experiment's folder; the name of the table above is then to be one in this experiment's folder.

"""
APART = """The mean of an arm minus that of another, with its interval at any level (where no hypothesis asks it, it
describes: of many such intervals some miss, and it does not say whether an arm was at an edge of the search):

    dcinterp experiment show {folder} --arm {arm} --baseline {baseline} --level 0.99

"""
MEASURED = """What is measured of the trained models, further down, by scripts that make {names}, takes
`--table again.csv` as well, behind its command.

"""
SEARCHED = """ (the search runs once more, on what
the file names as its seeds; with `--keep-search` what it chose is taken)"""
SEARCH_KEYS = {
    "data.puzzle.options.first": "other pairs are left out there, and those reported as never seen are trained",
}
"""What a key of the search's own config does, in words."""
HOW = (
    "A difference is taken seed by seed, between runs that draw the same data in the same order (an arm with more "
    "steps goes on to more) and start from weights of their own; brackets are 95 % intervals over seeds, of each "
    "difference by itself. Where the values of seeds are skewed, an interval reaches further on that side; with few "
    "seeds that end is hardly known. "
)
SHARES = (
    "The mean of an accuracy has none: where runs either learn a thing or do not, a few of them say too little about "
    "the rarer of the two. The interval of a difference is to be read with that in mind: where few seeds fail, or few "
    "learn, it may cover less than it says, so look at the points too. How many seeds reach {at:.0%} has one (Clopper "
    "and Pearson). "
)
AGAIN = """
## With other seeds

The same arms{search}, with other seeds. These runs change no verdict above; they have verdicts
of their own.{levels}

    dcinterp experiment run {folder} --seeds {seeds}{keep} --table {folder}/{table}

{lines}

{arms}
"""
LEVELS = """ Where a second interval stands, its level is said, and the verdict goes
by it, as the protocol asks."""
EDGES = """
## Over training

![The loss, and the effects of the edges that matter most at the end, at every checkpoint]({picture})

One model, that of seed {seed}, and the six edges that matter most at its end, by means over all documents; a diamond
stands where the loss and the main edge start. The page *Experiments* of the app draws every seed and scrubs through
training.
"""
SIZES = "Parameters are all but the embeddings of the input; FLOPs are those of training, by formula, not time."


def page_of(experiment: Experiment, picture: str) -> str:
    """The whole page, in Markdown; `picture` is the name of the figure's file beside it."""
    found = comparisons(experiment)
    primary, beside = found[0], experiment.multiplier.beside if experiment.multiplier else ()
    text = HEAD.format(
        title=experiment.title,
        about="".join(f"{each}\n\n" for each in experiment.about),
        protocol=_protocol(experiment),
        planned=_planned(experiment),
        folder=experiment.folder_text,
        others=experiment.fresh_seeds(),
        apart=_apart(experiment),
        again=SEARCHED if experiment.tuning_keys else "",
        beside=BESIDE.format(names=" and ".join(f"`{each.name}`" for each in beside)) if beside else "",
        measured=_measured(experiment),
    )
    text += _section("Hypotheses", verdict_lines(experiment))
    text += _section("What the numbers do not say", [*experiment.limits, *search_notes(experiment)])
    text += f"## {_capital(primary.meaning)}\n\n![A point for every seed, and the mean of each arm]({picture})\n\n"
    which = f"Seed{'s' * (len(primary.seeds) != 1)} {_ranges(primary.seeds)}"
    text += f"{which}. {HOW}{SHARES.format(at=experiment.solved_at) if primary.share else ''}"
    text += f"{SIZES}\n\n{table_of(primary, experiment.solved_at)}\n{_paragraph(made_with_line(experiment))}"
    text += compute_section(experiment, compute_picture(picture))
    for each in found[1:]:
        text += f"\n## {_capital(each.meaning)}\n\n{table_of(each, experiment.solved_at)}\n"
    text += _among_solved(experiment, primary)
    searched = search_tables(experiment)
    text += _with_other_seeds(experiment) + (f"\n## The search\n\n{searched}" if searched else "")
    text += "".join(f"\n{each}" for each in more_of(experiment))
    return text + (
        EDGES.format(picture=edges_picture(picture), seed=experiment.seeds[0]) if has_edges(experiment) else ""
    )


def more_of(experiment: Experiment) -> list[str]:
    """What other commands of the experiment printed, in Markdown: more.md first, then the others by name.

    After these, what they printed of the repetition with other seeds, which its heading says.
    """
    own, again = (_texts(place) for place in (experiment.folder, experiment.replication_folder))
    # What the page itself has of the first seeds, above.
    there = [*own, *(name for name, text in again.items() if text.startswith(COMPUTE_TITLE))]
    said = ((text, MORE_AGAIN if name in there else MORE_FIRST) for name, text in again.items())
    return [*own.values(), *(text.replace("\n", words, 1) for text, words in said)]


def _protocol(experiment: Experiment) -> str:
    """What its protocol holds, where there is one."""
    file = experiment.folder / PROTOCOL
    if not file.is_file():
        return ""
    changes = CHANGES * ("\n## Changes" in file.read_text(encoding="utf-8", errors="replace"))
    return f"{ASKED.format(folder=experiment.folder_text)}{changes}. "


def _planned(experiment: Experiment) -> str:
    """How the repetition is made that the file plans, until all of its runs have ended."""
    if not experiment.again_seeds or not experiment.has_own_table:
        return ""
    rows = read_table(replace(experiment, table=experiment.folder / REPLICATION))
    count, ended = len(experiment.again_seeds) * len(experiment.arms), 0
    if len(rows):
        planned = rows["recipe.seed"].isin(experiment.again_seeds) & rows["arm"].isin(experiment.arms)
        ended = int((planned & (rows["stage"] == FINAL) & rows["status"].isin(ENDED)).sum())
    if ended >= count:
        return ""
    told = PLANNED + (BY_PROTOCOL if (experiment.folder / PROTOCOL).is_file() else BY_COMMAND)
    return told.format(
        folder=experiment.folder_text,
        seeds=seeds_text(experiment.again_seeds),
        ended=f" ({ended} of its {count} runs have ended)" * bool(ended),
        keep=" --keep-search" * bool(experiment.tuning_keys),
        table=REPLICATION,
    )


def _apart(experiment: Experiment) -> str:
    """The command for any difference between arms; empty where there is one arm."""
    baseline, *others = map(shlex.quote, experiment.arms)
    return APART.format(folder=experiment.folder_text, arm=others[0], baseline=baseline) if others else ""


def _measured(experiment: Experiment) -> str:
    """That other seeds can be measured as well, where there are tables of such measurements, also of a repetition."""
    found = {file.name for file in experiment.folder.rglob("*.csv") if file.stem in MEASUREMENTS}
    return MEASURED.format(names=" and ".join(f"`{name}`" for name in sorted(found))) if found else ""


def _texts(folder: Path) -> dict[str, str]:
    """{name: text}, more.md first."""
    files = sorted(folder.glob(MORE), key=lambda file: file.stem)
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def compute_picture(picture: str) -> str:
    """The name of the second figure, of compute."""
    return picture.replace(".svg", "-compute.svg")


def has_edges(experiment: Experiment) -> bool:
    """Whether effects of edges were measured over training."""
    return (experiment.folder / CURVES).is_file()


def edges_picture(picture: str) -> str:
    """The name of the figure of edges over training."""
    return picture.replace(".svg", "-edges.svg")


def search_notes(experiment: Experiment) -> list[str]:
    """What is weak about the search for the best values, where it was."""
    if not experiment.tuning_keys:
        return []
    tried = "; ".join(
        f"{key.split('.')[-1]} {', '.join(map(value_text, vs))}" for key, vs in experiment.tuning_keys.items()
    )
    seeds = len(experiment.tuning_seeds)
    which = "every arm" if not experiment.tuned_as else "every arm with a search of its own"
    notes = [f"The search tried {tried} for {which}, with {seeds} seed{'s' * (seeds > 1)} of its own."]
    if experiment.tuning_config:
        keys = ", ".join(f"`{key}` = {value}" for key, value in experiment.tuning_config.items())
        means = "".join(f": {SEARCH_KEYS[key]}" for key in experiment.tuning_config if key in SEARCH_KEYS)
        notes.append(f"Runs of the search differ from those reported in {keys}, besides their seeds{means}.")
    if experiment.tuned_as:
        taken = (f"{arm} as {other}" for arm, other in experiment.tuned_as.items())
        notes.append(f"Without a search of their own, with the values of another arm: {', '.join(taken)}.")
    if edge := experiment.chosen_at_an_edge(read_table(experiment)):
        notes.append(f"At an edge of what was tried, so that a value beyond may suit better: {', '.join(edge)}.")
    return notes


def search_tables(experiment: Experiment) -> str:
    """What the search saw of every arm at every value: the measure that decides, and the primary one if it has it."""
    if not experiment.tuning_keys:
        return ""
    table, values = read_table(experiment), experiment.searched()
    chosen, runs = experiment.choose(table), table.set_index("name")
    diverged = set(runs.index[runs["status"] == DIVERGED])
    ended = [run.name for run in experiment.tuning_runs() if run.name not in diverged]
    head = ["arm", *map(values_text, values)]
    seeds = experiment.tuning_seeds
    whose = "Means over the search's own seeds" if len(seeds) > 1 else "By the search's own seed"
    text = f"{whose} ({_ranges(seeds)}); bold is what it chose. With so few seeds no intervals are given.\n"
    for measure in dict.fromkeys((experiment.tuned_by, next(iter(experiment.measures)))):
        if measure not in runs or runs.loc[ended, measure].isna().any():
            continue
        rows, tied = [], False
        for arm in experiment.searched_arms:
            names = [
                [experiment.run(TUNING, arm, one, seed).name for seed in experiment.tuning_seeds] for one in values
            ]
            # Three decimals of a loss near zero would hide what decided.
            means = [float(runs.loc[each, measure].mean()) for each in names]
            cells = [f"{mean:.1e}" if 0 < mean < 0.005 and measure == "loss" else f"{mean:.3f}" for mean in means]
            if measure == experiment.tuned_by != "loss":
                sums = [math.fsum(runs.loc[each, measure]) for each in names if diverged.isdisjoint(each)]
                tied |= sums.count(max(sums) if experiment.highest_is_best else min(sums)) > 1
            cells = [c if diverged.isdisjoint(each) else DIVERGED for c, each in zip(cells, names, strict=True)]
            rows.append([arm, *(f"**{c}**" if one == chosen[arm] else c for c, one in zip(cells, values, strict=True))])
        decides = ", by which it chose" if measure == experiment.tuned_by else ""
        decides += "; where it ties, the lower loss in training decides" * (bool(decides) and tied)
        meaning = experiment.measures.get(measure, "loss in training, at its end" if measure == "loss" else measure)
        text += f"\n{_capital(meaning)}{decides}:\n\n{markdown_table(head, rows)}\n"
    return text


def table_of(found: ArmComparison, solved_at: float) -> str:
    """A row for every arm: size, compute, what the search chose, mean, difference, and how many seeds solved it."""
    head = ["arm", "parameters", "FLOPs", "tuned", "mean", f"minus {found.baseline}"]
    head += [f"seeds at {solved_at:.0%} or more"] if found.share else []
    rows = []
    for at, arm in enumerate(found.arms):
        row = [arm, _number(found.parameters[at], ",.0f"), _number(found.flops[at], ".3g"), found.tuned[at]]
        row += [interval_text(found.mean[at], found.low[at], found.high[at])]
        row += ["" if arm == found.baseline else difference_text(found, arm)]
        rows.append(row + ([_count(found.values[at] >= solved_at)] if found.share else []))
    return markdown_table(head, rows)


def _with_other_seeds(experiment: Experiment) -> str:
    """What a repetition says of each hypothesis; empty where there is none."""
    if (again := replication(experiment)) is None:
        return ""
    found, searched = comparisons(again), bool(experiment.tuning_keys)
    asked = {found[0].measure, again.solved_by, *(each.measure for each in again.hypotheses)}
    text = AGAIN.format(
        search=", at what the search chose" * searched,
        folder=experiment.folder_text,
        seeds=seeds_text(found[0].seeds),
        keep=" --keep-search" * searched,
        levels=LEVELS * any(each.again != LEVEL for each in experiment.hypotheses),
        table=REPLICATION,
        lines="\n".join(f"- {each}" for each in verdict_lines(again)),
        arms="\n\n".join(
            f"{_capital(each.meaning)}:\n\n{table_of(each, again.solved_at)}" for each in found if each.measure in asked
        ),
    )
    made = _paragraph(made_with_line(again, first=experiment))
    return text + made + _among_solved(again, found[0], "###")


def _among_solved(experiment: Experiment, primary: ArmComparison, heading: str = "##") -> str:
    """The primary measure among the runs that solved what training asks; empty where the file names no such measure."""
    if not experiment.solved_by:
        return ""
    by = comparison(experiment, experiment.solved_by)
    both = [seed for seed in primary.seeds if seed in by.seeds]
    of, solved = ([each.seeds.index(seed) for seed in both] for each in (primary, by))
    rows = []
    for at, arm in enumerate(primary.arms):
        values = primary.values[at][of][by.values[at][solved] >= experiment.solved_at]
        rows.append([arm, str(len(values)), f"{float(values.mean()):.3f}" if len(values) else "none"])
    title = f"Among the runs with {experiment.solved_at:.0%} or more ({by.meaning})"
    table = markdown_table(["arm", "runs", f"mean of {primary.meaning}"], rows)
    return f"\n{heading} {title}\n\nSelected by their outcome, so no difference is taken.\n\n{table}\n"


def _count(reached: torch.Tensor) -> str:
    """k of n, with the interval of Clopper and Pearson."""
    k, n = int(reached.sum()), len(reached)
    low = float(betaincinv(k, n - k + 1, 0.025)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 0.975)) if k < n else 1.0
    return f"{k} of {n} [{low:.0%}, {high:.0%}]"


def _number(value: object, form: str) -> str:
    number = float(value)  # type: ignore[arg-type]
    return "not known" if math.isnan(number) else f"{number:{form}}"


def _section(title: str, sentences: Sequence[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {each}" for each in sentences) + "\n\n" if sentences else ""


def _paragraph(text: str) -> str:
    return f"\n{text}\n" if text else ""


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
