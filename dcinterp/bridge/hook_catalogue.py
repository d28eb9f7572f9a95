"""Every hook of a model, with its axes, sizes and meaning: found by running the model, not written down.

The model runs twice on token ids without meaning, with another batch size and length the second time. An axis that
follows the batch is `batch`, one that follows the length is `pos` (`query` and `key` where it occurs twice, or where
the composition reads it from one side), and the others keep their size and are named by it.

    for hook in dcinterp.list_hooks(model, "post.hook_o"):
        print(hook.name, hook.axes, hook.meaning)
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dcinterp.bridge.protocol import Bridge
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.text import shown

SWITCHES = {
    "hook_result": "set_use_attn_result",
    "hook_attn_in": "set_use_attn_in",
    "hook_q_input": "set_use_split_qkv_input",
    "hook_k_input": "set_use_split_qkv_input",
    "hook_v_input": "set_use_split_qkv_input",
    "hook_mlp_in": "set_use_hook_mlp_in",
}
"""Hooks that TransformerLens keeps silent until they are switched on, because they cost memory."""

COMPOSITION = {
    "hook_in": "A: scores (`pre`) or softmax (`post`) before composition",
    "hook_o_b": "A itself, or mixed by the static map W_b, or both; and a bias, where there is one",
    "hook_o_qp": "low rank, from the query: sum over r of w_q2[r] (w_q1[r] · A)",
    "hook_o_kp": "low rank, from the key: sum over r of w_k2[r] (w_k1[r] · A)",
    "hook_o_qg": "gate, from the query: w_qg A",
    "hook_o_kg": "gate, from the key: w_kg A",
    "hook_o_kq": "convolution: what a pair takes from the attention of the pairs around it",
    "hook_o_prev": "from the composed scores of the previous layer, through a map over heads",
    "hook_w_q1": "gathers from heads, at the query",
    "hook_w_q2": "shares to heads, at the query",
    "hook_w_qg": "scales heads, at the query",
    "hook_w_k1": "gathers from heads, at the key",
    "hook_w_k2": "shares to heads, at the key",
    "hook_w_kg": "scales heads, at the key",
    "hook_out": "A': the sum",
    "hook_read": "what each head has read: A' times the values, before the norm or gate that makes hook_z of it",
    "hook_w_z": "gate on what each head has read, channel by channel, at the query",
}
INPUTS = {"pre": "A: scores before composition", "post": "A: softmax before composition"}
STANDARD = {
    "hook_embed": "embeddings of the tokens",
    "hook_pos_embed": "embeddings of the positions",
    "hook_resid_pre": "the stream before the block",
    "hook_resid_mid": "the stream between attention and MLP",
    "hook_resid_post": "the stream after the block",
    "hook_attn_out": "what the attention layer writes into the stream",
    "hook_mlp_out": "what the MLP writes into the stream",
    "hook_attn_in": "a copy of the stream for each head",
    "hook_q_input": "a copy of the stream for each head's queries",
    "hook_k_input": "a copy of the stream for each head's keys",
    "hook_v_input": "a copy of the stream for each head's values",
    "hook_mlp_in": "a copy of the stream for the MLP",
    "hook_q": "queries, before the rotation",
    "hook_k": "keys, before the rotation",
    "hook_v": "values",
    "hook_rot_q": "queries, after the rotation",
    "hook_rot_k": "keys, after the rotation",
    "hook_attn_scores": "scores as the softmax sees them: composed and masked",
    "hook_pattern": "the matrix that multiplies the values: composed, if the model composes",
    "hook_z": "what each head has read: its pattern times the values",
    "hook_result": "what each head writes into the stream",
    "hook_pre": "hidden units of the MLP before the nonlinearity",
    "hook_pre_linear": "hidden units that the gate scales",
    "hook_post": "hidden units of the MLP as they are written out",
    "hook_scale": "what the norm divides by",
    "hook_normalized": "the stream divided by the norm's scale",
    "hook_unembed": "the logits",
}

BATCHES, LENGTHS = (2, 3), (5, 7)
"""Of the two runs that tell the axes apart; shorter ones where the context is."""
OF_HEADS = ("hook_q", "hook_k", "hook_v", "hook_z", "hook_rot_q", "hook_rot_k")
"""Whose last axis is the width of a head, whatever else has that size."""
MATRICES = re.compile(r".*\.(hook_pattern|hook_attn_scores|(pre|post)\.hook_(in|out|o_\w+))")
"""Hooks with a query and a key axis."""


@dataclass(frozen=True)
class Hook:
    """One place to read or to intervene.

    name: what to pass to `run_with_hooks` and `names_filter`; aliases: further names of the same place;
    axes: names in order, empty for a hook that did not fire; sizes: of the axes, None where the input decides;
    switch: the method of the bridge that has to be called with True before the hook fires, or "".
    """

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]
    meaning: str
    aliases: tuple[str, ...] = ()
    switch: str = ""

    @property
    def layer(self) -> int | None:
        """The block it is in; None outside of blocks."""
        found = re.match(r"blocks\.(\d+)\.", self.name)
        return int(found[1]) if found else None

    @property
    def shape(self) -> str:
        """Axes with the sizes that the model fixes, as in `[batch, query, rank=2, head=8]`."""
        parts = [
            axis if size is None or axis == str(size) else f"{axis}={size}"
            for axis, size in zip(self.axes, self.sizes, strict=True)
        ]
        return f"[{', '.join(parts)}]" if parts else ""

    def record(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self) | {"layer": self.layer}


def list_hooks(bridge: Bridge, match: str = "", *, layer: int | None = None) -> tuple[Hook, ...]:
    """All hooks of a bridge in the order of the forward pass's components.

    Args:
        bridge: any bridge; nothing stays switched on or attached.
        match: only hooks whose name, one of whose aliases or whose meaning has all these words; a word with * or ? is a
            pattern for a whole name.
        layer: only hooks of this block; negative counts from the last.

    Cost: two forward passes of at most 3 x 7 tokens.

    Raises:
        UserError: nothing matches, or there is no such layer; the message suggests what there is.
    """
    if not hasattr(bridge, "cfg"):
        raise UserError(f"list_hooks takes a model, and this is {shown(bridge)}; give what dcinterp.load returns.")
    layers = bridge.cfg.n_layers
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, int)):
        raise UserError(f"layer is {shown(layer)}; it must be a whole number, or None for all.")
    if layer is not None and not -layers <= layer < layers:
        raise UserError(f"There is no layer {layer}; this model has layers 0..{layers - 1}.")
    lengths = _lengths(bridge)
    short, long = (_shapes(bridge, *size) for size in zip(BATCHES, lengths, strict=True))
    places: dict[int, list[str]] = {}
    for name, point in bridge.hook_dict.items():
        places.setdefault(id(point), []).append(name)
    hooks = tuple(_describe(bridge, names, short, long, lengths) for names in places.values())
    hooks = tuple(hook for hook in hooks if layer is None or hook.layer == layer % layers)
    chosen = tuple(hook for hook in hooks if _matches(hook, match.split()))
    if not chosen:
        raise UserError(f"No hook of this model matches {match!r}; {nearest(match, (hook.name for hook in hooks))}")
    return chosen


def _lengths(bridge: Bridge) -> tuple[int, int]:
    """Two lengths that the model takes, which the sizes of the batches cannot be mistaken for."""
    context = getattr(bridge.cfg, "n_ctx", None) or LENGTHS[1]
    if context >= LENGTHS[1]:
        return LENGTHS
    return (1, 3) if context == 3 else (max(1, context - 1), context)


def _shapes(bridge: Bridge, batch: int, length: int) -> dict[str, tuple[int, ...]]:
    """Shapes, as a hook of the person sees them, of every hook that fires."""
    config = bridge.original_model.config
    if getattr(bridge.cfg, "is_visual_model", False):
        given = torch.zeros(batch, config.num_channels, config.image_size, config.image_size)
    else:
        given = torch.zeros(batch, length, dtype=torch.long)
    device = next(bridge.original_model.parameters()).device
    with torch.no_grad():
        cache = bridge.run_with_cache(given.to(device))[1]
    return {name: tuple(tensor.shape) for name, tensor in cache.items() if isinstance(tensor, torch.Tensor)}


def _describe(
    bridge: Bridge,
    names: list[str],
    short: dict[str, tuple[int, ...]],
    long: dict[str, tuple[int, ...]],
    lengths: tuple[int, int],
) -> Hook:
    # The name that says what it is before one that says where, and of these the shortest.
    name, *aliases = sorted(names, key=lambda n: (n.rsplit(".", 1)[-1] in ("hook_in", "hook_out"), len(n)))
    fired = next((n for n in names if n in short and len(short[n]) == len(long[n])), None)
    axes: tuple[str, ...] = ()
    sizes: tuple[int | None, ...] = ()
    if fired is not None:
        axes = _axes(bridge, name, short[fired], long[fired], lengths)
        sizes = tuple(a if a == b and b > 0 else None for a, b in zip(short[fired], long[fired], strict=True))
    switch = SWITCHES.get(name.rsplit(".", 1)[-1], "") if fired is None else ""
    return Hook(name, axes, sizes, _meaning(name), tuple(aliases), switch)


def _axes(
    bridge: Bridge, name: str, short: tuple[int, ...], long: tuple[int, ...], lengths: tuple[int, int]
) -> tuple[str, ...]:
    cfg = bridge.cfg
    patches = getattr(bridge.original_model.config, "num_patches", None)
    patch_axes = (2, 3) if MATRICES.fullmatch(name) else (1,)
    axes = []
    for index, (a, b) in enumerate(zip(short, long, strict=True)):
        if (a, b) == BATCHES:
            axes.append("batch")
        elif (a, b) == lengths or (a == b == patches and index in patch_axes):
            axes.append("pos")
        elif a == b:
            axes.append("")
        else:
            axes.append("?")
    tap = name.rsplit(".", 1)[-1]
    if side := re.fullmatch(r"hook_w_([qk])[12g]", tap):
        axes = [{"q": "query", "k": "key"}[side[1]] if axis == "pos" else axis for axis in axes]
        fixed = ["rank", "head"][-axes.count("") :]
    elif axes.count("pos") == 2:
        first = axes.index("pos")
        axes[first], axes[axes.index("pos", first + 1)] = "query", "key"
        fixed = ["head"]
    else:
        sizes = [a for a, axis in zip(short, axes, strict=True) if axis == ""]
        fixed = [_named(cfg, name, size, last=i == len(sizes) - 1) for i, size in enumerate(sizes)]
    rest = iter(fixed)
    return tuple(axis or next(rest, str(size)) for axis, size in zip(axes, short, strict=True))


def _named(cfg: Any, name: str, size: int, *, last: bool) -> str:
    """The name of an axis whose size the model fixes."""
    widths: tuple[str, ...] = ("d_model", "d_mlp", "d_head", "d_vocab")
    if ".mlp." in name:
        widths = ("d_mlp", "d_model") if not name.endswith(("mlp.hook_in", "mlp.hook_out")) else ("d_model", "d_mlp")
    elif ".attn." in name and name.rsplit(".", 1)[-1] in OF_HEADS:
        widths = ("d_head", *widths)
    elif name.endswith("hook_unembed"):
        widths = ("d_vocab", *widths)
    heads = {"n_heads": "head", "n_key_value_heads": "kv_head"}
    if size == 1 and widths[0] != "d_head":
        return "1"
    for field in widths if last else heads:
        if getattr(cfg, field, None) == size:
            return heads.get(field, field)
    return str(size)


def _meaning(name: str) -> str:
    *path, tap = name.split(".")
    if path and path[-1] in INPUTS and tap in COMPOSITION:
        return INPUTS[path[-1]] if tap == "hook_in" else COMPOSITION[tap]
    if tap in STANDARD:
        return STANDARD[tap]
    inside = path[2:] if path[:1] == ["blocks"] else path
    where = ".".join(inside) or "the block"
    return {"hook_in": f"what {where} reads", "hook_out": f"what {where} gives"}.get(tap, "")


def _matches(hook: Hook, words: list[str]) -> bool:
    names = (hook.name, *hook.aliases)
    for word in words:
        if any(mark in word for mark in "*?"):
            if not any(fnmatch.fnmatchcase(name, word) for name in names):
                return False
        elif not any(word in text for text in (*names, hook.meaning)):
            return False
    return True
