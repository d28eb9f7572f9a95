"""Which edges of the solved models carry what a question asks for, with and without composition, seed by seed.

    python experiments/recombination/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). `dcinterp.bench.pooled_edges` says what is measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from dcinterp import load
from dcinterp.bench.pooled_edges import EXPLAINED, arm_tables, arms_alike, change_list, pooled_shares
from dcinterp.bench.trained_models import measure_missing, right_answers
from dcinterp.train.control.experiment import FINAL, Experiment, read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
ARMS, DOCUMENTS = ("DCMHA", "plain"), 64
CHANGES = {
    "key": "another fact is asked for",
    "letter": "the fact that is asked for has another letter: it and another fact exchange theirs",
    "key and letter": "both, so that another fact is asked for and the letter that is found stays the same, as does "
    "the answer; shares are of what *key* does to the difference between its two answers",
    "relation": "the letter is to be moved on by another number of places",
}
SAME = "key and letter"
"""This change leaves the answer as it is; what patching does is a share of what `key` does to the answer."""

TEXT = """## Which edges carry the question in the models that learnt it

{intro}

    python experiments/recombination/circuits.py

{changes}

{arms}

None of these models has an MLP; composition may do here what an MLP would do in its place.
"""

INTRO = (
    "The models are those trained again by the kernel of today: {counts} reach {at:.0%} on `{seen}`. Only these are "
    "looked at, so an arm that learnt it less often is seen by its better models. They are asked {documents} "
    "documents that training did not read, each with one question. {explained} *L0 post kg* is the branch of the "
    "key's gates after the softmax in layer 0; *weights* are the dynamic weights of a stage of composition, made "
    "from the residual stream; *skip* is a head's own pattern, all that a head without composition has."
)


def prompts(source: PuzzleSource, part: str, change: str, count: int) -> list[tuple[str, str, str, str]]:
    """(prompt, answer, other prompt, its answer): documents of a part up to their first question's key.

    Of `SAME`, whose prompts have one answer, the last is that of the change "key".
    """
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert tokenizer is not None
    letters = [word for word in puzzle.words() if len(word) == 1]
    found = []
    for row in source.held_out(part, count)["input_ids"].tolist():
        start, *words = tokenizer.convert_ids_to_tokens(row)
        facts, relation, key = [word.split("-") for word in words[:4]], int(words[4]), words[5]
        at, pattern = next((n, fact.index(key)) for n, fact in enumerate(facts) if key in fact)
        other = (at + 1) % len(facts)
        swapped = [list(fact) for fact in facts]
        swapped[at][2], swapped[other][2] = facts[other][2], facts[at][2]
        relations = [each for side, each in puzzle.pairs(part) if side == pattern and each != relation]
        asked = {
            "key": (facts, relation, other),
            "letter": (swapped, relation, at),
            SAME: (swapped, relation, other),
            "relation": (facts, relations[relation % len(relations)], at),
        }
        (prompt, answer), (counterfactual, its_answer), (_, foil) = (
            (
                " ".join([start, *map("-".join, these), f"+{places}", these[fact][pattern]]),
                letters[(letters.index(these[fact][2]) + places) % len(letters)],
            )
            for these, places, fact in ((facts, relation, at), asked[change], asked["key"])
        )
        found.append((prompt, answer, counterfactual, foil if change == SAME else its_answer))
    return found


def measure(experiment: Experiment, arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for every part of the puzzle, change and group of edges: the share of the difference that it carries.

    Of a model that has not learnt the seen pairs, one row with its accuracy; no rows of a part that it gets wrong.
    """
    source = PuzzleSource(experiment.run(FINAL, arm, {}, 0).config.data.puzzle, model, makes=False)
    bridge = load(str(model))
    accuracy = {part: round(right_answers(bridge, source.held_out(part, 256)), 4) for part in source.puzzle.PARTS}
    if accuracy[source.puzzle.PARTS[0]] < experiment.solved_at:
        return [accuracy]
    return [
        accuracy | {"part": part} | row
        for part in source.puzzle.PARTS
        for row in pooled_shares(
            bridge, {change: prompts(source, part, change, DOCUMENTS) for change in CHANGES}, like={SAME: "key"}
        )
    ]


def summary(rows: pd.DataFrame, experiment: Experiment) -> str:
    """The tables over seeds of every arm, as Markdown."""
    counts, told, seen, of = [], [], experiment.solved_by.split()[-1], {}
    for arm, own in rows.groupby("arm", sort=False):
        solved = own.dropna(subset=["share"])
        counts.append(f"{solved['seed'].nunique()} of {own['seed'].nunique()} seeds of {arm}")
        if len(solved):
            told.append(f"### {arm}\n\n{arm_tables(solved, list(CHANGES))}")
            of[str(arm)] = solved
    if len(of) == len(ARMS):
        between = arms_alike(*of.values(), list(CHANGES))
        pair = " and one of ".join(of)
        told.append(
            f"For comparison: the shares of a model of {pair} correlate by {between}, on the groups that both have."
        )
    return TEXT.format(
        intro=INTRO.format(
            counts=" and ".join(counts), at=experiment.solved_at, seen=seen, documents=DOCUMENTS, explained=EXPLAINED
        ),
        changes=change_list(CHANGES),
        arms="\n\n".join(told),
    )


def main(
    table: Annotated[Path | None, typer.Option(help="The table of this measurement; in the folder by default.")] = None,
) -> None:
    """Measure the models that are missing, and print the tables."""
    experiment, table = read_experiment(HERE), table or HERE / TABLE
    rows = measure_missing(experiment, ARMS, table, partial(measure, experiment), partial(typer.echo, err=True))
    text = summary(rows, experiment)
    (table.parent / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
