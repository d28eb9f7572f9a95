"""Opens the data source of a run: its phases name it, and all of them must name the same one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from dcinterp.model.presets import preset
from dcinterp.support.errors import UserError
from dcinterp.support.vocabulary import ends_texts
from dcinterp.train.config.recipe import DataSection, Phase, TrainConfig
from dcinterp.train.data.batches import SOURCES, Batches, DataSource, TaskSource, is_no_padding
from dcinterp.train.data.images import ImageSource
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.task_choice import sides_of
from dcinterp.train.data.text import TextSource
from dcinterp.train.data.tokenizer import save_tokenizer, write_tokenizer
from dcinterp.train.loop.trainer import processes

CONTEXT = 512
"""Tokens that a model of the tasks takes."""


LONGEST_OF = 16
"""Documents of which the longest stands for all of its kind."""

MOST_UNKNOWN = 0.5
SOME_UNKNOWN = 0.01
"""Shares of unknown words in a text: it is refused, and a warning is given."""

Tokenizer = PreTrainedTokenizerFast | None

log = logging.getLogger(__name__)


def _tasks(section: DataSection, output: Path, words: Tokenizer) -> DataSource:
    sides = sides_of(section)
    folder = output / "tokenizer"
    made = processes().is_main_process
    tokenizer = save_tokenizer(folder, CONTEXT) if made else PreTrainedTokenizerFast.from_pretrained(folder)
    if words is not None and words.get_vocab() != tokenizer.get_vocab():
        raise UserError(
            "The model to start from does not read the words of the tasks as tokens; train it on text (--text), or "
            "start from a model that was trained on the tasks."
        )
    return TaskSource(tokenizer, sides)


def _text(section: DataSection, output: Path, words: Tokenizer) -> DataSource:
    data_source = TextSource(section.text, words, output)
    assert data_source.tokenizer is not None
    if words is not None:
        _require_words(data_source, section)
    else:
        _warn_of_spelt(data_source, section)
    if processes().is_main_process:
        # Beside the checkpoints, so that each of them can be read while the run goes on.
        write_tokenizer(data_source.tokenizer, output / "tokenizer")
    return data_source


def _require_words(data_source: TextSource, section: DataSection) -> None:
    """Refuse a text that its tokenizer, that of the model which a run starts from, mostly cannot read.

    A model would learn to say that a word is unknown, at a loss that says nothing of the text.

    Raises:
        UserError: more than half of the text is unknown words.
    """
    tokenizer = data_source.tokenizer
    assert tokenizer is not None
    unknown = tokenizer.unk_token_id
    if unknown is None or ends_texts(tokenizer):
        return  # GPT-2's is the end of a text, too, and its bytes read everything
    share = float((data_source.rows["train"] == unknown).mean())
    text = section.text.path or section.text.dataset or "this text"
    if share > MOST_UNKNOWN:
        raise UserError(
            f"{share:.1%} of the tokens of {text} are words that the model to start from does not know; start from a "
            "model that reads such text (dcformer++-code reads any), or train a new one on it, without a start."
        )
    if share > SOME_UNKNOWN:
        log.warning(
            "%.1f%% of the tokens of %s are words that the model to start from does not know: losses and bits a byte "
            "are of a text with gaps, and compare with no other tokenizer's.",
            100 * share,
            text,
        )


def _warn_of_spelt(data_source: TextSource, section: DataSection) -> None:
    """Say where a text spells special tokens, such as Penn Treebank's <unk>: a new tokenizer reads them as such."""
    tokenizer, rows = data_source.tokenizer, data_source.rows["train"]
    assert tokenizer is not None
    others = {number for number in tokenizer.all_special_ids if number != tokenizer.eos_token_id}
    spelt = tokenizer.convert_ids_to_tokens(np.unique(rows[np.isin(rows, list(others))]).tolist())
    if spelt:
        log.warning(
            "%s spells %s, which are read as special tokens of this name and not letter by letter.",
            section.text.path or section.text.dataset or "This text",
            " and ".join(spelt),
        )


def _puzzle(section: DataSection, output: Path, words: Tokenizer) -> DataSource:
    if words is not None:
        raise UserError(
            "A run that starts from a model (model.start) reads text or tasks, not a puzzle; leave one out."
        )
    return PuzzleSource(section.puzzle, output / "tokenizer", makes=processes().is_main_process)


def _images(section: DataSection, output: Path, words: Tokenizer) -> DataSource:
    return ImageSource(section.images)


DATA_SOURCES: Mapping[str, Callable[[DataSection, Path, Tokenizer], DataSource]] = {
    "tasks": _tasks,
    "text": _text,
    "images": _images,
    "puzzle": _puzzle,
}
"""A new data source is one function and one line here, and its name in `data_source_name`."""


def data_source_name(phase: Phase) -> str:
    """The name of the data source that a phase reads: a key of `DATA_SOURCES`."""
    return "tasks" if phase.source in SOURCES else phase.source


