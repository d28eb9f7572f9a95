r"""What an attribution explains: one number per row of logits.

    logit, with a foil       f = logit[target] - logit[foil]
    logit, without           f = sum over the answer's tokens of logit[token]
    log-probability          f = sum over the answer's tokens of log p(token)      (with a foil: as for logits)

each at the position before the token. An answer of several tokens is read with its own earlier tokens in the prompt
(teacher forcing). Against a foil only the first token that differs counts, after the tokens that both share: "the
United States" against "the United Kingdom" is " States" against " Kingdom" behind "the United".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.path_gradient import Metric
from dcinterp.mechanism.prompt import Prompt, Token, decoded, position, token_id, token_ids, tokens_as_written
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.text import SEEN, in_sentence

Objective = Literal["logit", "log-probability"]
UNITS = {"logit": "logits", "log-probability": "nats"}


@dataclass(frozen=True)
class AnswerMetric:
    """The number that is explained, as a function of logits; it reads them at its `places` alone.

    places: positions; chosen: the answer's token at each; other: the foil's token at the first place, if there is one.
    """

    places: tuple[int, ...]
    chosen: tuple[int, ...]
    other: int | None
    objective: Objective

    def __call__(self, logits: Float[Tensor, "batch pos vocab"]) -> Float[Tensor, " batch"]:
        return self.at_places(logits[:, list(self.places)])

    def at_places(self, rows: Float[Tensor, "batch place vocab"]) -> Float[Tensor, " batch"]:
        """The same, from the logits of its places: what spares a run the unembedding of the others."""
        if rows.dtype in (torch.bfloat16, torch.float16):  # in which differences of logits move in coarse steps
            rows = rows.float()
        if self.objective == "log-probability":
            rows = rows.log_softmax(-1)
        value = rows.gather(-1, torch.tensor(self.chosen, device=rows.device).expand(len(rows), -1)[..., None])
        return value.sum((1, 2)) - (rows[:, 0, self.other] if self.other is not None else 0)


@dataclass(frozen=True)
class Explanation:
    """A prompt with the number that is explained.

    ids: the prompt with the answer tokens that are read before the last explained one, [1, pos].
    metric: from logits [batch, pos, vocabulary] to [batch].
    positions: of the logits that are explained; expected: the answer's token at each.
    read: how many answer tokens `ids` ends with.
    target, foil: as text; foil is empty without one. other: the token of the foil at the first explained position.
    """

    ids: TokenIds
    metric: Metric
    positions: tuple[int, ...]
    expected: tuple[int, ...]
    read: int
    target: str
    foil: str
    other: int | None = None

    def prompt_text(self, bridge: Bridge) -> str:
        """The prompt, without the answer tokens that are read behind it."""
        ids = self.ids[0].tolist()
        return decoded(bridge, ids[: len(ids) - self.read])

    def answer(self, bridge: Bridge, logits: Tensor) -> str:
        """The model's own answer as text: its most likely tokens, up to the first that is not the explained one.

        Behind that one the logits are of a text that the model does not write.
        """
        ids = self.answer_ids(logits)
        end = next((at + 1 for at, pair in enumerate(zip(ids, self.expected, strict=True)) if pair[0] != pair[1]), None)
        return decoded(bridge, ids[:end])

    def answer_ids(self, logits: Tensor) -> list[int]:
        """Its most likely token at every explained position."""
        return logits[0, list(self.positions)].argmax(-1).tolist()

    def is_right(self, logits: Tensor) -> bool:
        """Whether the model's own answer is the one that is explained, token by token."""
        return self.answer_ids(logits) == list(self.expected)

    def baseline(self, bridge: Bridge, prompt: Prompt, name: str = "baseline") -> TokenIds:
        """A counterfactual prompt, read with the same answer tokens, [1, pos].

        Raises:
            UserError: it does not have as many tokens as the prompt that is explained.
        """
        ids, length = token_ids(bridge, prompt), self.ids.shape[1] - self.read
        if ids.shape[1] != length:
            raise UserError(
                f"The {name} is {ids.shape[1]} tokens long and the prompt {length}; give a counterfactual with as "
                "many tokens."
            )
        return torch.cat([ids, self.ids[:, length:]], 1)


