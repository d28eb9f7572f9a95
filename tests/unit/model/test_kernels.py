"""Every implementation of composed attention against the equation: values, gradients, memory, and what runs where."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import composed_attention, fused, portable, reference_attention, select
from dcinterp.model.kernels.fused import build
from dcinterp.model.kernels.portable import chunked_attention
from dcinterp.model.mask import Sight, attention_mask
from dcinterp.support.errors import UserError

needs_compiler = pytest.mark.skipif(not fused.available(), reason="no C++ compiler here: the portable path is used")

# Which branches exist: query and key side, projection and gate, static map, no skip, two groups.
BRANCHES = ["qkpg", "qkpgs", "qkpg2", "qp", "kg", "qkg", "qkp", "kp", "s0", "s", "qkpg0", "qkpgs02", "0", ""]


class Case:
    """Random inputs of a random shape; `seed` says everything."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64, **fixed: Any) -> None:
        self.g, self.dtype = torch.Generator().manual_seed(seed), dtype
        self.queries = fixed.get("queries", self.number(1, 90))
        self.keys = self.queries + fixed.get("past", self.pick([0, 0, self.number(1, 60)]))
        self.batch, self.heads = self.number(1, 4), fixed.get("heads", self.pick([2, 4, 6, 16, 34]))
        self.rank, width = fixed.get("rank", self.number(1, 5)), fixed.get("width", self.pick([3, 8, 16, 20, 64]))
        names = [None, *BRANCHES]
        self.pre, self.post = (self.stage(fixed.get(s, self.pick(names))) for s in ("pre", "post"))
        # Position-major in memory, as the model's projections are, or head-major.
        self.q = self.random(self.batch, self.queries, self.heads, width).transpose(1, 2)
        # Two of three cases share keys and values among heads.
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        self.kv_heads = fixed.get("kv_heads", divisors[-1 - seed % min(3, len(divisors))])
        self.k = self.random(self.batch, self.kv_heads, self.keys, width)
        self.v = self.random(self.batch, self.keys, self.kv_heads, width).transpose(1, 2)
        self.causal = fixed.get("causal", self.pick([True, True, False]))
        self.window = self.pick([None, 1, 5, 40]) if self.causal else None
        sparse = torch.rand(self.pick([1, self.batch]), 1, self.queries, self.keys, generator=self.g) < 0.7
        self.mask = self.pick([None, None, sparse])

    def number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self.g))

    def pick(self, options: Any) -> Any:
        return options[self.number(0, len(options))]

    def random(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.g, dtype=self.dtype).requires_grad_()

    def stage(self, has: str | None) -> ComposeWeights | None:
        if has is None:
            return None
        sides = {}
        for side, length in (("q", self.queries), ("k", self.keys)):
            if side in has and "p" in has:
                for number in (1, 2):
                    sides[f"w_{side}{number}"] = self.random(self.batch, length, self.rank, self.heads)
            if side in has and "g" in has:
                sides[f"w_{side}g"] = self.random(self.batch, length, self.heads)
        static = self.random(self.heads, self.heads) if "s" in has else None
        return ComposeWeights(**sides, static=static, skip="0" not in has, groups=2 if "2" in has else 1)

    def leaves(self) -> list[Tensor]:
        stages = [s for s in (self.pre, self.post) if s is not None]
        dynamic = [w for s in stages for _, w in s.dynamic()]
        return [self.q, self.k, self.v, *dynamic, *(s.static for s in stages if s.static is not None)]

    def run(self, implementation: str) -> Tensor:
        return composed_attention(
            self.q, self.k, self.v, self.pre, self.post,
            causal=self.causal, window=self.window, mask=self.mask, implementation=implementation,
        )  # fmt: skip

    def expected(self) -> Tensor:
        slots = torch.arange(self.keys)
        mask = self.mask
        if self.causal:
            own = attention_mask(slots[self.keys - self.queries :], slots, window=self.window)
            mask = own if mask is None else own & mask
        return reference_attention(self.q, self.k, self.v, self.pre, self.post, mask)


def gradients(out: Tensor, case: Case) -> list[Tensor]:
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    found = torch.autograd.grad(out, case.leaves(), upstream, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(case.leaves(), found, strict=True)]


