"""Held-out documents of a run, one by one: what the model was not trained on, with the tokens that are scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

import synthetic_tasks
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import TrainConfig, read_config
from dcinterp.train.data.batches import NOT_SCORED, Encoder, shuffle_index
from dcinterp.train.data.data_source import data_source_name
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.task_choice import held_out_tasks
from dcinterp.train.data.text import TextSource
from dcinterp.train.loop.metrics_file import data_digest, read_records

Scored = tuple[Int[Tensor, "1 pos"], Int[Tensor, " pos"]]
"""The tokens of a document, and the same where they are scored, NOT_SCORED elsewhere."""


def held_out_documents(run: str | Path, count: int) -> list[Scored]:
    """Held-out documents of a run, the same whenever it is asked: of a puzzle the part that training is about, of tasks
    those of no combination that `data.holdout` leaves out.

    Args:
        run: the output folder of `dcinterp train`.
        count: how many at most.

    Raises:
        UserError: the folder is no run, or one on images.
    """
    folder, config = _config(run)
    source = data_source_name(config.data.phases[-1])
    if source not in _SOURCES:
        raise UserError(f"{folder} is a run on {source}; its documents are not tokens. Give one on text or tasks.")
    return _SOURCES[source](config, folder, count)


def unit_of(run: str | Path) -> str:
    """What `held_out_documents` gives of a run, in words: rows of text begin anywhere, and many may be of one file.

    Raises:
        UserError: the folder is no run.
    """
    return "rows of text" if data_source_name(_config(run)[1].data.phases[-1]) == "text" else "documents"


def _config(run: str | Path) -> tuple[Path, TrainConfig]:
    folder = Path(run)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no training run (it has no config.yaml); give the output folder of one.")
    return folder, read_config(folder / "config.yaml")


def _puzzle(config: TrainConfig, folder: Path, count: int) -> list[Scored]:
    source = PuzzleSource(config.data.puzzle, folder / "tokenizer", makes=False)
    made = source.held_out(source.puzzle.PARTS[0], count)
    return [(ids[None], labels) for ids, labels in zip(made["input_ids"], made["labels"], strict=True)]


def _text(config: TrainConfig, folder: Path, count: int) -> list[Scored]:
    from transformers import PreTrainedTokenizerFast

    # A run that starts from a model reads by that model's tokenizer, of which it keeps a copy.
    own = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer") if config.model.start else None
    source = TextSource(config.data.text, own, folder)
    read = data_digest(read_records(folder / "history.jsonl")[0])
    if read not in ("", source.digest()):
        raise UserError(
            f"The text that the run in {folder} read has changed since, so what it was not trained on is not known; "
            "give it back the text that it was trained on."
        )
    rows = source.rows["validation"]
    chosen = [shuffle_index(number, len(rows), "validation") for number in range(min(count, len(rows)))]
    found = [torch.from_numpy(rows[number].astype("int64")) for number in chosen]
    return [(ids[None], ids) for ids in found]


def _tasks(config: TrainConfig, folder: Path, count: int) -> list[Scored]:
    from transformers import PreTrainedTokenizerFast

    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"))
    left_out = held_out_tasks(config.data.holdout)
    tasks, found = [task for task in synthetic_tasks.TASKS.values() if task.id not in left_out], []
    for number in range(count):
        row = synthetic_tasks.generate(tasks[number % len(tasks)], 1, number, examples=2, split="held-out")[0]
        document = encoder.document([(example.prompt, example.answer) for example in row.examples])
        ids, scored = torch.tensor(document.ids), torch.tensor(document.answers)
        found.append((ids[None], ids.where(scored, NOT_SCORED)))
    return found


_SOURCES: Mapping[str, Callable[[TrainConfig, Path, int], list[Scored]]] = {
    "puzzle": _puzzle,
    "text": _text,
    "tasks": _tasks,
}
