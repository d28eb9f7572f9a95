"""Which edges of the solved models carry what a question asks for, with and without composition, seed by seed.

    python experiments/recombination/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). `dcinterp.evidence.pooled_edges` says what is measured.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dcinterp.evidence.arm_circuits import tables_by_arm
from dcinterp.evidence.pooled_edges import (
    DESCRIBES,
    EXPLAINED,
    FLOOR,
    change_list,
    shares_of,
    with_shares,
    without_void_ways,
)
from dcinterp.evidence.questions.recombination import CHANGES, DOCUMENTS, measure
from dcinterp.evidence.script import run_script
from dcinterp.evidence.sign_verdict import least_models, sign_verdict
from dcinterp.evidence.trained_models import RunsTable, print_measured, trained_models
from dcinterp.evidence.verdict_words import FAMILY_ERROR, error_of
from dcinterp.evidence.ways_out import (
    CHANGE,
    OTHER_WAY,
    POST_WEIGHTS,
    QUERY,
    WAYS,
    beside_the_largest,
    largest_ways,
    ways_table,
)
from dcinterp.train.control.experiment import Experiment

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
ARMS = ("DCMHA", "plain")
"""Whose models of the first seeds were trained again, to be looked into."""
ARMS_AGAIN = ("plain", "static map", "head convolution", "differential", "DCMHA")
"""Whose models of other seeds are."""
NAMED = {
    "C1": ("DCMHA", POST_WEIGHTS),
    "C2": ("plain", QUERY),
    "C3": ("static map", QUERY),
    "C4": ("head convolution", QUERY),
}
"""The way that the protocol named for the models of an arm, before any model of the other seeds was there."""
ERROR, SIGN_ERROR = error_of(len(NAMED)), FAMILY_ERROR
"""What the intervals of C1 to C4 may err, as they are four, and what the sign test beside each may."""

TEXT = """## Which edges carry the question in the models that learnt it

{intro}

    python experiments/recombination/circuits.py{options}

{changes}

{arms}

None of these models has an MLP; composition may do here what an MLP would do in its place.
"""

OWN = "The models are those trained again by the kernel of today: "
INTRO = (
    "{which} reach {at:.0%} on `{seen}` and could be asked. Only these are "
    "looked at, so an arm that learnt it less often is seen by its better models. They are asked {documents} "
    "documents that training did not read, each with one question. {explained} *L0 post kg* is the branch of the "
    "key's gates after the softmax in layer 0; *weights* are the dynamic weights of a stage of composition, made "
    "from the residual stream; *skip* is a head's own pattern, all that a head without composition has."
)

NAMED_BEFORE = (
    "C1 to C4, at the end, are about some groups of the change *letter*, which were named before these models were "
    "trained; all else describes."
)
ONE_WAY = """## By which way the letter leaves layer 0

In the other prompt {letter}. Layer 0 finds the letter; by which of its ways out does it go on: to layer 1's dynamic
weights (in DCMHA), queries, keys and values, or to the logits? In the models of the first seeds that were trained again
most went by the weights after the softmax (DCMHA) or by the queries (plain); the other arms had not been looked into.
The protocol named a way for four arms before any of these models was trained: its share, minus that of the largest
other way of the same model, is above zero. As the largest other is picked in each model, the difference leans below
zero; "refuted" says that the named way is not the largest, and of no other that it is.

{verdicts}

A verdict goes by the interval at {level:.2%}, as four are asked, and needs a sign test at {sign:.0%} to agree, which
{least} models can reach at the least. It is said of models that learnt the task, on `{seen}`. Means over models [least,
largest], and how many of the trained models could be asked:

{tables}

Which way has the largest share, on `{seen}`, in how many models? Those in which none has {floor:.0%} would be counted
apart. No hypothesis is about this.

{largest}
"""


def one_way(rows: pd.DataFrame, experiment: Experiment) -> str:
    """Whether the named ways carry more than any other, as Markdown."""
    asked, part = without_void_ways(with_shares(rows)), experiment.solved_part
    trained = {arm: int(rows.loc[rows["arm"] == arm, "seed"].nunique()) for arm in ARMS_AGAIN}
    verdicts = []
    for name, (arm, way) in NAMED.items():
        shares = beside_the_largest(shares_of(asked, arm, part, CHANGE), way, WAYS)
        found = sign_verdict(
            shares,
            way,
            OTHER_WAY,
            trained=trained[arm],
            seeds=len(experiment.seeds),
            error=ERROR,
            sign_error=SIGN_ERROR,
            signs=True,
        )
        verdicts.append(f"- **{name}** (in {arm}, *{way}* minus the {OTHER_WAY} is above zero): {found}")
    parts = list(dict.fromkeys(asked["part"]))
    return ONE_WAY.format(
        letter=CHANGES[CHANGE],
        verdicts="\n".join(verdicts),
        level=1 - ERROR,
        sign=SIGN_ERROR,
        least=least_models(SIGN_ERROR),
        seen=part,
        floor=FLOOR,
        tables="\n\n".join(f"On `{each}`:\n\n{ways_table(asked, trained, each, WAYS)}" for each in parts),
        largest="\n".join(largest_ways(asked, arm, part, WAYS) for arm in trained),
    )


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The tables over seeds of every arm, as Markdown, and of other seeds the answers to C1 to C4.

    options: of the command that makes it again.
    """
    again = not experiment.has_own_table
    counts, arms = tables_by_arm(rows, list(CHANGES))
    text = TEXT.format(
        options=options,
        intro=INTRO.format(
            which=counts if again else OWN + counts,
            at=experiment.solved_at,
            seen=experiment.solved_part,
            documents=DOCUMENTS,
            explained=f"{EXPLAINED} {NAMED_BEFORE if again else DESCRIBES}",
        ),
        changes=change_list(CHANGES),
        arms=arms,
    )
    return f"{text}\n{one_way(rows, experiment)}" if again else text


def arms_asked(experiment: Experiment) -> tuple[str, ...]:
    """Arms whose models are opened."""
    return ARMS if experiment.has_own_table else ARMS_AGAIN


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    trained = trained_models(HERE, HERE, table)
    print_measured(trained, TABLE, TEXT_FILE, measure, summary, arms_asked(trained.experiment))


if __name__ == "__main__":
    run_script(main)
