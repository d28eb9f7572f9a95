"""The experimental Triton kernels against the equation, on a GPU or Triton's CPU interpreter; and what they refuse.

`make triton` installs triton beside the environment and runs all of it, interpreted. Where there are triton and a GPU,
the same tests run there. The kernels are compiled for GPUs that need not be there, too.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import composed_attention, reference_attention, select
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

INSTALLED = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not INSTALLED, reason="triton is not installed")
# Triton decides when it is imported whether to interpret, so the variable cannot be set by a fixture.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
runs = pytest.mark.skipif(
    not INSTALLED or not (INTERPRETED or DEVICE == "cuda"),
    reason="needs triton, and a GPU or TRITON_INTERPRET=1 from the start of Python",
)

WEIGHTS = ("w_q1", "w_q2", "w_qg", "w_k1", "w_k2", "w_kg", "static")
# Sides, projection and gate; s: static map; 0: no skip; 2: two groups.
BRANCHES = ["qkpg", "qp", "kp", "qg", "kg", "qkp", "qkg", "qkpgs", "s0", "qkpg0", "qkpgs02", "0", ""]


def stage(
    g: torch.Generator, has: str | None, batch: int, lengths: tuple[int, int], heads: int, rank: int, dtype: torch.dtype
) -> Any:
    if has is None:
        return None

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, generator=g) / heads**0.5).to(DEVICE, dtype).requires_grad_()

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
        mask = (torch.rand(batch, 1, queries, keys, generator=g) < 0.6).to(DEVICE) if masked else None
        self.sight = Sight(causal, window, mask)
        # Position-major in memory, as the model's projections are.
        self.q, self.k, self.v = (
            torch.randn(batch, n, own, width, generator=g).to(DEVICE, dtype).transpose(1, 2).requires_grad_()
            for n, own in ((queries, heads), (keys, kv_heads or heads), (keys, kv_heads or heads))
        )
        self.pre, self.post = (stage(g, has, batch, (queries, keys), heads, rank, dtype) for has in (pre, post))

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
        batch, _, queries, _ = self.q.shape
        mask = self.sight.dense(queries, self.k.shape[2], self.q.device)
        mask = None if mask is None else mask.expand(batch, 1, queries, self.k.shape[2])
        return reference_attention(self.q, self.k, self.v, self.pre, self.post, mask)

    def widened(self) -> "Case":
        """The same numbers as leaves in float32."""
        wide = copy(self)
        wide.q, wide.k, wide.v = (x.detach().float().requires_grad_() for x in (self.q, self.k, self.v))
        stages = []
        for own in (self.pre, self.post):
            there = {n: w for n in WEIGHTS if (w := getattr(own, n, None)) is not None}
            named = {n: w.detach().float().requires_grad_() for n, w in there.items()}
            stages.append(None if own is None else replace(own, **named))
        wide.pre, wide.post = stages
        return wide


def upstream(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)


def check(case: Case) -> None:
    """Values and all gradients are those of the equation."""
    out, expected = case.run(), case.expected()
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()
    slope = upstream(out)
    found, wanted = (torch.autograd.grad(x, case.leaves(), slope, allow_unused=True) for x in (out, expected))
    for got, want in zip(found, wanted, strict=True):
        assert (got is None or not got.any()) if want is None else (got - want).norm() <= 1e-4 * want.norm() + 1e-6


@runs
@pytest.mark.parametrize("has", BRANCHES)
def test_every_ablation_is_the_equation_in_either_stage(has: str) -> None:
    check(Case(1, has, None, batch=1))
    check(Case(2, None, has, batch=1, window=6))
    check(Case(3, has, "qkpg", batch=1))


@runs
@pytest.mark.parametrize(
    "shape",
    [
        dict(queries=1, past=40, batch=1),
        dict(queries=37, past=3, window=5, heads=6, rank=3, batch=1),  # whole blocks are out of sight on either side
        dict(queries=35, window=20, heads=2, width=20, batch=1),
        dict(queries=34, heads=3, width=3, rank=1, batch=1),
        dict(queries=33, heads=2, causal=False, batch=1),
        dict(queries=18, past=15, heads=2, causal=False, masked=True),
        dict(queries=20, past=-3, heads=2, causal=False),
        dict(queries=33, heads=2, masked=True, window=9),
        dict(queries=32, width=16, heads=8, batch=1),  # nothing to pad
        dict(queries=17, past=5, heads=6, kv_heads=2, window=9),
        dict(queries=17, heads=4, kv_heads=1, batch=1),
        dict(queries=1, heads=1, kv_heads=1, width=1, rank=1),
    ],
    ids=str,
)
def test_any_shape_window_and_mask_is_the_equation(shape: dict[str, Any]) -> None:
    check(Case(4, "qkpg", "qkpg", **shape))


@runs
@pytest.mark.parametrize(
    ("pre", "post"), [(None, None), ("s", "s"), ("qkpgs2", "qkpgs02"), ("0", "0")], ids=lambda has: str(has)
)
def test_several_tiles_and_blocks_share_what_belongs_to_no_position(pre: str | None, post: str | None) -> None:
    check(Case(8, pre, post, queries=17, past=3, window=18))


@runs
def test_a_query_that_sees_nothing_attends_evenly() -> None:
    case = Case(5, None, None, masked=True)
    assert case.sight.allowed is not None
    case.sight.allowed[:, :, 3] = False
    torch.testing.assert_close(case.run()[:, :, 3], case.v.mean(2))


@runs
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_pass_through_a_query_that_sees_nothing(causal: bool) -> None:
    case = Case(9, "qkpgs", "qkpgs", heads=2, queries=18, masked=True, causal=causal)
    assert case.sight.allowed is not None
    case.sight.allowed[:, :, 3] = False
    case.sight.allowed[1, :, 17] = False
    check(case)


@runs
def test_a_mask_may_be_one_for_the_batch_and_for_the_queries() -> None:
    for size in ((1, 1, 19, 19), (2, 1, 1, 19), (1, 1, 19, 1)):
        case = Case(10, "qg", "kg", heads=2, causal=False)
        mask = torch.rand(size, generator=torch.Generator().manual_seed(2)) < 0.5
        case.sight = Sight(False, None, mask.to(DEVICE))
        check(case)


@runs
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_summed_in_float32(dtype: torch.dtype) -> None:
    case = Case(6, "qkpgs", "qkpgs", dtype=dtype, batch=1, kv_heads=2)
    wide = case.widened()
    out, expected = case.run(), wide.expected()
    assert out.dtype == dtype
    rounding = torch.finfo(dtype).eps
    assert (out - expected).norm() <= rounding * expected.norm()
    slope = upstream(out)
    found = torch.autograd.grad(out, case.leaves(), slope)
    wanted = torch.autograd.grad(expected, wide.leaves(), slope.float())
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        assert (got - want).norm() <= rounding * want.norm()


class Sizes(TorchDispatchMode):
    """How many bytes the memory has behind the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


