"""Prompts with their counterfactuals, and the one number that circuits are judged by.

    m = logit of the answer - logit of the counterfactual's answer, at the position that has to choose

On the prompt itself m is large where the model answers right, and on the counterfactual prompt (as many tokens, another
answer) it is as far below zero. Answers of several tokens are compared at the first token that differs; the tokens that
both share are read behind both prompts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import Examples, draw_examples
from dcinterp.mechanism.objective import answer_tokens
from dcinterp.mechanism.prompt import decoded, token_ids, tokens_in_text
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError, nearest

Counterfactual = Literal["any", "question", "source", "relation", "polarity"]
ANY = "any"
"""The first kind of counterfactual, in the order of `ORDER`, that an example has."""
ORDER = ("question", "source", "relation", "polarity")


@dataclass(frozen=True)
class Pair:
    """A prompt and its counterfactual, [1, pos] each, the token that answers it and the one that answers the other.

    repeats: the same for pairs that repeat each other (see dcinterp.mechanism.dataset.repeats).
    place: of its example in the set that it was read from. task: of an example of the tasks.
    """

    ids: TokenIds
    other: TokenIds
    target: int
    foil: int
    kind: str
    prompt: str
    counterfactual: str
    repeats: Hashable
    place: int = 0
    task: str = ""


@dataclass(frozen=True)
class PairBatch:
    """Pairs of one length as a batch; `places` are their numbers in the list that they come from."""

    ids: Int[Tensor, "batch pos"]
    other: Int[Tensor, "batch pos"]
    target: Int[Tensor, " batch"]
    foil: Int[Tensor, " batch"]
    places: tuple[int, ...]

    def metric(self, logits: Float[Tensor, "batch vocab"]) -> Float[Tensor, " batch"]:
        """m of every pair, of logits at the last position; of several runs of this batch, one after the other."""
        repeats = len(logits) // len(self.target)
        target, foil = (x.repeat(repeats)[:, None] for x in (self.target, self.foil))
        return (logits.gather(1, target) - logits.gather(1, foil))[:, 0]


def read_pairs(bridge: Bridge, examples: Examples, kind: str = ANY) -> tuple[list[Pair], int]:
    """The pairs of a set of examples, and how many examples have no counterfactual.

    Args:
        bridge: its tokenizer makes the lengths agree.
        examples: a text such as "same-person n=20" (see dcinterp.mechanism.dataset), examples of the tasks, or
            (prompt, answer, counterfactual prompt, its answer).
        kind: which counterfactual of an example of the tasks: question, source, relation, polarity, or "any", the
            first of these that it has. Those of kind "position" keep the answer and make no pair.

    Raises:
        UserError: there is no such kind, no example has a counterfactual, or one of your own does not fit.
    """
    if kind not in (ANY, *ORDER):
        raise UserError(f"There is no counterfactual {kind!r} with another answer; {nearest(kind, (ANY, *ORDER))}")
    drawn: Sequence[Any] = draw_examples(examples) if isinstance(examples, str) else examples
    made = [_pair(bridge, each, kind) for each in drawn]
    pairs = _joined([replace(pair, place=place) for place, pair in enumerate(made) if pair is not None])
    if not pairs:
        raise UserError(
            "None of the examples has a counterfactual of the same length whose answer differs; choose another kind, "
            "or give (prompt, answer, counterfactual prompt, its answer)."
        )
    return pairs, len(made) - len(pairs)


def _joined(pairs: list[Pair]) -> list[Pair]:
    """Pairs of one's own that share a prompt repeat each other, also by way of others."""
    number, group = dict[Hashable, int](), list[int]()

    def first(place: int) -> int:
        while group[place] != place:
            group[place] = place = group[group[place]]
        return place

    def number_of(prompt: Hashable) -> int:
        if prompt not in number:
            number[prompt] = len(group)
            group.append(len(group))
        return number[prompt]

    own: dict[int, Any] = {pair.place: pair.repeats for pair in pairs if pair.kind == "own"}
    both = {place: tuple(map(number_of, prompts)) for place, prompts in own.items()}
    for one, other in both.values():
        group[first(other)] = first(one)
    return [replace(pair, repeats=first(both[pair.place][0])) if pair.place in both else pair for pair in pairs]


