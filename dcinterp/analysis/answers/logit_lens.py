r"""What the model would answer if it ended at each layer: the logit lens.

    lens[depth, pos] = unembed(final_norm(x[depth, pos]))

x is the residual stream before the first block, after each block and, if wanted, between attention and MLP. The last
depth is what the model itself answers, at every position.

Source: nostalgebraist 2020. TransformerLens's `logit_lens` gives the same logits.

It does not show what a layer knows: the final norm and the unembedding were trained for the last depth alone, and a
layer may hold the answer in directions that they do not read. Nor is a depth at which the answer comes first the place
where it was found.

Identities that the tests assert: the last depth is the model's output; the answer of an earlier depth is what the model
answers when no later block writes anything.

    lens = dcinterp.logit_lens(model, "< Ruth has a violin. ...", "fruit", "animal")
    lens.top_tokens[-1][-1]                 # the model's answer
    lens.target_rank[:, -1]                 # 1 where the target comes first
    dcinterp.figures.plot(lens)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.objective import Explanation, answer_tokens, explain
from dcinterp.mechanism.prompt import (
    Prompt,
    Token,
    decoded,
    position,
    space_warnings,
    spaced_token_id,
    str_tokens,
    token_ids,
)
from dcinterp.mechanism.readout import depth_hooks, likeliest, rank_of, read_out, require_text, token_words
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.ranges import Count
from dcinterp.support.text import in_sentence

SAME = 1e-3
"""Of the largest logit: a last depth that is further from the model's output than this is not the same."""


