"""The reference of hooks says what the hooks do: sizes, axes and switches are compared with what hooks then see."""

from __future__ import annotations

import pytest
import torch

from dcinterp.bridge import wrap
from dcinterp.bridge.hook_catalogue import COMPOSITION, SWITCHES, list_hooks
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError


def all_names(hooks):
    return sorted(name for hook in hooks for name in (hook.name, *hook.aliases))


@pytest.mark.parametrize(
    "name", ["tiny-dcformer", "tiny-dcformer++", "tiny-dcpythia", "tiny-transformer++", "tiny-dcvit"]
)
def test_every_hook_is_listed_once_and_nothing_stays_behind(make_bridge, name):
    model = wrap(build_model(DCFormerConfig.preset(name))) if name.endswith("vit") else make_bridge(name)
    hooks = list_hooks(model)
    assert all_names(hooks) == sorted(model.hook_dict)
    assert all(hook.meaning for hook in hooks)
    assert not any("?" in hook.axes for hook in hooks)
    assert all(hook.axes or hook.switch for hook in hooks)
    assert not any(point._forward_hooks for point in model.hook_dict.values())


def test_axes_are_those_that_hooks_see(make_bridge):
    # Sizes that tell all axes apart.
    model = make_bridge(hidden_size=60, num_attention_heads=6, intermediate_size=44, compose_rank=3)
    sizes = {"batch": 4, "pos": 9, "query": 9, "key": 9, "head": 6, "d_head": 10, "rank": 3, "d_model": 60, "1": 1}
    sizes |= {"d_mlp": 44, "d_vocab": model.cfg.d_vocab}
    _, cache = model.run_with_cache(torch.zeros(4, 9, dtype=torch.long))
    listed = {name: hook for hook in list_hooks(model) for name in (hook.name, *hook.aliases)}
    for name, tensor in cache.items():
        assert tuple(sizes[axis] for axis in listed[name].axes) == tuple(tensor.shape), name


@pytest.mark.parametrize(
    "sizes",
    [dict(num_attention_heads=1, hidden_size=16), dict(num_attention_heads=2, hidden_size=16, intermediate_size=8)],
)
def test_an_axis_of_a_head_is_named_as_one_whatever_else_has_its_size(make_bridge, sizes):
    listed = {name: hook for hook in list_hooks(make_bridge(**sizes)) for name in (hook.name, *hook.aliases)}
    for tap in ("hook_q", "hook_k", "hook_v", "hook_z", "hook_rot_q", "hook_rot_k"):
        assert listed[f"blocks.0.attn.{tap}"].axes == ("batch", "pos", "head", "d_head")
    assert listed["blocks.0.hook_resid_post"].axes[-1] == "d_model"


def test_queries_and_keys_are_told_apart_as_in_decoding(make_bridge):
    bridge = make_bridge()
    ids = torch.zeros(2, 9, dtype=torch.long)
    with torch.no_grad():
        past = bridge.original_model(ids[:, :4], use_cache=True).past_key_values
        seen: dict[str, tuple[int, ...]] = {}

        def note(tensor, hook):
            seen[hook.name] = tuple(tensor.shape)

        names = [name for name in bridge.hook_dict if name.startswith("blocks.1.attn.p") and "hook_" in name]
        names = [name for name in names if name.rsplit(".", 1)[-1] in COMPOSITION]
        with bridge.hooks(fwd_hooks=[(name, note) for name in names]):
            bridge.original_model(ids[:, 4:], past_key_values=past, use_cache=True)
    for hook in list_hooks(bridge, "blocks.1.attn.p*.hook_*"):
        for axis, size in zip(hook.axes, seen.get(hook.name, ()), strict=False):
            assert {"query": 5, "key": 9}.get(axis, size) == size, hook.name
    assert len(seen) == 26


@pytest.mark.parametrize("tap", sorted(SWITCHES))
def test_a_silent_hook_fires_after_its_switch(make_bridge, tap):
    model = make_bridge()
    (hook,) = (h for h in list_hooks(model, tap, layer=0) if h.name.endswith("." + tap))
    assert hook.switch == SWITCHES[tap]
    getattr(model, hook.switch)(True)
    (hook,) = (h for h in list_hooks(model, tap, layer=0) if h.name.endswith("." + tap))
    assert hook.axes[:2] == ("batch", "pos")
    assert not hook.switch


def test_what_the_norm_hooks_say(make_bridge):
    bridge = make_bridge()
    _, cache = bridge.run_with_cache(torch.arange(9)[None])
    for norm in ("blocks.0.ln1", "blocks.1.ln2", "ln_final"):
        stream, scale = cache[f"{norm}.hook_in"], cache[f"{norm}.hook_scale"]
        torch.testing.assert_close(cache[f"{norm}.hook_normalized"], stream / scale)


def test_matching(make_bridge):
    bridge = make_bridge()
    assert [hook.name for hook in list_hooks(bridge, "*.post.hook_o_kp", layer=-1)] == ["blocks.1.attn.post.hook_o_kp"]
    assert {hook.layer for hook in list_hooks(bridge, "post gate key")} == {0, 1}
    with pytest.raises(UserError, match="did you mean"):
        list_hooks(bridge, "blocks.0.hook_resid_prex")
    with pytest.raises(UserError, match=r"no layer 2; this model has layers 0\.\.1"):
        list_hooks(bridge, layer=2)


@pytest.mark.parametrize("context", [2, 3, 4, 6])
def test_hooks_of_a_model_with_a_short_context(make_bridge, context):
    bridge = make_bridge(max_position_embeddings=context)
    (hook,) = list_hooks(bridge, "blocks.0.attn.hook_z")
    assert hook.axes == ("batch", "pos", "head", "d_head")
    (hook,) = list_hooks(bridge, "blocks.0.attn.hook_pattern")
    assert hook.axes == ("batch", "head", "query", "key")


def test_as_many_patches_as_a_head_is_wide_are_told_apart():
    sizes = dict(hidden_size=64, num_attention_heads=4, image_size=16, patch_size=4, num_hidden_layers=1)
    bridge = wrap(build_model(DCFormerConfig.preset("tiny-dcvit", **sizes)))
    axes = {name: hook.axes for hook in list_hooks(bridge) for name in (hook.name, *hook.aliases)}
    for name in ("hook_q", "hook_z"):
        assert axes[f"blocks.0.attn.{name}"] == ("batch", "pos", "head", "d_head")
    for name in ("hook_pattern", "post.hook_in", "post.hook_o_kp"):
        assert axes[f"blocks.0.attn.{name}"] == ("batch", "head", "query", "key")
