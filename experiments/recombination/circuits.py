"""Which edges of the solved models carry what a question asks for, with and without composition, seed by seed.

    python experiments/recombination/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md).

Heads of a layer are exchangeable between seeds, so edges are pooled by layer: all edges of one kind between two places
are one group. A group is patched as a whole, exactly, from a prompt that differs in one thing (`CHANGES`).
"""

from __future__ import annotations

import re
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from dcinterp import load
from dcinterp.bench.trained_models import measure_missing, right_answers
from dcinterp.mechanism.circuit_pairs import read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others
from dcinterp.mechanism.faithfulness import measure_circuits
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment, read_experiment, read_table
from dcinterp.train.data.puzzle_source import PuzzleSource

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
ARMS, DOCUMENTS, FLOOR = ("DCMHA", "plain"), 64, 0.15
RIGHT = 0.85
"""The share of a part's prompts that a model must answer right before its edges are asked."""
CHANGES = {
    "key": "another fact is asked for",
    "letter": "the fact that is asked for has another letter: it and another fact exchange theirs",
    "key and letter": "both, so that another fact is asked for and the letter that is found stays the same",
    "relation": "the letter is to be moved on by another number of places",
}
SAME = "key and letter"
"""This change leaves the answer as it is; what patching does is a share of what `key` does to the answer."""

TEXT = """## Which edges carry the question in the models that learnt it

{intro}

    python experiments/recombination/circuits.py

The prompt and the one that values are taken from differ in one thing:

{changes}

{arms}

None of these models has an MLP; composition may do here what an MLP would do in its place.
"""

INTRO = (
    "The configs of the runs above were trained again, without composition and with it: {counts}. The kernel adds in "
    "another order since; whether that is the reason was not tested. Of those that learnt it, on {documents} documents "
    "that training did not read, each with one question, one group of edges gets its values from another prompt. Its "
    "share is how far the difference between the logits of the two prompts' answers falls, over its fall when "
    "everything is of the other prompt. Heads of a layer are pooled, since their order means nothing between seeds; "
    "groups in series each count in full, so shares do not add up. *Weights* are the dynamic weights of a stage of "
    "composition, made from the residual stream; *skip* is a head's own pattern, all that a head without composition "
    "has. Patching is exact. The tables have means over models, and in brackets the least and the largest, of groups "
    "with a mean of {floor:.0%} or more anywhere; of a part's pairs only the models that answer {right:.0%} of its "
    "prompts, or more, are asked. The measurement describes: which groups would be worth a word was not said before "
    "it, and no hypothesis hangs on it."
)


def group_of(edge: str) -> str:
    """The group of an edge: its layers and what it is, without the numbers of heads.

    "L0H1 -> L1H0.q" is of "L0 -> L1 query"; "L1H0 -> L1H1 (post qp)" of "L1 post qp".
    """
    source, target = edge.split(" -> ")
    if composed := re.fullmatch(r"L(\d+)H\d+ \((\w+ \w+)\)", target):
        return f"L{composed[1]} {composed[2]}"
    source = re.sub(r"^L(\d+)H\d+$", r"L\1", source)
    named = {"q": "query", "k": "key", "v": "value"}
    if of_head := re.fullmatch(r"L(\d+)H\d+\.([qkv])", target):
        target = f"L{of_head[1]} {named[of_head[2]]}"
    return f"{source} -> {target}"


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
    accuracy = {"accuracy": round(right_answers(bridge, source.held_out(source.puzzle.PARTS[0], 256)), 4)}
    if accuracy["accuracy"] < experiment.solved_at:
        return [accuracy]
    run, rows = CircuitRun(bridge), []
    groups = [group for group in dict.fromkeys(map(group_of, run.graph.names)) if "MLP" not in group]  # of no units
    kept = torch.ones(2 + len(groups), run.graph.size)
    kept[1] = 0
    for number, edge in enumerate(run.graph.names):
        if (group := group_of(edge)) in groups:
            kept[2 + groups.index(group), number] = 0
    for part in source.puzzle.PARTS:
        found = {}
        for change in CHANGES:
            pairs, _ = read_pairs(bridge, prompts(source, part, change, DOCUMENTS))
            found[change] = measure_circuits(run, pairs, Others(run, pairs, "counterfactual"), kept, batch_size=64)
        if min(float((m[0] > 0).float().mean()) for m in found.values()) < RIGHT:
            continue
        means = {change: m.mean(1) for change, m in found.items()}
        for change, m in means.items():
            span = means["key" if change == SAME else change]
            for group, without in zip(groups, m[2:], strict=True):
                share = round(float((m[0] - without) / (span[0] - span[1])), 5)
                rows.append(accuracy | {"part": part, "change": change, "group": group, "share": share})
    return rows


def summary(rows: pd.DataFrame, experiment: Experiment) -> str:
    """The tables over seeds of every arm, as Markdown."""
    before = read_table(experiment)
    before = before[(before["stage"] == FINAL) & (before[experiment.solved_by] >= experiment.solved_at)]
    counts, told = [], []
    for arm, own in rows.groupby("arm", sort=False):
        solved = own.dropna(subset=["share"])
        counts.append(
            f"{solved['seed'].nunique()} of {own['seed'].nunique()} seeds of {arm} reach {experiment.solved_at:.0%} on "
            f"`{experiment.solved_by.split()[-1]}` now, against {int((before['arm'] == arm).sum())} in the table"
        )
        if len(solved):
            told.append(_of_arm(arm, solved))
    return TEXT.format(
        intro=INTRO.format(counts="; ".join(counts), documents=DOCUMENTS, floor=FLOOR, right=RIGHT),
        changes="\n".join(f"- *{change}*: {meaning}." for change, meaning in CHANGES.items()),
        arms="\n\n".join(told),
    )


def _of_arm(arm: str, rows: pd.DataFrame) -> str:
    """The tables of an arm, and how alike its models are."""
    mean = rows.groupby(["group", "part", "change"], sort=False)["share"].mean().unstack(["part", "change"])
    shown = mean[(mean >= FLOOR).any(axis=1)].index
    text = f"### {arm}\n\n"
    for part, own in rows.groupby("part", sort=False):
        cells = own.groupby(["group", "change"], sort=False)["share"].agg(_mean).unstack()
        body = [[group, *(cells.loc[group, change] for change in CHANGES)] for group in shown]
        text += f"On `{part}`, {own['seed'].nunique()} models:\n\n{markdown_table(['edges', *CHANGES], body)}\n\n"
    first = rows[rows["part"] == rows["part"].iloc[0]]
    alike = []
    for change in CHANGES:
        wide = first[first["change"] == change].pivot_table(index="group", columns="seed", values="share", sort=False)
        pairs = [float(wide[a].corr(wide[b])) for a, b in combinations(wide.columns, 2)]
        alike.append(f"{sum(pairs) / len(pairs):.2f} ({change})" if pairs else f"nothing ({change}, one seed)")
    return (
        f"{text}Between two of them the shares of all {len(mean)} groups correlate, on `{rows['part'].iloc[0]}`, by "
        f"{', '.join(alike)} (Pearson, the mean over pairs of seeds)."
    )


def _mean(shares: pd.Series) -> str:
    return f"{shares.mean():.2f} [{shares.min():.2f}, {shares.max():.2f}]"


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
