"""The mixture of heads against its formula in float64, and its part of the loss."""

from __future__ import annotations

import copy

import pytest
import torch

from dcinterp.model.compose.mixture_of_heads import MixtureOfHeads
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.vit import DCViTForImageClassification
from dcinterp.support.errors import UserError

SIZES = dict(vocab_size=11, hidden_size=24, num_attention_heads=6, num_hidden_layers=2, intermediate_size=16)


def config(**options: object) -> DCFormerConfig:
    return DCFormerConfig(**SIZES, compose="mixture-of-heads", compose_options=options)


def test_the_gates_are_those_of_the_paper() -> None:
    """Two shared heads, and two of the four others."""
    composer = MixtureOfHeads(config(shared=2, kept=0.5)).double()
    for parameter in composer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 3, 24, dtype=torch.float64)
    gates = composer.weights(x, x).w_qg
    assert gates is not None
    for token, found in zip(x[0], gates[0] + 1, strict=True):
        parts = torch.exp(composer.parts.weight @ token)
        shared, routed = (torch.exp(w @ token) for w in (composer.shared.weight, composer.routed.weight))
        second, first = routed.argsort()[-2:].tolist()
        expected = torch.zeros(6, dtype=torch.float64)
        expected[:2] = parts[0] / (parts[0] + parts[1]) * shared / (shared[0] + shared[1])
        for head in (first, second):
            expected[2 + head] = parts[1] / (parts[0] + parts[1]) * routed[head] / routed.sum()
        torch.testing.assert_close(found, expected)


def test_the_loss_asks_for_balance_in_training_alone() -> None:
    torch.manual_seed(0)
    model = DCFormerForCausalLM(config(load_balance=0.5, kept=0.4))
    ids = torch.randint(0, 11, (2, 7))
    inputs: list[torch.Tensor] = []
    for block in model.model.layers:
        block.self_attn.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    plain = model.eval()(ids, labels=ids).loss
    inputs.clear()
    loss = model.train()(ids, labels=ids).loss
    expected = torch.zeros(())
    for block, x in zip(model.model.layers, inputs, strict=True):
        odds = (x.flatten(0, 1) @ block.self_attn.post.routed.weight.T).softmax(-1)
        kept = torch.stack([row >= row.sort().values[-2] for row in odds]).float()
        expected += 0.5 * (kept.mean(0) * odds.mean(0)).sum()
    torch.testing.assert_close(loss - plain, expected, atol=1e-5, rtol=1e-4)
    loss.backward()
    assert model.model.layers[0].self_attn.post.routed.weight.grad.abs().max() > 0
    half = model(ids, labels=ids, num_items_in_batch=torch.tensor(24)).loss  # of two equal parts of a batch
    torch.testing.assert_close(half, loss / 2)
    assert all(block.self_attn.post.extra_loss is None for block in model.model.layers)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_balance_has_a_gradient_under_checkpointing_or_is_refused(reentrant: bool, frozen: bool) -> None:
    """In layers below composers that do not learn, too; alone, parts that it does not depend on learn as ever."""
    torch.manual_seed(0)
    model, ids = DCFormerForCausalLM(config(load_balance=0.5, shared=2)).train(), torch.arange(7)[None]
    composers = [block.self_attn.post for block in model.model.layers]
    for composer in composers if frozen else ():
        composer.requires_grad_(False)
    watched = model.model.layers[0].self_attn.q_proj.weight if frozen else composers[0].routed.weight
    model(ids, labels=ids).loss.backward()
    expected, watched.grad = watched.grad, None
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        with pytest.raises(UserError, match="reentrant gradient checkpointing drops"):
            model(ids, labels=ids)
    else:
        model(ids, labels=ids).loss.backward()
        torch.testing.assert_close(watched.grad, expected)
    with torch.no_grad():
        model(ids, labels=ids)
    model.gradient_checkpointing_disable()
    model.requires_grad_(False)
    composers[1].parts.requires_grad_(True)
    model(ids, labels=ids).loss.backward()
    assert composers[1].parts.weight.grad.abs().max() > 0


def test_a_model_can_be_copied_after_a_step_of_training() -> None:
    model = DCFormerForCausalLM(config(load_balance=0.5)).train()
    model(torch.arange(7)[None])
    twin = copy.deepcopy(model)
    assert model.model.layers[0].self_attn.post.extra_loss is not None
    assert twin.model.layers[0].self_attn.post.extra_loss is None


def test_padding_does_not_count_for_the_balance() -> None:
    torch.manual_seed(0)
    model, ids = DCFormerForCausalLM(config(load_balance=0.5)).train(), torch.randint(1, 11, (3, 7))
    loss = model(ids, labels=ids).loss
    padded, labels = (torch.nn.functional.pad(ids, (0, 5), value=filler) for filler in (0, -100))
    torch.testing.assert_close(model(padded, labels=labels).loss, loss)
    masked = torch.nn.functional.pad(torch.ones_like(ids), (0, 5))
    torch.testing.assert_close(model(padded, attention_mask=masked, labels=labels).loss, loss)
    last = model(ids, labels=ids[:, -3:], logits_to_keep=3)  # labels of the last positions alone say nothing of others
    assert last.loss.isfinite()


def test_a_large_batch_of_half_precision_is_balanced() -> None:
    composer = MixtureOfHeads(config(load_balance=0.5)).half()
    odds = torch.full((64, 1100, 5), 0.2, dtype=torch.float16)
    assert float(composer._imbalance(odds, torch.ones_like(odds), None)) == pytest.approx(0.5 * 5 * 0.2, rel=1e-3)


def test_images_have_the_balance_in_their_loss_too() -> None:
    torch.manual_seed(0)
    sizes = dict(hidden_size=24, num_attention_heads=6, num_hidden_layers=2, intermediate_size=16)
    options = dict(compose="mixture-of-heads", compose_options={"load_balance": 0.5})
    images, model = (
        torch.rand(2, 1, 8, 8),
        DCViTForImageClassification(
            DCViTConfig(**sizes, **options, image_size=8, patch_size=4, num_channels=1, num_labels=3)
        ),
    )
    labels = torch.tensor([0, 2])
    added = model.train()(images, labels=labels).loss - model.eval()(images, labels=labels).loss
    assert float(added.detach()) > 0.1
    assert all(block.self_attn.post.extra_loss is None for block in model.model.layers)