def check(case: Case, out: Tensor, values: float, slopes: float) -> None:
    expected = case.expected()
    assert (out - expected).abs().max() <= values * expected.abs().max()
    for got, want in zip(gradients(out, case), gradients(expected, case), strict=True):
        assert (got - want).norm() <= slopes * max(want.norm().item(), 1e-9 * expected.norm().item())


@needs_compiler
@pytest.mark.parametrize("seed", range(24))
def test_the_kernel_is_the_equation_in_float64(seed: int) -> None:
    case = Case(seed)
    check(case, case.run("fused"), 1e-12, 1e-9)


@needs_compiler
@pytest.mark.parametrize("seed", range(100, 116))
def test_the_kernel_is_the_equation_in_float32(seed: int) -> None:
    case = Case(seed, torch.float32)
    check(case, case.run("fused"), 1e-5, 1e-4)


@needs_compiler
@pytest.mark.parametrize("heads", [3, 18])
def test_several_tiles_and_blocks_are_the_equation(heads: int) -> None:
    case = Case(0, queries=530, past=20, heads=heads, width=6, rank=2, pre="qkpg", post="qkpg")
    check(case, case.run("fused"), 1e-12, 1e-9)


@pytest.mark.parametrize("seed", range(200, 212))
def test_chunks_of_queries_are_the_equation(seed: int) -> None:
    case = Case(seed)
    out = chunked_attention(
        case.q, case.k, case.v, case.pre, case.post, sight=Sight(case.causal, case.window, case.mask), chunk=7
    )
    check(case, out, 1e-10, 1e-9)


@pytest.mark.parametrize("seed", range(400, 406))
def test_chunks_read_the_queries_before_them_and_the_layer_before(seed: int) -> None:
    """Convolutions around the softmax, and scores of the layer before, in chunks shorter than what they read."""
    case = Case(seed, heads=4, pre="qkpg2", post="qkpgs2")
    beyond = [case.random(4, 2, taps, 1 + seed % 4) for taps in (4, 3)]
    previous, before = case.random(4, 4), case.random(1, 4, case.queries, case.keys)
    case.pre = replace(case.pre, conv=beyond[0], previous=previous, before=before)
    case.post = replace(case.post, conv=beyond[1])
    leaves = [*case.leaves(), *beyond, previous, before]
    case.leaves = lambda: leaves  # type: ignore[method-assign]
    out = chunked_attention(
        case.q, case.k, case.v, case.pre, case.post, sight=Sight(case.causal, case.window, case.mask), chunk=3
    )
    check(case, out, 1e-10, 1e-9)


def test_scores_of_the_layer_before_count_after_the_softmax_on_hidden_keys_too() -> None:
    """The equation hides keys before the softmax; what is added behind it lies where it lies."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 4).unbind()
    post = ComposeWeights(previous=torch.randn(2, 2), before=torch.randn(1, 2, 40, 40))
    sight = Sight(causal=True, window=9)
    expected = reference_attention(q, k, v, None, post, sight.dense(40, 40, q.device))
    torch.testing.assert_close(chunked_attention(q, k, v, None, post, sight=sight, chunk=16), expected)


@needs_compiler
@pytest.mark.parametrize("branches", ["qkpg", "qkpgs2", "qp"])
def test_the_gradient_is_the_slope(branches: str) -> None:
    case = Case(3, queries=5, past=2, heads=2, width=4, rank=2, pre=branches, post=branches, causal=True)
    case.batch, case.window, case.mask = case.q.shape[0], 3, None
    assert torch.autograd.gradcheck(lambda *_: case.run("fused"), case.leaves(), eps=1e-6, atol=1e-6)


@needs_compiler
def test_it_can_be_differentiated_twice() -> None:
    case = Case(4, queries=6, heads=2, pre="qkpg", post="qkpg")
    found = []
    for out in (case.run("fused"), case.expected()):
        first = torch.autograd.grad(out.pow(2).sum(), case.leaves(), create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), case.leaves()))
    for got, want in zip(*found, strict=True):
        assert (got - want).norm() <= 1e-9 * want.norm()


@pytest.mark.parametrize("implementation", [pytest.param("fused", marks=needs_compiler), "chunked"])
def test_inputs_made_of_one_another_can_be_differentiated_twice(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches one input through another is that one's part, and is not counted here as well."""
    monkeypatch.setattr(portable, "FEW_PAIRS", 0)  # or the portable path would be autograd's from the start
    x = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    found = []
    for name in (implementation, "eager"):
        w = x.transpose(1, 2).tanh()  # [batch, pos, rank = head, head]
        pre = ComposeWeights(w_q1=w[..., :2], w_q2=w[..., 2:], w_kg=w.mean(-1))
        shared = x.sin()
        out = composed_attention(x, shared, shared, pre, None, causal=True, implementation=name)  # type: ignore[arg-type]
        (first,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
        found.append((first, torch.autograd.grad(first.pow(2).sum(), x)[0]))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, atol=0, rtol=1e-9)