def explain(
    bridge: Bridge,
    prompt: Prompt,
    target: Token,
    foil: Token | None = None,
    *,
    at: int = -1,
    objective: Objective = "logit",
) -> Explanation:
    """The number that an attribution explains, for an answer of one token or several.

    Args:
        bridge: any bridge.
        prompt: text or token ids.
        target: the answer, a word or a token id.
        foil: the answer it competes with.
        at: the position whose next token is explained; an answer of several tokens needs the last.
        objective: "logit" or "log-probability".

    Raises:
        UserError: prompt, target, foil, position or objective do not fit, or target and foil are the same.
    """
    if objective not in get_args(Objective):
        raise UserError(f"There is no objective {objective!r}; choose 'logit' or 'log-probability'.")
    ids = token_ids(bridge, prompt)
    at = position(at, ids.shape[1], "Position")
    plus, minus = answer_tokens(bridge, target), answer_tokens(bridge, foil) if foil is not None else None
    shared = 0
    if minus is not None:
        if plus == minus:
            raise UserError(
                "Target and foil are the same token, so their difference is always zero; choose another foil."
            )
        shared = next((i for i, pair in enumerate(zip(plus, minus, strict=False)) if pair[0] != pair[1]), -1)
        if shared < 0:
            raise UserError(f"{target!r} and {foil!r} begin alike and one ends there; choose another foil.")
    # With a foil, one token is explained, after those that both share; without, all tokens of the answer.
    first, chosen = shared, plus[shared : shared + 1] if minus is not None else plus
    read = plus[: first + len(chosen) - 1]
    if read and at != ids.shape[1] - 1:
        raise UserError(f"{target!r} is {len(plus)} tokens, which only fit behind the prompt; leave out the position.")
    ids = torch.cat([ids, torch.tensor([read], dtype=ids.dtype, device=ids.device)], 1) if read else ids
    # Refuse what the added tokens have made too long.
    ids = token_ids(bridge, ids)
    places = [at + first + i for i in range(len(chosen))]
    other = minus[shared] if minus is not None else None

    return Explanation(
        ids=ids,
        metric=AnswerMetric(tuple(places), tuple(chosen), other, objective),
        positions=tuple(places),
        expected=tuple(chosen),
        read=len(read),
        target=decoded(bridge, plus if minus is None else chosen),
        foil="" if other is None else decoded(bridge, [other]),
        other=other,
    )


def other_answer(answer: str, target: str, right: bool | None) -> str:
    """What a warning says of an answer that is not the target, as a clause; empty where it is.

    right: token by token; None in results of versions that compared texts.
    """
    if answer == target if right is None else right:
        return ""
    if answer == target:
        return f'answers "{in_sentence(answer)}" (another token of the same text), not "{in_sentence(target)}"'
    if answer.strip() == target.strip():
        how = "two tokens that differ in their spaces; write it as the model does, or give its id"
        said, wanted = (each.translate(SEEN) for each in (answer, target))
        return f'answers "{said}", not "{wanted}" ({how})'
    return f'answers "{in_sentence(answer)}", not "{in_sentence(target)}"'


def mixed_metrics(foils: Sequence[str]) -> list[str]:
    """What to know about a mean over questions of which some have a foil and some have none."""
    without = sum(not foil for foil in foils)
    if without in (0, len(foils)):
        return []
    return [
        f"{without} of {len(foils)} examples have no foil: what is explained is their answer alone, and in the others "
        "its difference from a foil, so the means are of unlike numbers. Give foils to all or none."
    ]


def answer_tokens(bridge: Bridge, answer: Token) -> list[int]:
    """The tokens of an answer: the single token it is as written or after a space, else its tokens as written.

    Raises:
        UserError: it is empty or has a word that the tokenizer does not know, or the id is outside the vocabulary.
    """
    try:
        return [token_id(bridge, answer)]
    except UserError:
        if not isinstance(answer, str):
            raise
        return list(tokens_as_written(bridge, answer))
