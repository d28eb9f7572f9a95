"""What `composed_attention` takes: checked once, at the border, so that no implementation reads what is not there.

Only shapes, types and devices are looked at: nothing is copied and no device is waited for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.support.errors import UserError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
AXES = {"q": "[batch, head, query, d_head]"} | dict.fromkeys("kv", "[batch, kv_head, key, d_head]")
FURTHEST = 1 << 62
"""A window from which on every key is seen, whatever the length: larger integers do not fit the kernels."""

Settled = tuple[ComposeWeights | None, ComposeWeights | None, int | None, Tensor | None]


def settle_arguments(q: Any, k: Any, v: Any, pre: Any, post: Any, *, causal: Any, window: Any, mask: Any) -> Settled:
    """The stages, the window and the mask, with the axes of size one that may broadcast spread out (as views).

    Spread are the batch of a stage's weights, and batch, query and key of the mask; a mask may keep a batch of one.

    Raises:
        UserError: an argument does not fit the others; the message names it and what it must be.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested or x.dim() != 4:
            raise UserError(f"{name} must be a dense tensor {AXES[name]}, not {_said(x)}.")
    if q.dtype not in FLOATS:
        raise UserError(f"q must be float64, float32, bfloat16 or float16, not {q.dtype}.")
    batch, heads, queries, width = q.shape
    shared, keys = k.shape[1:3]
    if heads < 1 or width < 1:
        raise UserError(f"q must have at least one head and a d_head of at least 1; its shape is {tuple(q.shape)}.")
    if shared < 1 or heads % shared:
        raise UserError(
            f"k has {shared} heads and q has {heads}; give as many, or a divisor, for several heads of q to share them."
        )
    for name, x in (("k", k), ("v", v)):
        _check(name, x, AXES[name], (batch, shared, keys, width), q)
    if not isinstance(causal, bool):
        raise UserError(f"causal must be True or False, not {_said(causal)}.")
    if causal and queries > keys:
        raise UserError(
            f"causal=True makes the queries the last positions of the keys' axis, but q has {queries} queries and k "
            f"has {keys} keys; give at least as many keys, or a mask instead."
        )
    stages = [_settle_stage(name, w, q, keys) for name, w in (("pre", pre), ("post", post))]
    return stages[0], stages[1], _settle_window(window, causal), _settle_mask(mask, q, keys)


def _settle_stage(stage: str, w: Any, q: Tensor, keys: int) -> ComposeWeights | None:
    if w is None:
        return None
    if not isinstance(w, ComposeWeights):
        raise UserError(f"{stage} must be ComposeWeights or None, not {_said(w)}.")
    batch, heads, queries, _ = q.shape
    if isinstance(w.groups, bool) or not isinstance(w.groups, int) or w.groups < 1 or heads % w.groups:
        raise UserError(f"{stage}.groups must be an integer that divides the {heads} heads, not {_said(w.groups)}.")
    if not isinstance(w.skip, bool):
        raise UserError(f"{stage}.skip must be True or False, not {_said(w.skip)}.")
    for one, two in (("w_q1", "w_q2"), ("w_k1", "w_k2")):
        if (getattr(w, one) is None) != (getattr(w, two) is None):
            there, missing = (two, one) if getattr(w, one) is None else (one, two)
            raise UserError(f"{stage}.{there} comes without {stage}.{missing}; give both or neither.")
    if w.static is not None:
        _check(f"{stage}.static", w.static, "[head_from, head_to]", (heads, heads), q)
    if w.bias is not None:
        _check(f"{stage}.bias", w.bias, "[head]", (heads,), q)
    _check_beyond(stage, w, q, keys)
    # A list and no generator: the compiler of the lowest torch takes no next(..., default).
    ranks = [x.shape[2] for x in (w.w_q1, w.w_k1) if isinstance(x, Tensor) and x.dim() == 4]
    rank = ranks[0] if ranks else None
    dtype, device, strided = q.dtype, q.device, torch.strided
    spread: dict[str, Tensor] = {}
    shape: tuple[int | None, ...]
    for name in DYNAMIC_WEIGHTS:
        if (x := getattr(w, name)) is None:
            continue
        side, length = ("query", queries) if name[2] == "q" else ("key", keys)
        shape = (batch, length, heads) if name[3] == "g" else (batch, length, rank, heads)
        # What nearly all weights are; the sentences are for the others.
        if (
            isinstance(x, Tensor)
            and not x.is_nested
            and x.shape == shape
            and x.dtype is dtype
            and x.device == device
            and x.layout is strided
        ):
            continue
        axes = f"[batch, {side}, head]" if name[3] == "g" else f"[batch, {side}, rank, head]"
        if _check(f"{stage}.{name}", x, axes, shape, q, one=True):
            spread[name] = x.expand(batch, *x.shape[1:])
    return w.with_dynamic(lambda name, x: spread.get(name, x)) if spread else w


