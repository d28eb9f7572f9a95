"""From rows to token ids and back to scores: what `evaluate` does for one batch. Needs torch.

Shapes: `row pos` token ids, `row pos vocab` logits. The logits at position p predict the token at p + 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synthetic_tasks.baselines import candidates
from synthetic_tasks.example import Example, Row

if TYPE_CHECKING:
    import torch

# A function from ids and mask, both [row, pos], to logits [row, pos, vocab].
Forward = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


@dataclass(frozen=True)
class Encoding:
    """Token ids of a text and the character span of each token; special tokens have an empty span."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def answer(self, start: int, end: int) -> range:
        """Positions of the tokens of the answer text[start:end], the space before it included.

        Some tokenizers give that space a token of its own; the model has to produce it, so it counts. A token that
        also holds something before the space does not.
        """
        at = [
            place
            for place, (left, right) in enumerate(self.offsets)
            if left < min(end, right) and (right > start or left >= start - 1)
        ]
        return range(at[0], at[-1] + 1) if at else range(0)


@dataclass(frozen=True)
class Question:
    """One scored example of an encoded row.

    positions: where the answer's tokens stand in the row
    rivals: token ids of every other candidate answer, as they would stand there
    alternatives: token ids of the accepted answers other than the official one
    """

    shot: int
    example: Example
    positions: range
    rivals: tuple[tuple[int, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]


def encode(tokenizer: Any, text: str, special: bool = True) -> Encoding:
    """Encode with special tokens as the tokenizer adds them by itself, or without them.

    Works for fast transformers tokenizers, for those of the `tokenizers` library, and for slow ones that can be
    aligned by encoding prefixes.
    """
    if hasattr(tokenizer, "is_fast"):
        if tokenizer.is_fast:
            asked = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
            encoded = tokenizer(text, add_special_tokens=special, **asked)
            spans = _with_spaces(encoded["offset_mapping"], encoded["special_tokens_mask"])
            return Encoding(list(encoded["input_ids"]), spans)
        return encode_slowly(tokenizer, text, special)
    encoded = tokenizer.encode(text, add_special_tokens=special)
    return Encoding(list(encoded.ids), _with_spaces(encoded.offsets, encoded.special_tokens_mask))


def _with_spaces(offsets: Sequence[tuple[int, int]], special: Sequence[int]) -> list[tuple[int, int]]:
    """Spans in which a token of spaces alone has its place: a tokenizer that trims offsets leaves it none."""
    spans, before = list[tuple[int, int]](), 0
    for (left, right), added in zip(offsets, special, strict=True):
        spans.append((before, left) if left == right > before and not added else (left, right))
        before = before if added else max(before, right)
    return spans


def encode_slowly(tokenizer: Any, text: str, special: bool = True) -> Encoding:
    """Encode without offsets: a token belongs to the word whose prefix of the text first contains it."""
    ids = list(tokenizer(text, add_special_tokens=special)["input_ids"])
    plain = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    lead = next((at for at in range(len(ids) - len(plain) + 1) if ids[at : at + len(plain)] == plain), 0)
    offsets: list[tuple[int, int]] = [(0, 0)] * lead
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or text[end] in " \n":
            count = lead + len(tokenizer(text[:end], add_special_tokens=False)["input_ids"])
            offsets += [(start, end)] * (count - len(offsets))
            start = end
    return Encoding(ids, offsets[: len(ids)] + [(0, 0)] * (len(ids) - len(offsets)))


class Answers:
    """Token ids of answers as they stand behind a prompt; remembered, since they do not depend on the prompt."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.known: dict[str, tuple[int, ...]] = {}

    def ids(self, example: Example, answer: str) -> tuple[int, ...]:
        if answer not in self.known:
            text = f"\n{example.prompt} {answer}\n"
            encoding = encode(self.tokenizer, text)
            end = len(text) - 1
            at = encoding.answer(end - len(answer), end)
            self.known[answer] = tuple(encoding.ids[place] for place in at)
        return self.known[answer]


def questions(row: Row, encoding: Encoding, answers: Answers) -> list[Question]:
    """The scored examples of a row with the places of their answers in the encoded `row.prompt`."""
    found = []
    start = 1  # the newline before the first example
    for shot, example in enumerate(row.examples):
        end = start + len(example.text)
        if shot in row.scored:
            positions = encoding.answer(end - len(example.answer), end)
            if not positions or positions[0] == 0:
                raise ValueError(f"the tokenizer gives no token before or for the answer of {example.text!r}")
            others = {answer for accepted in candidates(example) for answer in accepted} - set(example.accepted)
            rivals = tuple(answers.ids(example, answer) for answer in sorted(others))
            alternatives = tuple(answers.ids(example, other) for other in example.accepted if other != example.answer)
            found.append(Question(shot, example, positions, rivals, alternatives))
        start = end + 1
    return found


def unknown_of(tokenizer: Any) -> int | None:
    """The token that stands for what the tokenizer does not know, if it has one."""
    if hasattr(tokenizer, "is_fast"):
        return getattr(tokenizer, "unk_token_id", None)
    model = getattr(tokenizer, "model", None)
    name = getattr(model, "unk_token", None)
    if name is None and model is not None and type(model).__name__ == "Unigram":  # which has a number and no name
        return json.loads(tokenizer.to_str())["model"].get("unk_id")
    return None if name is None else tokenizer.token_to_id(name)


def padding_of(tokenizer: Any) -> int:
    """The token that fills up rows which are shorter than the longest of their batch."""
    return getattr(tokenizer, "pad_token_id", None) or 0


def pad(torch: Any, encodings: Sequence[Encoding], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask [row, pos], padded on the right: what comes later cannot change a causal model's past."""
    longest = max(len(encoding.ids) for encoding in encodings)
    ids = torch.full((len(encodings), longest), pad_id, dtype=torch.long)
    mask = torch.zeros((len(encodings), longest), dtype=torch.long)
    for place, encoding in enumerate(encodings):
        ids[place, : len(encoding.ids)] = torch.tensor(encoding.ids)
        mask[place, : len(encoding.ids)] = 1
    return ids, mask


def score(logprobs: torch.Tensor, ids: Sequence[int], question: Question) -> dict[str, Any]:
    """Score one question.

    logprobs: [token, vocab], the distribution before each token of the answer
    ids: the ids of the answer's tokens

    `correct`: every token of the official answer is the most probable one. `accepted`: that, or an accepted
    answer of one token is. `restricted`: greedy decoding among the tokens of the official answer and of the wrong
    candidates arrives at the official one (other accepted answers are no rivals); that is so if at every place where a
    rival leaves the official answer the official token is more probable, so it needs no second forward pass.
    """
    greedy = logprobs.argmax(dim=-1).tolist()
    correct = greedy == list(ids)
    alternative = any(len(other) == 1 and other[0] == greedy[0] for other in question.alternatives)
    return {
        "correct": correct,
        "accepted": correct or alternative,
        # What is greedy among all tokens is so among some, also where it shares the largest logit.
        "restricted": all(
            beats(logprobs, ids, rival) or (correct and tuple(ids) != rival) for rival in question.rivals
        ),
        "logprob": float(sum(logprobs[place, token] for place, token in enumerate(ids))),
        "tokens": len(ids),
        "greedy": greedy,
    }


def beats(logprobs: torch.Tensor, ids: Sequence[int], rival: Sequence[int]) -> bool:
    """Whether the official token is more probable where the rival leaves the official answer.

    A rival of the same tokens cannot be told from it, and is not beaten. One that only stops earlier or goes on longer
    leaves it behind its last token, where the answer ends; then the tokens that both have decide nothing and the
    official answer stands.
    """
    if tuple(ids) == tuple(rival):
        return False
    for place, (official, other) in enumerate(zip(ids, rival, strict=False)):
        if official != other:
            return bool(logprobs[place, official] > logprobs[place, other])
    return True
