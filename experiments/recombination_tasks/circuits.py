"""By which ways models that learnt the 74 tasks carry what is asked for and what is said, seed by seed.

    python experiments/recombination_tasks/circuits.py
    python experiments/recombination_tasks/circuits.py --folder experiments/recombination_tasks_two_heads

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of that folder, and prints the answer to M of the protocol and the tables beside it, which are also at the
end of the experiment's page (more-circuits.md). Its circuits.yaml says why M is asked, and which parts are.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import synthetic_tasks
from dcinterp.bridge.protocol import Bridge
from dcinterp.checkpoints.load import load
from dcinterp.evidence.intervals import mean_and_range, two_decimals
from dcinterp.evidence.pooled_edges import (
    EXPLAINED,
    NOTHING,
    arm_tables,
    arms_alike,
    change_list,
    group_of,
    pair_shares,
    shares_of,
    with_shares,
    without_void_ways,
)
from dcinterp.evidence.script import run_script
from dcinterp.evidence.sign_verdict import sign_verdict
from dcinterp.evidence.trained_models import RunsFolder, RunsTable, print_measured, trained_models
from dcinterp.mechanism.circuit_pairs import read_pairs
from dcinterp.support.text import markdown_table
from dcinterp.train.config.recipe import read_tree
from dcinterp.train.control.experiment import Experiment, reported_runs
from dcinterp.train.data.task_choice import held_out_tasks

HERE = Path(__file__).parent
TABLE, TEXT_FILE, SETTINGS = "circuits.csv", "more-circuits.md", "circuits.yaml"
COMPOSED = "DCMHA"
EXAMPLES, SEED = 128, 11
ORDINALS = "ordinals seen"
KINDS = {
    "persons": ("same-person", "the-other-person"),
    "objects": ("same-object", "the-other-object"),
    "ordinals": ("different-in-set",),
}
SAID = {
    "persons": "what a person has, or the other one has; another *question* is of the former alone, but for a few",
    "objects": "who has it, or who has not; another *question* is of the former alone",
    "ordinals": "days, years and the like of a set: what comes just before or after the one that differs; training "
    "shows both",
}
CHANGES = {
    "relation": "the question says *before* instead of *after*, or the other way round",
    "question": "the question names another person (another item, where a name is the answer)",
    "source": "the fact that is asked for has another item (another name, where a name is the answer)",
}
RELATION, QUESTION, SOURCE = CHANGES
ROUTE, OTHER, MIXED, BETWEEN = "all -> weights", "all -> queries", "mixed heads", "between heads"

AGAIN = """The rules of these seeds, and what was found and asked before them, are in protocol.md, *With other
seeds*. It is of more and less. Nothing is said of why a task left out is answered or is not.

    python experiments/recombination_tasks/circuits.py{options}"""

TEXT = """## By which ways the models answer

{why}

{verdict}
{means}

"""
BETWEENS = """

*post {between}* are the terms, of all layers, by which the pattern of one head is used with the values of another; *pre
{between}* those by which scores of one become scores of another. They and *{mixed}* are left out where arms are
correlated."""
UNASKED = """Asked are models that answer {at:.0%} of the tasks seen in training. There is none, so there are no tables.
"""
SHARES = """Brackets after an arm's shares are the least and the largest of its models, and no interval.

Asked are models that answer {at:.0%} of the tasks seen in training, with facts that training never shows.
{number}, as far as there is another prompt of as many tokens with another answer:

{kinds}

*seen* and *held-out* are tasks seen in training and those left out. Models are chosen by what they learnt, so this is
said of models that learnt the tasks, and not of an arm.

{changes}

{explained}

Groups are wider here: *tokens* is the embedding, *layers* the heads and MLPs of earlier layers, *all* both, and all
layers where it stands with a kind of reader. *{mixed}* are all terms that composition adds, its gates of a head's own
pattern included, together and by layer and stage (*pre* and *post* the softmax); their weights are the prompt's own.
*before* and *after* are the last word, where the answer is read, so that little of this need go by other positions. M
is of two rows of the table of {composed}, *{route}* and *{other}* under *relation*; no hypothesis is
about the others.{left_out}{between}

