r"""What a head's OV circuit writes when it reads a word, as logits over the vocabulary; no attention, no prompt.

    x(w)  = e_w + MLP_0(norm(e_w))                 the word, enriched by the first MLP
    ov(w) = norm_l(x(w)) W_V^h W_O^h W_U           [d_vocab], in logits before the final norm

Which layers read x(w), and which e_w alone, is `MLP0`: in a run the heads of layer 0 stand before that MLP and read e_w
("later"); the paper's words, with the first MLP as part of the embedding, can be taken for every layer ("always").

Biases of values and outputs are the same for every word and are left out, as are positions. Where a norm follows the
attention, its gain is in ov(w) and its scale, which hangs on the other heads, is not: tokens keep their ranks. A norm
or gate on what heads have read (differential and gated attention) is taken as it is where w alone is read and asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, alone, stages_of
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.head_sites import read_values
from dcinterp.mechanism.rounding import alike
from dcinterp.mechanism.stream import Stream
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError

MLP0 = Literal["later", "always", "never"]

WORDS_AT_ONCE = 512
"""Words of one run of block 0: where a run may not stop there, each has its logits."""

ELSE = "Attribution and ablation of its heads work (`attribute_heads`)."


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
    """ov(w) of every word, one head after the other.

    Raises:
        UserError: blocks of this model add their parts in a way that is not known here.
    """
    attention = bridge.blocks[layer].attn
    values, out, unembed = (weight.detach() for weight in (attention.W_V, attention.W_O, bridge.W_U))
    gain = _gain(bridge, layer)
    x = _read(bridge, layer, ids, mlp0)

    def read(head: int) -> Tensor:
        # With grouped-query attention several heads share one W_V.
        return read_values(bridge, x @ values[head * len(values) // len(out)])

    composer = composer_of(bridge, layer, "post") if "post" in stages_of(bridge) else None
    whole: Float[Tensor, "word head d_head"] | None = None
    if composer is not None and composer.out_hooks():  # a norm or gate stands between what heads read and write
        every = torch.stack([read(head) for head in range(len(out))], 1)
        whole = composer.read_out(every[:, :, None], x[:, None])[:, :, 0]
    for head in heads:
        z = read(head) if whole is None else whole[:, head]
        written = z @ out[head] * gain
        if final_norm:
            with alone(bridge):
                written = bridge.ln_final(written[None])[0]
        yield (written @ unembed).float().cpu()


def has_post_norm(bridge: Bridge, layer: int) -> bool:
    """Whether a norm follows the attention, so that a head's size depends on what all heads write together."""
    return hasattr(bridge.blocks[layer], "ln1_post")


@torch.no_grad()
def _read(bridge: Bridge, layer: int, ids: Int[Tensor, " word"], mlp0: MLP0) -> Float[Tensor, "word d_model"]:
    """norm_l(x(w)), what the heads of a layer read at a word."""
    device = next(bridge.original_model.parameters()).device
    through = mlp0 == "always" or (layer > 0 and mlp0 == "later")
    with alone(bridge):
        x = bridge.embed(ids.to(device)[:, None]) * _multiplier(bridge, "embedding")
        if isinstance(getattr(bridge.original_model, "config", None), DCFormerConfig):
            x = x + bridge.blocks[0].mlp(bridge.blocks[0].ln2(x)) if through else x
        else:
            _require_known_embedding(bridge, device)
            x = _through_first_block(bridge, x) if through else x
        norm = getattr(bridge.blocks[layer], "ln1", None)
        return (x if norm is None else norm(x))[:, 0]


def _through_first_block(bridge: Bridge, x: Float[Tensor, "word 1 d_model"]) -> Float[Tensor, "word 1 d_model"]:
    """What block 0 of a model of others makes of words with its attention off: a run of it, as its parts may be any."""
    stream = Stream(bridge, torch.zeros(1, 1, dtype=torch.long, device=x.device))
    _require_known_block(bridge, stream, x[:1])
    return torch.cat([_first_block(bridge, stream, some, "attn")[0] for some in x.split(WORDS_AT_ONCE)])


def _first_block(
    bridge: Bridge, stream: Stream, x: Float[Tensor, "word 1 d_model"], without: str
) -> tuple[Float[Tensor, "word 1 d_model"], Float[Tensor, "word 1 d_model"]]:
    """What block 0 gives with one part switched off, and what its attention gave."""
    seen: dict[str, Tensor] = {}

    def nothing(tensor: Tensor, hook: Any) -> Tensor:
        return torch.zeros_like(tensor)

    def keep(tensor: Tensor, hook: Any, name: str) -> None:
        seen[name] = tensor.detach()

    attention, end = "blocks.0.attn.hook_out", "blocks.0.hook_out"
    hooks = [("blocks.0.hook_in", lambda tensor, hook: x), (f"blocks.0.{without}.hook_out", nothing)]
    stream.layer(0, len(x), [*hooks, *((name, partial(keep, name=name)) for name in (attention, end))])
    return seen[end], seen[attention]


def _require_known_embedding(bridge: Bridge, device: torch.device) -> None:
    """UserError where the first block reads something else than the embedding and positions, alike for all words."""
    if vars(bridge).get("_embeds"):
        return
    ids = torch.tensor([[0], [1]], device=device)
    entering = bridge.run_with_cache(ids, names_filter=["blocks.0.hook_in"])[1]["blocks.0.hook_in"]
    words = bridge.embed(ids) * _multiplier(bridge, "embedding")
    if not alike(entering[0] - words[0] + words[1], entering[1]):
        raise UserError(f"OV circuits are not known for this model: it does more than look words up, at first. {ELSE}")
    object.__setattr__(bridge, "_embeds", True)


def _require_known_block(bridge: Bridge, stream: Stream, x: Float[Tensor, "1 1 d_model"]) -> None:
    """UserError where block 0 is no sum of its input, what its attention gives (see `_gain`) and what its MLP gives."""
    if vars(bridge).get("_sums"):
        return
    known = False
    try:
        given, attended = _first_block(bridge, stream, x, "mlp")
        norm = getattr(bridge.blocks[0], "ln1_post", None)
        known = alike(x + (attended if norm is None else norm(attended)) * _multiplier(bridge, "residual"), given)
    except torch.OutOfMemoryError:
        raise
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError):
        pass  # a block of another make lacks a part
    if not known:  # and not kept: a hook of somebody's may be why
        raise UserError(
            "OV circuits behind the first block are not known for this model: its attention and MLP give the residual "
            f'stream back, and not what they add to it. mlp0="never" leaves that block out. {ELSE}'
        )
    object.__setattr__(bridge, "_sums", True)


def _gain(bridge: Bridge, layer: int) -> Tensor | float:
    """What a head's output is multiplied by on its way into the stream, where no other head changes it.

    A norm behind the attention (Gemma 2 and 3, OLMo 2) multiplies by its gain, and divides by the size of all heads'
    sum, which a prompt decides; only the gain is taken.
    """
    if not has_post_norm(bridge, layer):
        return _multiplier(bridge, "residual")
    weight = bridge.blocks[layer].attn.W_O
    with alone(bridge):
        ones = torch.ones(1, 1, weight.shape[-1], dtype=weight.dtype, device=weight.device)
        return bridge.blocks[layer].ln1_post(ones)[0, 0].detach() * _multiplier(bridge, "residual")


def _multiplier(bridge: Bridge, of: Literal["embedding", "residual"]) -> float:
    """Of the embedding, where the model itself applies it, or of what a block adds to the stream (Granite)."""
    return float(getattr(getattr(bridge.original_model, "config", None), f"{of}_multiplier", None) or 1.0)
