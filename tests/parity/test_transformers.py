"""Transformers' own models with the same weights, and its Trainer, generation and Auto classes with ours."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import dcinterp
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

SHAPE = dict(vocab_size=53, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)


@torch.no_grad()
def stir(model: torch.nn.Module) -> None:
    g = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        p.copy_(1 + 0.3 * noise if name.endswith("norm.weight") else noise / p.shape[-1] ** 0.5)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 53, (2, 17), generator=torch.Generator().manual_seed(1))


def test_transformer_plus_plus_is_llama(ids: torch.Tensor) -> None:
    theirs = LlamaForCausalLM(
        LlamaConfig(intermediate_size=128, rms_norm_eps=1e-6, attn_implementation="eager", **SHAPE)
    ).eval()
    stir(theirs)
    ours = DCFormerForCausalLM(DCFormerConfig.preset("tiny-transformer++", intermediate_size=128, **SHAPE)).eval()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=0)
        ours_loss, their_loss = ours(ids, labels=ids).loss, theirs(ids, labels=ids).loss
    torch.testing.assert_close(ours_loss, their_loss, atol=1e-6, rtol=0)


@pytest.mark.parametrize("parallel", [True, False])
def test_pythia_is_gpt_neox(parallel: bool, ids: torch.Tensor) -> None:
    theirs = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            intermediate_size=192,
            use_parallel_residual=parallel,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            attn_implementation="eager",
            **SHAPE,
        )
    ).eval()
    stir(theirs)
    changes = dict(intermediate_size=192, use_parallel_residual=parallel, rotary_fraction=0.5, **SHAPE)
    ours = DCFormerForCausalLM(DCFormerConfig.preset("tiny-pythia", **changes)).eval()
    renamed = {
        "gpt_neox.embed_in": "model.embed_tokens",
        "gpt_neox.final_layer_norm": "model.norm",
        "gpt_neox.layers": "model.layers",
        "attention.dense.": "self_attn.o_proj.",
        "mlp.dense_h_to_4h": "mlp.up_proj",
        "mlp.dense_4h_to_h": "mlp.down_proj",
        "embed_out": "lm_head",
    }
    state = {}
    for name, tensor in theirs.state_dict().items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        if "query_key_value" in name:  # per head: its query rows, its key rows, its value rows
            for part, rows in zip("qkv", tensor.unflatten(0, (4, 3, 12)).unbind(1), strict=True):
                state[name.replace("attention.query_key_value", f"self_attn.{part}_proj")] = rows.flatten(0, 1)
        else:
            state[name] = tensor
    ours.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=0)


def test_the_auto_classes_find_our_models(tmp_path: Path, ids: torch.Tensor) -> None:
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", **SHAPE)).eval()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), DCFormerConfig)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, dcinterp.DCFormerForCausalLM)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_trainer_accepts_our_models(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", **(SHAPE | {"num_hidden_layers": 1})))
    rows = [{"input_ids": torch.arange(i, i + 9) % 53, "labels": torch.arange(i, i + 9) % 53} for i in range(16)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
        gradient_checkpointing=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5
    assert trainer.evaluate()["eval_loss"] < losses[0]
    trainer.save_model()
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path), DCFormerForCausalLM)


def test_generation_stops_at_the_end_token(ids: torch.Tensor) -> None:
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", **SHAPE)).eval()
    stir(model)
    free = model.generate(ids[:1], max_new_tokens=6, do_sample=False)
    end = int(free[0, 19])
    stopped = model.generate(ids[:1], max_new_tokens=6, do_sample=False, eos_token_id=end, pad_token_id=0)
    length = free[0, 17:].tolist().index(end) + 1
    assert torch.equal(stopped, free[:, : 17 + length])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(dtype: torch.dtype, ids: torch.Tensor) -> None:
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", **SHAPE)).eval()
    with torch.no_grad():
        full, half = model(ids).logits, model.to(dtype)(ids).logits
    assert half.dtype == dtype
    assert (full - half.float()).abs().max() < 0.05 * full.abs().max()


def test_the_auto_classes_know_our_names_before_our_classes_register(monkeypatch):
    """The tables alone, as they are when nothing of ours was imported; private names of transformers are in them."""
    from transformers.models.auto import configuration_auto, modeling_auto

    import dcinterp.model.vit  # noqa: F401
    from dcinterp.model import auto_classes

    auto_classes.register_lazily()
    configs = configuration_auto.CONFIG_MAPPING
    monkeypatch.setattr(configs, "_extra_content", {})
    for kind, names in auto_classes.TYPES.items():
        config = configs[kind]
        assert (config.__name__, config.model_type) == (names["CONFIG_MAPPING"], kind)
        for table, name in names.items():
            if table != "CONFIG_MAPPING":
                lazy = getattr(modeling_auto, table)
                assert config in lazy._extra_content, "a class that does not register itself"
                monkeypatch.delitem(lazy._extra_content, config)
                assert config in lazy
                assert lazy[config].__name__ == name