{arms}
"""


def ways(edge: str) -> tuple[str, ...]:
    """The groups of an edge: from the tokens or from earlier layers into what, and the sums over layers."""
    group, (one, other) = group_of(edge), edge.split(" -> ")
    if " -> " not in group:
        layer, stage, branch = group.split()
        apart = () if other.split()[0] == one else (f"{stage} {BETWEEN}",)
        return apart if branch == "skip" else (f"{layer} {stage} {MIXED}", MIXED, *apart)
    source, target = group.split(" -> ")
    if target == "logits":
        return (group,)
    if target.startswith("MLP"):
        return (f"all -> {target}",)
    what = {"query": "queries", "key": "keys", "value": "values"}.get(target.split()[-1], "weights")
    named = (f"{'tokens' if source == 'embedding' else 'layers'} -> {target}", f"all -> {what}")
    return (*named, f"all -> {target.split(' ', 1)[1]}") if what == "weights" else named


def tasks_of(experiment: Experiment, part: str) -> list[str]:
    """The numbers of the tasks of a part."""
    kind, side = part.split()
    held_out = held_out_tasks(tuple(experiment.config["data"]["holdout"]))
    return [
        task.id.removeprefix("task")
        for task in synthetic_tasks.TASKS.values()
        if task.qk in KINDS[kind]
        and (task.id in held_out) == (side == "held-out")
        and (part != ORDINALS or task.relation.startswith("ordinal"))
    ]


def changes_of(part: str) -> list[str]:
    """What is changed in the questions of a part."""
    return [RELATION if part == ORDINALS else QUESTION, SOURCE]


def settings(experiment: Experiment, options: str = "") -> tuple[str, list[str], list[str]]:
    """Why it is asked of an experiment, as Markdown; of which parts; and the arms whose tables are shown.

    options: of the command, where it is asked of other seeds than the first; `why` is about those.
    """
    found = read_tree(experiment.folder / SETTINGS)
    why = AGAIN.format(options=options) if experiment.is_repetition else found["why"]
    return why, found["parts"], found.get("arms", [COMPOSED, next(iter(experiment.arms))])


def measure(experiment: Experiment, _arm: str, model: Path, solved: pd.Series) -> list[dict[str, Any]]:
    """A row for every part, change and group: its share; one row alone of a model that is not asked.

    solved: the share of right answers on tasks seen in training, of every run.
    """
    seen = {"right": solved[model.parent.name]}
    if seen["right"] < experiment.solved_at:
        return [seen]
    bridge = load(str(model))
    parts = settings(experiment)[1]
    found = [seen | {"part": part} | row for part in parts for row in measure_part(experiment, bridge, part)]
    return found or [seen]


def measure_part(experiment: Experiment, bridge: Bridge, part: str) -> list[dict[str, Any]]:
    """A row for every change and group: its share in one model on one part."""
    examples = EXAMPLES * (1 + (part == ORDINALS))
    text = f"{','.join(tasks_of(experiment, part))} n={examples} seed={SEED} split=held-out"
    pairs = {change: read_pairs(bridge, text, change)[0] for change in changes_of(part)}
    return pair_shares(bridge, pairs, groups_of=ways)


def verdict(rows: pd.DataFrame, experiment: Experiment) -> str:
    """The hypothesis about the DCMHA models, as a line of Markdown."""
    found = sign_verdict(
        shares_of(rows, COMPOSED, ORDINALS, RELATION),
        ROUTE,
        OTHER,
        trained=rows.loc[rows["arm"] == COMPOSED, "seed"].nunique(),
        seeds=len(experiment.seeds),
        signs=True,
    )
    return (
        f"- **M** (in {COMPOSED}, on `{ORDINALS}`, of the effect of another *{RELATION}*, the share of *{ROUTE}* minus "
        f"that of *{OTHER}* is above zero): {found}"
    )


def means(rows: pd.DataFrame, arm: str) -> str:
    """The two shares that M is about in one arm, as a line of Markdown."""
    found = shares_of(rows, arm, ORDINALS, RELATION)
    said = [f"*{way}* {mean_and_range(found[way])}" for way in (ROUTE, OTHER) if way in found]
    return f"- {arm}, {len(found)} models: {', '.join(said) or 'none could be asked'}."


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The answer and the tables of the arms that are shown, as Markdown.

    options: of the command, which circuits.yaml names where the seeds are the first ones.
    """
    why, parts, arms = settings(experiment, options)
    able, told, of = without_void_ways(with_shares(rows)), [], {}
    for arm in arms:
        shares = able[able["arm"] == arm]
        if not len(shares):
            continue
        of[arm] = shares[shares["part"] == ORDINALS], shares[shares["part"] != ORDINALS]
        tables = [arm_tables(own, changes_of(own["part"].iloc[0])) for own in of[arm] if len(own)]
        told.append(f"### {arm}\n\n" + "\n\n".join(tables))
    for pair in combinations(of, 2):
        alike = [
            f"on `{one['part'].iloc[0]}` by {arms_alike(one, other, changes_of(one['part'].iloc[0]))}"
            for one, other in zip(*(map(comparable, of[arm]) for arm in pair), strict=True)
            if len(one) and len(other)
        ]
        both = " and one of ".join(pair)
        told.append(f"The shares of a model of {both} correlate {', '.join(alike)}, on the groups that both have.")
    head = TEXT.format(
        why=why, verdict=verdict(rows, experiment), means="\n".join(means(able, arm) for arm in experiment.arms)
    )
    if not len(able):
        return head + UNASKED.format(at=experiment.solved_at)
    kinds = [kind for kind in SAID if any(part.startswith(kind) for part in parts)]
    changes = {change for part in parts for change in changes_of(part)}
    others = " and ".join(f"*{arm}*" for arm in experiment.arms if arm not in arms)
    return head + SHARES.format(
        at=experiment.solved_at,
        number=f"Each part has {EXAMPLES} questions (the last twice as many)"
        if len(parts) > 1
        else f"There are {2 * EXAMPLES} questions",
        kinds="\n".join(f"- *{kind}*: {SAID[kind]}{';.'[kind == kinds[-1]]}" for kind in kinds),
        changes=change_list({change: said for change, said in CHANGES.items() if change in changes}),
        explained=EXPLAINED,
        mixed=MIXED,
        between=BETWEENS.format(between=BETWEEN, mixed=MIXED) if able["group"].str.endswith(BETWEEN).any() else "",
        composed=COMPOSED,
        route=ROUTE,
        other=OTHER,
        left_out=f" The tables of {others} are left out; its shares are in circuits.csv." if others else "",
        arms="\n\n".join(told),
    )


