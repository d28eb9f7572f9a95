"""When the edges of the composition start to matter in the models of this experiment, seed by seed.

    python experiments/birth/measure.py

reads the checkpoints of the runs (so the runs must be there, not only their table), adds the seeds that are missing to
curves.csv and starts.csv, and writes the end of the experiment's page (more.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
import typer

from dcinterp.analysis.training.edge_starts import CURVES, STARTS, STEP_LIKE, EdgeStarts, edge_starts
from dcinterp.analysis.training.training_edges import TrainingEdges, training_edges
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_text, trained_models
from dcinterp.mechanism.change_point import change_points, split
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.errors import UserError
from dcinterp.support.table_files import write_table
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, read_table

HERE = Path(__file__).parent
ARM, SOLVED, WORTH, FEWEST = "DCMHA", 0.95, 0.1, 5
DOCUMENTS, REFERENCE = 64, 64
"""Documents that the effects are measured on, and others that the mean maps are taken over."""

TEXT = """## When the edges start to matter

Of the {seeds} {arm} models, 50 checkpoints each. The effect of an edge is how much the mean loss of the answers rises
when its entry of the map over heads is replaced by its mean over tokens and documents; a start is the step that splits
a curve best into two levels. The main edge of a model is the one with the largest effect at the end, chosen on other
documents than its curve is measured on. This is measured and written by

    python experiments/birth/measure.py{options}

{sentences}

{table}