def open_data_source(config: TrainConfig, output: Path, words: Tokenizer = None) -> DataSource:
    """The data source of a run; `words` is the tokenizer of the model that it starts from.

    Raises:
        UserError: the phases name several data sources, or one that the model cannot read.
    """
    names = list(dict.fromkeys(data_source_name(phase) for phase in config.data.phases))
    if not names:
        raise UserError("data.phases is empty; give at least one phase.")
    if len(names) != 1:
        raise UserError(f"The phases read {' and '.join(names)}; a model has one tokenizer, so choose one.")
    if config.data.holdout and names[0] != "tasks":
        raise UserError(f"data.holdout leaves out tasks, and this run reads {names[0]}; take it out of the config.")
    if config.model.start and names[0] == "images":
        raise UserError("A run that starts from a model (model.start) reads text or tasks, not images; leave one out.")
    if config.model.start and words is None:
        raise UserError(
            f"{config.model.start} has no tokenizer that transformers reads as a fast one; copy the model's "
            "tokenizer.json into its folder."
        )
    classifier = not config.model.start and preset(config.model.preset).family in ("vit", "dcvit")
    if classifier != (names[0] == "images"):
        wanted = "tiny-dcvit" if names[0] == "images" else "tiny-dcformer++"
        raise UserError(f"The preset {config.model.preset} does not read {names[0]}; choose one such as {wanted}.")
    return DATA_SOURCES[names[0]](config.data, output, words)


def resolve_steps(config: TrainConfig, data_source: DataSource) -> TrainConfig:
    """The run with every budget of tokens turned into steps."""
    phases = tuple(
        replace(phase, steps=_steps(phase, config.data.seed, data_source)) if phase.tokens else phase
        for phase in config.data.phases
    )
    return replace(config, data=replace(config.data, phases=phases))


def _steps(phase: Phase, seed: int, data_source: DataSource, probes: int = 20) -> int:
    """Steps that read `phase.tokens`, by the mean of the first batches; text and images need one to know."""
    probes = probes if phase.source in SOURCES else 1
    batches = Batches(DataSection(seed=seed, phases=(replace(phase, steps=probes),)), data_source)
    tokens = sum(count_tokens(batches[step], data_source) for step in range(probes)) / probes
    return max(1, -(-phase.tokens // round(tokens)))


def require_fitting(config: TrainConfig, data_source: DataSource, model: Any) -> None:
    """Refuse phases whose documents do not fit the model, before the first step: by some of the longest kind.

    model: its config; one without a context takes any length.

    Raises:
        UserError: one is longer than the model's context.
    """
    context = getattr(model, "max_position_embeddings", None)
    for number, phase in enumerate(config.data.phases):
        if context is None or phase.source == "images":
            continue
        if phase.source not in SOURCES:
            _require_rows_fitting(config, number, data_source, context, "data.text.context" * (phase.source == "text"))
            continue
        worst = replace(phase, steps=1, batch_size=LONGEST_OF)
        worst = replace(worst, examples=(max(phase.examples),), gaps=(max(phase.gaps),))
        try:
            batch = Batches(DataSection(seed=config.data.seed, phases=(worst,)), data_source)[0]
        except ValueError as error:  # so many examples are not to be had
            raise UserError(f"data.phases[{number}]: {error}.") from error
        if (longest := batch["input_ids"].shape[1]) > context:
            key = {"pairs": "gaps", "questions": "asked"}.get(phase.source, "examples")
            given = getattr(phase, key) != getattr(Phase(), key)
            smaller = f"smaller numbers for data.phases[{number}].{key}, or " if given else ""
            raise UserError(
                f"Documents of data.phases[{number}] are {longest} tokens and more, but the model reads {context}: "
                f"give {smaller}a larger model.changes.max_position_embeddings."
            )


def _require_rows_fitting(config: TrainConfig, number: int, data_source: DataSource, context: int, key: str) -> None:
    """The same for a phase whose rows are of one kind; key: what sets their length, empty where nothing does."""
    one = replace(config.data.phases[number], steps=1, batch_size=1 if key else LONGEST_OF)
    longest = Batches(DataSection(seed=config.data.seed, phases=(one,)), data_source)[0]["input_ids"].shape[1]
    if longest > context:
        larger = (
            "a model with a longer context" if config.model.start else "a larger model.changes.max_position_embeddings"
        )
        smaller = f"a smaller {key} (--set {key}={context}), or " if key else ""
        raise UserError(
            f"Rows of data.phases[{number}] are {longest} tokens long, but the model reads {context}: give "
            f"{smaller}{larger}."
        )


def count_tokens(batch: dict, data_source: DataSource) -> int:
    """Tokens of a batch without padding; of images, how many they are."""
    if "pixel_values" in batch:
        return len(batch["pixel_values"])
    return int(is_no_padding(batch["input_ids"], row_padding(data_source)).sum())


def row_padding(data_source: DataSource) -> int | None:
    """The token that fills up rows; none of text, whose rows are full and may hold it as the end of a text."""
    assert data_source.tokenizer is not None
    return None if isinstance(data_source, TextSource) else data_source.tokenizer.pad_token_id
