"""What the header of a GGUF file says of a model's arithmetic, held against the config that transformers makes of it.

transformers knows a part of the header's keys, and another part for each architecture; for what it does not know the
default of the architecture stands, and the logits are of another model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

OF_CONFIG = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys of the header and what configs call them."""

SCALES = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")
NORMS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")


def complete_config(config: Any, header: Mapping[str, Any]) -> None:
    """Set what the header says and transformers leaves at its default, where the config has a place for it.

    header: by keys without the name of the architecture.
    """
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None)
    if isinstance(rotary, dict) and "rope_theta" in rotary:
        if base := header.get("rope.freq_base"):
            rotary["rope_theta"] = float(base)
        width = header.get("rope.dimension_count")
        whole = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if width and "partial_rotary_factor" in rotary:
            rotary["partial_rotary_factor"] = width / whole
    for key, name in (("context_length", "max_position_embeddings"), *OF_CONFIG.items()):
        if header.get(key) and hasattr(text, name):
            setattr(text, name, header[key])


def require_settings(model: Any, header: Mapping[str, Any], file: str) -> None:
    """Refuse a model that does not compute what the header of its file says.

    Raises:
        UserError: the message names the key.
    """
    text = model.config.get_text_config()
    named = list(_numbers(text.to_dict()))
    numbers = [value for _, value in named]
    thetas = [value for name, value in named if name == "rope_theta"]
    widths = [2 * module.inv_freq.shape[-1] for module in model.modules() if hasattr(module, "inv_freq")]
    norms = [value for name, value in named if "eps" in name]
    may = {"rope.freq_base": thetas, "rope.dimension_count": widths} | {key: norms for key in NORMS}
    may |= {key: [*numbers, *(1 / value for value in numbers if value)] for key in SCALES}
    may |= {key: [getattr(text, name, None)] for key, name in OF_CONFIG.items()}
    if header.get("attention.sliding_window", 0) >= header.get("context_length", math.inf):
        del may["attention.sliding_window"]  # no query is so far from a key
    for key, values in may.items():
        if not values or not (asked := header.get(key)):
            continue
        if not any(each is not None and math.isclose(each, asked, rel_tol=1e-4) for each in values):
            raise UserError(
                f"{file} sets {key} to {shown(asked, 20)}, which transformers does not read from GGUF files of this "
                "kind, so its logits would be wrong; open the model in its original format, a folder with config.json "
                "and safetensors."
            )


def _numbers(fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of all numbers of a config, also of those that stand in groups."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
