"""Small wrapped models with weights far from their initial values, and a tokenizer of words."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dcinterp.bridge import DCBridge, wrap
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

WORDS = "Ruth has a lime . Karen pear dog John kind of fruit animal < > the is not and with".split()


@torch.no_grad()
def stir(model: torch.nn.Module, seed: int = 0) -> None:
    """Random values for every parameter, large enough that a branch left out shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.copy_(1 + 0.3 * noise if name.endswith("norm.weight") else 0.3 * noise)


def build(preset: str = "tiny-dcformer++", seed: int = 0, **changes: object) -> DCFormerForCausalLM:
    small = dict(vocab_size=29, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)
    model = DCFormerForCausalLM(DCFormerConfig.preset(preset, **(small | {"max_position_embeddings": 40} | changes)))
    stir(model, seed)
    return model.eval()


@pytest.fixture
def raw() -> Callable[..., DCFormerForCausalLM]:
    """Builds an unwrapped model; the same arguments give the same weights."""
    return build


@pytest.fixture
def bridge() -> Callable[..., DCBridge]:
    return lambda *args, **kwargs: wrap(build(*args, **kwargs))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a word tokenizer, as training leaves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("saved") / "tiny"
    names = ["<pad>", "<unk>", "<bos>", "<eos>", *WORDS]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.save_pretrained(path)
    build(pad_token_id=0, eos_token_id=3).save_pretrained(path)
    return path


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 29, (2, 7), generator=torch.Generator().manual_seed(5))
