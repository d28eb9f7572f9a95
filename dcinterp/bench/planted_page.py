"""The page of `dcinterp planted bench`: its numbers as tables, and in words what fails where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dcinterp.bench.planted import ABOUT, BOUNDS, ENOUGH, NUMBERS, Mean, summarise
from dcinterp.support.text import markdown_table

HEAD = """# Which methods find circuits that are known

    dcinterp planted bench {file} --seeds {seeds} --prompts {prompts} --page {page}

measures and writes this page: {methods} ways of scoring edges, on {settings} settings ({models} models or prompt
sets). Two kinds of truth are in it.

**Planted** models are set by hand ([planted circuits](analyses/planted.md)), so every edge that matters is known. With
`background=0.05` the same circuit has real norms and stands among random weights, of a twentieth of the size that the
activations of the shipped model have. **Trained** models have learnt, by interchange interventions, to answer by a
stated circuit and by nothing else ([fixtures](fixtures.md)). Nothing in them was set by hand, so that what favours
linear methods in planted weights is not there.

An edge here is one of composition: the attention (or, before the softmax, the scores) of one head, used by another or
by itself, through one branch. The numbers of a setting are means over its models, and where there are several (of a
trained circuit, which is one model: several sets of prompts) with their 95 % interval, if it is wider than 0.005.
Where all have the highest number, 1.00, the interval is that of as many answers that are all right, from 0.29 with
three; where all have another number in common, nothing says how far others are from it, and no interval stands there.
Means over all settings have intervals over settings.

| method | what it is |
| --- | --- |
{about}

A score is the mean over half of the prompts, by size; a score below a hundredth of the largest counts as zero.

"""

WHY = """A true edge of a planted model is one whose removal changes the answer (`backup`: the removal of both routes),
in the model without a background. With one, the same edges are called true: random weights then take part in the
answer as well, so that the removal of some true edges changes little, and that of some others something. {wrong}
Exact patching, gates, EAP and EAP-IG ask something else: what changes with the value on a counterfactual prompt. Where
the two questions have different answers they are marked down here, and that is no mistake of theirs. Gates + RelP, the
default of `circuit`, asks both: behind the edges that differ come those that are needed though both prompts share them.

"""
RIGHT = 0.9
"""Of the prompts of a model; of one that answers fewer the labels say less."""
COSTS = ("seconds", "forward", "backward")
QUANTITIES = {
    "auroc": "AUROC: the chance that a true edge scores above another one; ties count half",
    "top5": "Top-5 precision: true edges among the five highest (or among as many as are true, where these are fewer)",
    "cmd": "CMD: the area between f and 1, over the edges of composition; 0 is best",
    "cpr": "CPR: the area under f; 1 is a circuit that does what the model does at every size",
    "rank": "Rank correlation with the measured effect of patching each edge alone, at its full precision: scores that "
    "count as zero share a rank, so that of exact patching itself is below 1",
}


def page_of(
    rows: Sequence[dict[str, Any]], file: str = "docs/planted-bench.jsonl", page: str = "docs/planted-bench.md"
) -> str:
    """The whole page, in Markdown."""
    found = summarise(rows)
    methods = list(dict.fromkeys(method for by in found.values() for method in by))
    about = "\n".join(f"| {method} | {ABOUT[method]} |" for method in methods)
    text = HEAD.format(
        file=file,
        page=page,
        seeds=1 + max(row["seed"] for row in rows),
        prompts=rows[0]["prompts"],
        methods=len(methods),
        settings=len(found),
        models=len(rows),
        about=about,
    )
    text += (
        "## What fails where\n\n"
        + WHY.format(wrong=often_wrong(rows))
        + "\n".join(f"- {line}" for line in findings(found))
        + "\n\n"
    )
    text += "## All settings together\n\n" + overall(found) + "\n"
    for number, title in QUANTITIES.items():
        text += f"\n## {title.split(':')[0]}\n\n{title}.\n\n{by_setting(rows, found, number)}\n"
    return text


def often_wrong(rows: Sequence[dict[str, Any]]) -> str:
    """The models that answer fewer of their prompts than `RIGHT`, in words."""
    few = [f"{row['setting']}, seed {row['seed']} ({row['right']:.0%})" for row in rows if row["right"] < RIGHT]
    fewer = f"fewer than {RIGHT:.0%} of their prompts are answered right"
    if not few:
        return f"Of no model {fewer}."
    return f"Of {len(few)} of {len(rows)} models {fewer}: {', '.join(few)}."


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """AUROC by setting and method, and all numbers by method."""
    found = summarise(rows)
    return f"{by_setting(rows, found, 'auroc')}\n\n{overall(found)}"


def by_setting(
    rows: Sequence[dict[str, Any]], found: Mapping[str, Mapping[str, Mapping[str, Mean]]], number: str
) -> str:
    """One number of a summary of these rows, as a table of settings and methods."""
    methods = list(dict.fromkeys(method for by in found.values() for method in by))
    lines = []
    for setting, by in found.items():
        right = fmean(row["right"] for row in rows if row["setting"] == setting)
        cells = [str(by[method][number]) if method in by else "" for method in methods]
        lines.append([setting, f"{right:.0%}", *cells])
    return markdown_table(["circuit", "right", *methods], lines)


def overall(found: Mapping[str, Mapping[str, Mapping[str, Mean]]]) -> str:
    """Every number of every method, means over settings with intervals; the cost is of a prompt."""
    methods = list(dict.fromkeys(method for by in found.values() for method in by))
    lines = []
    for method in methods:
        some = [by[method] for by in found.values() if method in by]
        means = {number: Mean.of([each[number].value for each in some], BOUNDS.get(number)) for number in NUMBERS}
        cells = [f"{mean.value:.2f}" if number in COSTS else str(mean) for number, mean in means.items()]
        below = sum(each["auroc"].value < ENOUGH for each in some)
        lines.append([method, *cells, f"{below} of {len(some)}"])
    return markdown_table(["method", *NUMBERS, f"settings with AUROC below {ENOUGH}"], lines)


def findings(found: Mapping[str, Mapping[str, Mapping[str, Mean]]]) -> list[str]:
    """In words: for every method, the settings on which it is below the mark; and settings that nothing finds."""
    lines = []
    methods = list(dict.fromkeys(method for by in found.values() for method in by))
    for method in methods:
        if method == "random":
            continue
        low = {s: by[method]["auroc"].value for s, by in found.items() if method in by}
        low = {setting: value for setting, value in low.items() if value < ENOUGH}
        of = len([by for by in found.values() if method in by])
        if not low:
            lines.append(f"**{method}** has an AUROC of at least {ENOUGH} on all {of} settings.")
            continue
        worst = sorted(low.items(), key=lambda each: each[1])
        named = ", ".join(f"{setting} ({value:.2f})" for setting, value in worst)
        lines.append(f"**{method}** is below {ENOUGH} on {len(low)} of {of} settings: {named}.")

    def able(by: Mapping[str, Mapping[str, Mean]]) -> list[str]:
        return [method for method, numbers in by.items() if numbers["auroc"].value >= ENOUGH]

    none = [setting for setting, by in found.items() if not able(by)]
    if none:
        lines.append(f"No method reaches {ENOUGH} on {', '.join(none)}.")
    return lines
