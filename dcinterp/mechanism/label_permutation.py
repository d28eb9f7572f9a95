r"""The label-permutation control: every example is scored once more for the target and foil of another one.

    partners = other_places(labels, seed=0)           # labels[partners[i]] != labels[i] for every i
    others = other_answers(bridge, questions, seed=0)     # the questions whose answers are taken; None: only one label

Sets of questions hold the same facts several times ("Laura has a shotgun", "The shotgun is Laura's"), with the same
target and foil. If the control took the answer of the next example, it would often score an example for its own;
here none gets its own (target, foil), and the pairs share as few words as any of a hundred random orders offers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import torch

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import Question
from dcinterp.mechanism.objective import answer_tokens
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, all_once

Label = tuple[Hashable, ...]
Scored = TypeVar("Scored")


def other_answers(bridge: Bridge, questions: Sequence[Question], seed: int) -> list[Question] | None:
    """For every question another one, with another target or foil; None when all have the same, or the same exchanged.

    A score for the foil against the target is the same score with the other sign, which controls nothing.

    Raises:
        UserError: a target or foil is not a token of the model.
    """
    labels = [_label(bridge, question) for question in questions]
    if len({frozenset(label) for label in labels}) < 2:
        return None
    return [questions[place] for place in other_places(labels, seed=seed)]


def score_examples(
    bridge: Bridge,
    questions: Sequence[Question],
    score: Callable[[int, Question], Scored],
    *,
    permute_labels: bool,
    seed: int,
    progress: Progress,
    later: int = 0,
) -> tuple[list[Scored], list[Scored] | None]:
    """Score every question for its own answers and, for the control, once more for those of another question.

    Args:
        questions: the examples.
        score: from the number of an example, and the question whose target and foil are explained, to its score.
        permute_labels: whether the control is wanted.
        seed: of the permutation.
        progress: called after each score.
        later: units of work that the caller makes afterwards, for the same progress.

    Returns:
        the scores, and those of the control; None if it was not wanted, or `other_answers` finds none.
    """
    others = other_answers(bridge, questions, seed) if permute_labels else None
    rounds = [("example", questions)] + ([] if others is None else [("other labels, example", others)])
    units = [
        (f"{name} {place + 1}", partial(score, place, question))
        for name, answers in rounds
        for place, question in enumerate(answers)
    ]
    found = all_once(progress, units, later=later)
    return found[: len(questions)], found[len(questions) :] if others is not None else None


def other_places(labels: Sequence[Label], *, seed: int = 0, draws: int = 100) -> list[int]:
    """For every place another one whose label differs, and not only by the exchange of target and foil.

    Every place is taken once, unless one label is on more than half of them: then the few others are taken in turn.

    Args:
        labels: (target, foil) of every example; None for no foil.
        seed: of the random orders.
        draws: how many orders are tried; the one whose pairs have fewest words in common wins.

    Raises:
        UserError: all labels are the same, or the same exchanged.
    """
    groups: dict[Hashable, list[int]] = {}
    for place, label in enumerate(labels):
        groups.setdefault(frozenset(label), []).append(place)
    if len(groups) < 2:
        raise UserError("All examples have the same target and foil, so there is no other answer to score them for.")
    words = [{word for word in label if word is not None} for label in labels]

    def in_common(partners: list[int]) -> int:
        return sum(len(words[place] & words[other]) for place, other in enumerate(partners))

    generator = torch.Generator().manual_seed(seed)
    return min((_rotated(list(groups.values()), generator) for _ in range(draws)), key=in_common)


def _rotated(groups: list[list[int]], generator: torch.Generator) -> list[int]:
    """The groups in a row, the largest first, and every place paired with the one that many places on.

    No group is longer than the step, so nobody meets its own group, as long as the step is at most half of the row.
    """
    shuffled = [[group[i] for i in torch.randperm(len(group), generator=generator).tolist()] for group in groups]
    order = torch.randperm(len(groups), generator=generator).tolist()
    row = [place for i in sorted(order, key=lambda i: -len(groups[i])) for place in shuffled[i]]
    step, n = max(map(len, groups)), len(row)
    partners = [0] * n
    for at, place in enumerate(row):
        # Of a group that is more than half of the row, some would meet each other: they share the other places.
        partners[place] = row[step + at % (n - step)] if 2 * step > n and at < step else row[(at + step) % n]
    return partners


def label_warnings(targets: Sequence[str], foils: Sequence[str], control: str) -> list[str]:
    """What to know about the label-permutation control over these examples."""
    pairs = [*zip(targets, foils, strict=True)]
    how = "" if len({*pairs}) == len({frozenset(pair) for pair in pairs}) else ", or these exchanged"
    most = max(Counter(map(frozenset, pairs)).values())
    if control == "none" and most == len(pairs):
        return [f"There is no control: all examples have the same target and foil{how}, so labels cannot be permuted."]
    if control == "labels" and 2 * most > len(targets):
        return [
            f"{most} of {len(targets)} examples have the same target and foil{how}: the control scores them for the "
            f"{len(targets) - most} others' answers, each several times."
        ]
    return []


def _label(bridge: Bridge, question: Question) -> Label:
    foil = None if question.foil is None else tuple(answer_tokens(bridge, question.foil))
    return tuple(answer_tokens(bridge, question.target)), foil