@needs_compiler
@pytest.mark.parametrize("seed", range(300, 312))
def test_decoding_is_the_equation(seed: int) -> None:
    case = Case(seed, queries=1 + seed % 4, past=seed % 150)
    with torch.no_grad():
        expected = case.expected()
        assert (case.run("fused") - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("implementation", ["fused", "chunked"])
def test_a_query_that_sees_nothing_attends_evenly_and_gets_no_gradient(implementation: str) -> None:
    if implementation == "fused" and not fused.available():
        pytest.skip("no C++ compiler here")
    case = Case(5, queries=4, past=0, pre="qkpg", post=None, causal=False)
    case.mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    case.mask[..., 2, :] = False
    out = case.run(implementation)
    even = case.v.mean(2).repeat_interleave(case.heads // case.kv_heads, dim=1)
    torch.testing.assert_close(out[:, :, 2], even)
    (slope,) = torch.autograd.grad(out[:, :, 2].sum(), case.q)
    assert not slope.any()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_are_summed_in_float32(dtype: torch.dtype) -> None:
    case = Case(6, torch.float32, queries=70, pre="qkpg", post="qkpg")
    narrow = Case(6, torch.float32, queries=70, pre="qkpg", post="qkpg")
    for leaf, of in zip(narrow.leaves(), case.leaves(), strict=True):
        # The same rounded numbers in both, held in float32 in one of them.
        leaf.data = of.data = of.data.to(dtype).float()
    halves = [None if s is None else s.with_dynamic(lambda _, w: w.to(dtype)) for s in (narrow.pre, narrow.post)]
    out = composed_attention(
        *(x.to(dtype) for x in (narrow.q, narrow.k, narrow.v)), *halves,
        causal=narrow.causal, window=narrow.window, mask=narrow.mask, implementation="fused",
    )  # fmt: skip
    assert out.dtype == dtype
    wide = case.run("fused")
    assert torch.equal(out, wide.to(dtype))
    out.float().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in narrow.leaves()[3:])


@needs_compiler
def test_threads_change_no_bits_between_runs() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs = [gradients((case := Case(7, torch.float32, queries=80)).run("fused"), case) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again, strict=True))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def none() -> str:
        raise build.BuildError("no C++ compiler was found")

    monkeypatch.setattr(build, "find_compiler", none)
    build.library.cache_clear()
    yield
    build.library.cache_clear()


def test_without_a_compiler_the_portable_path_runs_and_says_so_once(
    no_compiler: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(select.ENVIRONMENT, raising=False)
    case = Case(8)
    torch.testing.assert_close(case.run("auto"), case.expected(), atol=1e-9, rtol=1e-9)
    case.run("auto")
    assert [record.message for record in caplog.records if "portable path" in record.message] == [
        "The fused attention kernel is not available here (no C++ compiler was found); the portable path computes the "
        "same, slower."
    ]
    with pytest.raises(UserError, match="C\\+\\+ compiler"):
        case.run("fused")


def test_a_compiler_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DCINTERP_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", lambda: "/bin/false")
    build.library.cache_clear()
    try:
        assert build.library() is None
        assert "false failed" in caplog.text
        assert not list(tmp_path.glob("*.so"))
    finally:
        build.library.cache_clear()


def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(select.ENVIRONMENT, "eager")
    assert select._choose("auto", torch.zeros(1)) == "eager"
    monkeypatch.setenv(select.ENVIRONMENT, "quick")
    with pytest.raises(UserError, match="no attention implementation 'quick'"):
        select._choose("auto", torch.zeros(1))


def test_a_window_needs_the_causal_rule() -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UserError, match="causal=True"):
        composed_attention(x, x, x, window=2)


def test_an_empty_variable_of_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(select.ENVIRONMENT, "")
    assert select._choose("auto", torch.zeros(1)) in ("fused", "chunked")


