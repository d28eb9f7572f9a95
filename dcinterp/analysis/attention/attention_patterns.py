"""The attention matrices of one layer, whole: scores and weights, each before and after the heads are composed.

    scores -> Compose_pre -> composed_scores -> mask, softmax -> weights -> Compose_post -> composed

`weights` are non-negative and their rows add up to 1 (to less where heads have attention sinks, as in gpt-oss);
`composed` is what multiplies the values: signed, with any sum. If a model lacks a stage, both sides of it are the same.
Entries that are masked are zero everywhere (a score of zero has no meaning there). Scores are NaN where the bridge of a
model of others does not show them, but the weights in their place (OPT, GPT-J, GPT-Neo, XGLM).

It does not show what is read (the values), nor whether it matters.

Identities that the tests assert: a row is that of `attention_rows`, and weights = softmax(composed_scores) where there
are no sinks.

    patterns = dcinterp.attention_patterns(model, prompt, layer=1)
    patterns.composed[3]         # head 3, [query, key]
    dcinterp.figures.plot(patterns, head=3, which="weights")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.attention_sinks import sink_warnings
from dcinterp.mechanism.prompt import Prompt, layer_number, str_tokens, token_ids
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result

AXIS = ("head", "query", "key")
MATRICES = ("scores", "composed_scores", "weights", "composed")


@dataclass(frozen=True)
class AttentionPatterns(Result):
    """Four matrices [head, query, key] of `layer`; `stages` are those at which the model composes.

    What a query does not see is 0; a score outside the window of a local layer is NaN.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = dict.fromkeys(MATRICES, AXIS)

    tokens: tuple[str, ...]
    layer: int
    stages: tuple[str, ...]
    scores: Float[Tensor, "head query key"]
    composed_scores: Float[Tensor, "head query key"]
    weights: Float[Tensor, "head query key"]
    composed: Float[Tensor, "head query key"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.tokens) if axis in ("query", "key") else None

    def warnings(self) -> list[str]:
        sentences = sink_warnings(self.weights)
        if self.scores.isnan().all():
            sentences.append(
                "This model's bridge shows the weights where scores should be, so there are no scores here."
            )
        return sentences


@analysis(
    title="Attention matrices of a layer",
    question="Where do all heads of a layer attend?",
    guide="analyses/attention.md",
    example={"prompt": EXAMPLE_PROMPT, "layer": "1"},
)
def attention_patterns(bridge: Bridge, prompt: Prompt, layer: int) -> AttentionPatterns:
    """All heads' attention of one layer, from every position to every earlier one, before and after composition.

    Args:
        bridge: any bridge; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        layer: the layer; negative counts from the last.

    Cost: one forward pass that keeps four matrices [head, query, key] of one layer.

    Raises:
        UserError: the prompt does not fit the model, or the layer does not exist.
    """
    ids, layer = token_ids(bridge, prompt), layer_number(bridge, layer)
    stages = tuple(stages_of(bridge))
    prefix = f"blocks.{layer}.attn."
    composed_scores, composed = f"{prefix}hook_attn_scores", f"{prefix}hook_pattern"
    scores = f"{prefix}pre.hook_in" if "pre" in stages else composed_scores
    weights = f"{prefix}post.hook_in" if "post" in stages else composed
    names = dict(zip(MATRICES, (scores, composed_scores, weights, composed), strict=True))
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids, names_filter=sorted(set(names.values())))
    # What is masked has a score of minus infinity, or the most negative number there is, which float16 has at -65504.
    masked = max(-1e9, torch.finfo(cache[composed_scores].dtype).min / 2)
    allowed = (cache[composed_scores][0] > masked).cpu()
    kept = {name: cache[hook][0].float().cpu().where(allowed, torch.zeros(())) for name, hook in names.items()}
    outside = ~allowed & torch.ones_like(allowed).tril()  # earlier keys that a local layer does not see
    kept |= {name: kept[name].masked_fill(outside, torch.nan) for name in ("scores", "composed_scores")}
    if not stages and torch.equal(kept["composed_scores"], kept["weights"]):
        kept |= dict.fromkeys(("scores", "composed_scores"), torch.full_like(kept["weights"], torch.nan))
    return AttentionPatterns(tokens=str_tokens(bridge, ids), layer=layer, stages=stages, **kept)
