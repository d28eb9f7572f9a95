"""Small models whose every parameter matters (weights far from their initial values), and of other families."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM


def save_byte_level_tokenizer(folder: Path) -> int:
    """A tokenizer like GPT-2's, trained on texts of the tasks; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    import synthetic_tasks

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [row.prompt for task in ("task2", "task10", "task56") for row in synthetic_tasks.generate(task, 12, seed=0)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=520, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    end = "<|endoftext|>"
    # As GPT-2's: one token opens and ends a text, pads it, and would stand for what is unknown.
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end, unk_token=end
    )
    fast.save_pretrained(folder)
    return len(fast)


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A bridge over a model that is not ours: "gpt2", "llama" (two heads share keys and values) or "neox"."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig
    from transformers import LlamaForCausalLM as Llama

    import dcinterp

    @cache
    def make(family: str) -> Any:
        folder = tmp_path_factory.mktemp(family)
        size = save_byte_level_tokenizer(folder)
        ends = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": size}
        wide = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
        torch.manual_seed(0)
        if family == "gpt2":
            model: Any = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **ends))
        elif family == "llama":
            model = Llama(LlamaConfig(num_key_value_heads=2, max_position_embeddings=64, **wide, **ends))
        else:
            model = GPTNeoXForCausalLM(GPTNeoXConfig(max_position_embeddings=64, **wide, **ends))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=0.3)
        model.save_pretrained(folder)
        return dcinterp.load(folder)

    return make


SMALL = dict(vocab_size=29, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)


def small_config(preset: str = "tiny-dcformer++", **changes: object) -> DCFormerConfig:
    return DCFormerConfig.preset(preset, **(SMALL | {"max_position_embeddings": 40} | changes))


@torch.no_grad()
def stir(module: torch.nn.Module, seed: int = 0) -> None:
    """Random values for every parameter, large enough that a branch left out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        fan_in = parameter.shape[-1] if parameter.dim() > 1 else 1
        gain = name.endswith("norm.weight")
        parameter.copy_(1 + 0.3 * noise if gain else noise * (1.0 if parameter.dim() > 1 else 0.3) / fan_in**0.5)


@pytest.fixture
def config() -> Callable[..., DCFormerConfig]:
    return small_config


@pytest.fixture
def model() -> Callable[..., DCFormerForCausalLM]:
    def build(
        preset: str = "tiny-dcformer++", dtype: torch.dtype = torch.float64, seed: int = 0, **changes: object
    ) -> DCFormerForCausalLM:
        built = DCFormerForCausalLM(small_config(preset, **changes)).to(dtype).eval()
        stir(built, seed)
        return built

    return build
