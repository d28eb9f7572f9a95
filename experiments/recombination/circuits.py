"""Which edges of the solved DCMHA models carry what a question asks for, and whether the same ones do in every seed.

    python experiments/recombination/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds the seeds that are missing to
circuits.csv of this folder, and prints the table over seeds, which is also at the end of the experiment's page
(more-circuits.md).

Heads of a layer are exchangeable between seeds, so edges are pooled by layer: all edges of one kind between two places
are one group. A group is patched as a whole, exactly, from a prompt that differs in one word of the question: its key
(which fact is meant) or its relation (how its letter is said).
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer

from dcinterp import load
from dcinterp.mechanism.circuit_pairs import read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others
from dcinterp.mechanism.faithfulness import measure_circuits
from dcinterp.support.errors import UserError
from dcinterp.train.control.experiment import FINAL, Experiment, read_experiment, read_table
from dcinterp.train.data.puzzle_source import PuzzleSource

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "circuits.csv", "more-circuits.md"
ARM, DOCUMENTS, SHOWN = "DCMHA", 64, 8
CHANGES = {"key": "which fact is meant", "relation": "how its letter is said"}

TEXT = """## Which edges carry the question in the {arm} models that learnt it

In the models of the {seeds} of {trained} seeds that reach {at:.0%} on `seen`, on {documents} new documents with one
question. They were trained again from the configs of the runs above, with a kernel that adds in another order, and
from so small a difference another model comes: those that learn are not the same seeds. The prompt is compared with
one that differs in a single word of the question, and a group of edges carries the values of that other prompt: by
how much does the difference of the two answers' logits fall, of what it falls by if everything changes? Heads of a
layer are pooled, since their order means nothing between seeds; groups in series each count in full, so shares do not
add up. *Weights* are the dynamic weights of a stage of composition, made from the residual stream. Means over seeds,
and in brackets the least and the largest share of a seed. Patching is exact. The measurement describes, and no
hypothesis hangs on it:

    python experiments/recombination/circuits.py
"""

SECTION = """
### The word that changes is the {change}: {meaning}

{table}

The {shown} of {groups} groups with the largest mean on `seen`. Between two seeds the order of all groups correlates by
{mean:.2f} on average over pairs of seeds ({least:.2f} to {most:.2f}; Spearman, of `seen`).
"""


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
    """(prompt, answer, other prompt, its answer): documents of a part up to their first question's key."""
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert tokenizer is not None
    letters = [word for word in puzzle.words() if len(word) == 1]
    found = []
    for row in source.held_out(part, count)["input_ids"].tolist():
        words = tokenizer.convert_ids_to_tokens(row)[1:]
        facts = [word.split("-") for word in words[:4]]
        relation, key = int(words[4]), words[5]
        at, pattern = next((n, fact.index(key)) for n, fact in enumerate(facts) if key in fact)
        asked = {"key": [((at + 1) % 4, relation)], "relation": []}[change] or [
            (at, other) for side, other in puzzle.pairs(part) if side == pattern and other != relation
        ]
        other_at, other_relation = asked[relation % len(asked)]
        made = [
            (
                " ".join([*words[:4], f"+{r}", facts[n][pattern]]),
                letters[(letters.index(facts[n][2]) + r) % len(letters)],
            )
            for n, r in ((at, relation), (other_at, other_relation))
        ]
        if made[0][1] != made[1][1]:
            found.append((*made[0], *made[1]))
    return found


def measure(experiment: Experiment, model: Path, documents: int) -> list[dict[str, Any]]:
    """A row for every change, part of the puzzle and group of edges: the share of the difference that it carries.

    Of a model that has not learnt the seen pairs, one row with its accuracy.
    """
    source = PuzzleSource(experiment.run(FINAL, ARM, {}, 0).config.data.puzzle, model, makes=False)
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
    for change in CHANGES:
        for part in source.puzzle.PARTS:
            pairs, _ = read_pairs(bridge, prompts(source, part, change, documents))
            m = measure_circuits(run, pairs, Others(run, pairs, "counterfactual"), kept, batch_size=64).mean(1)
            for group, without in zip(groups, m[2:], strict=True):
                share = float((m[0] - without) / (m[0] - m[1]))
                rows.append(accuracy | {"change": change, "part": part, "group": group, "share": round(share, 5)})
    return rows


@torch.no_grad()
def right_answers(bridge: Any, documents: dict[str, torch.Tensor]) -> float:
    """The share of right answers."""
    guesses, labels = bridge(documents["input_ids"]).argmax(-1)[:, :-1], documents["labels"][:, 1:]
    return float((guesses == labels)[labels >= 0].float().mean())


def summary(rows: pd.DataFrame, solved_at: float) -> str:
    """The table over seeds, as Markdown."""
    trained, rows = len(set(rows["seed"])), rows.dropna(subset=["share"])
    seeds = sorted(set(rows["seed"]))
    text = TEXT.format(arm=ARM, seeds=len(seeds), trained=trained, at=solved_at, documents=DOCUMENTS)
    for change, meaning in CHANGES.items():
        wide = {
            part: own.pivot_table(index="group", columns="seed", values="share", sort=False)
            for part, own in rows[rows["change"] == change].groupby("part", sort=False)
        }
        first = next(iter(wide))
        order = wide[first].mean(axis=1).sort_values(ascending=False, kind="stable").index
        lines = [f"| edges | {' | '.join(wide)} |", "|---" * (1 + len(wide)) + "|"]
        for group in order[:SHOWN]:
            lines.append(f"| {group} | {' | '.join(_mean(each.loc[group]) for each in wide.values())} |")
        ranks = wide[first].rank()
        alike = [float(ranks[a].corr(ranks[b])) for a, b in combinations(seeds, 2)]
        text += SECTION.format(
            change=change,
            meaning=meaning,
            table="\n".join(lines),
            groups=len(order),
            mean=sum(alike) / len(alike),
            least=min(alike),
            most=max(alike),
            shown=SHOWN,
        )
    return text


def _mean(shares: pd.Series) -> str:
    return f"{shares.mean():.2f} [{shares.min():.2f}, {shares.max():.2f}]"


def main(
    documents: Annotated[int, typer.Option(help="Documents of each part.")] = DOCUMENTS,
    table: Annotated[Path | None, typer.Option(help="The table of this measurement; in the folder by default.")] = None,
) -> None:
    """Measure the seeds that are missing, and print the table."""
    experiment, table = read_experiment(HERE), table or HERE / TABLE
    rows = pd.read_csv(table) if table.is_file() else pd.DataFrame()
    runs = read_table(experiment)
    for _, run in runs[(runs["arm"] == ARM) & (runs["stage"] == FINAL)].iterrows():
        seed, model = int(run["recipe.seed"]), experiment.output / run["name"] / "model"
        if model.is_dir() and not (len(rows) and (rows["seed"] == seed).any()):
            found = pd.DataFrame([{"seed": seed} | row for row in measure(experiment, model, documents)])
            rows = pd.concat([rows, found], ignore_index=True)
            rows.to_csv(table, index=False)
            typer.echo(f"seed {seed} is measured", err=True)
    if not len(rows):
        raise UserError(f"There are no trained models in {experiment.output}; run the experiment first.")
    text = summary(rows, experiment.solved_at)
    (table.parent / TEXT_FILE).write_text(text, encoding="utf-8")
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)
