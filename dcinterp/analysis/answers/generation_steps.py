"""What the model writes, token by token, and what each layer would have written at every step.

    token[n] = argmax p(. | prompt, token[0], ..., token[n - 1])
    p(answer) = product over its tokens of p(token | prompt, its tokens before)

Steps are greedy. At each, the logit lens reads the stream of every depth by the model's own final norm and unembedding,
at the position that the next token comes from.

Source: the lens of nostalgebraist 2020, as in dcinterp.analysis.answers.logit_lens.

It does not show what sampling would write, nor what happens inside a step (see `logit_lens` at all positions). A depth
that names the token early need not be what later layers read it from.

Identity that the tests assert: the tokens are those of the model's own `generate`; the last depth is its output; the
probability of the answer is the product of those of its tokens.

    steps = dcinterp.generation_steps(model, "There are tea, meat, meat. Which is not meat? The", "tea")
    print(steps.sentence())
    dcinterp.figures.plot(steps)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.objective import answer_tokens
from dcinterp.mechanism.prompt import Prompt, Token, decoded, space_warnings, spaced_token_id, str_tokens, token_ids
from dcinterp.mechanism.readout import depth_hooks, likeliest, rank_of, read_out, require_text, token_words
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count
from dcinterp.support.text import in_sentence


@dataclass(frozen=True)
class GenerationSteps(Result):
    """Every step of a greedy continuation.

    tokens: of the prompt. written: the tokens that followed, together `text`; stopped: whether the last one is the end
    of the text.
    depths: names, the last one the output. top_ids, probability [depth, step, top]: the most likely tokens at every
    step, which top_tokens names. rank [depth, step]: of the token that was written.
    answer, expected: the answer and its tokens, if one was given; answer_probability [answer_token]: of each behind the
    prompt and those before it. spaced: an answer of one token after a space, where the vocabulary has that as another
    token, with its probability there.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "top_ids": ("depth", "step", "top"),
        "probability": ("depth", "step", "top"),
        "rank": ("depth", "step"),
        "answer_probability": ("answer_token",),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "top_tokens": ("depth", "step", "top"),
        "expected": ("answer_token",),
    }

    tokens: tuple[str, ...]
    written: tuple[str, ...]
    text: str
    answer: str
    stopped: bool
    depths: tuple[str, ...]
    top_tokens: tuple[tuple[tuple[str, ...], ...], ...]
    expected: tuple[str, ...]
    top_ids: Int[Tensor, "depth step top"]
    probability: Float[Tensor, "depth step top"]
    rank: Int[Tensor, "depth step"]
    answer_probability: Float[Tensor, " answer_token"]
    begins: bool | None = None
    spaced: str = ""
    spaced_probability: float = 0.0

    def labels(self, axis: str) -> list[str] | None:
        return {"depth": list(self.depths), "step": list(self.written), "answer_token": list(self.expected)}.get(axis)

    @property
    def right(self) -> bool | None:
        """Whether the continuation begins with the answer's tokens; None without an answer."""
        if not self.expected or self.begins is not None:
            return self.begins
        return self.written[: len(self.expected)] == self.expected  # of an earlier version, which kept no ids

    def first_depth(self, step: int) -> str:
        """From which depth on the token that was written is the most likely one."""
        ranks = self.rank[:, step].tolist()
        last = next((depth for depth in range(len(ranks) - 1, -1, -1) if ranks[depth] != 1), -1)
        return self.depths[min(last + 1, len(ranks) - 1)]

    def table(self) -> pd.DataFrame:
        """One row a step."""
        rows = range(len(self.written))
        return pd.DataFrame(
            {
                "step": rows,
                "written": self.written,
                "probability": self.probability[-1, :, 0].tolist(),
                "first from": [self.first_depth(step) for step in rows],
                "next best": [place[1] if len(place) > 1 else "" for place in self.top_tokens[-1]],
            }
        )

    def sentence(self) -> str:
        text = in_sentence(self.text or "".join(self.written))
        said = f'The model goes on with "{text}"' + (" and ends the text." if self.stopped else ".")
        if not self.expected:
            return said
        tokens = len(self.expected)
        chance = f"whose {tokens} tokens together have" if tokens > 1 else "which has"
        short = self.expected[: len(self.written)] == self.written and len(self.written) < tokens and not self.stopped
        does = "begins with" if self.right else "is cut off within" if short else "does not begin with"
        if self.spaced and self.written[:1] == (self.spaced,):
            does = f'begins with "{self.spaced}", which is another token than'
        answer = in_sentence(self.answer or "".join(self.expected))
        return (
            f'{said} That {does} the answer "{answer}", {chance} a probability of '
            f"{float(self.answer_probability.double().prod()):.1%}."
        )

    def warnings(self) -> list[str]:
        if not self.expected:
            return []
        chance = float(self.answer_probability[0])
        return space_warnings(self.expected[0], chance, self.spaced, self.spaced_probability)


