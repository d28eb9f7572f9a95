"""What a case study asks about: the token of the answer that is analysed, and the wrong answer it is compared with.

The answer is scored as a whole. Of an answer of several tokens the first that differs from the foil is analysed, with
the tokens before it read behind the prompt (as in dcinterp.mechanism.objective).

The foil is by default an answer that another fact of the prompt would give: what a model answers that knows the
relation and chose the wrong fact. Of several it is the strongest, the one that the model finds most probable, and not
the mean of their logits: it is then a token that every other analysis can be given as well. The runner-up, the most
likely other token, is mostly a word that fits the relation but stands for no fact of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from dcinterp.analysis.weights.ov_transformations import word_pairs
from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.dataset import default_reference, other_answers
from dcinterp.mechanism.objective import answer_tokens
from dcinterp.mechanism.prompt import Prompt, Token, decoded, spaced_token_id, token_ids, tokens_in_text
from dcinterp.mechanism.readout import likeliest, rank_of
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.wide import wide

if TYPE_CHECKING:
    from synthetic_tasks import Example

Contrast = Literal["facts", "runner-up"]
Told = Literal["facts", "runner-up", "no facts", "given"]
"""What a foil turned out to be."""


@dataclass(frozen=True)
class Asked:
    """A prompt with the token that is analysed and its foil.

    prompt: with the tokens of the answer that come before the analysed one; ids: of it, [1, pos]. tokens: of the whole
    answer; place: of the analysed one among them. contrast: what the foil is, "facts", "runner-up", "no facts" (the
    runner-up for want of them) or "given"; other: the foil of the other contrast, None if it is the same or there is
    none. probability: of the whole answer; written: whether the model writes all of it. example: that the prompt is, if
    it is one of the tasks; around: the line breaks that the prompt has before and behind it. also_right: tokens of the
    example's other right answers in the place of the analysed one. known: the tasks accept the answer.
    """

    prompt: Prompt
    ids: TokenIds
    expected: bool
    tokens: tuple[int, ...]
    place: int
    foil: int
    contrast: Told
    other: int | None
    probability: float
    written: bool
    example: Example | None
    around: tuple[str, str] = ("", "")
    also_right: tuple[int, ...] = ()
    known: bool = False

    @property
    def target(self) -> int:
        """The token that is analysed."""
        return self.tokens[self.place]


def ask(bridge: Bridge, given: Any, answer: Token | None, foil: Token | None, contrast: Contrast) -> Asked:
    """Find out what is analysed.

    Args:
        given: a prompt, or an example of the tasks.
        answer: the expected answer of a prompt, as written or as a token id; the model's own by default.
        foil: the answer it competes with, by default that of the contrast.
        contrast: "facts", or "runner-up".

    Raises:
        UserError: prompt, answer or foil do not fit the model, or are the same.
    """
    own = hasattr(given, "facts")
    prompt, answer = (given.prompt, given.answer) if own else (given, answer)
    ids = token_ids(bridge, prompt)
    example = given if own else _read(bridge, prompt)
    if answer is None:
        with torch.no_grad():
            tokens: tuple[int, ...] = (int(bridge(ids)[0, -1].argmax()),)
    else:
        tokens = tokens_in_text(bridge, str(answer)) if own else tuple(answer_tokens(bridge, answer))
    others = _other_right_answers(bridge, example, answer)
    probability, ranked = _whole(bridge, ids, tokens, 2 + len(others))
    # Where the model would write another token; its first token if it writes them all.
    turn = next((n for n, top in enumerate(ranked) if top[0] != tokens[n]), 0)
    right = _right_beside(others, tokens, turn)
    runner_up = next(token for token in ranked[turn] if token != tokens[turn] and token not in right)
    choices: dict[Told, tuple[int, int]] = {"runner-up": (turn, runner_up)}
    contrast_name: Told
    if foil is not None:
        # Read like the answer: of an example as it stands in the text.
        beside_it = (
            tokens_in_text(bridge, foil) if own and isinstance(foil, str) else tuple(answer_tokens(bridge, foil))
        )
        contrast_name, (place, chosen) = "given", _differing(tokens, beside_it)
    else:
        if (fact := _strongest_fact(bridge, ids, tokens, example, prompt, spaced=own)) is not None:
            choices["facts"] = fact
        contrast_name = contrast if contrast in choices else "no facts"
        place, chosen = choices[contrast if contrast in choices else "runner-up"]
    beside = next((at for name, at in choices.items() if name != contrast), None) if foil is None else None
    read = list(tokens[:place])
    return Asked(
        prompt=[*ids[0].tolist(), *read] if read else prompt,
        ids=torch.cat([ids, torch.tensor([read], dtype=ids.dtype, device=ids.device)], 1) if read else ids,
        expected=answer is not None,
        tokens=tokens,
        place=place,
        foil=chosen,
        contrast=contrast_name,
        other=beside[1] if beside is not None and beside[0] == place and beside[1] != chosen else None,
        probability=probability,
        written=all(top[0] == token for top, token in zip(ranked, tokens, strict=True)),
        example=example,
        around=_around(prompt, example),
        also_right=_right_beside(others, tokens, place),
        known=own or (example is not None and decoded(bridge, list(tokens)).strip() in example.accepted),
    )


def better_with_space(bridge: Bridge, ids: TokenIds, answer: Any, rank: int) -> tuple[str, int] | None:
    """The token that the answer is after a space, and its rank, if that is another token and ranks higher."""
    if not isinstance(answer, str) or answer.startswith(" "):
        return None
    if (token := spaced_token_id(bridge, answer)) is None:
        return None
    with torch.no_grad():
        logits = bridge(ids)[0, -1]
    found = int(rank_of(logits, torch.tensor(token, device=logits.device)))
    text = decoded(bridge, [token])
    return (text, found) if found < rank and text.startswith(" ") else None


def _read(bridge: Bridge, prompt: Prompt) -> Example | None:
    """The example that a text is, if a task reads it with one source."""
    from synthetic_tasks import UnsolvableLine, solve

    if not isinstance(prompt, str):
        return None
    try:
        solution = solve(prompt)
    except UnsolvableLine:
        return None
    return solution.example() if solution.source is not None and solution.prompt == prompt.strip("\n") else None


def _around(prompt: Prompt, example: Example | None) -> tuple[str, str]:
    """What a prompt has before and behind the text of its example."""
    if example is None or not isinstance(prompt, str):
        return "", ""
    before, _, behind = prompt.partition(example.prompt)
    return before, behind


def _other_right_answers(bridge: Bridge, example: Example | None, answer: Token | None) -> list[tuple[int, ...]]:
    """The tokens of an example's other right answers; none where the answer that is expected is not among them."""
    if example is None or str(answer).strip() not in example.accepted:
        return []
    found = []
    for word in example.accepted:
        try:
            found += [tokens_in_text(bridge, word)] if word != str(answer).strip() else []
        except UserError:  # a word that this model lacks
            continue
    return found