@pytest.mark.parametrize("implementation", ["auto", pytest.param("fused", marks=needs_compiler)])
def test_transforms_that_the_kernel_has_no_rule_for_go_the_portable_way(implementation: Any) -> None:
    case = Case(9, queries=5, past=0, pre=None, post="qkpg", causal=True)
    case.mask = case.window = None

    def attend(q: Tensor) -> Tensor:
        return composed_attention(q, case.k, case.v, None, case.post, causal=True, implementation=implementation)

    _, slope = torch.func.jvp(attend, (case.q,), (torch.ones_like(case.q),))
    step = 1e-6
    secant = (attend(case.q + step) - attend(case.q - step)) / (2 * step)
    torch.testing.assert_close(slope, secant, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "auto", "chunked"])
def test_many_gradients_at_once_are_those_one_by_one(implementation: Any) -> None:
    case = Case(9, queries=5, past=0, pre="qkpg", post="qkpg", causal=True)
    out = composed_attention(case.q, case.k, case.v, case.pre, case.post, causal=True, implementation=implementation)
    grads = torch.randn(3, *out.shape, dtype=out.dtype)
    together = torch.autograd.grad(out, case.q, grads, is_grads_batched=True, retain_graph=True)[0]
    alone = [torch.autograd.grad(out, case.q, grad, retain_graph=True)[0] for grad in grads]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.parametrize("implementation", ["chunked", pytest.param("fused", marks=needs_compiler)])
def test_a_head_whose_scores_overflow_leaves_the_others_alone(implementation: Any) -> None:
    """A gate of zero times infinity is NaN, so only the equation says where it goes."""
    q, k, v = (torch.randn(1, 3, 5, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    q[:, 0], k[:, 0] = 1e30, 1e30
    pre = ComposeWeights(w_qg=torch.zeros(1, 5, 3))
    outs = [composed_attention(q, k, v, pre, causal=True, implementation=i) for i in ("eager", implementation)]
    assert outs[0][:, 1:].isfinite().all()
    assert torch.equal(outs[0].isfinite(), outs[1].isfinite())


@pytest.mark.parametrize("implementation", ["chunked", pytest.param("fused", marks=needs_compiler)])
def test_a_bias_after_the_softmax_adds_what_the_equation_adds(implementation: Any) -> None:
    """Also behind a window, where sums over all keys would take digits, and beyond the largest number of float16."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 600, 4, generator=generator) for _ in range(3))
    v[:, :, 0] = 1e5  # which only the first queries see
    post = ComposeWeights(static=torch.eye(2), bias=torch.ones(2))
    outs = [
        composed_attention(q, k, v, None, post, causal=True, window=4, implementation=i)
        for i in ("eager", implementation)
    ]
    torch.testing.assert_close(outs[1], outs[0], atol=1e-4, rtol=1e-5)
    half = [x.half() for x in (q[:, :, -1:], k.repeat(1, 1, 7, 1), 20 + v[:, :, 1:].repeat(1, 1, 7, 1))]
    half[1] = half[1][:, :, : half[2].shape[2]]
    post = ComposeWeights(static=torch.eye(2).half(), bias=torch.full((2,), 1e-3).half())
    outs = [composed_attention(*half, None, post, implementation=i) for i in ("eager", implementation)]
    assert outs[1].isfinite().all()
    torch.testing.assert_close(outs[1], outs[0], atol=0.2, rtol=1e-2)


def test_large_sums_of_half_precisions_are_no_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "equation_in_chunks", None)  # the slow way, which is not needed
    q, k, v = (torch.ones(1, 8, 256, 64, dtype=torch.float16) for _ in range(3))
    assert composed_attention(q, k, 2 * v, causal=True, implementation="chunked").isfinite().all()


@pytest.mark.parametrize("implementation", ["chunked", pytest.param("fused", marks=needs_compiler)])
def test_what_no_query_sees_spreads_as_in_the_equation(implementation: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 4, generator=generator) for n in (2, 700, 700))
    gate = torch.randn(1, 700, 2, generator=generator)
    gate[0, 350, 0] = float("nan")
    mask = torch.zeros(1, 1, 2, 700, dtype=torch.bool)
    mask[..., 0, :10] = mask[..., 1, 690:] = True
    post = ComposeWeights(w_kg=gate)
    outs = [composed_attention(q, k, v, None, post, mask=mask, implementation=i) for i in ("eager", implementation)]
    assert torch.equal(outs[0].isfinite(), outs[1].isfinite())


MODEL = dict(attention_windows=(3, None))


def losses(model: DCFormerForCausalLM, **how: Any) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    padding = torch.ones(2, 9, dtype=torch.long)
    padding[0, :2] = 0
    model.zero_grad()
    out = model(ids, labels=ids, attention_mask=padding, use_cache=False, **how)
    out.loss.backward()
    return out.loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("implementation", ["auto", "fused", "chunked"])
def test_the_model_takes_the_implementation_that_is_asked_for(
    implementation: str, model: Callable[..., DCFormerForCausalLM]
) -> None:
    if implementation == "fused" and not fused.available():
        pytest.skip("no C++ compiler here")
    built = model(**MODEL)
    assert built.config._attn_implementation == "auto"
    built.set_attn_implementation("eager")
    want = losses(built)
    built.set_attn_implementation(implementation)
    for got, expected in zip(losses(built), want, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-8)
    with pytest.raises(ValueError, match="did you mean"):
        built.set_attn_implementation("fusd")


def test_gradient_checkpointing_changes_nothing(model: Callable[..., DCFormerForCausalLM]) -> None:
    built = model(**MODEL).train()
    want = losses(built)
    built.gradient_checkpointing_enable()
    for got, expected in zip(losses(built), want, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)


# In a process of its own: torch.compile cannot see through the type checks of the tests.
COMPILED = """
import torch
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.mask import Sight
torch.manual_seed(0)
config = DCFormerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, vocab_size=11)
model = DCFormerForCausalLM(config).double()
attention = model.model.layers[0].self_attn
x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)

