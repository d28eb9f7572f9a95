"""What the edges of trained models carry, pooled by layer so that seeds compare, as tables of an experiment's page.

    rows = [{"arm": arm, "seed": seed, "part": part} | row for row in pooled_shares(bridge, prompts)]
    arm_tables(pd.DataFrame(rows), list(prompts))

Heads of a layer are exchangeable between seeds, so all edges of one kind between two places are one group. A group is
patched as a whole, exactly, from prompts that differ in one thing from those that are asked: a change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeAlias

import pandas as pd
import torch

from dcinterp.bridge.protocol import Bridge
from dcinterp.evidence.intervals import mean_and_range
from dcinterp.mechanism.circuit_pairs import Pair, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import Others
from dcinterp.mechanism.faithfulness import measure_circuits
from dcinterp.support.text import markdown_table

FLOOR, PREFERS = 0.15, 0.85
"""The least mean share that is worth a row, and of how many prompts a model must prefer the answer to be asked."""

EXPLAINED = (
    "A row of the tables is a group of edges: *L0 -> L1 query* is all that layer 0 writes into the queries of layer "
    "1. Heads of a layer are pooled, since their order means nothing between seeds. The group gets its values from "
    "another prompt, by a second run of the model and not by an estimate. Its share is how far the difference "
    "between the logits of the two prompts' answers falls, over its fall when everything is of the other prompt. "
    "One path crosses several groups and counts in each, so shares do not add up. The tables have means over "
    f"models, and in brackets the least and the largest, of groups with a mean of {FLOOR:.0%} or more anywhere. Only "
    f"models that prefer the answer to that of the other prompt in {PREFERS:.0%} of the prompts, or more, are asked; "
    "they may still answer something else."
)
"""How the tables came about, for the page."""

DESCRIBES = "The measurement describes: no group was named in advance, and no hypothesis hangs on it."
"""For the page, where that is so."""

NOTHING, FEWEST = 0.05, 4
"""Groups below it in every model are left out where models are held against each other: zeros would agree. With fewer
groups than the second they are not, as any two of two agree."""

COLUMNS = ("arm", "seed", "part", "change", "group", "share")
"""Of the table of a measurement; the others are shares of right answers, by part. Without a model that learnt the task
it has the first two alone."""

Prompts: TypeAlias = Sequence[tuple[str, str, str, str]]
"""(prompt, answer, prompt that values are taken from, its answer)."""


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


def pooled_shares(
    bridge: Bridge, prompts: Mapping[str, Prompts], like: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """A row for every change and group of edges: the share of the change's whole effect that the group carries.

    Args:
        bridge: over a decoder of ours.
        prompts: of every change; none of one that no document allows, as with some options of a puzzle.
        like: of a change that leaves the answer as it is, another whose whole effect its shares are of.

    Returns:
        No rows of a change without prompts, and none at all where the model prefers the answer to the other prompt's in
        less than `PREFERS` of a change's prompts.
    """
    able = [change for change, asked in prompts.items() if asked and prompts[(like or {}).get(change, change)]]
    pairs = {change: read_pairs(bridge, list(prompts[change]))[0] for change in able}
    return pair_shares(bridge, pairs, like) if pairs else []


def pair_shares(
    bridge: Bridge,
    pairs: Mapping[str, Sequence[Pair]],
    like: Mapping[str, str] | None = None,
    groups_of: Callable[[str], Sequence[str]] = lambda edge: (group_of(edge),),
) -> list[dict[str, Any]]:
    """`pooled_shares` of pairs that are made already.

    Args:
        bridge, like: as there.
        pairs: of every change.
        groups_of: the groups of an edge; an edge of several is patched with each.

    Raises:
        ValueError: there is no change.
    """
    run, found = CircuitRun(bridge), {}
    no_units = not bridge.original_model.config.intermediate_size
    groups_by_edge = [groups_of(edge) for edge in run.graph.names]
    named = dict.fromkeys(group for own in groups_by_edge for group in own)
    groups = {group: row for row, group in enumerate((g for g in named if not (no_units and "MLP" in g)), start=2)}
    kept = torch.ones(2 + len(groups), run.graph.size)  # the first two rows: all edges of the prompt, and none
    kept[1] = 0
    for number, own in enumerate(groups_by_edge):
        kept[[groups[group] for group in own if group in groups], number] = 0
    for change, asked in pairs.items():
        found[change] = measure_circuits(run, asked, Others(run, asked, "counterfactual"), kept, batch_size=64)
    if min(float((m[0] > 0).float().mean()) for m in found.values()) < PREFERS:
        return []
    means, rows = {change: m.mean(1) for change, m in found.items()}, []
    for change, m in means.items():
        whole = means[(like or {}).get(change, change)]
        for group, without in zip(groups, m[2:], strict=True):
            share = round(float((m[0] - without) / (whole[0] - whole[1])), 5)
            rows.append({"change": change, "group": group, "share": share})
    return rows


def with_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of models that were asked; none where none has learnt the task, and the table has no shares."""
    return rows.reindex(columns=[*rows, *(each for each in COLUMNS if each not in rows)]).dropna(subset=["share"])