@dataclass(frozen=True)
class LogitLens(Result):
    """The next tokens that the stream gives at every depth and position.

    depths: their names, the last one the output. top_ids, probability [depth, pos, top]: the most likely tokens, which
    top_tokens names. target_probability, target_rank [depth, pos]: of the target, rank 1 being the most likely;
    logit_difference [depth, pos]: its logit minus that of the foil. divergence [depth, pos]: how far the distribution
    is from the output's at this position, KL(output || depth) in nats.
    position: where the target is the answer. part_of: the whole target where one of its tokens is followed, or "".
    unexplained: how far the last depth is from the model's own logits, as a share of the largest.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "top_ids": ("depth", "pos", "top"),
        "probability": ("depth", "pos", "top"),
        "target_probability": ("depth", "pos"),
        "target_rank": ("depth", "pos"),
        "logit_difference": ("depth", "pos"),
        "divergence": ("depth", "pos"),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"top_tokens": ("depth", "pos", "top")}

    tokens: tuple[str, ...]
    depths: tuple[str, ...]
    position: int
    target: str
    foil: str
    part_of: str
    top_tokens: tuple[tuple[tuple[str, ...], ...], ...]
    top_ids: Int[Tensor, "depth pos top"]
    probability: Float[Tensor, "depth pos top"]
    target_probability: Float[Tensor, "depth pos"]
    target_rank: Int[Tensor, "depth pos"]
    logit_difference: Float[Tensor, "depth pos"]
    divergence: Float[Tensor, "depth pos"]
    unexplained: float
    spaced: str = ""
    spaced_probability: float = 0.0

    def labels(self, axis: str) -> list[str] | None:
        return {"depth": list(self.depths), "pos": list(self.tokens)}.get(axis)

    def table(self) -> pd.DataFrame:
        """One row a depth, at the position where the target is the answer."""
        at = self.position
        return pd.DataFrame(
            {
                "depth": self.depths,
                "most likely": [row[at][0] for row in self.top_tokens],
                "probability": self.probability[:, at, 0].tolist(),
                "rank of target": self.target_rank[:, at].tolist(),
                "probability of target": self.target_probability[:, at].tolist(),
                "logit difference": self.logit_difference[:, at].tolist(),
                "divergence": self.divergence[:, at].tolist(),
            }
        )

    def sentence(self) -> str:
        """From which depth on the target comes first, at its position."""
        ranks, target = self.target_rank[:, self.position].tolist(), in_sentence(self.target)
        last = next((depth for depth in range(len(ranks) - 1, -1, -1) if ranks[depth] != 1), -1)
        if last == len(ranks) - 1:
            return f'The output does not put "{target}" first: its rank there is {ranks[-1]}.'
        where = "at every depth"
        if last == len(ranks) - 2:
            where = f"at the output alone, and not at {self.depths[last]}"
        elif last >= 0:
            where = f"from {self.depths[last + 1]} on, and not at {self.depths[last]}"
        return f'Read by the final norm and the unembedding, the stream puts "{target}" first {where}.'

    def warnings(self) -> list[str]:
        chance = float(self.target_probability[-1, self.position])
        sentences = space_warnings(self.target, chance, self.spaced, self.spaced_probability)
        if self.part_of:
            sentences.append(
                f'"{in_sentence(self.part_of)}" takes several tokens; the lens follows one of them, '
                f'"{in_sentence(self.target)}".'
            )
        if self.unexplained > SAME:
            sentences.append(
                "The last depth is not what the model answers: it changes its logits after the unembedding (caps them, "
                "say), which the lens leaves out at all depths."
            )
        return sentences


@analysis(
    title="Logit lens",
    question="What would the model answer if it ended at each layer?",
    guide="analyses/logit-lens.md",
    example={"prompt": EXAMPLE_PROMPT, "target": "tea", "foil": "meat"},
)
@torch.no_grad()
def logit_lens(
    bridge: Bridge,
    prompt: Prompt,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    at: int = -1,
    attention: bool = False,
    k: Count = 5,
) -> LogitLens:
    """The next tokens at every depth of the model and every position of the prompt, by its own final norm.

    Args:
        bridge: any TransformerLens bridge with a final norm and an unembedding; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        target: the token whose probability and rank are followed; the model's own answer by default. Of an answer of
            several tokens the first one at which it differs from the foil, behind those that both share; without a
            foil its first token.
        foil: the answer that it competes with; by default the most likely other token of the output.
        at: the position whose next token is the target; negative counts from the end.
        attention: also between attention and MLP, in models where the MLP reads what attention wrote.
        k: how many of the most likely tokens to keep at each place.

    Cost: one forward pass, and the unembedding of every position once for each depth. Memory: one depth's logits,
    positions times vocabulary, three times over.

    Raises:
        UserError: prompt, target, foil or position do not fit the model, or there is nothing between attention and MLP.
    """
    require_text(bridge)
    asked, part_of = _asked(bridge, prompt, target, foil, at)
    hooks = depth_hooks(bridge, attention)
    logits, cache = bridge.run_with_cache(asked.ids, names_filter=list(hooks.values()))
    output = read_out(bridge, cache[hooks["the output"]][0])
    reference = output.log_softmax(-1)
    place = asked.positions[0]
    spaced = spaced_token_id(bridge, target) if target is not None and not part_of else None
    right = asked.expected[0]
    wrong = asked.metric.other  # type: ignore[attr-defined]
    rows: dict[str, list[Tensor]] = {name: [] for name in LogitLens.AXES}
    for name in hooks.values():
        lens = read_out(bridge, cache[name][0])
        chances = lens.log_softmax(-1)
        top_ids = likeliest(lens, k)
        found: dict[str, Tensor] = {
            "top_ids": top_ids,
            "probability": chances.gather(-1, top_ids).exp(),
            "target_probability": chances[:, right].exp(),
            "target_rank": rank_of(lens, torch.full_like(top_ids[:, 0], right)),
            "logit_difference": lens[:, right] - lens[:, wrong],
            "divergence": (reference.exp() * (reference - chances)).sum(-1).clamp(min=0),
        }
        for field, value in found.items():
            rows[field].append(value)
    stacked = {name: torch.stack(values) for name, values in rows.items()}
    whole = logits[0].float().cpu()
    return LogitLens(
        tokens=str_tokens(bridge, asked.ids),
        depths=tuple(hooks),
        position=place,
        target=asked.target,
        foil=asked.foil,
        part_of=part_of,
        top_tokens=token_words(bridge, stacked["top_ids"]),
        spaced=str_tokens(bridge, torch.tensor([[spaced]]))[0] if spaced is not None else "",
        spaced_probability=float(reference[place, spaced].exp()) if spaced is not None else 0.0,
        unexplained=float((output - whole).abs().max() / whole.abs().max()),
        **stacked,  # type: ignore[arg-type]
    )


def _asked(
    bridge: Bridge, prompt: Prompt, target: Token | None, foil: Token | None, at: int
) -> tuple[Explanation, str]:
    """(the prompt with one token that is followed and its foil, the target as it was given where it is longer)."""
    ids = token_ids(bridge, prompt)
    at = position(at, ids.shape[1], "Position")
    output = bridge(ids)[0, at].float() if target is None or foil is None else None
    if target is None:
        assert output is not None
        target = int(output.argmax())
    tokens = answer_tokens(bridge, target)
    if foil is None:
        assert output is not None
        target, output[tokens[0]] = tokens[0], -torch.inf
        foil = int(output.argmax())
    return explain(bridge, prompt, target, foil, at=at), decoded(bridge, tokens) if len(tokens) > 1 else ""
