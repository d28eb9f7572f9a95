"""The run that a person gets who names a text, or images, and nothing else: minutes on a laptop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

STEPS = 1000


def text_run(text: str = "") -> dict[str, Any]:
    """Keys and values of a run that trains a tiny DCFormer++ on the bytes of a text.

    Args:
        text: a file or a folder; Python's standard library when empty.
    """
    return {
        "output": f"runs/{Path(os.path.realpath(text)).stem or 'text'}" if text else "runs/standard-library",
        "model": {"preset": "tiny-dcformer++", "changes": {"num_hidden_layers": 2}},
        "data": {
            "text": {"path": text, "tokenizer": "bytes", "context": 128},
            "phases": [{"source": "text", "steps": STEPS, "batch_size": 8}],
        },
        "recipe": {"learning_rate": 2e-3, "warmup_fraction": 0.05},
        "evaluation": {"every": 100},
        "save_every": 250,
    }


def image_run(images: str = "") -> dict[str, Any]:
    """Keys and values of a run that trains a tiny DCViT to tell images apart.

    Args:
        images: a folder with a subfolder per class; scikit-learn's handwritten digits when empty.
    """
    return {
        "output": f"runs/{Path(os.path.realpath(images)).stem}" if images else "runs/digits",
        "model": {"preset": "tiny-dcvit", "changes": {"num_hidden_layers": 2, "hidden_size": 64}},
        "data": {
            "images": {"path": images},
            "phases": [{"source": "images", "steps": STEPS, "batch_size": 64}],
        },
        "recipe": {"learning_rate": 1e-3},
        "evaluation": {"every": 100, "validation_rows": 256},
        "save_every": 250,
    }


def apply_data_flags(tree: dict[str, Any], text: str | None, images: str | None) -> dict[str, Any]:
    """A run's keys and values, with text or images put in; the default run when the tree is empty.

    Raises:
        UserError: both are given, or no phase of the config reads what is given.
    """
    if text is not None and images is not None:
        raise UserError("Give --text or --images, not both; a model reads one of them.")
    if not tree:
        return image_run(images) if images is not None else text_run(text or "")
    for name, path in (("text", text), ("images", images)):
        if path is not None:
            data = _section(tree, "data")
            _section(data, name, "data.")["path"] = path
            phases = data.get("phases", [])
            phases = [phases] if isinstance(phases, dict) else phases
            if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
                continue  # which is refused as in a run without the flag
            if all(phase.get("source", "tasks") != name for phase in phases):
                raise UserError(f"The config has no phase with `source: {name}`; add one, or leave out --{name}.")
    return tree


def _section(tree: dict[str, Any], key: str, place: str = "") -> dict[str, Any]:
    """A section of a config, which is made where it is not there, or nothing stands under it."""
    if tree.get(key) is None:
        tree[key] = {}
    section = tree[key]
    if not isinstance(section, dict):
        raise UserError(f"{place}{key} must hold keys and values, not {shown(section)}.")
    return section
