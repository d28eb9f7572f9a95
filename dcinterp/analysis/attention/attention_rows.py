"""Where every head of a layer attends from one position, before and after the heads are composed.

    weights = softmax(composed, masked scores);   composed = Compose_post(weights)

`weights` are non-negative and add up to 1 (to less where heads have attention sinks, as in gpt-oss); `composed` is what
multiplies the values: signed, with any sum. In a model without composition the two are the same.

It does not show what is read there (the values), nor whether it matters.

Identity that the tests assert: `weights` add up to 1 without sinks, and z = composed @ v.

    rows = dcinterp.attention_rows(model, prompt, layer=1, query=-1)
    rows.composed[3]             # head 3's row, [key]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.attention_sinks import sink_warnings
from dcinterp.mechanism.memory import check_fits, slices
from dcinterp.mechanism.prompt import Prompt, layer_number, position, str_tokens, token_ids
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result


@dataclass(frozen=True)
class AttentionRows(Result):
    """Attention of all heads of `layer` from position `query`: after the softmax, and after composition."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"weights": ("head", "key"), "composed": ("head", "key")}

    tokens: tuple[str, ...]
    layer: int
    query: int
    weights: Float[Tensor, "head key"]
    composed: Float[Tensor, "head key"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.tokens[: self.query + 1]) if axis == "key" else None

    def warnings(self) -> list[str]:
        return sink_warnings(self.weights)


@analysis(
    title="Attention before and after composition",
    question="Where do all heads attend from one token?",
    guide="analyses/attention.md",
    example={"prompt": EXAMPLE_PROMPT, "layer": "1"},
)
def attention_rows(bridge: Bridge, prompt: Prompt, layer: int, query: int = -1) -> AttentionRows:
    """All heads' attention from one position, before and after post-composition.

    Args:
        bridge: any bridge; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        layer: the layer; negative counts from the last.
        query: the position that attends; negative counts from the end.

    Cost: one forward pass that takes one layer apart (see dcinterp.mechanism.memory) and keeps two rows a head.

    Raises:
        UserError: the layer or the position does not exist.
    """
    ids = token_ids(bridge, prompt)
    layer, query = layer_number(bridge, layer), position(query, ids.shape[1], "Query")
    composed = f"blocks.{layer}.attn.hook_pattern"
    weights = f"blocks.{layer}.attn.post.hook_in" if "post" in stages_of(bridge) else composed
    check_fits(bridge, ids.shape[1], what=f"Looking into layer {layer}")
    row = (0, slice(None), query, slice(query + 1))
    rows = slices(bridge, ids, {weights: row, composed: row})
    return AttentionRows(
        tokens=str_tokens(bridge, ids), layer=layer, query=query, weights=rows[weights], composed=rows[composed]
    )
