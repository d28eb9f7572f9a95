"""The experimental Triton kernel on Triton's CPU interpreter, against the equation; and what it refuses, anywhere.

TRITON_INTERPRET=1 python -m pytest tests/unit/model/test_triton.py, with triton installed, runs all of it.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import composed_attention, reference_attention, select
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

INSTALLED = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not INSTALLED, reason="triton is not installed")
# Triton decides when it is imported whether to interpret, so the variable cannot be set by a fixture.
interpreted = pytest.mark.skipif(
    not INSTALLED or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton, and TRITON_INTERPRET=1 from the start of Python",
)

# Sides, projection and gate; s: static map; 0: no skip; 2: two groups.
BRANCHES = ["qkpg", "qp", "kp", "qg", "kg", "qkp", "qkg", "qkpgs", "s0", "qkpg0", "qkpgs02", "0", ""]


def stage(g: torch.Generator, has: str | None, batch: int, lengths: tuple[int, int], heads: int, rank: int) -> Any:
    if has is None:
        return None

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, generator=g) / heads**0.5).requires_grad_()

    weights: dict[str, Tensor] = {}
    for side, length in zip("qk", lengths, strict=True):
        if side in has and "p" in has:
            weights |= {f"w_{side}{n}": random(batch, length, rank, heads) for n in (1, 2)}
        if side in has and "g" in has:
            weights[f"w_{side}g"] = random(batch, length, heads)
    static = random(heads, heads) if "s" in has else None
    return ComposeWeights(**weights, static=static, skip="0" not in has, groups=2 if "2" in has else 1)


class Case:
    def __init__(
        self, seed: int, pre: str | None, post: str | None, *, batch: int = 2, heads: int = 4, queries: int = 19,
        past: int = 0, kv_heads: int | None = None, width: int = 8, rank: int = 2, causal: bool = True,
        window: int | None = None, masked: bool = False, dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        g = torch.Generator().manual_seed(seed)
        keys = queries + past
        self.sight = Sight(causal, window, torch.rand(batch, 1, queries, keys, generator=g) < 0.6 if masked else None)
        # Position-major in memory, as the model's projections are.
        self.q, self.k, self.v = (
            torch.randn(batch, n, own, width, generator=g).to(dtype).transpose(1, 2).requires_grad_()
            for n, own in ((queries, heads), (keys, kv_heads or heads), (keys, kv_heads or heads))
        )
        self.pre, self.post = (stage(g, has, batch, (queries, keys), heads, rank) for has in (pre, post))

    def leaves(self) -> list[Tensor]:
        stages = [s for s in (self.pre, self.post) if s is not None]
        held = [w for s in stages for w in (*(w for _, w in s.dynamic()), s.static) if w is not None]
        return [self.q, self.k, self.v, *held]

    def run(self) -> Tensor:
        return composed_attention(
            self.q, self.k, self.v, self.pre, self.post, causal=self.sight.causal, window=self.sight.window,
            mask=self.sight.allowed, implementation="triton",
        )  # fmt: skip

    def expected(self) -> Tensor:
        mask = self.sight.dense(self.q.shape[2], self.k.shape[2], self.q.device)
        return reference_attention(self.q, self.k, self.v, self.pre, self.post, mask)


def check(case: Case) -> None:
    out, expected = case.run(), case.expected()
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    found, wanted = (torch.autograd.grad(x, case.leaves(), upstream, allow_unused=True) for x in (out, expected))
    for got, want in zip(found, wanted, strict=True):
        assert (got is None or not got.any()) if want is None else (got - want).norm() <= 1e-4 * want.norm() + 1e-6


@interpreted
@pytest.mark.parametrize("has", BRANCHES)
def test_every_ablation_is_the_equation_in_either_stage(has: str) -> None:
    check(Case(1, has, None))
    check(Case(2, None, has, window=6))
    check(Case(3, has, "qkpg"))


@interpreted
@pytest.mark.parametrize(
    "shape",
    [
        dict(queries=1, past=40),
        dict(queries=37, past=33, window=5, heads=6, rank=3),
        dict(queries=70, window=20, heads=2, width=20),
        dict(queries=50, heads=3, width=3, rank=1, batch=1),
        dict(queries=70, causal=False),
        dict(queries=20, past=30, causal=False, masked=True),
        dict(queries=33, masked=True, window=9),
        dict(queries=16, width=16, heads=8),
        dict(queries=33, past=5, heads=6, kv_heads=2, window=9),
        dict(queries=17, heads=4, kv_heads=1),
    ],
    ids=str,
)
def test_any_shape_window_and_mask_is_the_equation(shape: dict[str, Any]) -> None:
    check(Case(4, "qkpg", "qkpg", **shape))


@interpreted
def test_a_query_that_sees_nothing_attends_evenly() -> None:
    case = Case(5, None, None, masked=True)
    assert case.sight.allowed is not None
    case.sight.allowed[:, :, 3] = False
    torch.testing.assert_close(case.run()[:, :, 3], case.v.mean(2))


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_summed_in_float32(dtype: torch.dtype) -> None:
    case = Case(6, None, None, dtype=dtype)
    out = case.run()
    assert out.dtype == dtype
    case.q, case.k, case.v = case.q.float(), case.k.float(), case.v.float()
    torch.testing.assert_close(out, case.expected().to(dtype))


@interpreted
def test_its_gradient_can_be_differentiated() -> None:
    case = Case(7, "qkpg", "qkpg", queries=5)
    seconds = []
    for out in (case.run(), case.expected()):
        (slope,) = torch.autograd.grad(out.square().sum(), case.q, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), case.k)[0])
    assert (seconds[0] - seconds[1]).norm() <= 1e-4 * seconds[1].norm()


@interpreted
def test_the_model_takes_it_when_named(model: Callable[..., DCFormerForCausalLM]) -> None:
    built = model(attention_windows=(3, None)).float()
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    logits = []
    for name in ("eager", "triton"):
        built.set_attn_implementation(name)
        logits.append(built(ids, use_cache=False).logits)
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-4)


@interpreted
def test_float64_is_refused() -> None:
    x = torch.zeros(1, 2, 3, 4, dtype=torch.float64)
    with pytest.raises(UserError, match="chunked"):
        composed_attention(x, x, x, implementation="triton")


@needs_triton
def test_a_cpu_tensor_without_the_interpreter_is_refused() -> None:
    code = """
import torch
from dcinterp.support.errors import UserError
from dcinterp.model.kernels import composed_attention
x = torch.zeros(1, 2, 3, 4)
try:
    composed_attention(x, x, x, implementation="triton")
except UserError as refusal:
    print(refusal)
"""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "TRITON_INTERPRET=1" in done.stdout
    assert "chunked" in done.stdout


def test_without_triton_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "dcinterp.model.kernels.triton_kernel", raising=False)
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UserError, match=r"pip install triton.*chunked"):
        composed_attention(x, x, x, implementation="triton")


def test_auto_never_means_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "triton" in get_args(select.Implementation)
    monkeypatch.delenv(select.ENVIRONMENT, raising=False)
    for device in ("cpu", "meta"):
        assert select._choose("auto", torch.zeros(1, device=device)) in {"fused", "chunked"}