@runs
def test_memory_is_linear_in_the_length() -> None:
    case = Case(11, "qkpgs", "qkpgs", batch=1, heads=2, queries=48, width=2, rank=1, window=20)
    largest = []
    for attend in (case.run, case.expected):
        with Sizes() as sizes:
            out = attend()
            torch.autograd.grad(out.sum(), case.leaves())
        largest.append(sizes.largest)
    assert largest[0] <= 4 * case.q.numel()
    assert largest[1] >= 4 * 48 * 48  # what the equation needs, so that it would have been seen


@runs
def test_an_ordinary_gradient_needs_no_other_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcinterp.model.kernels import triton_kernel

    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("the portable path was called")

    monkeypatch.setattr(triton_kernel, "chunked_attention", called)
    case = Case(12, "qkpg", "qkpg", queries=5, batch=1)
    check(case)
    with pytest.raises(AssertionError, match="portable"):
        torch.autograd.grad(case.run().sum(), case.q, create_graph=True)


@runs
def test_only_what_needs_a_gradient_gets_one() -> None:
    case = Case(13, "qp", "kg", queries=5, batch=1)
    wanted = torch.autograd.grad(case.expected().sum(), [case.q, case.post.w_kg])
    case.k.requires_grad_(False)
    case.pre.w_q1.requires_grad_(False)
    case.run().sum().backward()
    assert case.k.grad is None
    assert case.pre.w_q1.grad is None
    for got, want in zip((case.q.grad, case.post.w_kg.grad), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@runs
def test_many_gradients_at_once_are_those_one_by_one() -> None:
    case = Case(14, "qkpg", "qkpg", queries=5, batch=1)
    out = case.run()
    slopes = torch.randn(2, *out.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    (found,) = torch.autograd.grad(out, case.k, slopes, is_grads_batched=True, retain_graph=True)
    for got, slope in zip(found, slopes, strict=True):
        (want,) = torch.autograd.grad(out, case.k, slope, retain_graph=True)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


@runs
def test_its_gradient_can_be_differentiated() -> None:
    case = Case(7, "qkpg", "qkpg", queries=5, batch=1)
    seconds = []
    for out in (case.run(), case.expected()):
        (slope,) = torch.autograd.grad(out.square().sum(), case.q, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), case.k)[0])
    assert (seconds[0] - seconds[1]).norm() <= 1e-4 * seconds[1].norm()


