"""When the edges of the composition start to matter in the models of this experiment, seed by seed.

    python experiments/birth/measure.py

reads the checkpoints of the runs (so the runs must be there, not only their table), adds the seeds that are missing to
curves.csv and starts.csv, and writes the end of the experiment's page (more.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from dcinterp.analysis.training.edge_starts import CURVES, STARTS, EdgeStarts, edge_starts
from dcinterp.analysis.training.training_edges import TrainingEdges, training_edges
from dcinterp.mechanism.change_point import change_points
from dcinterp.support.errors import UserError
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import read_experiment, read_table

HERE = Path(__file__).parent
ARM = "DCMHA"

TEXT = """## When the edges start to matter

Of the {seeds} {arm} models, 50 checkpoints each. The effect of an edge is how much the mean loss of the answers rises
when its entry of the map over heads is replaced by its mean over tokens and documents; a start is the step that splits
a curve best into two levels. The main edge of a model is the one with the largest effect at the end, chosen on other
documents than its curve is measured on. This is measured and written by

    python experiments/birth/measure.py

{sentences}

{table}

*From* and *to* bound the start of the main edge (95 %, over documents of this one model); *in answers* is the start of
its effect on the share of right answers, *the loss* and *right answers* are the starts of these themselves.
*Edges that matter*: of {edges}, those whose effect at the end is above zero by intervals that hold for all of them
together. *Steps held*: the share of the variance of the two curves (loss and main edge) that their two levels hold, the
smaller of the two; below 0.5 a curve has no start, and the seed no part in the mean.{warnings}

What this does not show. An edge cannot be worth much while the model knows nothing, so a start before the model gets
better is hardly possible, and one after it says little more than that the edge was not needed from the first moment.
Its effect on the loss, in nats, also goes on growing while the model gets surer of answers that are right already; that
on the answers does not. The main edge is the one of the end: one that mattered only on the way is not looked at. Which
of the two heads is called 0 is chance, so seeds can be compared by branch, and not by the numbers of heads. Each
interval holds by itself. In the app, the page Experiments shows the curves of every seed.
"""


def row_of(seed: int, found: TrainingEdges) -> dict[str, Any]:
    """The starts of one run: the main edge is chosen on the even documents, and all curves are of the odd ones."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    main = int(found.effect[-1, :, even].mean(-1).argmax())
    edge = [found.effect[:, main, odd], found.effect_right[:, main, odd]]
    curves = torch.stack([found.loss[:, odd], found.right[:, odd], *edge], 1)
    starts = change_points(found.step, curves, level=found.level)
    row: dict[str, Any] = {"seed": seed, "main": found.edges[main]}
    for number, name in enumerate(("loss", "right", "main", "main_right")):
        row |= {f"{name}_start": int(starts.start[number]), f"{name}_explained": float(starts.explained[number])}
    row |= {"main_low": int(starts.low[2]), "main_high": int(starts.high[2])}
    return row | {"edges_that_matter": int((found.final_low > 0).sum())}


def curves_of(seed: int, found: TrainingEdges) -> pd.DataFrame:
    """Means over all documents, a row for every checkpoint."""
    columns = {"seed": seed, "step": found.step, "loss": found.loss.mean(-1), "right": found.right.mean(-1)}
    effects = dict(zip(found.edges, found.effect.mean(-1).T, strict=True))
    return pd.DataFrame(columns | effects).round(5)


def summary(found: EdgeStarts) -> str:
    """The end of the page, in Markdown."""
    warnings = "".join(f" {warning}" for warning in found.warnings())
    sentences = "\n".join(f"- {sentence}" for sentence in found.sentences())
    listed = found.table().astype(str)
    table = markdown_table([*listed], listed.to_numpy().tolist())
    return TEXT.format(
        arm=ARM, seeds=len(found.seeds), sentences=sentences, table=table, edges=len(found.edges), warnings=warnings
    )


def main(
    documents: Annotated[int, typer.Option(help="Documents that the effects are measured on.")] = 64,
    reference: Annotated[int, typer.Option(help="Others that the mean maps are taken over.")] = 64,
    folder: Annotated[Path, typer.Option(help="Folder of the experiment.")] = HERE,
    table: Annotated[Path | None, typer.Option(help="Another table of runs than the experiment's own.")] = None,
) -> None:
    """Measure the seeds that are missing, and write the tables and the end of the page."""
    experiment = read_experiment(folder, table=table)
    to = experiment.table.parent
    starts, curves = (pd.read_csv(to / name) if (to / name).is_file() else pd.DataFrame() for name in (STARTS, CURVES))
    runs = read_table(experiment)
    runs = runs[(runs["arm"] == ARM) & (runs["stage"] == "final")] if len(runs) else runs
    for _, run in runs.iterrows():
        seed, place = int(run["recipe.seed"]), experiment.output / run["name"]
        if not place.is_dir() or (len(starts) and (starts["seed"] == seed).any()):
            continue
        found = training_edges(place, documents=documents, reference=reference)
        starts = pd.concat([starts, pd.DataFrame([row_of(seed, found)])], ignore_index=True)
        curves = pd.concat([curves, curves_of(seed, found)], ignore_index=True)
        for rows, name in ((curves, CURVES), (starts, STARTS)):
            rows.to_csv(to / name, index=False)
        typer.echo(f"seed {seed} is measured", err=True)
    if not len(starts):
        raise UserError(f"There are no trained models in {experiment.output}; run the experiment first.")
    text = summary(edge_starts(str(to)))
    (to / "more.md").write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