*From* and *to* bound the start of the main edge (95 %, over documents of this one model); *in answers* is the start of
its effect on the share of right answers, *the loss* and *right answers* are the starts of these themselves.
*Edges that matter*: of {edges}, those whose effect at the end is above zero by intervals that are corrected for their
number (where few documents carry an effect they hold less often than they say); more documents would show more.
*Steps held*: the share of the variance of the two curves (loss and main edge)
that their two levels hold, the smaller of the two (0 where a loss rises or an edge's effect falls); below 0.5 a curve
has no start, and the seed no part in the mean.{warnings}

{checks}

Every edge that is worth more than {worth} nats at the end and whose curve is a step (others are left out), by layer and
branch. *Start* is the step that splits an edge's effect on the loss, the mean over the edges of a model and then over
models. The first *lag* is the split of the loss minus that, the second the split of the share of right answers minus
that; *before* counts edges. Brackets are 95 % intervals over models, where there are {fewest} or more, each by itself.
The splits are of means over all documents, so that a single edge but the main one has no interval. No hypothesis is
about these:

{branches}

What this does not show. The order of two splits says what came first, not what caused what. An edge can hardly be worth
much while the model knows nothing, so the comparison favours "after". In nats an edge's effect also goes on growing
while the model gets surer of answers that are right already; that on the answers does not. A straight line would hold
0.75 of its variance in two levels, so a number near that means a slow rise rather than a step. In `recombination` all
ten models depended most on `post.qp` (nine, where it is set to zero and not to its mean): there a whole branch was
replaced and the cost was taken in accuracy, here one edge and in nats, so the two need not agree. Which of the two
heads is called 0 is chance, so seeds can be compared by branch, and not by the numbers of heads. The effects are of 64
documents, 32 to choose the main edge and 32 for its curve; the app draws means over all 64, so a marked start can
differ from its curve. Each interval holds by itself.
"""


def row_of(seed: int, found: TrainingEdges) -> dict[str, Any]:
    """The starts of one run: the main edge is chosen on the even documents, and all curves are of the odd ones."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    main = int(found.effect[-1, :, even].mean(-1).argmax())
    edge = [found.effect[:, main, odd], found.effect_right[:, main, odd]]
    curves = torch.stack([found.loss[:, odd], found.right[:, odd], *edge], 1)
    starts = change_points(found.step, curves, level=found.level)
    # The loss falls and the others rise; a split that goes the other way is no start.
    explained = torch.where(starts.rise * torch.tensor([-1.0, 1.0, 1.0, 1.0]) > 0, starts.explained, 0.0)
    row: dict[str, Any] = {"seed": seed, "main": found.edges[main]}
    for number, name in enumerate(("loss", "right", "main", "main_right")):
        row |= {f"{name}_start": int(starts.start[number]), f"{name}_explained": float(explained[number])}
    row |= {"main_low": int(starts.low[2]), "main_high": int(starts.high[2])}
    return row | {"edges_that_matter": int((found.final_low > 0).sum())}


def curves_of(seed: int, found: TrainingEdges) -> pd.DataFrame:
    """Means over all documents, a row for every checkpoint."""
    columns = {"seed": seed, "step": found.step, "loss": found.loss.mean(-1), "right": found.right.mean(-1)}
    effects = dict(zip(found.edges, found.effect.mean(-1).T, strict=True))
    return pd.DataFrame(columns | effects).round(5)


def summary(found: EdgeStarts, options: str = "") -> str:
    """The end of the page, in Markdown.

    options: of the command that makes it again.
    """
    warnings = "".join(f" {warning}" for warning in found.warnings())
    sentences = "\n".join(f"- {sentence}" for sentence in found.sentences())
    listed = found.table().astype(str)
    table = markdown_table([*listed], listed.to_numpy().tolist())
    return TEXT.format(
        arm=ARM,
        options=options,
        seeds=len(found.seeds),
        sentences=sentences,
        table=table,
        edges=len(found.edges),
        warnings=warnings,
        checks="\n".join(f"- {line}" for line in checks(found)),
        worth=WORTH,
        fewest=FEWEST,
        branches=by_branch(found),
    )


def checks(found: EdgeStarts) -> list[str]:
    """How the numbers change with what they rest on; of means over all documents, since only these are kept."""
    cuts = {end: lags_until(found, end)[found.has_lag].mean() for end in (1000, 1400, int(found.step[-1]))}
    listed = ", ".join(f"{float(lag):+.0f} at step {end:,}" for end, lag in cuts.items())
    solved, lags = found.right[:, -1] >= SOLVED, ((found.lag, found.has_lag), (found.lag_right, found.has_lag_right))
    said = [mean_of(lag[solved & has]) for lag, has in lags]
    below = [f"{int((lag[has] < 0).sum())} of {int(has.sum())}" for lag, has in lags]
    last = found.effect[:, -1]
    early, worth, models = 0, int((last > WORTH).sum()), set()
    for s, start in enumerate(splits(found.loss.T, found)):
        before = (splits(found.effect[s], found) < start) & (last[s] > WORTH)
        early += int(before.sum())
        models |= {s} if bool(before.any()) else set()
    other = [str(seed) for s, seed in enumerate(found.seeds) if found.edges[int(last[s].argmax())] != found.main[s]]
    listed_seeds = ", ".join(other)
    whole = int((found.has_lag & (found.main_low > found.loss_start)).sum())
    heads = [edge.rpartition(".")[2].split(">") for edge in found.main]
    return [
        f"Below zero are {below[0]} lags of the loss and {below[1]} of the answers; of the loss, in {whole} models "
        "with the whole interval of the start of their main edge. The main edge is one of a head with itself in "
        f"{sum(one == other for one, other in heads)} of {len(heads)} models.",
        f"The size of the first lag depends on where training ends: with the same main edges and the curves cut there, "
        f"it is {listed} (all documents).",
        f"Without the {int((~solved).sum())} models that end below {SOLVED:.0%} right, the lags are {said[0]} for the "
        f"loss and {said[1]} for the answers.",
        f"Of the {worth} edges that are worth more than {WORTH} nats at the end (not those that matter by the intervals"
        f" above), {early} split before the loss, in {len(models)} of the models (all documents).",
        f"In {f'seeds {listed_seeds}' if other else 'no seed'} another edge than the main one is worth most over all "
        "documents.",
    ]


def by_branch(found: EdgeStarts) -> str:
    """When the edges of each branch start, also against the loss and the right answers, as a table in Markdown."""
    levels = {"loss": splits(found.loss.T, found), "right": splits(found.right.T, found)}
    branches, lines = [edge.rpartition(".")[0] for edge in found.edges], []
    for branch in dict.fromkeys(branches):
        own, by_model = torch.tensor([each == branch for each in branches]), list[torch.Tensor]()
        starts, early = list[float](), dict.fromkeys(levels, 0)
        for s in range(len(found.seeds)):
            first, explained = split(found.effect[s].double())
            start = found.step[first][own & (found.effect[s, -1] > WORTH) & (explained >= STEP_LIKE)].float()
            if len(start):
                by_model.append(torch.stack([start.mean(), *(each[s] - start.mean() for each in levels.values())]))
            for name, each in levels.items():
                early[name] += int((start < each[s]).sum())
            starts += start.tolist()
        start, *lags = torch.stack(by_model, 1) if len(by_model) >= FEWEST else [None] * 3
        cells = [mean_of(start, "") if start is not None else ""]
        for name, lag in zip(levels, lags, strict=True):
            cells += [str(early[name]), mean_of(lag) if lag is not None else ""]
        lines.append([f"`{branch}`", str(len(starts)), str(len(by_model)), *cells])
    heads = ["layer and branch", "edges", "models", "start", "before the loss", "lag", "before right answers", "lag"]
    return markdown_table(heads, lines)


def mean_of(steps: torch.Tensor, sign: str = "+") -> str:
    """A mean over seeds with its interval; one by one where they are too few for one."""
    if len(steps) < FEWEST:
        return f"{', '.join(f'{step:{sign}.0f}' for step in steps.tolist()) or 'of no model'} (too few for an interval)"
    low, high = bootstrap_interval(steps)
    return f"{float(steps.mean()):{sign}.0f} [{float(low):{sign}.0f}, {float(high):{sign}.0f}]"


def lags_until(found: EdgeStarts, end: int) -> torch.Tensor:
    """The first lag of every seed, of the curves up to a step."""
    kept = found.step <= end
    main = torch.stack([found.effect[s, :, found.edges.index(edge)] for s, edge in enumerate(found.main)])
    return splits(found.loss.T[kept], found).float() - splits(main.T[kept], found).float()


def splits(curves: torch.Tensor, found: EdgeStarts) -> torch.Tensor:
    """The step at which each curve [checkpoint, curve] is split."""
    return found.step[split(curves.double())[0]]


def main(
    folder: RunsFolder = HERE,
    table: RunsTable = None,
) -> None:
    """Measure the seeds that are missing, and write the tables and the end of the page."""
    trained = trained_models(folder, HERE, table)
    experiment, to = trained.experiment, trained.place
    starts, curves = (pd.read_csv(to / name) if (to / name).is_file() else pd.DataFrame() for name in (STARTS, CURVES))
    runs = read_table(experiment)
    runs = runs[(runs["arm"] == ARM) & (runs["stage"] == FINAL)]
    for _, run in runs.iterrows():
        seed, place = int(run["recipe.seed"]), experiment.output / run["name"]
        if not place.is_dir() or (len(starts) and (starts["seed"] == seed).any()):
            continue
        found = training_edges(place, documents=DOCUMENTS, reference=REFERENCE)
        starts = pd.concat([starts, pd.DataFrame([row_of(seed, found)])], ignore_index=True)
        curves = curves[curves["seed"] != seed] if len(curves) else curves
        curves = pd.concat([curves, curves_of(seed, found)], ignore_index=True)
        for rows, name in ((curves, CURVES), (starts, STARTS)):
            write_table(rows, to / name)
        typer.echo(f"seed {seed} is measured", err=True)
    if not len(starts):
        raise UserError(f"There are no trained models in {experiment.output}; run the experiment first.")
    text = summary(edge_starts(str(to)), trained.options)
    print_text(text, to / "more.md")


if __name__ == "__main__":
    run_script(main)
