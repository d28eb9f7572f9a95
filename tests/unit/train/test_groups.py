"""Composition within groups never mixes them, so each group can live on a device of its own (docs/training.md)."""

from __future__ import annotations

from dataclasses import replace

import torch

import dcinterp
from dcinterp.model.attention import ComposedAttention
from dcinterp.model.compose.branches import ComposeWeights, compose

GROUPS, HEADS, WIDTH, LENGTH = 2, 6, 48, 7


def attention() -> ComposedAttention:
    torch.manual_seed(0)
    config = dcinterp.DCFormerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, compose_groups=GROUPS, compose_static=True, compose_rank=2
    )
    made = ComposedAttention(config, 0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def shard(w: ComposeWeights, heads: slice) -> ComposeWeights:
    """The weights of one group alone: what its device would hold."""
    cut = w.with_dynamic(lambda name, weight: weight[..., heads])
    return replace(cut, static=w.static[heads, heads], groups=1)


def test_each_group_is_computed_from_its_own_heads_and_weights():
    module, x = attention(), torch.randn(2, LENGTH, WIDTH)
    a = torch.randn(2, HEADS, LENGTH, LENGTH)
    weights = module.post.weights(x, x)
    whole = compose(a, weights)
    size = HEADS // GROUPS
    for group in range(GROUPS):
        heads = slice(group * size, (group + 1) * size)
        torch.testing.assert_close(compose(a[:, heads], shard(weights, heads)), whole[:, heads])


def test_no_gradient_crosses_from_one_group_to_another():
    """Values apart, nothing that belongs to the heads of one group moves what another group reads."""
    module, x = attention(), torch.randn(2, LENGTH, WIDTH)
    size = HEADS // GROUPS
    per_head = module.attend(*module.project(x), x, x, None, None)[0]  # [batch, head, query, d_head]
    per_head[:, :size].square().sum().backward()
    d_head, inner = WIDTH // HEADS, 2 * size * 2
    for name in ("q_proj", "k_proj", "v_proj"):
        gradient = getattr(module, name).weight.grad
        assert gradient[: size * d_head].abs().sum() > 0
        assert gradient[size * d_head :].abs().max() == 0
    for stage in (module.pre, module.post):
        assert stage.static.weight.grad[1].abs().max() == 0
        for side in (stage.query, stage.key):
            assert side.up.grad[0].abs().sum() > 0
            assert side.up.grad[1].abs().max() == 0
            assert side.down.weight.grad[inner:].abs().max() == 0
            assert side.gate.weight.grad[size:].abs().max() == 0
