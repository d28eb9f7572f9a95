"""The bridge over image classifiers: the same taps, over patches."""

from pathlib import Path

import pytest
import torch
from transformer_lens import patching

import dcinterp
from dcinterp.bridge import DCBridge, wrap
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.vit import DCViTForImageClassification

SMALL = dict(
    hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=12, patch_size=4
)


def build(name: str = "tiny-dcvit") -> DCViTForImageClassification:
    torch.manual_seed(0)
    model = DCViTForImageClassification(DCFormerConfig.preset(name, **SMALL)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) / p.shape[-1] ** 0.5 if p.dim() > 1 else 1 + 0.3 * torch.randn(p.shape))
    return model


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def run(bridge: DCBridge, images: torch.Tensor) -> torch.Tensor:
    return bridge(pixel_values=images)


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-dcvit"])
def test_wrapping_loading_and_taps(name: str, images: torch.Tensor, tmp_path: Path) -> None:
    raw = build(name)
    raw.save_pretrained(tmp_path)
    bridge = dcinterp.load(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(bridge(images), raw(images).logits, atol=1e-5, rtol=1e-5)
        _, cache = bridge.run_with_cache(images)
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 4, 9, 9)
    assert cache["blocks.1.hook_resid_post"].shape == (2, 9, 32)
    assert ("blocks.1.attn.post.hook_o_kp" in cache) == (name == "tiny-dcvit")


def test_zeroing_a_branch_removes_it(images: torch.Tensor) -> None:
    removed = build()
    with torch.no_grad():
        removed.model.layers[1].self_attn.post.key.up.zero_()
        expected = removed(images).logits
        hook = ("blocks.1.attn.post.hook_o_kp", lambda t, hook: t * 0)
        torch.testing.assert_close(
            wrap(build()).run_with_hooks(images, fwd_hooks=[hook]), expected, atol=1e-5, rtol=1e-5
        )


def test_the_stream_decomposes(images: torch.Tensor) -> None:
    _, cache = wrap(build()).run_with_cache(images)
    parts, _ = cache.decompose_resid(return_labels=True, mode="all")
    torch.testing.assert_close(parts.sum(0), cache["resid_post", 1], atol=1e-4, rtol=1e-4)


def test_patching_a_head(images: torch.Tensor) -> None:
    bridge = wrap(build())
    clean, corrupt = images[:1], images[1:]
    with torch.no_grad():
        _, cache = bridge.run_with_cache(clean)
        scores = patching.get_act_patch_attn_head_out_all_pos(bridge, corrupt, cache, lambda logits: logits[0, 0])
        name = "blocks.1.attn.hook_z"

        def put(z: torch.Tensor, hook: object) -> torch.Tensor:
            z = z.clone()
            z[:, :, 2] = cache[name][:, :, 2]
            return z

        expected = bridge.run_with_hooks(corrupt, fwd_hooks=[(name, put)])[0, 0]
    torch.testing.assert_close(scores[1, 2], expected)


def test_text_processing_is_refused(images: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="does not support compatibility mode"):
        wrap(build()).enable_compatibility_mode()