def comparable(shares: pd.DataFrame) -> pd.DataFrame:
    """The rows of groups that mean the same whatever the composition: not those of its own terms."""
    return shares[~shares["group"].str.endswith((MIXED, BETWEEN))]


def one_table(rows: list[dict[str, Any]]) -> str:
    """The shares of one model on one part, as Markdown."""
    found = pd.DataFrame(rows).pivot_table(index="group", columns="change", values="share", sort=False)
    shown = found[(found.abs() >= NOTHING).any(axis=1) | found.index.isin((ROUTE, OTHER))]
    cells = [[group, *map(two_decimals, values)] for group, values in zip(shown.index, shown.to_numpy(), strict=True)]
    return markdown_table(["edges", *found.columns], cells)


def main(
    table: RunsTable = None,
    folder: RunsFolder = HERE,
    model: Annotated[str, typer.Option(help="A model to print the shares of on the ordinals, and no more.")] = "",
) -> None:
    """Measure the models that are missing, and print the tables."""
    trained = trained_models(folder, HERE, table)
    if model:
        typer.echo(one_table(measure_part(trained.experiment, load(model), ORDINALS)))
        return
    solved = reported_runs(trained.experiment).set_index("name")[trained.experiment.solved_by]
    print_measured(trained, TABLE, TEXT_FILE, partial(measure, solved=solved), summary)


if __name__ == "__main__":
    run_script(main)
