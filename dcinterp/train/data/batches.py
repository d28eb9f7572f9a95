"""The batches of a run: each is a function of the seed and its number, so that any step can be resumed."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

import synthetic_tasks
from dcinterp.support.errors import UserError, nearest
from dcinterp.train.config.recipe import DataSection, Phase
from dcinterp.train.data.task_choice import TaskSides, choose_tasks
from synthetic_tasks.lexicon import NAMES

T = TypeVar("T")
NOT_SCORED = -100
FILLERS = ("has", "a", "is", "likes", "owns", "kind", "of", "the")
"""Words of the tasks that may stand between the two parts of a pair."""


@dataclass(frozen=True)
class Document:
    """A text as token ids, with a flag for the tokens that answer a question."""

    ids: tuple[int, ...]
    answers: tuple[bool, ...]


@dataclass(frozen=True)
class Draw:
    """Where a batch stands in a run: all that it is a function of, beside the data source.

    seed: of the run's documents.
    step: number of the optimiser step, from 0.
    phase: the phase that the step belongs to.
    drawn: rows that earlier steps have taken from the same source.
    """

    seed: int
    step: int
    phase: Phase
    drawn: int = 0


class DataSource(Protocol):
    """What a run reads: documents of tasks, a text, or images."""

    tokenizer: PreTrainedTokenizerFast | None

    def model_fields(self) -> dict[str, Any]:
        """Fields of the model's config that follow from the data."""
        ...

    def batch(self, draw: Draw, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        """The rows `part`, `part + parts`, ... of the batch of one optimiser step, as the model's arguments."""
        ...

    def digest(self) -> str:
        """A hash of the data where they could change under a run; empty for what is generated."""
        ...


class Batches(Dataset[dict[str, Tensor]]):
    """The batches of a run, one after the other, each cut into `parts` (for processes and accumulated gradients).

    Item i is part i % parts of the batch of optimiser step i // parts.
    """

    def __init__(self, section: DataSection, data_source: DataSource, parts: int = 1) -> None:
        self.section, self.data_source, self.parts = section, data_source, parts
        self.ends = list(accumulate(phase.steps for phase in section.phases))
        smallest = min(phase.batch_size for phase in section.phases)
        if smallest < parts:
            raise UserError(
                f"A batch of {smallest} rows cannot be cut into {parts} parts (processes times gradient_accumulation); "
                "raise batch_size, or use fewer."
            )

    def __len__(self) -> int:
        return self.ends[-1] * self.parts

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        if not 0 <= item < len(self):
            raise IndexError(item)
        step, part = divmod(item, self.parts)
        return self.data_source.batch(self.draw(step), part, self.parts)

    def draw(self, step: int) -> Draw:
        """Where the batch of a step stands."""
        phases = self.section.phases
        current = bisect_right(self.ends, step)
        phase = phases[current]
        drawn = sum(p.steps * p.batch_size for p in phases[:current] if p.source == phase.source)
        drawn += (step - (self.ends[current] - phase.steps)) * phase.batch_size
        return Draw(self.section.seed, step, phase, drawn)


class TaskSource:
    """Documents of the synthetic tasks, in the tokenizer of the tasks; none of tasks that are held out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, sides: TaskSides | None = None) -> None:
        self.tokenizer: PreTrainedTokenizerFast | None = tokenizer
        self.encoder = Encoder(tokenizer)
        self.sides = sides or TaskSides()
        self.fields = {
            "vocab_size": len(tokenizer),
            "max_position_embeddings": tokenizer.model_max_length,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }

    def model_fields(self) -> dict[str, Any]:
        return self.fields

    def batch(self, draw: Draw, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        random = Random(f"{draw.seed}:{draw.step}")
        documents = SOURCES[draw.phase.source](self.sides.keep(draw.phase), random, self.encoder)
        return pad(documents[part::parts], self.encoder.pad, answers_only=draw.phase.score == "answer")

    def digest(self) -> str:
        return ""


class Encoder:
    """Word-level encoding by dictionary: what the tokenizer computes, fast enough for the training loop."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        self.pad: int = tokenizer.pad_token_id
        objects = synthetic_tasks.TASKS["task8"].grammar.domain.items
        self.things = tuple(word for word in objects if word in self.vocabulary)

    def ids(self, text: str) -> list[int]:
        return [self.vocabulary[word] for word in synthetic_tasks.words(text)]

    def document(self, parts: list[tuple[str, str]], *, newline: bool = True) -> Document:
        """Pairs of (prompt, answer) as the lines of one document, which starts on a new line if `newline`."""
        line_end = self.ids("\n")
        ids: list[int] = line_end if newline else []
        answers = [False] * len(ids)
        for prompt, answer in parts:
            question, reply = self.ids(prompt), self.ids(answer)
            ids = ids + question + reply + line_end
            answers += [False] * len(question) + [True] * len(reply) + [False] * len(line_end)
        return Document(tuple(ids), tuple(answers))


def task_documents(phase: Phase, random: Random, encoder: Encoder) -> list[Document]:
    """Rows of the 74 tasks, each row of one task; only examples of the training split."""
    tasks = choose_tasks(phase)
    examples = phase.examples[int(random.random() * len(phase.examples))]
    documents = []
    for _ in range(phase.batch_size):
        task = tasks[int(random.random() * len(tasks))]
        row = synthetic_tasks.generate(task, 1, random.getrandbits(48), examples=examples, split="train")[0]
        # Half of the documents start without the line break, as a line that somebody types does.
        documents.append(encoder.document([(e.prompt, e.answer) for e in row.examples], newline=random.random() < 0.5))
    return documents


def pair_documents(phase: Phase, random: Random, encoder: Encoder) -> list[Document]:
    """Four pairs of a name and a thing and eight questions about them: associative recall and nothing else.

    A document keeps one order of its pairs (name first or thing first) and one direction of its questions (which of
    the two is given); `phase.gaps` puts that many filler words between the two, drawn anew for every pair.
    """
    for word in phase.fillers:
        if word not in encoder.vocabulary:
            raise UserError(f"The filler {word!r} is not a word of the tasks; {nearest(word, encoder.vocabulary)}")
    fillers = [encoder.vocabulary[word] for word in phase.fillers or FILLERS]
    documents = []
    for _ in range(phase.batch_size):
        names, things = (
            [encoder.vocabulary[word] for word in _sample(random, words, 4)] for words in (NAMES, encoder.things)
        )
        facts = list(zip(names, things, strict=True))
        if phase.both_ways and random.random() < 0.5:
            facts = [(thing, name) for name, thing in facts]
        questions = [facts[int(random.random() * 4)] for _ in range(8)]
        if phase.both_ways and random.random() < 0.5:
            questions = [(second, first) for first, second in questions]
        ids: list[int] = []
        answers: list[bool] = []
        for number, (first, second) in enumerate(facts + questions):
            gap = phase.gaps[int(random.random() * len(phase.gaps))]
            ids += [first, *(fillers[int(random.random() * len(fillers))] for _ in range(gap)), second]
            answers += [False] * (1 + gap) + [number >= 4]
        documents.append(Document(tuple(ids), tuple(answers)))
    return documents


def question_documents(phase: Phase, random: Random, encoder: Encoder) -> list[Document]:
    """The facts of a task once, and then questions about them: several retrievals on one reading.

    Only for same-person and same-object, whose question selects a fact. Every fact is asked about, and generation makes
    the word that selects unique for one of them alone: in some documents of same-object tasks the others share theirs,
    and their questions have two answers. So it has been since version 0.1, and runs that were made stay as they are.
    """
    tasks = choose_tasks(phase)
    if any(t.grammar.pattern.negated for t in tasks):
        raise UserError("The source 'questions' asks about every fact; use it with same-person and same-object only.")
    documents = []
    for _ in range(phase.batch_size):
        task = tasks[int(random.random() * len(tasks))]
        grammar = task.grammar
        (example,) = synthetic_tasks.generate(task, 1, random.getrandbits(48), examples=1, split="train")[0].examples
        context, stop, _ = example.prompt.partition(grammar.surface.closing)
        parts: list[tuple[str, str]] = []
        facts = example.facts
        if phase.asked:
            order = [facts[int(random.random() * len(facts))] for _ in range(phase.asked)]
        else:
            order = _sample(random, facts, len(facts))
        for fact in order:
            key, answer = grammar.key(*fact)[0], grammar.accepted(*fact)[0]
            question = grammar.question.format(asked=key, predicate=example.predicate, unit=example.unit)
            parts.append((question if parts else context + stop + question, answer))
        documents.append(encoder.document(parts, newline=random.random() < 0.5))
    return documents


SOURCES: Mapping[str, Callable[[Phase, Random, Encoder], list[Document]]] = {
    "tasks": task_documents,
    "pairs": pair_documents,
    "questions": question_documents,
}
"""Where documents come from: a new source is one function and one line here (and its name in `Phase.source`; where it
draws from tasks, also in `DEFAULT_PATTERNS`)."""


def pad(documents: list[Document], pad_id: int, *, answers_only: bool) -> dict[str, Tensor]:
    """Documents as the tensors of one batch, padded on the right; padding is neither attended nor scored."""
    longest = max(len(document.ids) for document in documents)
    input_ids = torch.full((len(documents), longest), pad_id)
    labels = torch.full_like(input_ids, NOT_SCORED)
    for row, document in enumerate(documents):
        ids = torch.tensor(document.ids)
        input_ids[row, : len(ids)] = ids
        labels[row, : len(ids)] = ids.where(torch.tensor(document.answers), NOT_SCORED) if answers_only else ids
    # No attention mask: with padding on the right, a causal model never lets a token see it.
    return {"input_ids": input_ids, "labels": labels}


def is_no_padding(ids: Tensor, pad_id: int | None) -> Tensor:
    """Where a batch holds tokens of its documents; everywhere for a tokenizer without padding."""
    return torch.ones_like(ids, dtype=torch.bool) if pad_id is None else ids != pad_id


def _sample(random: Random, items: Sequence[T], count: int) -> list[T]:
    """`count` different items; built on random() alone, whose sequence Python keeps stable."""
    pool = list(items)
    for i in range(count):
        j = i + int(random.random() * (len(pool) - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def shuffle_index(index: int, size: int, key: str) -> int:
    """Where `index` of `size` stands in the shuffle named `key`: a permutation that needs no table.

    A Feistel network of four rounds over the next power of four, walked until it lands inside: row number a billion
    of a corpus is found as fast as the first, on every machine alike, so a run can be resumed at any row.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    seeds = hashlib.blake2b(key.encode(), digest_size=32).digest()
    rounds = [int.from_bytes(seeds[start : start + 8], "little") for start in range(0, 32, 8)]
    while True:
        left, right = index >> half, index & mask
        for seed in rounds:
            mixed = ((right ^ seed) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
            mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed >> 32) & mask)
        index = left << half | right
        if index < size:
            return index


def answers_right(guesses: Tensor, targets: Tensor) -> list[bool]:
    """For every stretch of scored tokens in `targets` [row, position], whether `guesses` agree with all of it."""
    hits: list[bool] = []
    for scored_row, hit_row in zip((targets >= 0).tolist(), (guesses == targets).tolist(), strict=True):
        inside = False
        for scored, hit in zip(scored_row, hit_row, strict=True):
            if scored and not inside:
                hits.append(hit)
            elif scored:
                hits[-1] &= hit
            inside = scored
    return hits
