r"""What a head's OV circuit writes when it reads a word, as logits over the vocabulary; no attention, no prompt.

    x(w)  = e_w + MLP_0(norm(e_w))                 the word, enriched by the first MLP
    ov(w) = norm_l(x(w)) W_V^h W_O^h W_U           [d_vocab], in logits before the final norm

Which layers read x(w), and which e_w alone, is `MLP0`: in a run the heads of layer 0 stand before that MLP and read e_w
("later"); the paper's words, with the first MLP as part of the embedding, can be taken for every layer ("always").

Biases of values and outputs are the same for every word and are left out, as are positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.support.errors import UserError

MLP0 = Literal["later", "always", "never"]


def require_tokens(bridge: Bridge) -> None:
    """Refuse a model that reads images; UserError."""
    if getattr(bridge.cfg, "is_visual_model", False):
        raise UserError("OV circuits go from token to token, and this model reads images; load a language model.")


@torch.no_grad()
def ov_logits(
    bridge: Bridge,
    layer: int,
    ids: Int[Tensor, " word"],
    heads: Sequence[int],
    final_norm: bool,
    mlp0: MLP0 = "later",
) -> Iterator[Float[Tensor, "word d_vocab"]]:
    """ov(w) of every word, one head after the other."""
    attention = bridge.blocks[layer].attn
    values, out, unembed = (weight.detach() for weight in (attention.W_V, attention.W_O, bridge.W_U))
    x = _read(bridge, layer, ids, mlp0)
    for head in heads:
        # With grouped-query attention several heads share one W_V.
        written = x @ values[head * len(values) // len(out)] @ out[head]
        if final_norm:
            with _lock(bridge):
                written = bridge.ln_final(written[None])[0]
        yield (written @ unembed).float().cpu()


@torch.no_grad()
def _read(bridge: Bridge, layer: int, ids: Int[Tensor, " word"], mlp0: MLP0) -> Float[Tensor, "word d_model"]:
    """norm_l(x(w)), what the heads of a layer read at a word."""
    device = next(bridge.original_model.parameters()).device
    with _lock(bridge):
        x = bridge.embed(ids.to(device)[None])
        if mlp0 == "always" or (layer > 0 and mlp0 == "later"):
            x = x + bridge.blocks[0].mlp(bridge.blocks[0].ln2(x))
        return bridge.blocks[layer].ln1(x)[0]


def _lock(bridge: Bridge) -> Any:
    """Parts of a bridge may carry the hooks of another thread's run, except while its lock is held."""
    return getattr(bridge, "lock", None) or nullcontext()


def token_ranks(logits: Float[Tensor, "word d_vocab"], tokens: Int[Tensor, "word some"]) -> Int[Tensor, "word some"]:
    """Places of tokens in each word's logits, the largest being 1."""
    return (logits[:, None, :] > logits.gather(1, tokens)[:, :, None]).sum(-1) + 1
