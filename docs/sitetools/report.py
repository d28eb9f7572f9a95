"""The report on the two trained models, docs/what-composition-does.md: tables, and the sentences that they support.

    results = measure("dcformer++", "transformer++", rows=2, case_studies=37, folder="results")
    write(path, results)                   # every part between its markers; the text around them stays

A part of the document is what stands between `<!-- report:NAME -->` and `<!-- end -->`. Every sentence about the two
models stands inside one, because other models make other sentences. `stale` says whether the weights are still those of
the document.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from dcinterp.analysis.answers.task_accuracy import TaskAccuracy, task_accuracy
from dcinterp.analysis.case_study.case_study import CaseStudy, case_study
from dcinterp.analysis.case_study.summary import SLIGHT_EFFECT
from dcinterp.analysis.case_study.wording import FOLLOWS, NOTABLE_EFFECT, NOTABLE_SHARE, NOTABLE_WEIGHT, PROMOTED
from dcinterp.analysis.intervention.branch_ablation import ALL, FEW, INTACT, WHOLE, BranchAblation, branch_ablation
from dcinterp.analysis.weights.compare_head_diversity import HeadDiversityComparison, compare_head_diversity
from dcinterp.analysis.weights.head_diversity import components_for
from dcinterp.analysis.weights.ov_transformations import OVTransformations, ov_transformations
from dcinterp.checkpoints.fingerprint import fingerprint
from dcinterp.checkpoints.load import load
from dcinterp.mechanism.ablation_kinds import ABLATIONS
from dcinterp.results.result import RECORD, Result, load_result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, console, silent

PAGE = Path(__file__).parents[1] / "what-composition-does.md"

SHARE = f"{100 * NOTABLE_SHARE:.0f} % or more"
TENTH = f"{100 * NOTABLE_EFFECT:.0f} % of the logit difference or more"
REDUCES = f"reduces the logit difference by {100 * NOTABLE_EFFECT:.0f} % or more"
MEAN = "replaced by its mean"
CASE_STUDIES = 37
"""One for each pair of partner tasks, which share their facts."""
CASE_STUDY_STEPS = {
    "head": f"one head has a direct effect of {TENTH}, and a positive score by integrated gradients",
    "transformation": f"its OV circuit has the answer among its first {PROMOTED} tokens when it reads the source alone",
    "source": f"composition raises its attention to the source by {SHARE}; having this {MEAN} {REDUCES}; "
    f"and what the head writes loses {100 * FOLLOWS:.0f} % or more of its effect if the source is another word",
    "sharing": f"one other head shares {SHARE} of that attention with it; having this alone {MEAN} {REDUCES}",
    "attention": "the head attends most to another token after composition than before",
    "gate": f"gates take {SHARE} of the attention from a head that would copy the source word, it attends {SHARE} less "
    f"after composition, and having its gates {MEAN} costs the answer {100 * NOTABLE_EFFECT:.0f} % or more of its "
    "logit difference to that word",
}
"""When a step is supported; the logit difference is to the strongest answer of the other facts."""


@dataclass(frozen=True)
class Report:
    """What the document is written from: the composed model, its baseline model, and the results on both."""

    composed: str
    plain: str
    fingerprints: tuple[str, str]
    accuracies: tuple[TaskAccuracy, TaskAccuracy]
    ablation: BranchAblation
    transformations: tuple[OVTransformations, OVTransformations]
    diversity: HeadDiversityComparison
    case_studies: tuple[CaseStudy, ...]


def measure(
    composed: str,
    plain: str,
    *,
    tasks: str = "",
    rows: int = 2,
    case_studies: int = CASE_STUDIES,
    seed: int = 1,
    folder: str | Path | None = None,
    progress: Progress = silent,
) -> Report:
    """Measure everything that the document is written from.

    Args:
        composed, plain: what `dcinterp.load` takes.
        tasks: which tasks, written as for `dcinterp tasks`; all 74 when empty.
        rows: rows of eight fresh examples per task.
        case_studies: how many, on fresh single examples of the tasks that the composed model answers correctly.
        seed: of the rows and examples.
        folder: keeps each result as soon as it exists; results kept for the same weights and arguments are reused.
        progress: called after each result.

    Cost: mainly 25 passes over 74 x rows rows, and the case studies.

    Raises:
        UserError: a model does not exist or does not compose its heads.
    """
    bridges = [load(composed), load(plain)]
    done = 0

    def kept(name: str, analysis: Callable[..., Any], bridge: Any, **arguments: Any) -> Any:
        nonlocal done
        place = Path(folder) / name if folder is not None else None
        result = _read(place, fingerprint(bridge), arguments) if place is not None else None
        if result is None:
            result = analysis(bridge, **arguments)
            if place is not None:
                result.save(place)
        done += 1
        progress(done, 6 + case_studies, name)
        return result

    return Report(
        composed=composed,
        plain=plain,
        fingerprints=(fingerprint(bridges[0]), fingerprint(bridges[1])),
        diversity=kept("diversity", compare_head_diversity, bridges[0], other=plain),
        transformations=(
            kept("ov-composed", ov_transformations, bridges[0]),
            kept("ov-plain", ov_transformations, bridges[1]),
        ),
        accuracies=(
            kept("accuracy-composed", task_accuracy, bridges[0], tasks=tasks, rows=rows, seed=seed),
            kept("accuracy-plain", task_accuracy, bridges[1], tasks=tasks, rows=rows, seed=seed),
        ),
        ablation=kept("ablation", branch_ablation, bridges[0], tasks=tasks, rows=rows, seed=seed),
        case_studies=tuple(
            kept(f"case-study-{number}", case_study, bridges[0], example=example)
            for number, example in enumerate(correct_examples(bridges[0], tasks, case_studies, seed))
        ),
    )


def _read(place: Path, weights: str, arguments: Mapping[str, Any]) -> Any:
    """The kept result, if it was made from these weights with these arguments."""
    from dcinterp.results.call import plain

    if not (place / RECORD).is_file():
        return None
    result: Result = load_result(place)
    call = result.call
    same = call is not None and call.fingerprint == weights
    return result if same and all(call.arguments.get(n) == plain(v) for n, v in arguments.items()) else None


def correct_examples(bridge: Any, tasks: str, number: int, seed: int) -> Iterator[Any]:
    """Held-out single examples that the model answers correctly, taking the tasks in turn.

    Gives up after `number` rounds with one example per task, where the model is correct too rarely.
    """
    from dcinterp.analysis.answers.predict import predict
    from dcinterp.mechanism.prompt import first_token
    from synthetic_tasks import generate
    from synthetic_tasks.selection import chosen

    found = 0
    for turn in range(number):
        for task in chosen(tasks)[turn % 2 :: 2]:  # partner tasks share their facts
            if found == number:
                return
            example = generate(task, turn + 1, seed, examples=1, split="held-out")[turn].examples[0]
            if predict(bridge, example.prompt, first_token(bridge, example.answer)).rank == 1:
                found += 1
                yield example


def write(path: str | Path, report: Report) -> list[str]:
    """Put every part between its markers; returns the names of the parts that changed.

    Raises:
        UserError: the document lacks a marker, or has one that nothing belongs to.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"<!-- report:([\w-]+) -->", text)
    if sorted(names) != sorted(PARTS):
        raise UserError(f"{path} must have the markers {', '.join(PARTS)} once each, but has {', '.join(names)}.")
    changed = []
    for name in names:
        new = f"<!-- report:{name} -->\n{PARTS[name](report)}\n<!-- end -->"
        pattern = re.compile(rf"<!-- report:{name} -->\n.*?<!-- end -->", re.S)
        if pattern.search(text)[0] != new:  # type: ignore[index]
            changed.append(name)
        text = new.join(pattern.split(text))
    path.write_text(text, encoding="utf-8")
    return changed