def attend(x):
    return attention(x, mask=Sight(window=3))[0]

results = []
for f in (torch.compile(attend, backend="aot_eager", fullgraph=True), attend):
    out = f(x)
    results.append((out, *torch.autograd.grad(out.sum(), [x, *attention.parameters()])))
for got, expected in zip(*results, strict=True):
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(attend, backend="aot_eager", fullgraph=True)(x[:, :1]), attend(x[:, :1]))
print("same")
"""


@needs_compiler
@pytest.mark.usefixtures("warm_python")
def test_torch_compile_takes_it_in_one_graph() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "same", ran.stderr


LONG = """
import resource, sys, torch
torch.set_num_threads(1)
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
tokens, implementation = int(sys.argv[1]), sys.argv[2]
config = DCFormerConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8,
                        vocab_size=64, max_position_embeddings=tokens)
model = DCFormerForCausalLM(config)
model.set_attn_implementation(implementation)
ids = torch.randint(0, 64, (1, tokens))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model(ids, labels=ids, use_cache=False).loss.backward()
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.usefixtures("warm_python")
def test_training_needs_less_memory_than_one_attention_matrix() -> None:
    """T = 3072, 8 heads: one matrix of all heads is 302 MB, and the equation holds a dozen of them."""
    tokens = 3072
    matrix = 8 * tokens * tokens * 4
    implementation = "fused" if fused.available() else "chunked"
    ran = subprocess.run(
        [sys.executable, "-c", LONG, str(tokens), implementation], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < (matrix / 2 if implementation == "fused" else 2 * matrix)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor held which an operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, Tensor)]
        self.numbers = max([self.numbers, *found])
        return out


@pytest.mark.parametrize("implementation", ["eager", "chunked", "fused"])
@pytest.mark.parametrize("queries", [1, 8])
def test_shared_keys_and_values_are_not_repeated(implementation: str, queries: int) -> None:
    if implementation == "fused" and not fused.available():
        pytest.skip("no C++ compiler here")
    q, k, v = (torch.randn(1, heads, n, 64) for heads, n in ((16, queries), (2, 500), (2, 500)))
    with torch.no_grad(), Largest() as largest:
        composed_attention(q, k, v, causal=True, implementation=implementation)
    assert largest.numbers <= max(k.numel(), 16 * queries * 500) < 8 * k.numel()


@pytest.mark.parametrize("name", ["kernels-community/flash-attn", "sdpa"])
def test_an_implementation_that_is_not_ours_is_refused_before_it_is_looked_for(name):
    """A name with a slash is a kernel of the hub to transformers."""
    with pytest.raises(UserError, match=f"no attention implementation '{name}'; choose from auto"):
        DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", attn_implementation=name))
