"""The released models once more, straight from tensors in the released layout: plain loops, float64, no shared code.

Rules as written down for the layouts: rotary halves, masks that differ by one between the two layouts, `dw1`, `qkw`
and `dd` in the order pre-query, pre-key, post-query, post-key, static maps beside the skip.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

WINDOWS = {"LG": [256, None], "LGLL": [256, None, 256, 256], "LGL6": [256, None, *[256] * 6]}


def fields(model_type: str, **changes: Any) -> dict[str, Any]:
    common = dict(
        model_type=model_type,
        vocab_size=31,
        n_layer=3,
        n_head=4,
        dim=32,
        intermediate_size=48,
        head_dim=8,
        n_local_heads=4,
        norm_eps=1e-5,
        rope_base=10000,
        use_qk_norm=True,
        window_size=5,
        window_type=None,
        query_wise=False,
        block_size=64,
        use_dcmha=True,
    )
    own = (
        dict(rotary_pct=0.5, use_parallel_residual=True, use_linear_bias=True)
        if model_type == "dcpythia"
        else dict(mgate=False, mgate_dim=4)
    )
    return common | own | changes


def random_tensors(f: dict[str, Any], seed: int = 0, static: bool = False, split: bool = False) -> dict[str, Tensor]:
    """A checkpoint of the layout with random weights."""
    g = torch.Generator().manual_seed(seed)
    D, H, E, d, K = f["dim"], f["n_head"], f["intermediate_size"], f["head_dim"], 4 * f["n_head"]
    shared = f["n_local_heads"] * d  # rows of keys, and of values

    def draw(*shape: int, scale: float | None = None) -> Tensor:
        return torch.randn(shape, generator=g) * (scale if scale is not None else shape[-1] ** -0.5)

    pythia = f["model_type"] == "dcpythia"
    bias = pythia and f["use_linear_bias"]
    t = {"tok_embeddings.weight": draw(f["vocab_size"], D, scale=1), "output.weight": draw(f["vocab_size"], D)}

    def norm(name: str) -> None:
        t[f"{name}.weight"] = 1 + draw(D, scale=0.3)
        if pythia:
            t[f"{name}.bias"] = draw(D, scale=0.3)

    def linear(name: str, rows: int, columns: int) -> None:
        t[f"{name}.weight"] = draw(rows, columns)
        if bias:
            t[f"{name}.bias"] = draw(rows, scale=0.3)

    norm("norm")
    for i in range(f["n_layer"]):
        at = f"layers.{i}."
        norm(at + "attention_norm")
        norm(at + "ffn_norm")
        for name, rows in dict(wq=D, wk=shared, wv=shared).items() if split else [("wqkv", D + 2 * shared)]:
            linear(f"{at}attention.{name}", rows, D)
        linear(f"{at}attention.wo", D, D)
        if f["use_qk_norm"]:
            t[f"{at}attention.q_norm.scale"], t[f"{at}attention.k_norm.scale"] = (1 + draw(d, scale=0.3) for _ in "qk")
        dyn = f"{at}attention.dyn_w_proj."
        t[dyn + "dw1"] = draw(D, 1, 4, K, scale=D**-0.5)
        t[dyn + "qkw"] = draw(1, 4, K, 4, H, scale=K**-0.5)
        t[dyn + "dd"] = draw(D, 1, 4 * H, scale=D**-0.5)
        t[dyn + "dw_m"], t[dyn + "qkw_m"] = draw(D, 4 * K + 4 * H), draw(4, K, 4 * H)
        for stage in ("pre", "post"):
            t[f"{dyn}{stage}_proj.w"] = draw(1, H, H) if static else torch.eye(H).expand(1, H, H).clone()
        linear(at + "feed_forward.w1", E, D)
        linear(at + "feed_forward.w2", D, E)
        if not pythia:
            linear(at + "feed_forward.w3", E, D)
            if f["mgate"]:
                t[at + "feed_forward.mg.weight"] = draw(f["mgate_dim"], D)
    return t


def write(folder: Path, f: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(f))
    save_file(tensors, folder / "model.safetensors")
    return folder


def rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def forward(f: dict[str, Any], tensors: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and each Compose's input and output by the names of the recorded files."""
    p = {name: tensor.double() for name, tensor in tensors.items()}
    pythia, H, d, stages = f["model_type"] == "dcpythia", f["n_head"], f["head_dim"], {}

    def norm(x: Tensor, name: str) -> Tensor:
        if pythia:
            return layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], f["norm_eps"])
        return rms(x, f["norm_eps"]) * p[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", torch.zeros(()))

    def turn(x: Tensor) -> Tensor:
        n = int(d * f["rotary_pct"]) if pythia else d
        angle = torch.arange(x.shape[2])[:, None] / f["rope_base"] ** (torch.arange(0, n, 2).double() / n)
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[..., n:]], -1)

    def compose(a: Tensor, n: Tensor, dyn: str, stage: int) -> Tensor:
        out = a
        static = p[f"{dyn}{('pre', 'post')[stage]}_proj.w"][0]
        if not torch.equal(static, torch.eye(H).double()):
            out = out + torch.einsum("bmts,mn->bnts", a, static)
        for side in (0, 1):
            if side == 1 and f["query_wise"]:
                continue
            c = 2 * stage + side
            hidden = gelu(n @ p[dyn + "dw1"][:, 0, c])
            w = torch.einsum("btk,kim->btim", hidden, p[dyn + "qkw"][0, c])
            w1, w2 = rms(w[:, :, : w.shape[2] // 2], 1e-6), w[:, :, w.shape[2] // 2 :]
            gate = torch.tanh(n @ p[dyn + "dd"][:, 0, c * H : (c + 1) * H])
            mix = torch.einsum("btim,btin->btmn", w1, w2) + torch.diag_embed(gate)
            out = out + torch.einsum("bmts,btmn->bnts" if side == 0 else "bmts,bsmn->bnts", a, mix)
        return out

    x = p["tok_embeddings.weight"][ids]
    B, T, D = x.shape
    for i in range(f["n_layer"]):
        at = f"layers.{i}."
        n, dyn = norm(x, at + "attention_norm"), f"{at}attention.dyn_w_proj."
        if f"{at}attention.wqkv.weight" in p:
            shared = f["n_local_heads"] * d
            q, k, v = linear(n, at + "attention.wqkv").split([D, shared, shared], -1)
        else:
            q, k, v = (linear(n, f"{at}attention.w{name}") for name in "qkv")
        q, k, v = (y.view(B, T, -1, d) for y in (q, k, v))
        k, v = (y.repeat_interleave(H // y.shape[2], dim=2) for y in (k, v))
        if f["use_qk_norm"]:
            q, k = (rms(y, 1e-6) * p[f"{at}attention.{name}_norm.scale"] for y, name in ((q, "q"), (k, "k")))
        q, k, v = turn(q.transpose(1, 2)), turn(k.transpose(1, 2)), v.transpose(1, 2)
        pattern = [f["window_size"], None] if f["window_type"] is None else WINDOWS[f["window_type"]]
        window = None if f["window_size"] is None else pattern[i % len(pattern)]
        allowed = torch.ones(T, T).tril().bool()
        if window is not None:
            t, s = torch.arange(T)[:, None], torch.arange(T)
            allowed &= (s >= t - window) if pythia else (s > t - window)
        a = stages[f"{i}.pre_proj.in"] = q @ k.transpose(-1, -2) / d**0.5
        a = stages[f"{i}.pre_proj.out"] = compose(a, n, dyn, 0)
        a = stages[f"{i}.post_proj.in"] = a.masked_fill(~allowed, float("-inf")).softmax(-1)
        a = stages[f"{i}.post_proj.out"] = compose(a, n, dyn, 1)
        attended = linear((a @ v).transpose(1, 2).flatten(2), at + "attention.wo")
        h = x + attended
        n = norm(x if pythia and f["use_parallel_residual"] else h, at + "ffn_norm")
        ffn = at + "feed_forward."
        if pythia:
            x = h + linear(gelu(linear(n, ffn + "w1")), ffn + "w2")
            continue
        up = linear(n, ffn + "w3")
        if f["mgate"]:
            share = (n @ p[ffn + "mg.weight"].T).softmax(-1)
            up = (up.unflatten(-1, (f["mgate_dim"], -1)) * share[..., None]).flatten(-2)
        x = h + linear(silu(linear(n, ffn + "w1")) * up, ffn + "w2")
    return linear(norm(x, "norm"), "output"), stages
