"""Dynamic weights by C++ are those of the modules, with their gradients; the modules run wherever somebody looks."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from dcinterp.model.attention import ComposedAttention
from dcinterp.model.compose import dynamic
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.dynamic import DynamicCompose, SideWeights
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.kernels import fused
from dcinterp.support.progress import only_interrupts
from tests.unit.model.composition_cases import CASES as SHARED

pytestmark = pytest.mark.skipif(not fused.available(), reason="no C++ compiler here")

CASES = SHARED | {"rank 4, groups": dict(compose_rank=4, compose_groups=3)}


def build(dtype: torch.dtype = torch.float64, **changes: Any) -> ComposedAttention:
    config = DCFormerConfig(hidden_size=36, num_attention_heads=6, vocab_size=5, **changes)
    attention = ComposedAttention(config, 0)
    generator = torch.Generator().manual_seed(1)
    for parameter in attention.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype) / 4
    return attention


def inputs(dtype: torch.dtype = torch.float64) -> Tensor:
    # More positions than a tile of the kernel has, and no multiple of it.
    return torch.randn(3, 11, 36, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def flat(stages: dict[str, ComposeWeights]) -> list[Tensor]:
    return [weight for stage in stages.values() for _, weight in stage.dynamic()]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for every time that C++ makes weights."""
    made: list[int] = []
    run = dynamic.dynamic_weights

    def count(*args: Any) -> Any:
        made.append(1)
        return run(*args)

    monkeypatch.setattr(dynamic, "dynamic_weights", count)
    return made


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_the_modules(case: str, dtype: torch.dtype, calls: list[int]) -> None:
    attention, x = build(dtype, **CASES[case]), inputs(dtype).requires_grad_()
    found = []
    for together in (True, False):
        stages = attention.weights(x, x, together=together)
        made = flat(stages)
        generator = torch.Generator().manual_seed(3)
        upstream = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(dtype) for each in made]
        parameters = [p for name, p in attention.named_parameters() if "proj" not in name and "static" not in name]
        found.append((stages, made, torch.autograd.grad(made, [x, *parameters], upstream)))
    assert calls == [1]
    (fast, got, slopes), (slow, want, expected) = found
    close, steep = (1e-12, 1e-11) if dtype == torch.float64 else (2e-5, 1e-4)
    for stage in slow:
        names = [name for name, _ in slow[stage].dynamic()]
        assert [name for name, _ in fast[stage].dynamic()] == names
        assert (fast[stage].skip, fast[stage].groups) == (slow[stage].skip, slow[stage].groups)
        if slow[stage].static is not None:
            assert torch.equal(fast[stage].static, slow[stage].static)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=close, rtol=close)
    for mine, theirs in zip(slopes, expected, strict=True):
        assert (mine - theirs).norm() <= steep * theirs.norm()


def test_far_values_are_those_of_the_modules_too() -> None:
    """Where gelu and tanh have ended, at zero, and where something is not finite."""
    attention, x = build(torch.float32), inputs(torch.float32)
    x = x * torch.logspace(-6, 6, 33).view(3, 11, 1)
    x[0, 0], x[1, 1, 3], x[2, 2, 4] = 0, torch.nan, torch.inf
    with torch.no_grad():
        for mine, theirs in zip(*(flat(attention.weights(x, x, together=t)) for t in (True, False)), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4, equal_nan=True)