def stale(path: str | Path, composed: str, plain: str) -> list[str]:
    """The models whose weights are not those that the document was written from."""
    text = Path(path).read_text(encoding="utf-8")
    return [name for name in (composed, plain) if f"`{name}` | `{fingerprint(load(name))}`" not in text]


def models_part(report: Report) -> str:
    """Names and fingerprints, and accuracy per pattern."""
    names = (report.composed, report.plain)
    lines = ["| model | fingerprint of the weights |", "|---|---|"]
    lines += [f"| `{name}` | `{mark}` |" for name, mark in zip(names, report.fingerprints, strict=True)]
    tables = [accuracy.table("pattern") for accuracy in report.accuracies]
    totals = [accuracy.table("all") for accuracy in report.accuracies]
    lines += ["", f"| QK pattern | answers | `{names[0]}` | `{names[1]}` | random fact |", "|---|---|---|---|---|"]
    for (first, second), label in [
        *(((a, b), a["pattern"]) for (_, a), (_, b) in zip(*(t.iterrows() for t in tables), strict=True)),
        ((totals[0].iloc[0], totals[1].iloc[0]), WHOLE),
    ]:
        cells = [_percent(row["accuracy"], row["low"], row["high"]) for row in (first, second)]
        lines.append(f"| {label} | {first['answers']} | {cells[0]} | {cells[1]} | {100 * first['fact_unif']:.1f} |")
    return _with_command("\n".join(lines), *report.accuracies)