def _check_beyond(stage: str, w: ComposeWeights, q: Tensor, keys: int) -> None:
    """What a pair takes from other pairs and from the layer before."""
    batch, heads, queries, _ = q.shape
    if w.conv is not None:
        axes = "[head, head of its group, query tap, key tap]"
        taps = w.conv.shape[2:] if isinstance(w.conv, Tensor) and w.conv.dim() == 4 else (None, None)
        _check(f"{stage}.conv", w.conv, axes, (heads, heads // w.groups, *taps), q)
        if 0 in taps:
            raise UserError(f"{stage}.conv must have at least one tap; its shape is {tuple(w.conv.shape)}.")
    if w.previous is not None:
        _check(f"{stage}.previous", w.previous, "[head_from, head_to]", (heads, heads), q)
    if w.previous is not None and w.before is not None:
        shape = (batch, heads, queries, keys)
        _check(f"{stage}.before", w.before, "[batch, head, query, key]", shape, q, one=True)


def _settle_window(window: Any, causal: bool) -> int | None:
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int):
        raise UserError(f"window must be an integer of at least 1, or None, not {_said(window)}.")
    if not causal or window < 1:
        raise UserError(f"window={window} needs causal=True and must be at least 1; pass a mask for other patterns.")
    return window if window < FURTHEST else None


def _settle_mask(mask: Any, q: Tensor, keys: int) -> Tensor | None:
    if mask is None:
        return None
    batch, queries = q.shape[0], q.shape[2]
    wanted = f"a boolean tensor [batch, 1, query, key] = [{batch}, 1, {queries}, {keys}] (or 1 for any of them)"
    if not isinstance(mask, Tensor) or mask.layout is not torch.strided or mask.is_nested or mask.dtype != torch.bool:
        raise UserError(f"mask must be {wanted}, not {_said(mask)}.")
    if mask.dim() != 4 or not all(n in (1, m) for n, m in zip(mask.shape, (batch, 1, queries, keys), strict=True)):
        raise UserError(f"mask must be {wanted}; its shape is {tuple(mask.shape)}.")
    if mask.device != q.device:
        raise UserError(f"mask is on {mask.device} and q on {q.device}; put both on one device.")
    if mask.shape[2] == queries and mask.shape[3] == keys:
        return mask
    return mask.expand(-1, -1, queries, keys)


def _check(name: str, x: Any, axes: str, shape: tuple[int | None, ...], q: Tensor, *, one: bool = False) -> bool:
    """Whether the first axis of `x`, else of `shape`, must be spread; with `one`, it may have size one.

    Raises:
        UserError: it has another shape, or another type or device than `q`.
    """
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
        raise UserError(f"{name} must be a dense tensor {axes}, not {_said(x)}.")
    if x.dtype != q.dtype and not (x.dtype in FLOATS and _autocast(q)):
        raise UserError(f"{name} is {x.dtype} and q is {q.dtype}; give both the same type.")
    if x.device != q.device:
        raise UserError(f"{name} is on {x.device} and q on {q.device}; put both on one device.")
    if x.shape == shape:
        return False
    if one and x.dim() == len(shape) and x.shape[0] == 1 and x.shape[1:] == shape[1:]:
        return True
    sizes = ", ".join("rank" if n is None else str(n) for n in shape)
    first = ", or 1 for its batch" if one else ""
    raise UserError(f"{name} must be {axes} = [{sizes}]{first}, to fit q and k; its shape is {tuple(x.shape)}.")


def _autocast(q: Tensor) -> bool:
    """Whether torch brings types together itself here."""
    device = q.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _said(x: Any) -> str:
    if isinstance(x, Tensor):
        kind = "nested" if x.is_nested else f"of shape {tuple(x.shape)}"
        return f"a {str(x.dtype).removeprefix('torch.')} {str(x.layout).removeprefix('torch.')} tensor {kind}"
    return f"{x!r}" if isinstance(x, (bool, int, float, str)) or x is None else f"a {type(x).__name__}"
