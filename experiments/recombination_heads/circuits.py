"""By which edges models that learnt the task use the letter that layer 0 has found.

    python experiments/recombination_heads/circuits.py
    python experiments/recombination_heads/circuits.py --folder experiments/recombination_mlp

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of that folder, and prints the answers to M2, M4 and so on of the protocol and the tables beside them,
which are also at the end of the experiment's page (more-circuits.md).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dcinterp.evidence.pooled_edges import PREFERS, shares_of, with_shares
from dcinterp.evidence.questions.recombination import CHANGES, DOCUMENTS, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.sign_verdict import least_models, sign_verdict
from dcinterp.evidence.trained_models import CHECKED, RunsFolder, RunsTable, print_measured, trained_models
from dcinterp.evidence.verdict_words import error_of
from dcinterp.evidence.ways_out import CHANGE, POST_WEIGHTS, QUERY, WAYS, largest_ways, ways_table
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
FAMILIES = ("DCMHA", "plain")
UNITS = ("L0 -> MLP 0", "L0 -> MLP 1")
"""Ways that models with an MLP have besides."""
ONWARDS = "MLP 0 -> L1 post weights"
"""What goes on from one of these into the weights; no way out of layer 0's attention."""

TEXT = """## By which edges the letter is used

In the four of ten DCMHA models of `experiments/recombination`, trained again from its configs, that reached 95 % on
`seen`, the letter that layer 0 had found reached layer 1 by the dynamic weights after the softmax, more than by layer
1's queries. That was found by looking. Here the protocol asked it of fresh seeds and other models, before any of them
was looked into.

    python experiments/recombination_heads/circuits.py{options}

{verdicts}

A verdict needs a sign test to agree with the interval, which {least} models can reach at the least. It is of the
queries alone: *pre weights* are another way into what layer 1 attends to. In each table those models are asked that
reach {at:.0%} with {held} documents of `{seen}`, and prefer the answer to that of the other prompt in {prefers:.0%} of
{documents} prompts of every change of that part. They are chosen by what they learnt, so this is said of models that
learnt the task, and not of DCMHA.

A way out of layer 0 is a group of edges, over all heads: *L0 -> L1 query* is all that {attention}layer 0 writes into
the queries of layer 1{through}, and *weights* are the dynamic weights of a stage of composition, made from the residual
stream. The group gets its values from the other prompt, by a second run of the model. Its share is how far the
difference between the logits of the two prompts' answers falls, over its fall when everything is of the other prompt.
These ways out are apart, but they act together, and not every path has one, so that shares need not add up to one.

The verdicts are of `{seen}`. The table of other pairs has fewer models, those that do well there too, so that what
differs between the tables may be the models.

In the other prompt {letter}. The share of this effect that layer 0 has through each of its ways out, to layer 1's
weights, queries, keys and values and to the logits{units}; its mean over models [least, largest], and how many of the
trained models could be asked:

{tables}

Which of these ways out has the largest share, on `{seen}`, in how many models? No hypothesis is about it.

{largest}
"""


def sizes(experiment: Experiment) -> list[str]:
    """What the arms of one family differ in, such as their numbers of heads, as their names say it."""
    return [arm.split()[1] for arm in experiment.arms if arm.startswith(FAMILIES[0])]


def arms_asked(experiment: Experiment) -> list[str]:
    """Arms whose models are opened."""
    return [f"{family} {size}" for size in sizes(experiment) for family in FAMILIES]


def error_rate(experiment: Experiment) -> float:
    """What a test may err, as one is asked for every size."""
    return error_of(len(sizes(experiment)))


def verdict(size: str, rows: pd.DataFrame, experiment: Experiment) -> str:
    """The hypothesis about the DCMHA models of one size, as a line of Markdown.

    rows: of `measure`, of all arms.
    """
    arm, part, error = f"{FAMILIES[0]} {size}", experiment.solved_part, error_rate(experiment)
    shares, trained = shares_of(rows, arm, part, CHANGE), rows.loc[rows["arm"] == arm, "seed"].nunique()
    found = sign_verdict(shares, POST_WEIGHTS, QUERY, trained=trained, seeds=len(experiment.seeds), error=error)
    asks = f"in {arm}, on `{part}`, the share of *{POST_WEIGHTS}* minus that of *{QUERY}* is above zero"
    return f"- **M{size}** ({asks}): {found}"


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The answers and the tables, as Markdown.

    options: of the command that makes it again.
    """
    trained = {arm: int(rows.loc[rows["arm"] == arm, "seed"].nunique()) for arm in arms_asked(experiment)}
    asked = with_shares(rows)
    parts = list(dict.fromkeys(asked["part"]))
    seen, has_units = experiment.solved_part, UNITS[0] in set(asked["group"])
    ways = (*WAYS, *UNITS) if has_units else WAYS
    shown = (*ways, ONWARDS) if has_units else ways
    return TEXT.format(
        options=options,
        verdicts="\n".join(verdict(size, rows, experiment) for size in sizes(experiment)),
        least=least_models(error_rate(experiment)),
        at=experiment.solved_at,
        held=CHECKED,
        seen=seen,
        documents=DOCUMENTS,
        prefers=PREFERS,
        letter=CHANGES[CHANGE],
        attention="the attention of " if has_units else "",
        through=" (what goes through the MLP of layer 0 first is in the rows of MLP 0 alone)" if has_units else "",
        units=", and to the MLPs (what goes on from there is in their rows; the last row is a part of it)"
        if has_units
        else "",
        tables="\n\n".join(f"On `{part}`:\n\n{ways_table(asked, trained, part, shown)}" for part in parts),
        largest="\n".join(largest_ways(asked, arm, seen, ways) for arm in trained),
    )


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
) -> None:
    """Measure the models that are missing, and print the tables."""
    trained = trained_models(folder, HERE, table)
    print_measured(trained, TABLE, TEXT_FILE, measure, summary, arms_asked(trained.experiment))


if __name__ == "__main__":
    run_script(main)
