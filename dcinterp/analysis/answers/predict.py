"""What the model answers: the most likely next tokens, and the rank of a given answer.

    p = softmax(logits at the last position)

It does not show why; a confident answer may still come from a shortcut (46 of the 74 tasks do not need the
question).

Identity that the tests assert: the probabilities are those of the model's own logits, and the rank is that of sorting
them.

    prediction = dcinterp.predict(bridge, "< Ruth has a violin. ...", answer="fruit")
    prediction.rank                 # 1 when the model answers "fruit"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.prompt import (
    Prompt,
    Token,
    position,
    space_warnings,
    spaced_token_id,
    str_tokens,
    token_id,
    token_ids,
)
from dcinterp.mechanism.readout import likeliest, rank_of
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count
from dcinterp.support.text import in_sentence


@dataclass(frozen=True)
class Prediction(Result):
    """The top next tokens after `position`, most likely first; `rank` of `answer` counts from 1 (0: none was given).

    `spaced` is the answer with a space before it, where the vocabulary has that as a token of its own.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"top_ids": ("top",), "probability": ("top",), "logit": ("top",)}

    tokens: tuple[str, ...]
    position: int
    top_tokens: tuple[str, ...]
    answer: str
    answer_id: int
    rank: int
    answer_probability: float
    top_ids: Int[Tensor, " top"]
    probability: Float[Tensor, " top"]
    logit: Float[Tensor, " top"]
    spaced: str = ""
    spaced_probability: float = 0.0

    def sentence(self) -> str:
        if not self.rank:
            return ""
        chance = (
            f"{self.answer_probability:.1%}" if self.answer_probability >= 0.001 else f"{self.answer_probability:.2g}"
        )
        return f'"{in_sentence(self.answer)}" has rank {self.rank:,} and a probability of {chance}.'

    def labels(self, axis: str) -> list[str] | None:
        return list(self.top_tokens) if axis == "top" else None

    def warnings(self) -> list[str]:
        return space_warnings(self.answer, self.answer_probability, self.spaced, self.spaced_probability)


@analysis(
    title="Prediction",
    question="What does the model answer?",
    guide="analyses/prediction.md",
    example={"prompt": EXAMPLE_PROMPT},
)
def predict(bridge: Bridge, prompt: Prompt, answer: Token | None = None, *, at: int = -1, k: Count = 10) -> Prediction:
    """The model's `k` most likely tokens after position `at` of the prompt, and the rank of `answer`.

    Args:
        bridge: any bridge; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        answer: the expected next token, as a word or an id.
        at: the position after which to predict; negative counts from the end.
        k: how many of the most likely tokens to keep.

    Cost: one forward pass.

    Raises:
        UserError: the prompt, the answer or the position does not fit the model, or its logits are NaN.
    """
    ids = token_ids(bridge, prompt)
    at = position(at, ids.shape[1], "Position")
    with torch.no_grad():
        logits = bridge(ids)[0, at].float().cpu()
    if logits.isnan().any():
        raise UserError("This model's logits are not numbers (NaN); its weights or its config.json are damaged.")
    probability = logits.softmax(-1)
    top = likeliest(logits, k)
    chosen = token_id(bridge, answer) if answer is not None else -1
    spaced = spaced_token_id(bridge, answer) if answer is not None else None
    return Prediction(
        tokens=str_tokens(bridge, ids),
        position=at,
        top_tokens=str_tokens(bridge, top[None]),
        answer=str_tokens(bridge, torch.tensor([[chosen]]))[0] if chosen >= 0 else "",
        answer_id=chosen,
        rank=int(rank_of(logits, torch.tensor(chosen, device=logits.device))) if chosen >= 0 else 0,
        answer_probability=float(probability[chosen]) if chosen >= 0 else 0.0,
        top_ids=top,
        probability=probability[top],
        logit=logits[top],
        spaced=str_tokens(bridge, torch.tensor([[spaced]]))[0] if spaced is not None else "",
        spaced_probability=float(probability[spaced]) if spaced is not None else 0.0,
    )
