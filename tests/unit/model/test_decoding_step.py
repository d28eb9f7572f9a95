"""A few tokens on top of a cache in one call of the kernel: what operations of torch give, and only where it may."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dcinterp.model.attention import step as steps
from dcinterp.model.cache import GrowingLayer
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import fused
from tests.unit.model.composition_cases import CASES as SHARED

pytestmark = pytest.mark.skipif(not fused.available(), reason="no C++ compiler here")

Build = Callable[..., DCFormerForCausalLM]
# Heads as wide as any vector of the machines there are.
WIDE = dict(hidden_size=64, num_attention_heads=4, head_dim=16)
CASES = SHARED | {
    "plain": dict(compose="none"),
    "pre": dict(compose_stages=("pre",)),
    "shared keys": dict(num_key_value_heads=2),
    "all keys shared, groups": dict(num_key_value_heads=1, compose_groups=2, compose_rank=1),
    "norms of heads, half turned": dict(use_qk_norm=True, rotary_fraction=0.5),
    "learned positions": dict(position_type="learned"),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has the number of tokens of every call of the kernel."""
    made: list[int] = []
    run = steps.step

    def count(x: Tensor, *args: Any) -> Any:
        made.append(x.shape[0] * x.shape[1])
        return run(x, *args)

    monkeypatch.setattr(steps, "step", count)
    return made


