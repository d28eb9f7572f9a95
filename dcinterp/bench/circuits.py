"""How faithful circuits are, over tasks and ways of ranking edges, and how well rankings find planted circuits.

A row is a task of a model: edges are ranked on one half of its prompts, circuits measured on the other half, which
shares no facts with the first. Or it is a planted model: the area under the ROC curve of each ranking, over the edges
of post-composition whose truth is known.

A measurement is resumable: rows of a file that are there already are not made again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from dcinterp.bench.row_file import add_row, appended, resume_rows
from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.circuit_pairs import Pair, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import METHODS, Others, Scoring, score_edges
from dcinterp.mechanism.faithfulness import (
    FRACTIONS,
    cmd,
    cpr,
    faithfulness_of,
    keep_top,
    measure_circuits,
    node_ranking,
    random_rankings,
)
from dcinterp.mechanism.statistics import auroc
from dcinterp.planted.circuit import PlantedExample
from dcinterp.support.errors import UserError

MODELS = ("dcformer++", "transformer++")
NEEDED = ("key",)
"""What every row of the file has."""
FAST = ("gates-relp", "gates", "eap")
"""Methods that are measured by default: exact patching takes a run for every edge."""

PLANTED = ("share-by-kp", "share-by-qp", "many-to-one")
"""The circuits whose truth is about this contrast; that of `gate-by-qg` is about an answer that the same fact gives."""

PAIRS, DRAWS, FAITHFUL = 16, 1, 0.05
"""Prompts of a task, random rankings, and the CMD up to which a circuit is counted as faithful."""


def measure_tasks(
    models: Sequence[str], tasks: Sequence[str], file: Path, *, methods: Sequence[str] = FAST, until: float
) -> int:
    """Append a row for every model and task that the file does not have, up to a time (of `time.monotonic`)."""
    from dcinterp.checkpoints.load import load

    known, made = _measured(file, "rankings", methods, models), 0
    with appended(file) as out:
        for model in models:
            wanted = [task for task in tasks if f"{model} {task}" not in known]
            bridge = load(model) if wanted else None
            for task in wanted:
                if time.monotonic() > until:
                    return made
                assert bridge is not None
                row = {"key": f"{model} {task}", "model": model, "task": task} | task_row(bridge, task, methods)
                add_row(out, row)
                made += 1
    return made


def _measured(file: Path, of: str, methods: Sequence[str], models: Sequence[str] = ()) -> set[str]:
    """Keys of the file's rows (of these models), which were measured by the very methods that are wanted now.

    Raises:
        UserError: a row has others; the rows would not compare.
    """
    rows = [row for row in resume_rows(file, NEEDED) if of in row and (not models or row["model"] in models)]
    for row in rows:
        # In this order: the first one also ranks nodes.
        if (had := [method for method in row[of] if method in METHODS]) != list(methods):
            raise UserError(
                f"{file} has rows of other methods, such as {row['key']!r} ({', '.join(had)}); give these, or another "
                "file."
            )
    return {row["key"] for row in rows}


def task_row(bridge: Bridge, task: str, methods: Sequence[str] = FAST, pairs: int = PAIRS) -> dict[str, Any]:
    """One task: f, CMD and CPR of every ranking, by the size of the scores."""
    run = CircuitRun(bridge)
    found, _ = read_pairs(bridge, f"{task} n={pairs} split=held-out")
    scored, measured = ranked_and_measured(found)
    graph, others = run.graph, Others(run, measured, "counterfactual")
    rankings: dict[str, list[torch.Tensor]] = {}
    seconds: dict[str, float] = {}
    for method in methods:
        began = time.perf_counter()
        scores = score_edges(run, scored, Scoring(method)).mean(0)
        seconds[method] = round(time.perf_counter() - began, 2)
        rankings[method] = [scores.abs()]
        if method == methods[0]:
            rankings[f"{method}, signed"] = [scores]
            rankings["nodes"] = [node_ranking(graph, scores)]
    rankings["random"] = list(random_rankings(graph.size, DRAWS, seed=0))
    ends = torch.stack([torch.zeros(graph.size), torch.ones(graph.size)])
    kept = torch.cat([keep_top(each, FRACTIONS) for some in rankings.values() for each in some])
    m = measure_circuits(run, measured, others, torch.cat([ends, kept]))
    none, whole = m[0], m[1]
    curves = iter(faithfulness_of(m[2:], none, whole).split(len(FRACTIONS)))
    row: dict[str, Any] = {"pairs": [len(scored), len(measured)], "edges": graph.size, "seconds": seconds}
    row |= {"whole": float(whole.mean()), "none": float(none.mean()), "rankings": {}}
    for name, some in rankings.items():
        f = torch.stack([next(curves) for _ in some])
        row["rankings"][name] = {
            "f": [round(x, 4) for x in f.mean(0).tolist()],
            "cmd": round(mean(cmd(FRACTIONS, each) for each in f.tolist()), 4),
            "cpr": round(mean(cpr(FRACTIONS, each) for each in f.tolist()), 4),
        }
    return row


def measure_planted(
    settings: Sequence[str], file: Path, *, seeds: int = 5, methods: Sequence[str] = tuple(METHODS), until: float
) -> int:
    """Append a row for every planted model that the file does not have."""
    known, made = _measured(file, "auroc", methods), 0
    with appended(file) as out:
        for setting in settings:
            for seed in range(seeds):
                if time.monotonic() > until:
                    return made
                if (key := f"planted {setting} seed={seed}") not in known:
                    row = {"key": key, "planted": setting, "auroc": planted_auroc(setting, seed, methods)}
                    add_row(out, row)
                    made += 1
    return made


def planted_auroc(setting: str, seed: int, methods: Sequence[str], examples: int = 8) -> dict[str, float]:
    """The AUROC of every method on one planted model: which post-composition edges of layer 1 make the answer.

    Pairs are two prompts with the same question and other facts, whose answers stand elsewhere. What both prompts
    have in common scores nothing by definition: so do the heads of layer 0, which look at the same places in every
    prompt and are left out here.
    """
    from dcinterp.bridge import wrap
    from dcinterp.planted import read_plant, tokenizer

    planted = read_plant(f"{setting} seed={seed}")
    bridge = wrap(planted.model, tokenizer())
    run = CircuitRun(bridge)
    drawn = planted.examples(examples, seed=1)
    # The truth depends on the question, so that both prompts of a pair ask the same one.
    cases: dict[str, list[tuple[str, str, str, str]]] = {}
    truths = {}
    for one in drawn:
        other = next((x for x in planted.examples(50) if is_contrast(one, x)), None)
        if other is not None:
            cases.setdefault(one.question, []).append((one.prompt, one.target, other.prompt, other.target))
            truths[one.question] = planted.truth(one)
    places, labels = [], {question: list[bool]() for question in cases}
    for place, (layer, kind, f, t) in _post_edges(run):
        places.append(place)
        for question, truth in truths.items():
            labels[question].append(bool(truth.edges[layer, kind, f, t]))
    found: dict[str, list[float]] = {method: [] for method in methods}
    for question, some in cases.items():
        pairs: list[Pair] = read_pairs(bridge, some)[0]
        for method in methods:
            scores = score_edges(run, pairs, Scoring(method)).mean(0).abs()[places]
            # Tiny values of a saturated softmax order the parts by accident, as in `method_benchmark`.
            scores = torch.where(scores < 0.01 * scores.max(), 0.0, scores)
            found[method].append(auroc(scores, labels[question]))
    return {method: round(mean(values), 4) for method, values in found.items()}


def is_contrast(one: PlantedExample, other: PlantedExample) -> bool:
    """Whether two prompts ask the same question, with another answer at another place."""
    same = one.question == other.question
    return same and one.target != other.target and set(one.sources) != set(other.sources)


def _post_edges(run: CircuitRun) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """(place, (layer, branch, head_from, head_to)) of the edges of layer 1 that a planted circuit is made of."""
    from dcinterp.model.compose.branch_table import NAMES

    for group in run.graph.composition(1, "post"):
        for number, (f, t) in enumerate(group.pairs):
            yield group.start + number, (1, NAMES.index(group.kind), f, t)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """By model, and by ranking: tasks, how many have a CMD of at most `FAITHFUL`, its median, and the mean CPR.

    By planted setting, and by method: models, and the mean AUROC.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model in dict.fromkeys(row["model"] for row in rows if "model" in row):
        some = [row["rankings"] for row in rows if row.get("model") == model]
        for name in dict.fromkeys(name for each in some for name in each):
            cmds = [each[name]["cmd"] for each in some if name in each]
            found.setdefault(model, {})[name] = {
                "tasks": len(cmds),
                "faithful": sum(value <= FAITHFUL for value in cmds),
                "cmd": round(median(cmds), 4),
                "cpr": round(mean(each[name]["cpr"] for each in some if name in each), 4),
            }
    for setting in dict.fromkeys(row["planted"] for row in rows if "planted" in row):
        values = [row["auroc"] for row in rows if row.get("planted") == setting]
        found[setting] = {
            name: {"models": len(some), "auroc": round(mean(some), 4)}
            for name in dict.fromkeys(name for each in values for name in each)
            if (some := [each[name] for each in values if name in each])
        }
    return found
