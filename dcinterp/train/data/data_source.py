"""Which material a run reads: its phases say so, and all of them must agree on one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from dcinterp.model.presets import preset
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import DataSection, Phase, TrainConfig
from dcinterp.train.data.batches import SOURCES, Batches, Material, TaskMaterial
from dcinterp.train.data.images import ImageMaterial
from dcinterp.train.data.text import TextMaterial
from dcinterp.train.data.tokenizer import save_tokenizer
from dcinterp.train.loop.trainer import processes

CONTEXT = 512
"""Tokens that a model of the tasks takes."""


def _tasks(section: DataSection, output: Path) -> Material:
    folder = output / "tokenizer"
    if processes().is_main_process:
        return TaskMaterial(save_tokenizer(folder, CONTEXT))
    return TaskMaterial(PreTrainedTokenizerFast.from_pretrained(folder))


def _text(section: DataSection, output: Path) -> Material:
    material = TextMaterial(section.text)
    assert material.tokenizer is not None
    if processes().is_main_process:
        # Beside the checkpoints, so that each of them can be read while the run goes on.
        material.tokenizer.save_pretrained(output / "tokenizer")
    return material


def _images(section: DataSection, output: Path) -> Material:
    return ImageMaterial(section.images)


MATERIALS: Mapping[str, Callable[[DataSection, Path], Material]] = {"tasks": _tasks, "text": _text, "images": _images}
"""A new material is one function and one line here, and the names of its sources in `material_name`."""


def material_name(phase: Phase) -> str:
    """The material that a phase reads."""
    return "tasks" if phase.source in SOURCES else phase.source


def open_material(config: TrainConfig, output: Path) -> Material:
    """What a run reads.

    Raises:
        UserError: the phases name several materials, or one that the model cannot read.
    """
    names = list(dict.fromkeys(material_name(phase) for phase in config.data.phases))
    if len(names) != 1:
        raise UserError(
            f"The phases read {' and '.join(names) or 'nothing'}; a model has one tokenizer, so choose one."
        )
    classifier = preset(config.model.preset).family in ("vit", "dcvit")
    if classifier != (names[0] == "images"):
        wanted = "tiny-dcvit" if names[0] == "images" else "tiny-dcformer++"
        raise UserError(f"The preset {config.model.preset} does not read {names[0]}; choose one such as {wanted}.")
    return MATERIALS[names[0]](config.data, output)


def with_steps(config: TrainConfig, material: Material) -> TrainConfig:
    """The run with every budget of tokens turned into steps."""
    phases = tuple(
        replace(phase, steps=_steps(phase, config.data.seed, material)) if phase.tokens else phase
        for phase in config.data.phases
    )
    return replace(config, data=replace(config.data, phases=phases))


def _steps(phase: Phase, seed: int, material: Material, probes: int = 20) -> int:
    """Steps that read `phase.tokens`, by the mean of the first batches; text and images need one to know."""
    probes = probes if phase.source in SOURCES else 1
    batches = Batches(DataSection(seed=seed, phases=(replace(phase, steps=probes),)), material)
    tokens = sum(_tokens(batches[step], material) for step in range(probes)) / probes
    return max(1, -(-phase.tokens // round(tokens)))


def _tokens(batch: dict, material: Material) -> int:
    if "pixel_values" in batch:
        return len(batch["pixel_values"])
    assert material.tokenizer is not None
    return int((batch["input_ids"] != material.tokenizer.pad_token_id).sum())
