"""Attention with two Compose calls against the equation, and the fast path against the tapped one."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import composed_attention, reference_attention
from dcinterp.model.mask import attention_mask

ABLATIONS: dict[str, dict[str, object]] = {
    "full": {},
    "pre": dict(compose_stages=("pre",)),
    "post": dict(compose_stages=("post",)),
    "query-wise": dict(compose_key_wise=False),
    "key-wise": dict(compose_query_wise=False),
    "no-gate": dict(compose_gate=False),
    "no-projection": dict(compose_projection=False),
    "static": dict(compose_static=True),
    "static-no-skip": dict(compose_static=True, compose_skip=False),
    "no-skip": dict(compose_skip=False),
    "talking-heads": dict(compose="static", compose_skip=False),
    "talking-heads-skip": dict(compose="static"),
    "rank-1": dict(compose_rank=1),
    "rank-3": dict(compose_rank=3),
    "rank-4": dict(compose_rank=4),
    "groups": dict(compose_groups=2),
    "groups-static": dict(compose_groups=2, compose_static=True, compose_rank=1),
    "none": dict(compose="none"),
    "qk-norm": dict(use_qk_norm=True),
    "window": dict(attention_windows=(3, None)),
}


def rms(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def compose_written_out(a: Tensor, x: Tensor, stage: torch.nn.Module, rank: int) -> Tensor:
    """Compose(A, X, X) from the module's bare parameters (one group, every branch present)."""
    heads, out = a.shape[1], a.clone()
    for side, axis in ((stage.query, 2), (stage.key, 3)):
        u = x @ side.down.weight.T
        w = (0.5 * u * (1 + torch.erf(u / math.sqrt(2)))) @ side.up[0]
        w1, w2 = w.view(*x.shape[:2], 2, rank, heads).unbind(2)
        w1 = rms(w1)
        gate = torch.tanh(x @ side.gate.weight.T).transpose(1, 2).unsqueeze(5 - axis)
        for r in range(rank):
            gather, share = (m[:, :, r].transpose(1, 2).unsqueeze(5 - axis) for m in (w1, w2))
            out = out + share * (gather * a).sum(1, keepdim=True)
        out = out + gate * a
    return out


def test_attention_is_the_equation(model: Callable[..., DCFormerForCausalLM]) -> None:
    attention = model().model.layers[0].self_attn
    x = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    causal = torch.ones(5, 5).tril().bool()
    q, k, v = ((x @ getattr(attention, f"{n}_proj").weight.T).view(2, 5, 4, 8).transpose(1, 2) for n in ("q", "k", "v"))
    a = q @ k.transpose(-1, -2) / math.sqrt(8)
    a = compose_written_out(a, x, attention.pre, 2)
    a = a.masked_fill(~causal, float("-inf")).softmax(-1)
    a = compose_written_out(a, x, attention.post, 2)
    expected = (a @ v).transpose(1, 2).flatten(2) @ attention.o_proj.weight.T
    got, _ = attention(x, mask=causal[None, None])
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    got, pattern = attention(x, mask=causal[None, None], output_attentions=True)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(pattern, a, atol=1e-10, rtol=0)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_the_tapped_path_equals_the_fast_one(ablation: str, model: Callable[..., DCFormerForCausalLM]) -> None:
    built = model(**ABLATIONS[ablation])
    attention = built.model.layers[0].self_attn
    window = built.config.window(0)
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    slots = torch.arange(7)
    mask = attention_mask(slots, slots, window=window)
    # `pre` and `post` are modules, so the taps of a stage are handed over by the bridge; here nobody taps a stage.
    taps = SimpleNamespace(
        **dict.fromkeys(("hook_rot_q", "hook_rot_k", "hook_attn_scores", "hook_pattern"), lambda t: t)
    )
    fast, _ = attention(x, mask=mask)
    tapped, pattern = attention(x, mask=mask, taps=taps)
    torch.testing.assert_close(fast, tapped, atol=1e-10, rtol=0)
    assert (pattern * ~mask == 0).all(), "a masked pair must stay at zero after composition"


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_equals_the_reference_for_random_shapes(
    seed: int, model: Callable[..., DCFormerForCausalLM]
) -> None:
    g = torch.Generator().manual_seed(seed)
    batch, length, keys = (int(torch.randint(1, high, (), generator=g)) for high in (4, 6, 9))
    keys = max(length, keys)
    name = list(ABLATIONS)[int(torch.randint(0, len(ABLATIONS), (), generator=g))]
    attention = model(seed=seed, **ABLATIONS[name]).model.layers[1].self_attn
    q, k, v = (torch.randn(batch, 4, n, 8, generator=g, dtype=torch.float64) for n in (length, keys, keys))
    x_q, x_k = (torch.randn(batch, n, 32, generator=g, dtype=torch.float64) for n in (length, keys))
    stages = [getattr(attention, s).weights(x_q, x_k) if hasattr(attention, s) else None for s in ("pre", "post")]
    window = [None, 1, 2, 5][int(torch.randint(0, 4, (), generator=g))]
    mask = attention_mask(torch.arange(keys - length, keys), torch.arange(keys), window=window)
    fast = composed_attention(q, k, v, *stages, mask=mask)
    torch.testing.assert_close(fast, reference_attention(q, k, v, *stages, mask), atol=1e-10, rtol=0)


def test_a_window_counts_the_query_itself() -> None:
    slots = torch.arange(6)
    assert attention_mask(slots, slots, window=2)[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_padding_hides_keys_but_leaves_every_row_something_to_look_at() -> None:
    slots = torch.arange(4)
    mask = attention_mask(slots, slots, padding=torch.tensor([[0, 0, 1, 1]]))
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_annotated_shapes_are_checked_in_these_tests(
    model: Callable[..., DCFormerForCausalLM], pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--jaxtyping-packages"):
        pytest.skip("this run checks no shapes (`make floors`)")
    attention = model("tiny-dcformer++").model.layers[0].self_attn
    with pytest.raises(TypeCheckError, match=r"attend|forward"):
        attention(torch.zeros(3, 32))