def ablation_part(report: Report) -> str:
    """Accuracy under the ablation of each part, zero below it, and what may be said of it."""
    result = report.ablation
    head = "| without | by | " + " | ".join(result.patterns) + " |"
    lines = [head, "|---" * (2 + len(result.patterns)) + "|"]
    for p, part in enumerate(result.parts):
        for each in (result, result.zero):
            if each is None or (part == INTACT and each is not result):
                continue
            cells = [_cell(each, part, p, q) for q in range(len(result.patterns))]
            names = ("nothing", "") if part == INTACT else (part if each is result else "", each.kind)
            lines.append(f"| {' | '.join(names)} | " + " | ".join(cells) + " |")
    return _with_command("\n".join(lines) + "\n\n" + "\n".join(f"- {each}" for each in ablation_says(result)), result)


def _cell(result: BranchAblation, part: str, p: int, q: int) -> str:
    if part == INTACT:
        return _percent(result.accuracy[p, q], result.low[p, q], result.high[p, q])
    star = "**" if result.certain(part, result.patterns[q]) else ""
    return f"{star}{_change(result, p, q)}{star}"


def ablation_says(result: BranchAblation) -> list[str]:
    """The sentences that the table of the ablation supports, pattern by pattern; made from its kind, not from zero."""
    found = []
    single = [part for part in result.parts if "." in part]
    whole = result.parts.index(ALL)
    done = ABLATIONS[result.kind].done
    for q, pattern in enumerate(result.patterns):
        relation = "excludes" if result.certain(ALL, pattern) else "includes"
        beside = f" (set to zero: {100 * float(result.zero.change[whole, q]):+z.1f})" if result.zero is not None else ""
        sentence = (
            f"**{pattern}**: with all composition {done}, accuracy changes by {_change(result, whole, q)} points"
            f"{beside}; the interval {relation} zero."
        )
        if pattern in result.guessed:
            found.append(
                f"{sentence} The intact model is no better here than the baseline that applies the right relation to a "
                "random fact, so this says nothing about how a fact is chosen."
            )
            continue
        sure = [part for part in single if result.certain(part, pattern)]
        worse = sorted(
            (p for p in sure if result.change[result.parts.index(p), q] < 0), key=lambda p: _at(result, p, q)
        )
        better = [part for part in sure if part not in worse]
        listed = [f"{part} {_change(result, result.parts.index(part), q)}" for part in worse]
        sentence += (
            f" Single branches for which this lowers accuracy: {', '.join(listed)}."
            if worse
            else " For no single branch does the interval lie below zero, which does not exclude a loss."
        )
        if better:
            sentence += f" For {', '.join(better)} accuracy is higher."
        if (other := _other_order(result, single, q)) is not None:
            sentence += other
        found.append(sentence)
    fewest = int(result.clusters.min())
    if fewest < FEW:
        found.append(f"Some intervals rest on only {fewest} independent rows; use more rows.")
    return found


def _other_order(result: BranchAblation, single: Sequence[str], q: int) -> str | None:
    """A sentence if zero names another branch as the one that lowers accuracy most."""
    if result.zero is None:
        return None
    lowest = [min(single, key=lambda p: _at(each, p, q)) for each in (result, result.zero)]
    changes = [100 * _at(each, part, q) for each, part in zip((result, result.zero), lowest, strict=True)]
    if lowest[0] == lowest[1] or min(changes) >= 0:
        return None
    there = 100 * _at(result, lowest[1], q)
    return (
        f" Set to zero, {lowest[1]} would seem the most important branch ({changes[1]:+z.1f}; "
        f"{ABLATIONS[result.kind].done}: {there:+z.1f})."
    )