@runs
def test_the_model_takes_it_when_named(model: Callable[..., DCFormerForCausalLM]) -> None:
    built = model(attention_windows=(3, None)).float().to(DEVICE)
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    logits = []
    for name in ("eager", "triton"):
        built.set_attn_implementation(name)
        logits.append(built(ids, use_cache=False).logits)
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-4)


@runs
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


SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes that a program may have, by the GPU's capability: an A100, an H100."""
COMPILE = """
import json, sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import triton_backward, triton_compose, triton_kernel
from dcinterp.model.mask import Sight

capability, dtype, heads, kv_heads, width, has = json.loads(sys.argv[1])
x = torch.zeros(1, heads, 64, width)
shapes = {name: (1, 64, heads) if name[-1] == "g" else (1, 64, 2, heads) for name in has if name[0] == "w"}
held = {name: torch.zeros(shape) for name, shape in shapes.items()}
stage = ComposeWeights(**held, static=torch.zeros(heads, heads) if "static" in has else None)
sight = Sight(True, 9, torch.ones(1, 1, 64, 64, dtype=torch.bool) if "mask" in has else None)
constants = triton_compose.constants(x, x[:, :kv_heads], stage, stage, sight) | {"ranks": 2}
maybe = {name.removeprefix("w_"): name in has for name in triton_compose.WEIGHTS}
maybe |= {"mask": "mask" in has, "share": "static" in has}
types = {"mask": "*i8", "scale": "fp32"} | dict.fromkeys(triton_compose.LENGTHS, "i32")
types |= dict.fromkeys(["denominators", "sums", "pre_share", "post_share"], "*fp32")
for kernel in (triton_kernel.forward_kernel, triton_backward.queries_kernel, triton_backward.keys_kernel):
    fixed = {name: constants[name] for name in kernel.arg_names if name in constants}
    fixed |= {name: None for name in kernel.arg_names if not maybe.get(name.split("_")[-1], True)}
    signature = {name: "constexpr" if name in fixed else types.get(name, "*" + dtype) for name in kernel.arg_names}
    source = ASTSource(kernel, signature, fixed)
    made = compile(source, target=GPUTarget("cuda", capability, 32), options=triton_compose.OPTIONS)
    print(json.dumps([kernel.__name__, made.metadata.shared, len(made.asm["cubin"])]))
"""


@needs_triton
@pytest.mark.parametrize(
    ("capability", "dtype", "heads", "kv_heads", "width", "has"),
    [
        (80, "fp32", 2, 1, 16, ["w_q1", "w_q2", "w_qg", "w_k1", "w_k2", "w_kg", "static", "mask"]),
        (90, "bf16", 2, 2, 16, ["w_q1", "w_q2", "w_kg"]),
    ],
    ids=["A100", "H100"],
)
def test_every_kernel_compiles_for_a_gpu_that_need_not_be_there(
    tmp_path: Path, capability: int, dtype: str, heads: int, kv_heads: int, width: int, has: list[str]
) -> None:
    """Which says that a GPU would take them, and nothing about what they compute there."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([capability, dtype, heads, kv_heads, width, has])],
        capture_output=True, text=True, env=env | {"TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert list(made) == ["forward_kernel", "queries_kernel", "keys_kernel"]
    for shared, size in made.values():
        assert 0 < shared <= SHARED_MEMORY[capability]
        assert size > 0


def test_without_triton_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("kernel", "backward", "compose"):
        monkeypatch.delitem(sys.modules, f"dcinterp.model.kernels.triton_{name}", raising=False)
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UserError, match=r"pip install triton.*chunked"):
        composed_attention(x, x, x, implementation="triton")


def test_auto_never_means_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "triton" in get_args(select.Implementation)
    monkeypatch.delenv(select.ENVIRONMENT, raising=False)
    for device in ("cpu", "meta"):
        assert select._choose("auto", torch.zeros(1, device=device)) in {"fused", "chunked"}
