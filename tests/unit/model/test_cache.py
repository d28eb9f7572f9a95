"""Decoding with the cache equals the full forward pass: every family and ablation, batched, padded, with beams."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import StaticCache

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

Build = Callable[..., DCFormerForCausalLM]
FAMILIES = ["transformer", "transformer++", "pythia", "dcformer", "dcformer++", "dcpythia"]
ABLATIONS: dict[str, dict[str, Any]] = {
    "pre": dict(compose_stages=("pre",)),
    "post": dict(compose_stages=("post",)),
    "query-wise": dict(compose_key_wise=False),
    "key-wise": dict(compose_query_wise=False),
    "no-gate": dict(compose_gate=False),
    "no-projection": dict(compose_projection=False),
    "no-skip": dict(compose_skip=False),
    "static": dict(compose_static=True),
    "talking-heads": dict(compose="static"),
    "rank-1": dict(compose_rank=1),
    "rank-4": dict(compose_rank=4),
    "groups": dict(compose_groups=2),
}
WINDOWS: dict[str, tuple[int | None, ...]] = {
    "global": (None,),
    "1:1": (3, None),
    "3:1": (3, None, 3, 3),
    "local": (2,),
    "one key": (1, None),
    "wider than the text": (50, None),
}
CASES = (
    [(f"tiny-{family}", {}) for family in FAMILIES]
    + [("tiny-dcformer++", changes) for changes in ABLATIONS.values()]
    + [("tiny-dcformer++", dict(attention_windows=w, num_hidden_layers=len(w))) for w in WINDOWS.values()]
    + [("tiny-dcpythia", dict(attention_windows=(3, None), window_includes_edge=True))]
    + [("tiny-dcformer++", dict(num_key_value_heads=2, attention_windows=(3, None), compose_groups=2))]
    + [("tiny-dcpythia", dict(num_key_value_heads=1, head_dim=8))]
)


def tokens(length: int = 12) -> torch.Tensor:
    return torch.randint(1, 29, (2, length), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 1, 4, 1, 1), (1, 7, 4)], ids=["one by one", "mixed", "chunks"])
@pytest.mark.parametrize(("preset", "changes"), CASES)
def test_step_by_step_equals_the_full_pass_with_left_padding(
    preset: str, changes: dict[str, Any], chunks: tuple[int, ...], model: Build
) -> None:
    built, ids = model(preset, dtype=torch.float32, **changes), tokens()
    padding = torch.ones_like(ids)
    padding[1, :4] = 0  # the second text has 8 tokens
    with torch.no_grad():
        full = built(ids, attention_mask=padding, use_cache=False).logits
        alone = built(ids[1:, 4:], use_cache=False).logits
        cache, start, steps = None, 0, []
        for size in chunks:
            stop = start + size
            output = built(ids[:, start:stop], attention_mask=padding[:, :stop], past_key_values=cache, use_cache=True)
            cache, start = output.past_key_values, stop
            steps.append(output.logits)
    stepped = torch.cat(steps, dim=1)
    torch.testing.assert_close(stepped[0], full[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(stepped[1, 4:], full[1, 4:], atol=1e-4, rtol=0)
    torch.testing.assert_close(full[1, 4:], alone[0], atol=1e-4, rtol=0)


def test_the_caches_of_local_layers_are_bounded_by_their_windows(model: Build) -> None:
    built = model(attention_windows=(3, None), num_hidden_layers=2)
    with torch.no_grad():
        cache = built(tokens(), use_cache=True).past_key_values
    local, full = cache.layers
    assert local.keys.shape[2] == local.values.shape[2] == 2, "a query sees its own key and two older ones"
    assert full.keys.shape[2] == 12
    # Keys are d wide; beside the values lie w_k1, w_k2 (2 R each pair) and w_kg of both stages, a number per head each.
    assert full.keys.shape[-1] == 8
    assert full.values.shape[-1] == 8 + 2 * (2 * 2 + 1)
    assert cache.get_seq_length() == 12


def test_the_cache_holds_nothing_that_the_model_lacks(model: Build) -> None:
    for changes, extra in ((dict(compose_key_wise=False), 0), (dict(compose="none"), 0), (dict(compose_gate=False), 8)):
        with torch.no_grad():
            cache = model(**changes)(tokens(), use_cache=True).past_key_values
        assert cache.layers[0].values.shape[-1] == 8 + extra


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcpythia", "tiny-dcformer"])
@pytest.mark.parametrize("how", [dict(do_sample=False), dict(do_sample=False, num_beams=3)], ids=["greedy", "beams"])
def test_generate_does_not_depend_on_the_cache(preset: str, how: dict[str, Any], model: Build) -> None:
    built, ids = model(preset, dtype=torch.float32, attention_windows=(3, None), pad_token_id=0), tokens(6)
    mask = torch.ones_like(ids)
    ids[1, :2] = mask[1, :2] = 0
    cached, plain = (
        built.generate(ids, attention_mask=mask, max_new_tokens=8, use_cache=use, **how) for use in (True, False)
    )
    assert torch.equal(cached, plain)
    alone = built.generate(ids[1:, 2:], max_new_tokens=8, **how)
    assert torch.equal(alone[0], cached[1, 2:])


@pytest.mark.parametrize("windows", [(None,), (3, None), (1, None)], ids=str)
def test_assisted_generation_rolls_the_cache_back(windows: tuple[int | None, ...], model: Build) -> None:
    built, ids = model(dtype=torch.float32, attention_windows=windows), tokens(6)[:1]
    ids = torch.cat([ids, ids], dim=1)  # repetitions, so that looking up the prompt proposes something
    plain = built.generate(ids, max_new_tokens=10, do_sample=False)
    looked_up = built.generate(ids, max_new_tokens=10, do_sample=False, prompt_lookup_num_tokens=3)
    assert torch.equal(plain, looked_up)


def test_a_cache_without_room_for_the_composition_is_refused(model: Build) -> None:
    with pytest.raises(ValueError, match="cache_implementation 'static' has no room for what composition caches"):
        model(dtype=torch.float32).generate(tokens(6), max_new_tokens=2, cache_implementation="static")


def test_a_mask_that_forgets_the_cache_is_one_sentence(model: Build) -> None:
    built = model()
    with torch.no_grad():
        cache = built(tokens(), use_cache=True).past_key_values
        with pytest.raises(
            ValueError, match="attention_mask covers 1 positions, but the cache and the new tokens are 13"
        ):
            built(tokens(1), attention_mask=torch.ones(2, 1), past_key_values=cache)


@torch.no_grad()
def test_a_token_costs_no_copy_of_those_before_it(model: Build) -> None:
    built, ids = model(num_hidden_layers=2), tokens()
    cache = built(ids[:, :4], use_cache=True).past_key_values
    places, given = set(), []
    for end in range(5, 10):
        cache = built(ids[:, end - 1 : end], past_key_values=cache, use_cache=True).past_key_values
        places.add(cache.layers[0].values.untyped_storage().data_ptr())
        given.append((cache.layers[0].values, cache.layers[0].values.clone()))
    assert len(places) == 1
    assert all(torch.equal(view, then) for view, then in given)


@pytest.mark.parametrize("how", ["shallow", "deep", "crop", "inference mode", "select"])
def test_caches_that_part_do_not_write_over_each_other(how: str, model: Build) -> None:
    built, ids = model(dtype=torch.float64), tokens()
    other = ids.roll(3, dims=1)

    @torch.no_grad()
    def step(cache: Any, new: torch.Tensor) -> torch.Tensor:
        return built(new, past_key_values=cache, use_cache=True).logits

    with torch.inference_mode(how == "inference mode"), torch.no_grad():
        cache = built(ids[:, :5], use_cache=True).past_key_values
        step(cache, ids[:, 5:6])
    twin = copy.copy(cache) if how in ("shallow", "select") else copy.deepcopy(cache)
    if how in ("shallow", "select"):
        twin.layers = [copy.copy(layer) for layer in cache.layers]
    held = [layer.values.clone() for layer in cache.layers]
    seen = [layer.values for layer in cache.layers]
    if how == "crop":
        twin = cache
        twin.crop(-2)
        prefix = torch.cat([ids[:, :4], other[:, :3]], dim=1)
    elif how == "select":
        twin.batch_select_indices(torch.tensor([1, 0]))
        prefix = torch.cat([ids[[1, 0], :6], other[:, :3]], dim=1)
    else:
        prefix = torch.cat([ids[:, :6], other[:, :3]], dim=1)
    parted, went_on = [], []
    for i in range(3):  # in turn: what one writes is not what the other reads next
        parted.append(step(twin, other[:, i : i + 1]))
        if how != "crop":
            went_on.append(step(cache, ids[:, i + 6 : i + 7]))
    assert all(torch.equal(view, then) for view, then in zip(seen, held, strict=True))
    with torch.no_grad():
        for text, logits in ((prefix, parted), (ids[:, :9], went_on)):
            if logits:
                full = built(text, use_cache=False).logits[:, -3:]
                torch.testing.assert_close(torch.cat(logits, 1), full, atol=1e-9, rtol=0)


def test_a_cache_with_empty_places_is_refused() -> None:
    """Its places would be taken for keys of tokens, and what is new for the last of them."""
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-transformer++", vocab_size=29)).eval()
    cache = StaticCache(config=model.config, max_cache_len=20)
    with pytest.raises(UserError, match="does not read a StaticCache; give a DynamicCache as past_key_values"):
        model(torch.arange(7)[None], past_key_values=cache)