def batches(pairs: Sequence[Pair], size: int) -> Iterator[PairBatch]:
    """The pairs in batches of one length, `size` at most."""
    by_length: dict[int, list[int]] = {}
    for place, pair in enumerate(pairs):
        by_length.setdefault(pair.ids.shape[1], []).append(place)
    for same in by_length.values():
        for start in range(0, len(same), size):
            places = same[start : start + size]
            some = [pairs[place] for place in places]
            device = some[0].ids.device
            target, foil = (
                torch.tensor([getattr(p, name) for p in some], device=device) for name in ("target", "foil")
            )
            yield PairBatch(
                torch.cat([p.ids for p in some]), torch.cat([p.other for p in some]), target, foil, tuple(places)
            )


def ranked_and_measured(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The pairs in two halves without common facts: one to rank edges on, the other to measure circuits on.

    Of every task (of the first prompt with some facts) half is in each.

    Raises:
        UserError: all pairs share their facts.
    """
    tasks = dict[Hashable, str]()
    for pair in pairs:
        tasks.setdefault(pair.repeats, pair.task)
    # Sets of several tasks have them in turns, so that every other group would be every other task.
    order = {task: place for place, task in enumerate(dict.fromkeys(tasks.values()))}
    first = set(sorted(tasks, key=lambda group: order[tasks[group]])[::2])
    ranked, measured = ([p for p in pairs if (p.repeats in first) == half] for half in (True, False))
    if not measured:
        raise UserError(
            "Edges are ranked on one half of the prompts and measured on the other, and these share all their facts; "
            "give more examples."
        )
    return ranked, measured


def _pair(bridge: Bridge, each: Any, kind: str) -> Pair | None:
    """The pair of one example, (example, its prompt with shots), or a pair of one's own; None where there is none."""
    prompt = None
    if isinstance(each, tuple) and each and hasattr(each[0], "facts"):
        each, prompt = each
    if not hasattr(each, "facts"):
        if not isinstance(each, tuple | list) or len(each) != 4:
            raise UserError(
                f"{each!r} is not a valid pair; give an example of the tasks, or (prompt, answer, counterfactual "
                "prompt, its answer)."
            )
        text, answer, other, its = each
        return _of(bridge, text, answer_tokens(bridge, answer), other, answer_tokens(bridge, its), "own")
    return _of_example(bridge, each, prompt or each.prompt, kind)


def _of_example(bridge: Bridge, example: Any, prompt: str, kind: str) -> Pair | None:
    from synthetic_tasks import NoCounterfactual, corrupt

    for name in ORDER if kind == ANY else (kind,):
        try:
            changed = corrupt(example, name, tokenizer=bridge.tokenizer)  # type: ignore[arg-type]
        except NoCounterfactual:
            continue
        other = prompt.removesuffix(example.prompt) + changed.corrupt.prompt
        # As the answers stand in the text, which in a byte-level vocabulary are other tokens than the bare words.
        target, foil = (tokens_in_text(bridge, word) for word in (example.answer, changed.answer))
        # Two answers of the counterfactual may be right, one of them the clean one: then m says nothing.
        if changed.unique and (made := _of(bridge, prompt, target, other, foil, name, frozenset(example.facts))):
            return replace(made, task=example.task_id)
    return None


def _of(
    bridge: Bridge,
    prompt: Any,
    target: Sequence[int],
    other: Any,
    foil: Sequence[int],
    kind: str,
    facts: Hashable = None,
) -> Pair | None:
    """The pair of two prompts and the tokens of their answers; without facts it repeats its two prompts."""
    ids, changed = token_ids(bridge, prompt), token_ids(bridge, other)
    both_prompts = (tuple(ids[0].tolist()), tuple(changed[0].tolist()))
    shared = next((i for i, both in enumerate(zip(target, foil, strict=False)) if both[0] != both[1]), -1)
    if shared < 0 or ids.shape != changed.shape:
        if kind != "own":
            return None
        why = "has another length" if ids.shape != changed.shape else "has no other answer"
        raise UserError(f"The counterfactual prompt {other!r} {why}; give one with as many tokens and another answer.")
    read = torch.tensor([list(target[:shared])], dtype=ids.dtype, device=ids.device)
    ids, changed = (token_ids(bridge, torch.cat([x, read], 1)) for x in (ids, changed))
    text, text_other = (decoded(bridge, x[0].tolist()) for x in (ids, changed))
    return Pair(ids, changed, target[shared], foil[shared], kind, text, text_other, facts or both_prompts)