def without_void_ways(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without the ways through dynamic weights of arms in which these carry nothing at all.

    Such arms make no weights from the tokens, and a share of 0.00 would be a reading of what is not.
    """
    weights = rows["group"].astype(str).str.endswith("weights")
    carries = (rows["share"].abs().where(weights, 0.0) > 0).groupby(rows["arm"]).transform("any")
    return rows[~weights | carries]


def shares_of(rows: pd.DataFrame, arm: str, part: str, change: str) -> pd.DataFrame:
    """[seed, group]: the shares of a change's effect in the models of an arm that could be asked on a part."""
    rows = with_shares(rows)
    own = rows[(rows["arm"] == arm) & (rows["part"] == part) & (rows["change"] == change)]
    return own.pivot_table(index="seed", columns="group", values="share")


def arm_tables(rows: pd.DataFrame, changes: Sequence[str]) -> str:
    """The tables of one arm, one for every part of the puzzle, and how alike its models are, as Markdown.

    Args:
        rows: of `pooled_shares`, with the columns seed and part; one named as a part is the share of right answers.
        changes: in the order of columns.
    """
    mean = rows.groupby(["group", "part", "change"], sort=False)["share"].mean().unstack(["part", "change"])
    shown, text = mean[(mean >= FLOOR).any(axis=1)].index, ""
    for part, own in rows.groupby("part", sort=False):
        cells = own.groupby(["group", "change"], sort=False)["share"].agg(mean_and_range).unstack()
        cells = cells.reindex(index=shown, columns=list(changes)).fillna("")
        body = [[group, *(cells.loc[group, change] for change in changes)] for group in shown]
        right = f", right in {own[part].min():.2f} to {own[part].max():.2f} of its questions" if part in own else ""
        table = markdown_table(["edges", *changes], body)
        models = own["seed"].nunique()
        text += f"On `{part}`, {models} model{'s' if models > 1 else ''}{right}:\n\n{table}\n\n"
    if rows["seed"].nunique() == 1:
        return f"{text}With one model there is none to hold it against."
    alike = [_alike(change, *models_alike(rows, change)) for change in changes]
    return (
        f"{text}How alike are two of these models? On `{rows['part'].iloc[0]}` their shares correlate by "
        f"{', '.join(alike)} (Pearson, over the groups with {NOTHING:.0%} or more in any model; the mean over pairs of "
        "models)."
    )


def models_alike(rows: pd.DataFrame, change: str) -> tuple[float | None, int]:
    """How the shares of two models of one arm correlate, on the first part of the puzzle, and over how many groups.

    Args:
        rows: of `pooled_shares`, with the columns seed and part, of one arm.
        change: one of theirs.

    Returns:
        The mean of Pearson's correlation over pairs of models, over the groups with `NOTHING` or more in any of them;
        None with fewer than `FEWEST` such groups, or one model.
    """
    wide = _by_seed(rows, change)
    return _correlation(wide, combinations(wide.columns, 2))


def arms_alike(first: pd.DataFrame, second: pd.DataFrame, changes: Sequence[str]) -> str:
    """How alike a model of one arm and one of another are, on the groups of edges that both have, in words."""
    alike = []
    for change in changes:
        one, other = _by_seed(first, change), _by_seed(second, change)
        both = one.join(other, how="inner", lsuffix=" of one", rsuffix=" of other")
        pairs = product(both.columns[: one.shape[1]], both.columns[one.shape[1] :])
        alike.append(_alike(change, *_correlation(both, pairs)))
    return ", ".join(alike)


def _by_seed(rows: pd.DataFrame, change: str) -> pd.DataFrame:
    """[group, seed], of the first part of the puzzle."""
    own = rows[(rows["part"] == rows["part"].iloc[0]) & (rows["change"] == change)]
    return own.pivot_table(index="group", columns="seed", values="share", sort=False)


def _correlation(wide: pd.DataFrame, pairs: Iterable[tuple[Any, Any]]) -> tuple[float | None, int]:
    """How pairs of the columns correlate in the mean, over the groups that carry something in any, and how many."""
    some = wide[(wide.abs() >= NOTHING).any(axis=1)]
    found = [float(some[a].corr(some[b])) for a, b in pairs] if len(some) >= FEWEST else []
    found = [each for each in found if not math.isnan(each)]  # one that is the same in all groups correlates with none
    return (sum(found) / len(found) if found else None), len(some)


def _alike(change: str, mean: float | None, groups: int) -> str:
    """The same in words, of a change."""
    if mean is None:
        return f"an unknown number ({change}, {groups} group{'s' * (groups != 1)}, too few)"
    return f"{mean:.2f} ({change}, {groups} groups)"


def change_list(changes: Mapping[str, str]) -> str:
    """What the two prompts of each change differ in, as Markdown."""
    listed = "\n".join(f"- *{change}*: {meaning}." for change, meaning in changes.items())
    return f"The prompt and the one that values are taken from differ in one thing:\n\n{listed}"


def share_cells(shares: pd.DataFrame, groups: Sequence[str]) -> list[str]:
    """`mean_and_range` of each group, as a column of a table; nothing where no model has the group.

    Args:
        shares: [seed, group] of `shares_of`.
    """
    return [mean_and_range(shares[group]) if group in shares else "" for group in groups]
