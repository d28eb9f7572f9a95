"""The whole decoder once more, from the equations: slow, in float64, sharing no arithmetic with the model.

`dcinterp verify` and the tests compare the model, a converted checkpoint or a new kernel with it. It reads a config and
a state dict, loops over heads and ranks, and knows neither caches nor padding nor taps. What a Compose does it asks the
way of composing, which writes itself out for it (`Composer.written_out`).

    scores   A  = q k^T / sqrt(d)                 A' = Compose_pre(A, X, X)
    weights  P  = softmax(masked A')              P' = Compose_post(P, X, X)
    output      = sum over heads of P'_h v_h W_O,h
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig
from dcinterp.shapes import Attention, Residual, TokenIds


@dataclass
class PlainRun:
    """Logits [batch, pos, vocab], the stream after each block, and (input, output) of every Compose."""

    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    streams: list[Residual] = field(default_factory=list)
    stages: dict[tuple[int, str], tuple[Attention, Attention]] = field(default_factory=dict)


@torch.no_grad()
def plain_forward(config: DCFormerConfig, tensors: Mapping[str, Tensor], ids: TokenIds) -> PlainRun:
    """Run a decoder of this config with these weights (names as in its state dict).

    Cost: one forward pass in float64, with one layer's weights as float64 at a time.

    Raises:
        UserError: the model's way of composing is not written out.
    """
    run = PlainRun()
    x = tensors["model.embed_tokens.weight"][ids].double()
    if config.position_type == "learned":
        x = x + tensors["model.embed_positions.weight"][: ids.shape[1]].double()
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        p = {name.removeprefix(prefix): t.double() for name, t in tensors.items() if name.startswith(prefix)}
        attended = _attention(config, p, _norm(config, x, p, "input_layernorm"), layer, run)
        if config.use_parallel_residual:
            x = x + attended + _mlp(config, p, _norm(config, x, p, "post_attention_layernorm"))
        else:
            x = x + attended
            x = x + _mlp(config, p, _norm(config, x, p, "post_attention_layernorm"))
        run.streams.append(x)
    top = {name.removeprefix("model."): t.double() for name, t in tensors.items() if name.startswith("model.norm.")}
    unembedding = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).double()
    run.logits = _norm(config, x, top, "norm") @ unembedding.T
    return run


def _attention(config: DCFormerConfig, p: dict[str, Tensor], x: Residual, layer: int, run: PlainRun) -> Residual:
    batch, length, _ = x.shape
    heads, d = config.num_attention_heads, config.head_dim or config.hidden_size // config.num_attention_heads
    q, k, v = (_linear(p, f"self_attn.{name}_proj", x).view(batch, length, -1, d) for name in "qkv")
    # Query heads in turn share the heads of keys and values: 0, 0, 1, 1 for four and two.
    shared = [h * k.shape[2] // heads for h in range(heads)]
    scores = torch.empty(batch, heads, length, length, dtype=torch.float64)
    for h in range(heads):
        q_h, k_h = q[:, :, h], k[:, :, shared[h]]
        if config.use_qk_norm:
            q_h = _rms(q_h, config.qk_norm_eps) * p["self_attn.q_norm.weight"]
            k_h = _rms(k_h, config.qk_norm_eps) * p["self_attn.k_norm.weight"]
        if config.position_type == "rotary":
            q_h, k_h = _turned(config, q_h), _turned(config, k_h)
        scores[:, h] = q_h @ k_h.transpose(1, 2) / math.sqrt(d)
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None]
    hidden = (ahead < 0) | (ahead >= (config.window(layer) or length))
    scores = _composed(config, p, x, scores.masked_fill(hidden, 0), "pre", layer, run)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    weights = _composed(config, p, x, weights, "post", layer, run)
    weights = weights.masked_fill(hidden, 0)  # only a bias would be read there
    z = torch.stack([weights[:, h] @ v[:, :, shared[h]] for h in range(heads)], dim=2)
    if "post" in config.stages:
        z = composer_class(config.compose).finish_written_out(config, _own(p, "post"), x, z)
    return _linear(p, "self_attn.o_proj", z.flatten(2))


def _composed(
    config: DCFormerConfig, p: dict[str, Tensor], x: Residual, a: Attention, stage: str, layer: int, run: PlainRun
) -> Attention:
    if stage not in config.stages:
        return a
    own, composer = _own(p, stage), composer_class(config.compose)
    if composer.HANDS_ON and layer:
        own["before"] = run.stages[layer - 1, stage][1]
    out = composer.written_out(config, own, x, a)
    run.stages[layer, stage] = (a, out)
    return out


def _own(p: dict[str, Tensor], stage: str) -> dict[str, Tensor]:
    """The tensors of one composer."""
    at = f"self_attn.{stage}."
    return {name.removeprefix(at): t for name, t in p.items() if name.startswith(at)}


def _mlp(config: DCFormerConfig, p: dict[str, Tensor], x: Residual) -> Residual:
    up = _linear(p, "mlp.up_proj", x)
    if config.mlp_type == "swiglu":
        gate = _linear(p, "mlp.gate_proj", x)
        hidden = gate / (1 + torch.exp(-gate)) * up
    else:
        hidden = up * (1 + torch.erf(up / math.sqrt(2))) / 2
    if config.mlp_gate_groups:
        share = (x @ p["mlp.group_gate.weight"].T).softmax(-1)
        hidden = hidden * share.repeat_interleave(hidden.shape[-1] // config.mlp_gate_groups, dim=-1)
    return _linear(p, "mlp.down_proj", hidden)


def _linear(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def _norm(config: DCFormerConfig, x: Residual, p: dict[str, Tensor], name: str) -> Residual:
    if config.norm_type == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    x = _rms(x, config.norm_eps) * p[f"{name}.weight"]
    return x + p[f"{name}.bias"] if f"{name}.bias" in p else x


def _rms(x: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _turned(config: DCFormerConfig, x: Tensor) -> Tensor:
    """Rotary positions as complex numbers: channel i and channel i + width/2 are real and imaginary part."""
    width = int(x.shape[-1] * config.rotary_fraction)
    half = width // 2
    scaling: dict[str, Any] = config.rotary_scaling or {}
    speed = torch.tensor([_speed(config.rotary_base, i, half, scaling) for i in range(half)], dtype=torch.float64)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * speed
    size = torch.full_like(angle, scaling.get("attention_factor", 1.0))
    z = torch.complex(x[..., :half], x[..., half:width]) * torch.polar(size, angle)
    return torch.cat([z.real, z.imag, x[..., width:]], dim=-1)


def _speed(base: float, i: int, half: int, scaling: Mapping[str, Any]) -> float:
    """Radians per position of pair i, case by case."""
    speed, kind = base ** -(i / half), scaling.get("rope_type", "dynamic")
    if kind == "linear":
        return speed / scaling["factor"]
    if kind == "llama3":
        wavelength, context = 2 * math.pi / speed, scaling["original_max_position_embeddings"]
        short, long = context / scaling["high_freq_factor"], context / scaling["low_freq_factor"]
        if wavelength > long:
            return speed / scaling["factor"]
        if wavelength < short:
            return speed
        share = (context / wavelength - context / long) / (context / short - context / long)
        return share * speed + (1 - share) * speed / scaling["factor"]
    if kind == "yarn":
        # The pair whose wavelength fits so many times into the context, from wavelength = 2 pi base^(i / half).
        context = scaling["original_max_position_embeddings"]
        ends = [half * math.log(context / (2 * math.pi * scaling[b]), base) for b in ("beta_fast", "beta_slow")]
        if scaling["truncate"]:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        first, last = max(ends[0], 0), min(ends[1], 2 * half - 1)
        if first == last:
            last += 0.001
        share = min(max((i - first) / (last - first), 0), 1)
        return (1 - share) * speed + share * speed / scaling["factor"]
    return speed