def tokens(length: int = 12, batch: int = 2) -> Tensor:
    return torch.randint(1, 11, (batch, length), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def stepped(built: DCFormerForCausalLM, ids: Tensor, sizes: tuple[int, ...], **kwargs: Any) -> tuple[Tensor, Any]:
    cache, start, logits = None, 0, []
    for size in sizes:
        out = built(ids[:, start : start + size], past_key_values=cache, use_cache=True, **kwargs)
        cache, start = out.past_key_values, start + size
        logits.append(out.logits)
    return torch.cat(logits, dim=1), cache


def written(built: DCFormerForCausalLM, ids: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Any]:
    """As the equation reads, with the weights that the modules make."""
    built.set_attn_implementation("eager")
    found = stepped(built, ids, sizes)
    built.set_attn_implementation("auto")
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_it_is_what_operations_of_torch_give(case: str, dtype: torch.dtype, model: Build, calls: list[int]) -> None:
    built, sizes = model(dtype=dtype, num_hidden_layers=2, **{**WIDE, **CASES[case]}), (5, 1, 3, 1, 1, 4)
    ids = tokens(sum(sizes))
    (want, held), (got, mine) = written(built, ids, sizes), stepped(built, ids, sizes)
    assert calls == [2, 2, 6, 6, 2, 2, 2, 2, 8, 8]
    close = 1e-10 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(got, want, atol=close, rtol=0)
    for layer, other in zip(mine.layers, held.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys, atol=close, rtol=0)
        torch.testing.assert_close(layer.values, other.values, atol=close, rtol=0)


def test_beside_padding_and_over_many_blocks_of_keys(model: Build, calls: list[int]) -> None:
    built, ids = model(max_position_embeddings=256, **WIDE), tokens(200)
    padding = torch.ones_like(ids)
    padding[1, :70] = 0
    with torch.no_grad():
        full = built(ids, attention_mask=padding, use_cache=False).logits
        cache = built(ids[:, :190], attention_mask=padding[:, :190], use_cache=True).past_key_values
        for end in range(191, 201):
            out = built(ids[:, end - 1 : end], attention_mask=padding[:, :end], past_key_values=cache)
            torch.testing.assert_close(out.logits[:, 0], full[:, end - 1], atol=1e-9, rtol=0)
    assert calls


def test_what_was_packed_of_the_cache_follows_its_changes(model: Build, calls: list[int]) -> None:
    """Written in place, cut, given to another model, copied: the next token reads what is there then."""
    built, other, ids = model(**WIDE), model(seed=5, **WIDE), tokens()
    reference, cache = (stepped(built, ids[:, :8], (6, 1, 1))[1] for _ in range(2))
    changes: list[Callable[[Any], object]] = [
        lambda c: c.layers[0].values[:, :, 2, 16:].mul_(3),
        lambda c: c.crop(-2),
        lambda c: c.batch_select_indices(torch.tensor([1, 0])),
        lambda c: c.layers[1].values.zero_(),
    ]
    for number, change in enumerate(changes):
        logits = []
        for held, how in ((reference, "eager"), (cache, "auto")):
            with torch.no_grad():
                change(held)
                of = other if number == 3 else built
                of.set_attn_implementation(how)
                logits.append(of(ids[:, 8 + number : 9 + number], past_key_values=held).logits)
        torch.testing.assert_close(*logits, atol=1e-9, rtol=0)
        cache = copy.deepcopy(cache)
    assert len(calls) == 2 * 2 * 2 + 4 * 2, "in two layers: two tokens of both caches, and four of the second"


def test_a_token_packs_its_own_weights_alone(model: Build) -> None:
    built, ids = model(**WIDE), tokens()
    _, cache = stepped(built, ids[:, :8], (6, 1, 1))
    packed = cache.layers[0].kept()
    assert packed.keys == 8
    with torch.no_grad():
        built(ids[:, 8:9], past_key_values=cache)
    assert cache.layers[0].kept() is packed
    assert packed.keys == 9


@pytest.mark.parametrize("place", ["x", "cache", "weights of a key"])
def test_nan_goes_where_the_equation_sends_it(place: str, model: Build) -> None:
    built, ids = model(**WIDE), tokens()
    found = []
    for how in ("eager", "auto"):
        built.set_attn_implementation("auto")
        cache = stepped(built, ids[:, :7], (6, 1))[1]
        built.set_attn_implementation(how)
        if place == "cache":
            cache.layers[0].keys[0, 1, 3, 2] = torch.nan
        elif place == "weights of a key":
            cache.layers[1].values[1, 2, 4, 17] = torch.inf
        else:
            built.get_input_embeddings().weight.data[int(ids[0, 7]), 5] = torch.nan
        found.append(stepped_on(built, ids, cache))
    want, got = found
    assert torch.equal(got.isfinite(), want.isfinite())
    assert not want.isfinite().all()
    torch.testing.assert_close(got, want, atol=1e-9, rtol=0, equal_nan=True)


@torch.no_grad()
def stepped_on(built: DCFormerForCausalLM, ids: Tensor, cache: Any) -> Tensor:
    return torch.cat([built(ids[:, i : i + 1], past_key_values=cache).logits for i in (7, 8)], dim=1)


def test_a_hook_in_the_composition_is_heard_from_the_next_token_on(model: Build, calls: list[int]) -> None:
    built, ids = model(**WIDE), tokens()
    down = built.model.layers[0].self_attn.pre.key.down
    _, cache = stepped(built, ids[:, :7], (6, 1))
    plain = copy.deepcopy(cache)
    handle = down.register_forward_hook(lambda module, args, out: 2 * out)
    heard = stepped_on(built, ids, cache)
    handle.remove()
    twice = copy.deepcopy(plain)
    assert not torch.allclose(heard, stepped_on(built, ids, plain))
    down.weight.data *= 2
    torch.testing.assert_close(heard, stepped_on(built, ids, twice), atol=1e-10, rtol=0)
    assert len(calls) == 2 + 2 + 4 + 4, "a step before, one layer while it is heard, and then both"


def test_where_it_may_not_the_operations_of_torch_run(model: Build, calls: list[int]) -> None:
    built, ids = model(**WIDE), tokens()
    full = built(ids, use_cache=False).logits

    def last(given: DCFormerForCausalLM, past: Any = None, **how: Any) -> Tensor:
        past = stepped(given, ids[:, :11], (11,))[1] if past is None else past
        logits: Tensor = given(ids[:, 11:], past_key_values=past, **how).logits
        return logits

    torch.testing.assert_close(last(built)[:, 0], full[:, 11])  # with gradients
    with torch.no_grad():
        assert last(built, output_attentions=True) is not None
        last(model(dtype=torch.bfloat16, **WIDE))
        narrow = model(hidden_size=24, num_attention_heads=4, head_dim=6, dtype=torch.float32)
        last(narrow)  # heads that fill no vector
        last(model(attention_windows=(3,), **WIDE))
        last(model(compose="static", **WIDE))
        many = tokens(3, batch=33)
        built(many[:, 2:], past_key_values=built(many[:, :2], use_cache=True).past_key_values)
        with torch.autocast("cpu", torch.bfloat16):
            model(dtype=torch.float32, **WIDE)(ids[:, :1], use_cache=True)
    assert not calls
    with torch.inference_mode():
        torch.testing.assert_close(last(built)[:, 0], full[:, 11])
    assert calls == [2, 2]


def test_a_cache_that_was_made_with_gradients_goes_on_without(model: Build, calls: list[int]) -> None:
    built, ids = model(**WIDE), tokens()
    cache = built(ids[:, :10], use_cache=True).past_key_values
    with torch.no_grad():
        out = built(ids[:, 10:11], past_key_values=cache).logits
        torch.testing.assert_close(out, built(ids[:, :11], use_cache=False).logits[:, 10:])
    assert calls == [2, 2]
    assert isinstance(cache.layers[0], GrowingLayer)
