"""How diverse the heads of an experiment's models are, with and without composition, seed by seed.

    python experiments/digits/diversity.py
    python experiments/digits/diversity.py --folder experiments/ablations --arm all --baseline plain

reads the models of the runs (so the runs must be there, not only their table), writes diversity.csv, and the end of the
experiment's page (more.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from dcinterp.analysis.weights.head_diversity import head_diversity
from dcinterp.checkpoints.load import load
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_text, trained_models
from dcinterp.evidence.verdict_words import NO_VERDICT
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.table_files import write_table
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, TUNING, read_table

HERE = Path(__file__).parent
READINGS = {"side by side": "concatenated", "on top of each other": "stacked"}
PRODUCTS = ("qk", "ov")

TEXT = """## How diverse the heads are

The effective rank of a layer's joined QK and OV products, mean over layers, in the last weights of {seeds} seeds:
how many directions the heads of a layer use (the analysis `head_diversity`). The paper does not say
along which axis it joins the heads, so both are here, and a difference counts only where both have it. *Random* is the
same number for weights that learnt nothing; brackets are 95 % intervals over seeds, each by itself. Written by

    python experiments/digits/diversity.py{options}

{table}

{verdicts}

Heads can be less diverse after training at a higher rate, and arms were tuned to rates of their own. {searched}

These are the heads' own maps. What composition mixes at run time is not in them, and heads that use more directions
need not do more different things.
"""

SEARCHED = """The models of the
search have one seed, and every arm at every rate. Where the composing arm is not above the other one at all of them, by
both readings, the verdict is open, whatever the intervals say; this rule was added with the numbers known, to one that
asked for the intervals alone:

{table}"""

NOT_SEARCHED = """No models of a
search are here, so the verdicts are by the intervals alone, and nothing is said of the arms at one rate."""


def ranks(model: Path) -> dict[str, float]:
    """Effective ranks by product and reading, mean over layers, and that of random weights."""
    bridge = load(str(model))
    row: dict[str, float] = {}
    for words, reading in READINGS.items():
        found = head_diversity(bridge, reading=reading)  # type: ignore[arg-type]
        for product in PRODUCTS:
            row[f"{product} {words}"] = float(getattr(found, f"{product}_effective_rank").mean())
        row[f"random {words}"] = found.random_effective_rank
    return row


def at_equal_rates(searched: pd.DataFrame, arm: str, baseline: str, product: str) -> bool:
    """Whether the arm's rank is the higher one at every rate of the search, by both readings."""
    held = searched.groupby(["learning_rate", "arm"]).mean(numeric_only=True)[[f"{product} {w}" for w in READINGS]]
    return bool((held.xs(arm, level="arm") > held.xs(baseline, level="arm")).all(axis=None))


def summary(rows: pd.DataFrame, searched: pd.DataFrame, arm: str, baseline: str, planned: int) -> tuple[str, str, int]:
    """The table of differences, a sentence for each product, and the number of seeds.

    Raises:
        UserError: no seed has a model of both arms.
    """
    wide = rows.pivot(index="seed", columns="arm").dropna()
    if not len(wide) or not {arm, baseline} <= set(rows["arm"]):
        raise UserError(f"No seed has a trained model of both {arm} and {baseline}; a difference needs two.")
    lines, sentences = [["product", "heads joined", baseline, arm, f"{arm} minus {baseline}", "random"]], []
    for number, product in enumerate(PRODUCTS, 1):
        signs = []
        for words in READINGS:
            values = wide[f"{product} {words}"]
            difference = torch.tensor((values[arm] - values[baseline]).to_numpy())
            low, high = (float(end) for end in bootstrap_interval(difference))
            signs.append(1 if low > 0 else -1 if high < 0 else 0)
            shown = f"{float(difference.mean()):+.2f} [{low:+.2f}, {high:+.2f}]"
            random = wide[f"random {words}"][baseline].mean()
            lines.append([product.upper(), words, *(f"{values[a].mean():.2f}" for a in (baseline, arm)), shown])
            lines[-1].append(f"{random:.2f}")
        verdict = "supported" if min(signs) == 1 else "refuted" if max(signs) == -1 else "open"
        if verdict == "supported" and len(searched) and not at_equal_rates(searched, arm, baseline, product):
            verdict = "open, as it does not hold at every learning rate (by the intervals alone: supported)"
        if len(wide) < planned:
            verdict = f"interim, {len(wide)} of {planned} seeds: {NO_VERDICT}"
        sentences.append(f"**D{number}** ({product.upper()} of {arm} is more diverse by both readings): **{verdict}**.")
    return markdown_table(lines[0], lines[1:]), " ".join(sentences), len(wide)


def by_rate(rows: pd.DataFrame, arm: str, baseline: str) -> str:
    """The ranks of the models of the search, at equal learning rates."""
    columns = [(product, one) for product in PRODUCTS for one in (baseline, arm)]
    lines = []
    for rate, group in rows.groupby("learning_rate"):
        held = group.groupby("arm").mean(numeric_only=True)
        for words in READINGS:
            cells = (f"{held.loc[one, f'{product} {words}']:.2f}" for product, one in columns)
            lines.append([f"{rate:g}", words, *cells])
    head = ["learning rate", "heads joined", *(f"{product.upper()}, {one}" for product, one in columns)]
    return markdown_table(head, lines)


def main(
    folder: RunsFolder = HERE,
    arm: Annotated[str, typer.Option(help="The arm that composes.")] = "DCViT",
    baseline: Annotated[str, typer.Option(help="The arm that does not.")] = "ViT",
    table: RunsTable = None,
) -> None:
    """Measure the models of both arms, and print the table over seeds."""
    trained = trained_models(folder, HERE, table)
    experiment = trained.experiment
    for each in (arm, baseline):
        require_known("arm", each, experiment.arms)
    table_rows = read_table(experiment)
    runs = pd.concat([table_rows[table_rows["stage"] == TUNING], experiment.counted(table_rows)])
    models = runs["name"].map(lambda name: experiment.output / name / "model")
    there = runs["arm"].isin([arm, baseline]) & models.map(Path.is_dir)
    if not there.any():
        raise UserError(f"There are no trained models in {experiment.output}; run the experiment first.")
    for rate, group in runs[there & (runs["stage"] == TUNING)].groupby("recipe.learning_rate"):
        if missing := {arm, baseline} - set(group["arm"]):
            raise UserError(
                f"{experiment.output} has no model of {missing.pop()} of the search at {rate:g}, and arms are compared "
                "at every rate; run the search again, or remove the models of the search."
            )
    measured = []
    for model, (_, run) in zip(models[there], runs[there].iterrows(), strict=True):
        first: dict[str, Any] = {"stage": run["stage"], "seed": int(run["recipe.seed"]), "arm": run["arm"]}
        measured.append(first | {"learning_rate": run["recipe.learning_rate"]} | ranks(model))
    rows = pd.DataFrame(measured).round(4)
    write_table(rows, trained.place / "diversity.csv")
    final, tuning = (rows[rows["stage"] == stage] for stage in (FINAL, TUNING))
    means, verdicts, seeds = summary(final, tuning, arm, baseline, len(experiment.seeds))
    searched = SEARCHED.format(table=by_rate(tuning, arm, baseline)) if len(tuning) else NOT_SEARCHED
    of_another = folder.resolve() != HERE.resolve()
    options = trained.options + (f' --arm "{arm}" --baseline "{baseline}"' if of_another else "")
    text = TEXT.format(seeds=seeds, options=options, table=means, verdicts=verdicts, searched=searched)
    print_text(text, trained.place / "more.md")


if __name__ == "__main__":
    run_script(main)
