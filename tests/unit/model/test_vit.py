"""Image classifiers: the same attention without a mask."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.vit import DCViTForImageClassification
from dcinterp.support.errors import UserError

SMALL = dict(
    hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=12, patch_size=4
)


def build(name: str = "tiny-dcvit", seed: int = 0, **changes: object) -> DCViTForImageClassification:
    torch.manual_seed(seed)
    model = DCViTForImageClassification(DCFormerConfig.preset(name, **(SMALL | changes))).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) / p.shape[-1] ** 0.5 if p.dim() > 1 else 1 + 0.3 * torch.randn(p.shape))
    return model


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def test_patches_are_cut_row_by_row() -> None:
    embeddings = build().model.embeddings
    x = images()
    got = embeddings(x)
    assert got.shape == (2, 9, 32)
    patch = x[:, :, 4:8, 8:12]  # second row, third column: number 5
    weight, bias = embeddings.projection.weight, embeddings.projection.bias
    expected = torch.einsum("bchw,dchw->bd", patch, weight) + bias + embeddings.positions[5]
    torch.testing.assert_close(got[:, 5], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["tiny-vit", "tiny-dcvit"])
def test_every_patch_sees_every_other(name: str) -> None:
    model, x = build(name), images(1)
    with torch.no_grad():
        before = model.model(x, output_attentions=True)
        x[:, :, -1, -1] += 1  # the last patch
        after = model.model(x).last_hidden_state
    assert ((before.last_hidden_state - after).abs().amax(-1) > 1e-6).all()
    assert before.attentions[0].shape == (1, 4, 9, 9)
    if name == "tiny-vit":
        torch.testing.assert_close(before.attentions[0].sum(-1), torch.ones(1, 4, 9))


def test_patches_without_positions_are_a_set() -> None:
    """With equal positions, permuting the patches permutes nothing that the mean sees: there is no mask."""
    model = build()
    x = images(1)
    shuffled = x.clone()
    shuffled[:, :, :4], shuffled[:, :, 4:8] = x[:, :, 4:8], x[:, :, :4]
    with torch.no_grad():
        assert (model(x).logits - model(shuffled).logits).abs().max() > 1e-4
        model.model.embeddings.positions.zero_()
        torch.testing.assert_close(model(x).logits, model(shuffled).logits, atol=1e-5, rtol=1e-5)


def test_save_load_and_auto_class(tmp_path: Path) -> None:
    model = build(num_labels=7)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(again, DCViTForImageClassification)
    assert again.config.num_labels == 7
    with torch.no_grad():
        assert torch.equal(again(images()).logits, model(images()).logits)


def test_trainer_accepts_image_classifiers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DCViTForImageClassification(DCFormerConfig.preset("tiny-dcvit", **SMALL))
    rows = [{"pixel_values": torch.full((3, 12, 12), i / 10), "labels": i} for i in range(10)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=15,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_is_the_same_in_however_many_parts(tmp_path: Path, parts: int) -> None:
    torch.manual_seed(0)
    model = DCViTForImageClassification(DCFormerConfig.preset("tiny-dcvit", **SMALL))
    rows = [{"pixel_values": torch.full((3, 12, 12), i / 8), "labels": i} for i in range(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        learning_rate=0.0,
        per_device_train_batch_size=8 // parts,
        gradient_accumulation_steps=parts,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    pixels, labels = torch.stack([row["pixel_values"] for row in rows]), torch.arange(8)
    assert loss == pytest.approx(float(model(pixels, labels=labels).loss.detach()), rel=1e-3)


def test_outputs_of_images_are_asked_for_as_in_transformers() -> None:
    model = build()
    model.config.output_hidden_states = True
    asked = model(images(), output_attentions=True)
    assert len(asked.hidden_states) == model.config.num_hidden_layers + 1
    assert len(asked.attentions) == model.config.num_hidden_layers
    logits, *_ = model(images(), return_dict=False)
    torch.testing.assert_close(logits, asked.logits)
    model.config.return_dict = False
    torch.testing.assert_close(model(images())[0], asked.logits)
    with pytest.raises(UserError, match="problem_type is 'regression'"):
        build(problem_type="regression")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(image_size=30, patch_size=4), "image_size 30 does not divide into patches of 4; choose a multiple"),
        (dict(patch_size=0), "patch_size is 0"),
        (dict(position_type="rotary"), "Patches have no order"),
        (dict(attention_windows=(3,)), "Patches have no order"),
    ],
)
def test_a_wrong_image_config_is_one_sentence(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DCViTConfig(**changes)


def test_an_image_of_another_size_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"images are \(3, 16, 16\) .*, but this model takes \(3, 12, 12\); resize them"
    ):
        build()(torch.zeros(1, 3, 16, 16))


def test_the_text_config_knows_no_images() -> None:
    with pytest.raises(ValueError, match="no field 'image_size'"):
        DCFormerConfig(image_size=32)


def test_layers_that_read_the_scores_of_others_get_them() -> None:
    model = build(compose="dense-collaboration")
    logits = model(images()).logits
    for parameter in model.model.layers[0].self_attn.pre.parameters():
        parameter.data.mul_(2)
    assert (model(images()).logits - logits).abs().max() > 1e-3


def test_a_model_in_half_precision_takes_ordinary_pixels() -> None:
    model = build().to(torch.bfloat16)
    assert torch.equal(model(images()).logits, model(images().to(torch.bfloat16)).logits)
