"""The model card that `save_pretrained` writes beside a model that has none."""

from __future__ import annotations

from pathlib import Path

from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.support.whole_files import name_to_be

PIXELS = """It reads pixels from -1 to 1: bytes divided by 127.5, minus 1.

"""

EMPTY_CARD = "This is the model card of a 🤗 transformers model"
"""A sentence of the card that transformers makes for a repository without one."""


def write_card(config: DCFormerConfig, parameters: int, folder: str | Path) -> None:
    """Write README.md into `folder`, unless it has one: what the model is, how to load it, what it is not."""
    path = Path(folder) / "README.md"
    if not path.exists():
        path.write_text(card(config, parameters, name_to_be(path.parent.resolve())), encoding="utf-8")


def write_card_of_hub(config: DCFormerConfig, parameters: int, folder: str | Path, repository: str) -> None:
    """Write README.md into a folder that is about to go to the hub, in the place of the empty card of transformers."""
    path = Path(folder) / "README.md"
    if not path.exists() or EMPTY_CARD in path.read_text(encoding="utf-8"):
        path.write_text(card(config, parameters, repository.rpartition("/")[2], repository), encoding="utf-8")


def card(config: DCFormerConfig, parameters: int, name: str, place: str = "") -> str:
    """The text of the card; `place` is what the model is loaded from, if that is known."""
    place = place or f"path/to/{name}"
    images = isinstance(config, DCViTConfig)
    return f"""---
library_name: transformers
pipeline_tag: {"image-classification" if images else "text-generation"}
tags:
- dcformer
- dcmha
- interpretability
---

# {name}

{_sentence(config, images)} {parameters:,} parameters.

| | |
|---|---|
| layers, width, heads | {config.num_hidden_layers}, {config.hidden_size}, {config.heads_in_words} |
| {_size_row(config)} |
| norm, MLP, positions | {config.norm_type}, {config.mlp_type} ({config.intermediate_size}), {config.position_type} |
| composition | {_composition(config)} |
| attention windows | {_windows(config)} |

## Use

```python
import dcinterp

model = dcinterp.load("{place}")        # with a hook on every branch of the composition
```

```python
import dcinterp.model.{"vit" if images else "decoder"}  # registers the architecture
from transformers import {"AutoModelForImageClassification" if images else "AutoModelForCausalLM"}

model = {"AutoModelForImageClassification" if images else "AutoModelForCausalLM"}.from_pretrained("{place}")
```

{PIXELS if images else ""}## Limits

This card was written when the model was saved and knows only its configuration: what it was trained on, how well it
does and what it must not be used for has to be added by whoever trained it. Attention matrices after composition are
signed and their rows do not sum to one.

## Source

Xiao, Meng, Li, Yuan: Improving Transformers with Dynamically Composable Multi-Head Attention (ICML 2024),
arXiv:2405.08553.
"""


def _sentence(config: DCFormerConfig, images: bool) -> str:
    kind = "image classifier" if images else "causal language model"
    if not config.stages:
        return f"A plain transformer, {kind}: its attention heads work independently."
    composer = composer_class(config.compose)
    return f"A DCFormer, {kind}: its attention heads are composed {composer.how or f'by {composer.name!r}'}."


def _size_row(config: DCFormerConfig) -> str:
    if isinstance(config, DCViTConfig):
        return f"image, patch, classes | {config.image_size}, {config.patch_size}, {config.num_labels}"
    return f"vocabulary, context | {config.vocab_size}, {config.max_position_embeddings}"


def _composition(config: DCFormerConfig) -> str:
    if not config.stages:
        return "none"
    skip = "" if config.compose_skip else ", without skip"
    stages = " and ".join(config.stages)
    return f"{config.compose}, {stages}-softmax: {composer_class(config.compose).in_words(config)}{skip}"


def _windows(config: DCFormerConfig) -> str:
    return ", ".join("all" if window is None else str(window) for window in config.attention_windows)
