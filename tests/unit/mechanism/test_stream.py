"""Runs that start at a layer give what whole runs give, and notice a model that does not allow them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dcinterp.mechanism.stream import Stream


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcpythia"])
def test_a_run_from_a_layer_equals_a_whole_run(make_bridge, prompt, preset):
    bridge = make_bridge(preset)
    ids = bridge.to_tokens(prompt)
    stream = Stream(bridge, ids)
    assert stream.allowed
    hooks = [("blocks.1.attn.hook_z", lambda z, hook: 0.5 * z)]
    ran = []
    watch = bridge.blocks[0].attn.register_forward_hook(lambda *_: ran.append(0))
    with torch.no_grad():
        part = stream.run(2, 1, hooks)
        before = len(ran)
        last = stream.run(2, 1, hooks, places=[-1])
        assert len(ran) == before, "the layer below is left out"
        whole = bridge.run_with_hooks(ids.expand(2, -1), fwd_hooks=hooks)
    watch.remove()
    assert torch.allclose(part, whole, atol=1e-5)
    assert last.shape[1] == 1
    assert torch.allclose(last[:, 0], whole[:, -1], atol=1e-5)
    assert not any("forward" in vars(block) for block in bridge.blocks), "the bridge is as it was"


def test_reading_one_layer_equals_a_whole_cache(bridge, prompt):
    ids = bridge.to_tokens(prompt)
    names = ["blocks.1.attn.hook_v", "blocks.1.attn.post.hook_in"]
    read, cache = Stream(bridge, ids).read(names), bridge.run_with_cache(ids, names_filter=names)[1]
    for name in names:
        assert torch.allclose(read[name], cache[name], atol=1e-6), name


def test_a_model_whose_layers_share_more_than_the_stream_runs_whole(bridge, prompt):
    """Layer 1 adds what layer 0 has put aside; in a run that leaves layer 0 out that would be another prompt's."""
    ids, aside = bridge.to_tokens(prompt), []
    first = bridge.blocks[0].attn.register_forward_hook(lambda _, args, out: aside.append(out[0].mean()))
    second = bridge.blocks[1].register_forward_hook(lambda _, args, out: out + 10 * aside.pop() if aside else out)
    try:
        assert not Stream(bridge, ids).allowed
    finally:
        first.remove()
        second.remove()


def test_threads_do_not_meet_what_another_replaced():
    import dcinterp

    bridge = dcinterp.load("dcformer++")
    questions = [
        ("There are a sweater, an elephant, a sweater. Which is not sweater? The", "elephant", "sweater"),
        ("There are a sweater, an apple, a sweater. Which is not sweater? The", "apple", "sweater"),
    ]

    def scores(at: int) -> torch.Tensor:
        return dcinterp.attribute_heads(bridge, *questions[at % 2], steps=4, max_steps=8).scores

    wanted = [scores(at) for at in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(scores, range(6)))
    for at, each in enumerate(found):
        assert torch.allclose(each, wanted[at % 2], atol=1e-5)