def transformations_part(report: Report) -> str:
    """The best head of every relation in both models."""
    first, second = report.transformations
    names = (report.composed, report.plain)
    each = " | ".join(f"`{name}` | held out | control" for name in names)
    lines = [f"| relation | pairs | {each} |", "|---" * 8 + "|"]
    for r, relation in enumerate(first.relations):
        cells = []
        for result in (first, second):
            layer, head = result.best(relation)
            at = (layer, head, r)
            mark = "" if bool(result.above_control[at]) else " (not above control)"
            cells.append(f"{layer}.{head}: {_percent(result.score[at], result.low[at], result.high[at])}{mark}")
            cells += [f"{100 * result.held_out(relation):.1f}", f"{100 * result.control[at]:.1f}"]
        lines.append(f"| {relation} | {int(first.pairs[r])} | " + " | ".join(cells) + " |")
    return _with_command("\n".join(lines), *report.transformations)


def diversity_part(report: Report) -> str:
    """Components for 90 % of the variance, and effective ranks."""
    result = report.diversity
    lines = ["| model | QK: components for 90 % | effective rank | OV: components for 90 % | effective rank |"]
    lines.append("|---|---|---|---|---|")
    for m, name in enumerate(result.models):
        cells = [
            str(cell)
            for product in ("qk", "ov")
            for cell in (
                components_for(getattr(result, product)[m], 0.9),
                f"{float(getattr(result, f'{product}_effective_rank')[m]):.1f}",
            )
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        if result.other_reading:
            cells = [
                str(cell)
                for product in ("qk_other", "ov_other")
                for cell in (
                    components_for(getattr(result, product)[m], 0.9),
                    f"{float(getattr(result, f'{product}_effective_rank')[m]):.1f}",
                )
            ]
            lines.append(f"| `{name}`, products on top of each other | " + " | ".join(cells) + " |")
    lines.append(f"| random weights | {components_for(result.random[0], 0.9)} | | | |")
    return _with_command("\n".join(lines), result)


def case_studies_part(report: Report) -> str:
    """How often each step of the paper's case study is supported, and how large its effects are."""
    n = len(report.case_studies)
    if not n:
        return "The model answered no example correctly, so there is no case study."
    lines = ["| step | supported in |", "|---|---|"]
    for name, meaning in CASE_STUDY_STEPS.items():
        lines.append(f"| {meaning} | {sum(study.step(name).holds for study in report.case_studies)} of {n} |")
    whole = sum(study.holds for study in report.case_studies)
    branches: dict[str, int] = {}
    for study in report.case_studies:
        if study.breakdown is not None and study.step("source").holds:
            added = {k: abs(float(v[study.head])) for k, v in study.breakdown.branches.items() if k != "o_b"}
            largest = max(added, key=lambda branch: added[branch])
            branches[largest] = branches.get(largest, 0) + 1
    lines.append("")
    lines.append(f"The first four steps are all supported in {whole} of {n} examples.")
    if branches:
        counted = ", ".join(f"{name} in {count}" for name, count in sorted(branches.items(), key=lambda x: -x[1]))
        lines.append(f"Where the third step is supported, the largest change came through {counted}.")
    lines += ["", *(f"- {sentence}" for sentence in effect_sizes(report.case_studies))]
    return "\n".join(lines)


def effect_sizes(studies: Sequence[CaseStudy]) -> list[str]:
    """How far attribution and ablation agree for the followed head, and the effects of composition and of sharing."""
    pairs = [
        (float(s.attribution.scores[s.layer, s.head]), float(s.attribution.ablation[s.layer, s.head])) for s in studies
    ]
    same = [measured / attributed for attributed, measured in pairs if attributed * measured > 0]
    found = [f"The followed head's attribution and its ablation have the same sign in {len(same)} of {len(studies)}."]
    if same:
        found[0] += f" Where they do, the ablation is {_range(same)} of the attribution."
    composed = [s for s in studies if s.breakdown is not None and s.logit_difference > 0]
    reads = [
        s
        for s in composed
        if max(float(s.before[s.layer, s.head]), abs(float(s.after[s.layer, s.head]))) >= NOTABLE_WEIGHT
    ]
    if composed:
        found.append(
            f"In {len(composed) - len(reads)} of {len(composed)} the followed head hardly attends to the source word "
            f"(less than {NOTABLE_WEIGHT}, before and after composition)."
        )
    if reads:
        put_back = [(s.logit_difference - s.logit_difference_without) / s.logit_difference for s in reads]
        sharing = [float(s.shared_effect[s.head_from or 0]) / s.logit_difference for s in reads]
        notable = sum(round(100 * each) >= 100 * NOTABLE_EFFECT for each in sharing)
        slight = sum(abs(round(100 * each)) < 100 * SLIGHT_EFFECT for each in sharing)
        found += [
            f"In the other {len(reads)}, having all composition of that attention {MEAN} reduces the logit difference "
            f"by {_range(put_back)}{_beside_zero(reads, 'without')}.",
            f"Having only what the strongest other head shares {MEAN} reduces it by {_range(sharing)}"
            f"{_beside_zero(reads, 'shared')}: {TENTH} in {notable} of the {len(reads)}, less than "
            f"{100 * SLIGHT_EFFECT:.0f} % either way in {slight}.",
        ]
    if followed := [s for s in studies if s.control is not None and s.control.source]:
        held = [s for s in followed if s.step("head").holds]
        shares = [s.control.effect / float(s.direct[s.layer, s.head]) for s in held]  # type: ignore[union-attr]
        if shares:
            found.append(
                "If another word stands in place of the source, what the followed head writes loses "
                f"{_range(shares)} of its direct effect, more than all where it then speaks against the answer "
                f"({len(shares)} examples in which that is {TENTH})."
            )
    if both := [s for s in studies if s.other_head is not None]:
        other = sum(s.other_head != (s.layer, s.head) for s in both)
        found.append(
            f"Against the runner-up, the most likely other token, another head would be followed in {other} of the "
            f"{len(both)} examples in which that is no answer of another fact."
        )
    return found


def _beside_zero(studies: Sequence[CaseStudy], name: str) -> str:
    """The same with zero, in brackets."""
    shares = [dict(s.at_zero or ())[name] / s.logit_difference for s in studies if s.at_zero and s.kind != "zero"]
    return f" (set to zero: {_range(shares)})" if shares else ""


def _range(shares: Sequence[float]) -> str:
    middle, low, high = (round(100 * each(shares)) for each in (median, min, max))  # whole numbers: no minus zero
    return f"{middle} % (median; {low} to {high} %)"


PARTS: Mapping[str, Callable[[Report], str]] = {
    "models": models_part,
    "ablation": ablation_part,
    "transformations": transformations_part,
    "diversity": diversity_part,
    "case-studies": case_studies_part,
}


def _with_command(text: str, *results: Result) -> str:
    commands = [result.call.command() for result in results if result.call is not None]
    return "\n".join([text, "", *(f"    {command}" for command in commands)])


def _percent(value: Any, low: Any, high: Any) -> str:
    if math.isnan(float(low)):
        return f"{100 * float(value):.1f} (too few for an interval)"
    return f"{100 * float(value):.1f} ({100 * float(low):.1f} to {100 * float(high):.1f})"


def _change(result: BranchAblation, part: int, pattern: int) -> str:
    numbers = (result.change[part, pattern], result.change_low[part, pattern], result.change_high[part, pattern])
    change, low, high = (100 * float(number) for number in numbers)
    return f"{change:+z.1f} ({low:+z.1f} to {high:+z.1f})"


def _at(result: BranchAblation, part: str, pattern: int) -> float:
    return float(result.change[result.parts.index(part), pattern])


def command(
    document: Annotated[Path, typer.Argument(help="The Markdown file to write into, between its markers.")] = PAGE,
    composed: Annotated[str, typer.Option(help="The composed model.")] = "dcformer++",
    plain: Annotated[str, typer.Option(help="Its baseline model.")] = "transformer++",
    rows: Annotated[int, typer.Option(min=1, help="Fresh rows of eight examples per task.")] = 2,
    case_studies: Annotated[int, typer.Option(min=1, help="Number of case studies.")] = CASE_STUDIES,
    seed: Annotated[int, typer.Option(help="Seed of the rows and examples.")] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Keep results in this folder, and reuse those that are there.", metavar="FOLDER")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the document was written from these weights.")
    ] = False,
) -> None:
    """Measure what composition does in the two trained models, and rewrite the report on it.

    Exit code 2 if --check finds the report out of date.
    """
    if not document.is_file():
        raise UserError(f"There is no {document}; give the path of the report.")
    if check:
        if names := stale(document, composed, plain):
            raise UserError(f"{document} was not written from these weights of {' and '.join(names)}; run it again.")
        typer.echo(f"{document.name} was written from the weights of {composed} and {plain}.")
        return
    with console("measuring") as progress:
        report = measure(
            composed, plain, rows=rows, case_studies=case_studies, seed=seed, folder=results, progress=progress
        )
    changed = write(document, report)
    typer.echo(f"{document.name}: {', '.join(changed) if changed else 'nothing'} changed.")


if __name__ == "__main__":
    try:
        typer.run(command)
    except UserError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
