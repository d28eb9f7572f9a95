r"""The end of a model, from the residual stream to logits: the final norm and the unembedding.

    y = (x - mean(x)) / s * gain + bias          logits = y W_U + b_U

(without the mean in models with RMSNorm.) With the scale s held at its value, logits are linear in x, so that what a
part of the stream adds to them can be said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, alone
from dcinterp.mechanism.prompt import str_tokens
from dcinterp.support.errors import UserError

PROBE = 1e3
"""Size of the vectors that a norm is tried on: large, so that its epsilon does not matter."""


def likeliest(logits: Float[Tensor, "*places vocab"], k: int) -> Int[Tensor, "*places k"]:
    """The tokens with the largest logits, most likely first; of equal ones the first, as argmax has it."""
    top = logits.topk(min(k, logits.shape[-1]), -1)
    ids = top.indices.sort(-1).values
    ids = ids.gather(-1, logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices)
    # topk takes any of the tokens that share its last place; a sort of the whole row is dear, so of those rows alone.
    shared = (logits >= top.values[..., -1:]).sum(-1) > ids.shape[-1]
    if bool(shared.any()):
        ids[shared] = logits[shared].sort(dim=-1, descending=True, stable=True).indices[..., : ids.shape[-1]]
    return ids


def rank_of(logits: Float[Tensor, "*places vocab"], token: Int[Tensor, "*places"]) -> Int[Tensor, "*places"]:
    """The rank of a token at every place, 1 for the most likely; of equal ones the first, as argmax has it."""
    own = logits.gather(-1, token[..., None])
    earlier = torch.arange(logits.shape[-1], device=logits.device) < token[..., None]
    return ((logits > own) | ((logits == own) & earlier)).sum(-1) + 1


@dataclass(frozen=True)
class HeldNorm:
    """A norm at some places of a prompt, as the linear map that it is when its scale does not change.

    gain, bias [d_model]; centred: whether the mean is taken away first; scale [place]: what it divides by.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    centred: bool
    scale: Float[Tensor, " place"]

    def __call__(self, x: Float[Tensor, "place d_model"]) -> Float[Tensor, "place d_model"]:
        """The norm of vectors with this scale."""
        return (x - x.mean(-1, keepdim=True) * self.centred) * self.gain / self.scale[:, None] + self.bias

    def transposed(self, directions: Float[Tensor, "place d_model"]) -> Float[Tensor, "place d_model"]:
        """What x has to be multiplied with, for `directions` times the norm of x (its bias aside)."""
        out = directions * self.gain
        return (out - out.mean(-1, keepdim=True) * self.centred) / self.scale[:, None]


@torch.no_grad()
def held_norm(bridge: Bridge, x: Float[Tensor, "place d_model"], norm: Any = None) -> HeldNorm:
    """A norm of a model at these vectors, in float64 on the CPU; the final norm unless another one is given.

    The norm is asked and not read: its gain and bias are found from what it makes of two opposite vectors, so that it
    does not matter whether its weights are folded, or kept as an offset from 1.

    Cost: two passes through the norm alone.
    """
    norm = bridge.ln_final if norm is None else norm
    width = x.shape[-1]
    signs = torch.ones(width, device=x.device, dtype=x.dtype)
    signs[1::2] = -1
    probes = torch.stack([PROBE * signs, -PROBE * signs, PROBE * signs + 2 * PROBE])
    plus, minus, shifted = _normed(bridge, norm, probes)
    bias = (plus + minus) / 2
    centred = bool((shifted - plus).abs().max() <= 1e-2 * (plus - bias).abs().max())
    unit = signs.cpu().double()
    unit = unit - unit.mean() if centred else unit
    gain = (plus - bias) / (unit / unit.pow(2).mean().sqrt())
    wide = x.cpu().double()
    moved = (wide - wide.mean(-1, keepdim=True) * centred) * gain
    normed = _normed(bridge, norm, x) - bias
    return HeldNorm(gain, bias, centred, scale=moved.pow(2).sum(-1) / (moved * normed).sum(-1))


@torch.no_grad()
def read_out(bridge: Bridge, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos vocab"]:
    """The logits that the end of the model makes of a stream, on the CPU."""
    with alone(bridge):
        logits: Tensor = bridge.unembed(bridge.ln_final(x[None]))[0]  # type: ignore[attr-defined]
    return logits.detach().float().cpu() if logits.dtype != torch.float64 else logits.detach().cpu()


def unembedding(bridge: Bridge, token: int) -> tuple[Float[Tensor, " d_model"], float]:
    """(column of W_U, entry of b_U) of a token, in float64 on the CPU."""
    bias = getattr(bridge, "b_U", None)
    return bridge.W_U[:, token].detach().cpu().double(), 0.0 if bias is None else float(bias[token])


def require_text(bridge: Bridge) -> None:
    """Refuse a model without logits of tokens; UserError."""
    if getattr(bridge.cfg, "is_visual_model", False):
        raise UserError("This needs the logits of next tokens, and this model reads images; load a language model.")
    if getattr(bridge, "ln_final", None) is None or getattr(bridge, "unembed", None) is None:
        raise UserError("This needs a final norm and an unembedding, and this model has no such parts.")


def depth_hooks(bridge: Bridge, attention: bool = False) -> dict[str, str]:
    """The hook of the stream at every depth, by the name of the depth; the last is the output.

    Raises:
        UserError: attention and MLP read the same stream, so that there is no depth between them.
    """
    last = int(bridge.cfg.n_layers) - 1
    hooks = {"the embedding": "blocks.0.hook_resid_pre"}
    for layer in range(last + 1):
        middle = f"blocks.{layer}.hook_resid_mid"
        if attention:
            if middle not in bridge.hook_dict or getattr(bridge.cfg, "parallel_attn_mlp", False):
                raise UserError(
                    "In this model attention and MLP read the same stream, so there is nothing between them to look "
                    "at; leave attention out."
                )
            hooks[f"attention {layer}"] = middle
        hooks["the output" if layer == last else f"layer {layer}"] = f"blocks.{layer}.hook_resid_post"
    return hooks


def token_words(bridge: Bridge, ids: Int[Tensor, "depth pos top"]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Tokens as text; each is decoded once."""
    known: dict[int, str] = {}

    def word(token: Any) -> str:
        if token not in known:
            known[token] = str_tokens(bridge, torch.tensor([[token]]))[0]
        return known[token]

    return tuple(tuple(tuple(word(token) for token in place) for place in depth) for depth in ids.tolist())


def _normed(bridge: Bridge, norm: Any, x: Float[Tensor, "place d_model"]) -> Float[Tensor, "place d_model"]:
    """What a norm makes of these vectors, in float64 on the CPU."""
    with alone(bridge):
        normed: Tensor = norm(x[None])[0]
    return normed.cpu().double()
