"""The page of an experiment: its numbers as tables, a figure, and which of its hypotheses hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcinterp.analysis.training.compare_arms import ArmComparison, compare_arms
from dcinterp.train.control.experiment import Experiment, Hypothesis

REACHED = 0.95
"""An accuracy that counts as solved."""

HEAD = """# {title}

This page is made from the table of its runs; nothing on it is written by hand.
`{folder}/protocol.md` says what is asked, of which models, and how; it was
committed before the first run that counts. These commands make the table, and this page:

    dcinterp experiment run {folder}
    dcinterp experiment page {folder}

To see whether the numbers come again, give other seeds, and a table of their own:

    dcinterp experiment run {folder} --seeds {others} --table again.csv
    dcinterp experiment show {folder} --table again.csv

"""


def comparisons(experiment: Experiment) -> list[ArmComparison]:
    """The arms by every measure of the experiment, the primary one first."""
    return [_compared(experiment, measure) for measure in experiment.measures]


def _compared(experiment: Experiment, measure: str | None, baseline: str | None = None) -> ArmComparison:
    return compare_arms(str(experiment.folder), measure=measure, baseline=baseline, table=str(experiment.table))


def page_of(experiment: Experiment, picture: str) -> str:
    """The whole page, in Markdown; `picture` is the name of the figure's file beside it."""
    found = comparisons(experiment)
    primary, folder = found[0], experiment.folder.as_posix()
    last = max(experiment.seeds)
    text = HEAD.format(
        title=experiment.title,
        folder=folder,
        others=f"{last + 1}-{last + len(experiment.seeds)}",
    )
    if experiment.hypotheses:
        text += (
            "## Hypotheses\n\n" + "\n".join(f"- {verdict(experiment, each)}" for each in experiment.hypotheses) + "\n\n"
        )
    text += f"## {_capital(primary.meaning)}\n\n![A point for every seed, and the mean of each arm]({picture})\n\n"
    text += _about(primary, experiment) + "\n\n" + table_of(primary) + "\n"
    for each in found[1:]:
        text += f"\n## {_capital(each.meaning)}\n\n{table_of(each)}\n"
    return text


def verdict(experiment: Experiment, hypothesis: Hypothesis) -> str:
    """A hypothesis, the difference that it is about, and whether the interval supports it."""
    found = _compared(experiment, hypothesis.measure or None, hypothesis.baseline)
    if hypothesis.arm not in found.arms:
        return f"**{hypothesis.name}**: no run of {hypothesis.arm} has ended yet."
    at = found.arms.index(hypothesis.arm)
    low, high = float(found.difference_low[at]), float(found.difference_high[at])
    says = "supported" if low > 0 else "refuted: the difference has the other sign" if high < 0 else "open"
    seeds = found.pairs(hypothesis.arm)
    return (
        f"**{hypothesis.name}** ({hypothesis.arm} minus {hypothesis.baseline} is above zero, {found.meaning}): "
        f"{float(found.difference[at]):+.3f} [{low:+.3f}, {high:+.3f}] over {seeds} seeds; **{says}**."
    )


def table_of(found: ArmComparison) -> str:
    """A row for every arm: size, compute, what the search chose, mean, difference, and how many seeds solved it."""
    head = ["arm", "parameters", "FLOPs", "tuned", "mean", f"minus {found.baseline}"]
    head += [f"seeds at {REACHED:.0%} or more"] if found.share else []
    rows = [head, ["---"] * len(head)]
    for at, arm in enumerate(found.arms):
        values = found.values[at][~found.values[at].isnan()]
        row = [arm, f"{float(found.parameters[at]):,.0f}", f"{float(found.flops[at]):.3g}", found.tuned[at]]
        row += [_interval(found.mean[at], found.low[at], found.high[at])]
        apart = _interval(found.difference[at], found.difference_low[at], found.difference_high[at], sign="+")
        row += ["" if arm == found.baseline else apart]
        rows.append(row + ([f"{int((values >= REACHED).sum())} of {len(values)}"] if found.share else []))
    return _lines(rows)


def _about(found: ArmComparison, experiment: Experiment) -> str:
    missing = len(experiment.arms) * len(experiment.seeds) - int(found.values.isfinite().sum())
    lack = f"{missing} of the planned runs are missing. " if missing > 0 else ""
    return (
        f"Seeds {_ranges(found.seeds)}. {lack}Brackets are 95 % "
        "intervals over seeds; a difference is taken seed by seed, between runs that read the same documents. "
        "Parameters leave out embeddings; FLOPs are those of training."
    )


def _interval(value: object, low: object, high: object, sign: str = "") -> str:
    numbers = [float(each) for each in (value, low, high)]  # type: ignore[arg-type]
    if math.isnan(numbers[1]):
        return f"{numbers[0]:{sign}.3f}"
    return f"{numbers[0]:{sign}.3f} [{numbers[1]:{sign}.3f}, {numbers[2]:{sign}.3f}]"


def _ranges(seeds: Sequence[int]) -> str:
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
