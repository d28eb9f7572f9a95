"""GGUF files, as llama.cpp writes them: described by their header, and read by transformers.

The weights of most such files are quantized. transformers turns them into ordinary numbers (dcinterp always takes
float32, or what `dtype` says), so the model in memory is several times larger than the file.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from dcinterp.checkpoints.gguf_header import Header, layer_biases, require_header
from dcinterp.checkpoints.gguf_settings import complete_config, require_settings
from dcinterp.support.errors import UserError, reason
from dcinterp.support.json_files import require_plain_file
from dcinterp.support.pretrained import WITHOUT_CODE, read_pretrained
from dcinterp.support.progress import without_bars

IN_LAYER = re.compile(r"\.\d+\..*\.bias$")
"""The name of a bias of a layer, in a model of transformers."""


def require_gguf(file: Path) -> Header:
    """What the header of a GGUF file says, which is held against the file.

    Raises:
        UserError: the package is missing that reads such files, or this is none, or a damaged one.
    """
    require_plain_file(file)
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise UserError(f"{file} does not begin as a GGUF file does; copy or download it again.")
    if find_spec("gguf") is None:
        raise UserError(f"Reading {file.name} takes the package gguf; install it with: pip install 'dcinterp[gguf]'")
    from gguf import GGML_QUANT_SIZES, TENSOR_NAMES, GGMLQuantizationType

    def octets_of(kind: int, entries: int) -> int:
        block, octets = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return entries // block * octets

    return require_header(file, octets_of, TENSOR_NAMES.values())


def read_gguf(file: Path, dtype: torch.dtype | None) -> Any:
    """The model in a GGUF file, as transformers makes it; float32 unless `dtype` says otherwise.

    Raises:
        UserError: the package gguf is missing, the file is damaged, or transformers does not know its architecture.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    header = require_gguf(file)
    given = layer_biases(header.tensors)
    try:
        with without_bars():
            config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, **WITHOUT_CODE)
            complete_config(config, header.settings)
            model: Any = read_pretrained(
                AutoModelForCausalLM,
                file.parent,
                config=config,
                gguf_file=file.name,
                dtype=dtype or torch.float32,
                attn_implementation="eager",
                local_files_only=True,
            )
    except UserError as error:
        raise UserError(f"{file} is not whole: {error}") from error
    except Exception as error:  # the reader raises whatever the bytes of a damaged file lead it to
        raise UserError(f"{file} is damaged, or of a kind that transformers does not read: {reason(error)}.") from error
    if len(given) > sum(bool(IN_LAYER.search(name)) for name, _ in model.named_parameters()):
        raise UserError(
            f"{file} has biases (such as {given[0]}) for which transformers has no place in a model of type "
            f"{model.config.model_type}, so its logits would be wrong; open the model in its original format, a folder "
            "with config.json and safetensors."
        )
    require_settings(model, header.settings, file.name)
    # The numbers are no longer quantized; with the mark of it, nobody could move, cast or save the model.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    return model.eval()


def read_gguf_tokenizer(file: Path) -> Any:
    """The tokenizer in a GGUF file; None if transformers cannot make one of what the file holds."""
    from transformers import AutoTokenizer

    require_gguf(file)
    try:
        return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, **WITHOUT_CODE)
    except Exception:  # as above
        return None


def gguf_facts(file: Path) -> tuple[dict[str, Any], int, str]:
    """(fields as a config.json names them, number of parameters, name of the type most are stored as), from the header.

    Raises:
        UserError: the package gguf is missing, or the file is damaged.
    """
    require_gguf(file)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(str(file))
        kind = str(reader.fields["general.architecture"].contents())
        fields: dict[str, Any] = {"model_type": kind}
        for theirs, ours in HEADER.items():
            if (field := reader.fields.get(f"{kind}.{theirs}")) is not None:
                fields[ours] = field.contents()
        embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
        fields.setdefault("vocab_size", int(embedding.shape[-1]))
        counts = {t.name: int(t.n_elements) for t in reader.tensors}
        largest = max((t for t in reader.tensors if t.name != "token_embd.weight"), key=lambda t: int(t.n_elements))
    except Exception as error:  # as above
        raise UserError(f"{file} is damaged ({reason(error)}); copy or download it again.") from error
    return fields, sum(counts.values()), largest.tensor_type.name


HEADER = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
"""Keys of the header, after the name of the architecture, and what a config.json calls them."""