def test_the_gradient_is_the_slope_and_has_a_gradient() -> None:
    attention, x = build(compose_rank=1, compose_groups=2), inputs()[:1, :2].requires_grad_()
    parameters = list(attention.post.parameters())

    def make(*_: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(attention.weights(x, x, together=True)))

    assert torch.autograd.gradcheck(make, (x, *parameters), fast_mode=True)
    twice = []
    for together in (True, False):
        out = torch.cat([each.flatten() for each in flat(attention.weights(x, x, together=together))])
        first = torch.autograd.grad(out.pow(2).sum(), [x, *parameters], create_graph=True)
        twice.append(torch.autograd.grad(sum(each.pow(2).sum() for each in first), [x, *parameters]))
    for mine, theirs in zip(*twice, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


def test_many_gradients_at_once_are_those_one_by_one() -> None:
    attention, x = build(), inputs().requires_grad_()
    made = flat(attention.weights(x, x, together=True))[0]
    upstream = torch.randn(2, *made.shape, dtype=made.dtype)
    (batched,) = torch.autograd.grad(made, x, upstream, is_grads_batched=True, retain_graph=True)
    for one, expected in zip(batched, upstream, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(made, x, expected, retain_graph=True)[0])


class LowRankAdded(nn.Module):
    """A linear map with a low-rank addition, as fine-tuning wraps it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.a = base, nn.Parameter(base.weight.detach().mean(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x.sum(-1, keepdim=True) * self.a


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Own(DynamicCompose):
    name = ""

    def weights(self, x_query: Tensor, x_key: Tensor) -> ComposeWeights:
        return super().weights(3 * x_query, x_key)


def linear_of(attention: ComposedAttention) -> nn.Linear:
    found = attention.pre.query.down
    assert isinstance(found, nn.Linear)
    return found


def hook_module(path: str) -> Callable[[ComposedAttention], None]:
    def change(attention: ComposedAttention) -> None:
        def double(module: nn.Module, args: Any, out: Any) -> Any:
            return tuple(None if each is None else 2 * each for each in out) if isinstance(out, tuple) else 2 * out

        attention.get_submodule(path).register_forward_hook(double)

    return change


def replace_data(attention: ComposedAttention) -> None:
    linear_of(attention).weight.data = 2 * linear_of(attention).weight.data


def transpose_in_place(attention: ComposedAttention) -> None:
    up = attention.post.key.up
    up.data = up.data.transpose(1, 2)  # the same memory and shape


def with_bias(attention: ComposedAttention) -> None:
    linear_of(attention).bias = nn.Parameter(torch.ones(linear_of(attention).out_features, dtype=torch.float64))


def own_forward(attention: ComposedAttention) -> None:
    linear = linear_of(attention)
    linear.forward = lambda x: 2 * nn.functional.linear(x, linear.weight)  # type: ignore[method-assign]


def own_weights(attention: ComposedAttention) -> None:
    kept = attention.pre.weights
    attention.pre.weights = lambda x_query, x_key: kept(2 * x_query, x_key)


CHANGES: dict[str, Callable[[ComposedAttention], object]] = {
    "hook on a linear map": hook_module("pre.query.down"),
    "hook on a gate": hook_module("post.key.gate"),
    "hook on a side": hook_module("post.query"),
    "hook before a side": lambda a: a.pre.key.register_forward_pre_hook(lambda _, args: (2 * args[0],)),
    "low-rank adapter": lambda a: setattr(a.pre.query, "down", LowRankAdded(linear_of(a))),
    "another module": lambda a: setattr(a.post.query, "gate", nn.Sequential(a.post.query.gate, Doubled())),
    "parametrization": lambda a: parametrize.register_parametrization(linear_of(a), "weight", Doubled()),
    "parametrized W_2": lambda a: parametrize.register_parametrization(a.pre.key, "up", Doubled()),
    "a forward of its own": own_forward,
    "weights of its own": own_weights,
    "a bias": with_bias,
    "another parameter": lambda a: setattr(a.post.key, "up", nn.Parameter(2 * a.post.key.up.detach())),
    "other memory": replace_data,
    "other strides": transpose_in_place,
    "in place": lambda a: linear_of(a).weight.data.mul_(2),
    "a subclass": lambda a: setattr(a.pre, "__class__", Own),
}


@pytest.mark.parametrize("used", [False, True], ids=["before its use", "after its use"])
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_put_in_between_is_honoured(change: str, used: bool) -> None:
    attention, x = build(), inputs()
    with torch.no_grad():
        before = flat(attention.weights(x, x, together=True)) if used else flat(build().weights(x, x))
        CHANGES[change](attention)
        made = flat(attention.weights(x, x, together=True))
        for mine, theirs in zip(made, flat(attention.weights(x, x)), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)
    assert any(not torch.allclose(mine, then) for mine, then in zip(made, before, strict=True)), "nothing changed"


@pytest.mark.parametrize("name", ["_low_rank", "forward"])
def test_a_class_that_is_patched_is_honoured(name: str, monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    attention, x = build(), inputs()
    attention.weights(x, x, together=True)
    kept = getattr(SideWeights, name)
    monkeypatch.setattr(SideWeights, name, lambda self, given: kept(self, 2 * given))
    for mine, theirs in zip(*(flat(attention.weights(x, x, together=t)) for t in (True, False)), strict=True):
        assert torch.equal(mine, theirs)
    assert calls == [1]


class Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def global_hook(hook: Callable[..., None] = lambda *_: None, *, before: bool = False) -> Iterator[None]:
    modules = nn.modules.module
    handle = (modules.register_module_forward_pre_hook if before else modules.register_module_forward_hook)(hook)
    yield
    handle.remove()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_modes_tracers_and_other_types_see_operations_of_torch(calls: list[int]) -> None:
    attention, x = build(), inputs()

    def make(given: Tensor) -> Tensor:
        return flat(attention.weights(given, given, together=True))[0]

    want = make(x)
    assert calls.pop()
    with Noting() as mode:
        torch.testing.assert_close(make(x), want)
    assert "gelu" in mode.seen
    for before in (False, True):
        with global_hook(before=before):
            torch.testing.assert_close(make(x), want)
    with global_hook(only_interrupts(lambda *_: None), before=True):  # as that of the app, which cancels work
        assert torch.equal(make(x), want)
        assert calls.pop()
        with global_hook(before=True):
            make(x)
    assert not calls
    torch.testing.assert_close(torch.vmap(make)(x[:, None]).squeeze(1), want)
    _, slope = torch.func.jvp(make, (x,), (x,))
    assert slope.shape == want.shape
    narrow, given = build(torch.float32), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        narrow.weights(given, given, together=True)
    assert not calls
    attention.requires_grad_(False)
    traced = torch.jit.trace(make, (x,), check_trace=False)
    torch.testing.assert_close(traced(2 * x), make(2 * x))
    assert calls.pop()  # by the last of these alone
    halves, given = build(torch.bfloat16), x.to(torch.bfloat16)
    assert flat(halves.weights(given, given, together=True))[0].dtype == torch.bfloat16
    swapped = {name: 2 * each for name, each in attention.named_parameters()}
    parts = nn.ModuleDict({"inner": attention})
    parts.forward = lambda given: make(given)  # type: ignore[method-assign]
    found = torch.func.functional_call(parts, {f"inner.{name}": each for name, each in swapped.items()}, (x,))
    assert not torch.allclose(found, want)
    assert torch.equal(make(x), want)


def test_copies_and_saved_modules_know_nothing_of_the_first(calls: list[int]) -> None:
    attention, x = build(), inputs()
    want = flat(attention.weights(x, x, together=True))
    for twin in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):  # it is our own
        assert all(map(torch.equal, flat(twin.weights(x, x, together=True)), want))
        linear_of(twin).weight.data.zero_()
        assert not torch.equal(flat(twin.weights(x, x, together=True))[0], want[0])
        assert all(map(torch.equal, flat(attention.weights(x, x, together=True)), want))
    assert len(calls) == 7
