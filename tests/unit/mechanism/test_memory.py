"""The estimates against the tensors that the hooks hold, and refusals before anything runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.mechanism import memory
from dcinterp.mechanism.memory import check_fits, layer_bytes, slices
from dcinterp.support import memory as support


def test_a_large_model_by_its_numbers():
    """32 heads at 2048 positions: eight matrices of half a gigabyte, whatever the number of layers."""
    assert layer_bytes(heads=32, positions=2048) == 8 * 32 * 2048 * 2048 * 4
    assert layer_bytes(heads=32, positions=2048, bytes_per_number=2, rows=3) == 3 * layer_bytes(32, 2048) // 2


def test_one_stage_holds_no_more_than_the_estimate(bridge, prompt):
    """Bytes of matrices alive at once while a layer is taken apart, counted at every hook of the stage."""
    ids = bridge.to_tokens(prompt)
    alive: dict[int, int] = {}

    def note(tensor, hook):
        alive[tensor.data_ptr()] = tensor.numel() * tensor.element_size()

    names = [n for n in bridge.hook_dict if n.startswith("blocks.1.attn.post.hook_") and "_w_" not in n]
    with torch.no_grad():
        bridge.run_with_hooks(ids, fwd_hooks=[(name, note) for name in names])
    assert 0 < sum(alive.values()) <= layer_bytes(bridge.cfg.n_heads, ids.shape[1])


def test_slices_are_those_of_the_whole_tensors(bridge, prompt):
    ids = bridge.to_tokens(prompt)
    wanted = {
        "blocks.1.attn.post.hook_in": (0, slice(None), 5, slice(3)),
        "blocks.0.attn.pre.hook_w_k1": (0, 4),
    }
    parts = slices(bridge, ids, wanted)
    _, cache = bridge.run_with_cache(ids, names_filter=list(wanted))
    for name, index in wanted.items():
        assert torch.equal(parts[name], cache[name][index])
        assert parts[name].untyped_storage().nbytes() == parts[name].numel() * 4, "no view keeps the whole alive"
    assert not any(hook._forward_hooks for hook in bridge.hook_dict.values())


def test_too_little_memory_is_said_before_anything_runs(bridge, prompt, monkeypatch):
    length = bridge.to_tokens(prompt).shape[1]
    monkeypatch.setattr(memory, "available_bytes", lambda device: layer_bytes(8, 10))
    monkeypatch.setattr(type(bridge), "run_with_hooks", lambda *a, **k: pytest.fail("it ran"))
    monkeypatch.setattr(type(bridge), "run_with_cache", lambda *a, **k: pytest.fail("it ran"))
    calls = [
        lambda: dcinterp.compose_breakdown(bridge, prompt, 1, -1, 0),
        lambda: dcinterp.attention_rows(bridge, prompt, 1),
    ]
    for call in calls:
        with pytest.raises(UserError, match=f"for {length} tokens.*at most 10 tokens"):
            call()
    with pytest.raises(UserError, match="Integrating over compositions needs about"):
        dcinterp.composition_importance(bridge, [(prompt, "fruit")])


def test_a_system_that_does_not_say_is_not_refused(bridge, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda device: None)
    assert check_fits(bridge, 100, what="This") == layer_bytes(bridge.cfg.n_heads, 100)


def test_free_memory_is_read_or_unknown(monkeypatch):
    free = memory.available_bytes(torch.device("cpu"))
    assert free is None or free > 0
    monkeypatch.setattr(support, "MEMINFO", SimpleNamespace(read_text=lambda **_: "nothing here"))
    assert memory.available_bytes(torch.device("cpu")) is None
