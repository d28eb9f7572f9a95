"""By which edges models of two, four and eight heads that learnt the task use the letter that layer 0 has found.

    python experiments/recombination_heads/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the answers to M2, M4 and M8 of the protocol and the tables beside them, which
are also at the end of the experiment's page (more-circuits.md).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from scipy.stats import binomtest

from dcinterp.bench.pooled_edges import PREFERS, mean_and_range
from dcinterp.bench.recombination_questions import CHANGES, DOCUMENTS, question_shares
from dcinterp.bench.trained_models import measure_missing
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import Experiment, read_experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
HEADS = (2, 4, 8)
ARMS = tuple(f"{kind} {heads}" for heads in HEADS for kind in ("DCMHA", "plain"))
ROUTE, OTHER, CHANGE = "L0 -> L1 post weights", "L0 -> L1 query", "letter"
ROUTES = (ROUTE, "L0 -> L1 pre weights", OTHER, "L0 -> L1 key", "L0 -> L1 value", "L0 -> logits")
ONE_OF = 0.05 / len(HEADS)
"""What a test may err, as three are asked."""
LEAST = next(n for n in range(1, 99) if binomtest(n, n).pvalue <= ONE_OF)
"""Models without which nothing is concluded: with fewer no sign test can agree."""

TEXT = """## By which edges the letter is used

In the four of ten DCMHA models of `experiments/recombination`, trained again from its configs, that reached 95 % on
`seen`, the letter that layer 0 had found reached layer 1 by the dynamic weights after the softmax, more than by layer
1's queries. That was found by looking. Here the protocol asked it of fresh seeds, and of more heads, before any model
of them was looked into.

    python experiments/recombination_heads/circuits.py

{verdicts}

A verdict needs a sign test to agree with the interval, which {least} models can reach at the least. It is of the
queries alone: *pre weights* are another way into what layer 1 attends to. In each table those models are asked that
reach {at:.0%} with 256 documents of `{seen}`, and prefer the answer to that of the other prompt in {prefers:.0%} of
{documents} prompts of every change of that part. They are chosen by what they learnt, so this is said of models that
learnt the task, and not of DCMHA.

A way out of layer 0 is a group of edges, over all heads: *L0 -> L1 query* is all that layer 0 writes into the queries
of layer 1, and *weights* are the dynamic weights of a stage of composition, made from the residual stream. The group
gets its values from the other prompt, by a second run of the model. Its share is how far the difference between the
logits of the two prompts' answers falls, over its fall when everything is of the other prompt. One path crosses
several groups and counts in each, so shares do not add up.

In the other prompt {letter}. The share of this effect that layer 0 has through each of its ways out, to layer 1's
weights, queries, keys and values and to the logits; its mean over models [least, largest]:

{tables}
"""


def verdict(heads: int, rows: pd.DataFrame, experiment: Experiment) -> str:
    """The hypothesis about the DCMHA models of so many heads, as a line of Markdown.

    rows: of `question_shares`, of all arms.
    """
    arm, part = f"DCMHA {heads}", experiment.solved_by.split()[-1]
    mine = rows[rows["arm"] == arm]
    own = mine[(mine["part"] == part) & (mine["change"] == CHANGE)]
    shares = own.pivot_table(index="seed", columns="group", values="share")
    trained = mine["seed"].nunique()
    of = f"{len(shares)} of {trained} models"
    about = f"- **M{heads}** (in {arm} the share of *{ROUTE}* minus that of *{OTHER}* is above zero)"
    if trained < len(experiment.seeds):
        return f"{about}: interim, {trained} of {len(experiment.seeds)} seeds; no verdict."
    if len(shares) < LEAST:
        return f"{about}: {of} could be asked; fewer than {LEAST}, so nothing is concluded."
    apart = (shares[ROUTE] - shares[OTHER]).to_numpy(copy=True)
    low, high = (float(end) for end in bootstrap_interval(apart, level=1 - ONE_OF))
    above = int((apart > 0).sum())
    signs = binomtest(above, len(apart)).pvalue <= ONE_OF
    says = "**supported**" if signs and low > 0 else "**refuted**" if signs and high < 0 else "**open**"
    interval = f"{apart.mean():+.2f} [{low:+.2f}, {high:+.2f}] ({1 - ONE_OF:.1%})"
    return f"{about}: {interval} over {of}, above zero in {above} of them; {says}."


def table_of(rows: pd.DataFrame, trained: dict[str, int], part: str) -> str:
    """A row for every arm: how many models were asked, and what each way carries."""
    lines = []
    for arm, number in trained.items():
        own = rows[(rows["arm"] == arm) & (rows["part"] == part) & (rows["change"] == CHANGE)]
        lines.append([f"{arm}: {own['seed'].nunique()} of {number}", *(_carried(own, route) for route in ROUTES)])
    return markdown_table(["models", *(route.split(" -> ")[1].removeprefix("L1 ") for route in ROUTES)], lines)


def _carried(rows: pd.DataFrame, group: str) -> str:
    own = rows.loc[rows["group"] == group, "share"]
    return mean_and_range(own) if len(own) else ""


def summary(rows: pd.DataFrame, experiment: Experiment) -> str:
    """The answers and the tables, as Markdown."""
    trained = {arm: int(rows.loc[rows["arm"] == arm, "seed"].nunique()) for arm in ARMS}
    asked = rows.dropna(subset=["share"])
    parts = list(dict.fromkeys(asked["part"]))
    return TEXT.format(
        verdicts="\n".join(verdict(heads, rows, experiment) for heads in HEADS),
        least=LEAST,
        at=experiment.solved_at,
        seen=experiment.solved_by.split()[-1],
        documents=DOCUMENTS,
        prefers=PREFERS,
        letter=CHANGES[CHANGE],
        tables="\n\n".join(f"On `{part}`:\n\n{table_of(asked, trained, part)}" for part in parts),
    )


def main(
    table: Annotated[Path | None, typer.Option(help="The table of this measurement; in the folder by default.")] = None,
) -> None:
    """Measure the models that are missing, and print the tables."""
    experiment, table = read_experiment(HERE), table or HERE / TABLE
    measure = partial(question_shares, experiment)
    rows = measure_missing(experiment, ARMS, table, measure, partial(typer.echo, err=True))
    text = summary(rows, experiment)
    (table.parent / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
