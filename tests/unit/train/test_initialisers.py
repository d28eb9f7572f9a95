"""Every initialiser has the standard deviation that it claims, and every parameter learns from the first steps on."""

from __future__ import annotations

import math

import pytest
import torch

from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.train.loop.trainer import compose_parameters

WIDTH, HEADS, RANK, LAYERS = 256, 16, 2, 2


def model(preset="tiny-dcformer++", **changes):
    torch.manual_seed(0)
    fields = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": 500}
    return build_model(DCFormerConfig.preset(preset, **(fields | changes)))


def together(made, ending: str) -> torch.Tensor:
    found = [p.detach().flatten() for n, p in made.named_parameters() if n.endswith(ending)]
    assert found, ending
    return torch.cat(found)


def xavier(inputs: int, outputs: int) -> float:
    return math.sqrt(2 / (inputs + outputs))


INNER = 2 * HEADS * RANK


@pytest.mark.parametrize(
    ("ending", "std"),
    [
        ("query.down.weight", xavier(WIDTH, INNER)),
        ("key.down.weight", xavier(WIDTH, INNER)),
        ("query.up", 0.02 / (math.sqrt(INNER) * (HEADS + RANK))),
        ("key.up", 0.02 / (math.sqrt(INNER) * (HEADS + RANK))),
        ("query.gate.weight", 0.05 * xavier(WIDTH, HEADS)),
        ("key.gate.weight", 0.05 * xavier(WIDTH, HEADS)),
        ("static.weight", xavier(HEADS, HEADS)),
        ("q_proj.weight", 0.02),
        ("o_proj.weight", 0.02),
        ("up_proj.weight", 0.02),
        ("embed_tokens.weight", 0.02),
        ("lm_head.weight", 0.02),
    ],
)
def test_standard_deviations_of_the_paper(ending, std):
    plain = {"initializer_range": 0.02, "embedding_initializer_range": None, "depth_scaled_init": False}
    values = together(model(compose_static=True, **plain), ending)
    # Four standard errors of the standard deviation of so many normal numbers.
    tolerance = 4 / math.sqrt(2 * len(values))
    assert float(values.std()) == pytest.approx(std, rel=tolerance)
    assert abs(float(values.mean())) < 4 * std / math.sqrt(len(values))


def test_groups_have_the_width_of_a_group():
    groups = 4
    size = HEADS // groups
    values = together(model(compose_groups=groups), "query.up")
    std = 0.02 / (math.sqrt(2 * size * RANK) * (size + RANK))
    assert float(values.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * len(values)))
    values = together(model(compose_groups=groups), "query.down.weight")
    assert float(values.std()) == pytest.approx(xavier(WIDTH, 2 * size * RANK), rel=4 / math.sqrt(2 * len(values)))


def test_tiny_presets_scale_with_width_and_depth():
    made = model()
    for ending, std in [
        ("embed_tokens.weight", 1.0),
        ("q_proj.weight", 0.088),
        ("o_proj.weight", 0.088 / math.sqrt(2 * LAYERS)),
        ("down_proj.weight", 0.088 / math.sqrt(2 * LAYERS)),
    ]:
        values = together(made, ending)
        padding = 1 - 1 / 500 if ending.startswith("embed") else 1
        assert float(values.std()) == pytest.approx(std * math.sqrt(padding), rel=0.01), ending


@pytest.mark.parametrize(
    "preset", ["tiny-dcformer", "tiny-dcformer++", "tiny-dcpythia", "tiny-dcvit", "tiny-transformer++"]
)
def test_every_parameter_has_a_gradient_in_the_first_steps(preset):
    """At the paper's initialisation, for ten steps: no branch of the composition is dead or dies."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    images = preset.endswith("vit")
    made = build_model(
        DCFormerConfig.preset(preset, **(sizes | ({} if images else {"vocab_size": 30}) | {"initializer_range": 0.02}))
    )
    ids = torch.randint(0, 30, (6, 12))
    batch = (
        {"pixel_values": torch.randn(6, 3, 32, 32), "labels": torch.arange(6)}
        if images
        else {"input_ids": ids, "labels": ids}
    )
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3, betas=(0.9, 0.95))
    before = {name: parameter.detach().clone() for name, parameter in made.named_parameters()}
    for _ in range(10):
        optimizer.zero_grad()
        made(**batch).loss.backward()
        for name, parameter in made.named_parameters():
            assert parameter.grad is not None, name
            # Keys' biases shift every score of a query alike, so softmax alone would not see them.
            if not (name.endswith("k_proj.bias") and preset == "tiny-transformer"):
                assert float(parameter.grad.abs().max()) > 0, name
        optimizer.step()
    for name, parameter in made.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert bool(compose_parameters(made)) == ("dc" in preset)
