"""Other people's models: the cache warns where it would leave out a norm's gain."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dcinterp
from dcinterp.bridge import GainWarning, TransformerBridge


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
def test_norms_of_parts_warn_until_their_gain_is_folded(own_model: Callable[[str], Path], shape: str) -> None:
    bridge = dcinterp.load(own_model(shape))
    assert isinstance(bridge, TransformerBridge)
    with torch.no_grad():  # a trained model's gains are not 1
        bridge.ln_final.original_component.weight.mul_(torch.linspace(0.5, 2, bridge.cfg.d_model))
    ids = torch.tensor([[5, 6, 7]])
    logits, cache = bridge.run_with_cache(ids)
    with pytest.warns(GainWarning, match=r"without the norm's gain.*call enable_compatibility_mode\(\)"):
        wrong = cache.decompose_resid(apply_ln=True).sum(0) @ bridge.W_U
    assert not torch.allclose(wrong, logits, atol=1e-2)
    bridge.enable_compatibility_mode(disable_warnings=True)
    logits, cache = bridge.run_with_cache(ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GainWarning)
        right = cache.decompose_resid(apply_ln=True).sum(0) @ bridge.W_U + bridge.b_U
    torch.testing.assert_close(right, logits, atol=1e-4, rtol=1e-4)