def _right_beside(others: Sequence[tuple[int, ...]], tokens: tuple[int, ...], place: int) -> tuple[int, ...]:
    """What other right answers have in a place of the answer, of those that begin like it."""
    return tuple(
        other[place]
        for other in others
        if len(other) > place and other[:place] == tokens[:place] and other[place] != tokens[place]
    )


def _whole(bridge: Bridge, ids: TokenIds, tokens: Sequence[int], k: int = 2) -> tuple[float, list[list[int]]]:
    """The probability of the whole answer, and the `k` likeliest tokens in the place of each of its tokens.

    Cost: one forward pass.
    """
    read = torch.tensor([list(tokens[:-1])], dtype=ids.dtype, device=ids.device)
    with torch.no_grad():
        logits = bridge(token_ids(bridge, torch.cat([ids, read], 1)))[0, ids.shape[1] - 1 :]
    chances = wide(logits).log_softmax(-1)
    log_probability = sum(float(row[token]) for row, token in zip(chances, tokens, strict=True))
    return float(torch.tensor(log_probability).exp()), [likeliest(row, k).tolist() for row in chances]


def _strongest_fact(
    bridge: Bridge, ids: TokenIds, tokens: tuple[int, ...], example: Example | None, prompt: Prompt, *, spaced: bool
) -> tuple[int, int] | None:
    """(place, token) where the most probable answer of another fact differs from the answer; None without facts."""
    words = other_answers(example) if example is not None else _values_beside(bridge, prompt)
    found = []
    for word in words:
        try:
            other = tokens_in_text(bridge, word) if spaced else tuple(answer_tokens(bridge, word))
            place, token = _differing(tokens, other)
        except UserError:  # a word that this model lacks, or the answer itself
            continue
        found.append((_whole(bridge, ids, other)[0], place, token))
    return max(found)[1:] if found else None


def _values_beside(bridge: Bridge, prompt: Prompt) -> list[str]:
    """What the relations that a prompt's wording asks for give its words, of a prompt that no task reads as a whole."""
    from synthetic_tasks import find
    from synthetic_tasks import words as split
    from synthetic_tasks.selection import chosen

    if not isinstance(prompt, str):
        return []
    try:
        reference = default_reference(bridge, prompt)
    except UserError:
        return []
    relations = {find(task.id).relation for task in chosen(reference.split()[0].replace("all", ""))}
    if len(relations) > 1:
        return []
    pairs = dict(word_pairs(next(iter(relations))))
    return list(dict.fromkeys(value for word in split(prompt) for value in pairs.get(word, ())))


def _differing(tokens: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int]:
    """(place, token of the other) where two answers first differ.

    Raises:
        UserError: they do not.
    """
    for place, (mine, theirs) in enumerate(zip(tokens, other, strict=False)):
        if mine != theirs:
            return place, theirs
    raise UserError("Answer and foil are the same token, or one begins with the other; choose another foil.")
