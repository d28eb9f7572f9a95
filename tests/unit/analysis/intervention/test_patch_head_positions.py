"""Patching heads by position, against hooks by hand and against patching all positions."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.mechanism.head_sites import head_sites
from dcinterp.support.errors import UserError

CLEAN, OTHER = [3, 4, 5, 6, 7], [3, 4, 9, 6, 2]


@pytest.mark.parametrize("site", ["z", "v", "post.kp", "pattern", "post.w_q1"])
@torch.no_grad()
def test_a_patch_is_a_hook_by_hand(model, site):
    bridge = wrap(model(num_key_value_heads=2))
    found = dcinterp.patch_head_positions(bridge, CLEAN, OTHER, 8, 11, site=site, batch_size=7)
    name = f"blocks.1.attn.{head_sites(bridge)[site]}"
    clean = bridge.run_with_cache(torch.tensor([CLEAN]), names_filter=[name])[1][name]
    for head, pos in ((2, 4), (0, 2)):

        def put(tensor, hook, head=head, pos=pos):
            tensor = tensor.clone()
            if tensor.shape[1] != len(CLEAN) or site in ("post.kp", "pattern"):
                tensor[:, head, pos] = clean[:, head, pos]
            elif site == "post.w_q1":
                tensor[:, pos, :, head] = clean[:, pos, :, head]
            else:
                own = head // 2 if site == "v" else head
                tensor[:, pos, own] = clean[:, pos, own]
            return tensor

        logits = bridge.run_with_hooks(torch.tensor([OTHER]), fwd_hooks=[(name, put)])
        byhand = float(logits[0, -1, 8] - logits[0, -1, 11])
        assert float(found.logit_difference[1, head, pos]) == pytest.approx(byhand, abs=1e-5)
    assert (found.effect[:, :, 2:].abs() > 1e-5).any()
    assert found.effect[:, :, :2].abs().max() < 1e-5, "nothing differs there"


def test_in_the_last_layer_only_the_last_position_counts(model):
    bridge = wrap(model())
    found = dcinterp.patch_head_positions(bridge, CLEAN, OTHER, 8, 11, direction="noising")
    whole = dcinterp.patch_heads(bridge, CLEAN, OTHER, 8, 11, direction="noising", sites=["z"])
    assert torch.allclose(found.share[-1, :, -1], whole.share[0, -1], atol=1e-5)
    assert found.effect[-1, :, :-1].abs().max() < 1e-5
    assert found.table()["token"][0] in found.token_pairs()
    with pytest.raises(UserError, match="site"):
        dcinterp.patch_head_positions(bridge, CLEAN, OTHER, 8, 11, site="zz")