@analysis(
    title="Generation step by step",
    question="What does the model write, and from which layer on, token by token?",
    guide="analyses/logit-lens.md",
    example={"prompt": EXAMPLE_PROMPT, "answer": "tea", "steps": "3"},
)
@torch.no_grad()
def generation_steps(
    bridge: Bridge,
    prompt: Prompt,
    answer: Token | None = None,
    *,
    steps: Count = 8,
    k: Count = 5,
    progress: Progress = silent,
) -> GenerationSteps:
    """Continue a prompt greedily, and read every depth of the model at every step.

    Args:
        bridge: any TransformerLens bridge with a final norm and an unembedding.
        prompt: text, or token ids as in [5, 7, 9].
        answer: the expected continuation, which may take several tokens.
        steps: how many tokens at most; it stops behind the end of the text.
        k: how many of the most likely tokens to keep at each place.
        progress: called after each step.

    Cost: a forward pass for every token and one for the depths, and with an answer one more.

    Raises:
        UserError: prompt or answer do not fit the model, or with the continuation it is too long for it.
    """
    require_text(bridge)
    ids = token_ids(bridge, prompt)
    length, ends = ids.shape[1], _ends(bridge)
    expected = answer_tokens(bridge, answer) if answer is not None else []
    spaced = spaced_token_id(bridge, answer) if answer is not None else None
    # The last token is written or scored, and not read.
    room, wanted = bridge.cfg.n_ctx - length + 1, max(steps, len(expected))
    if wanted > room:
        raise UserError(
            f"The prompt is {length} tokens long and this model's context {bridge.cfg.n_ctx}, so {room} more can be "
            f"written or scored and not {wanted}; shorten the prompt, or give fewer steps."
        )
    first = torch.zeros(0)
    for step in range(steps):
        logits = bridge(ids)[:, -1:]
        first = logits[0, -1].float().softmax(-1).cpu() if step == 0 else first
        following = logits.argmax(-1)
        ids = torch.cat([ids, following], 1)
        progress(step + 1, steps, "writing")
        if int(following) in ends:
            break
    hooks = depth_hooks(bridge)
    _, cache = bridge.run_with_cache(ids[:, :-1], names_filter=list(hooks.values()))
    found: dict[str, list[Tensor]] = {"top_ids": [], "probability": [], "rank": []}
    for name in hooks.values():
        lens = read_out(bridge, cache[name][0, length - 1 :])
        top_ids = likeliest(lens, k)
        for field, value in (
            ("top_ids", top_ids),
            ("probability", lens.log_softmax(-1).gather(-1, top_ids).exp()),
            ("rank", rank_of(lens, ids[0, length:].to(lens.device))),
        ):
            found[field].append(value)
    stacked = {name: torch.stack(values) for name, values in found.items()}
    return GenerationSteps(
        tokens=str_tokens(bridge, ids[:, :length]),
        written=str_tokens(bridge, ids[:, length:]),
        text=decoded(bridge, ids[0, length:].tolist()).strip(),
        answer=decoded(bridge, expected).strip() if expected else "",
        stopped=int(ids[0, -1]) in ends,
        depths=tuple(hooks),
        top_tokens=token_words(bridge, stacked["top_ids"]),
        expected=str_tokens(bridge, torch.tensor([expected])) if expected else (),
        answer_probability=_teacher_forced(bridge, ids[:, :length], expected),
        spaced=str_tokens(bridge, torch.tensor([[spaced]]))[0] if spaced is not None else "",
        spaced_probability=float(first[spaced]) if spaced is not None else 0.0,
        begins=ids[0, length:][: len(expected)].tolist() == expected if expected else None,
        **stacked,  # type: ignore[arg-type]
    )


def _ends(bridge: Bridge) -> set[int]:
    """The tokens that end a text: those of the tokenizer, and those at which the model's own `generate` stops."""
    model = bridge.original_model
    given: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if given is None:
        given = getattr(getattr(model, "config", None), "eos_token_id", None)
    own = getattr(bridge.tokenizer, "eos_token_id", None)
    ends = given if isinstance(given, list | tuple) else [given]
    return {int(end) for end in (own, *ends) if end is not None}


def _teacher_forced(bridge: Bridge, ids: Tensor, expected: list[int]) -> Float[Tensor, " answer_token"]:
    """The probability of each token of an answer behind the prompt and its own earlier tokens."""
    if not expected:
        return torch.zeros(0)
    read = torch.cat([ids, torch.tensor([expected[:-1]], dtype=ids.dtype, device=ids.device)], 1)
    chances = bridge(read)[0, ids.shape[1] - 1 :].float().softmax(-1).cpu()
    return chances.gather(-1, torch.tensor(expected)[:, None])[:, 0]
