"""Evaluate any causal language model on any rows.

The prompt is `Row.prompt`: the released layout with every `[ answer ]` replaced by `answer`, so one space before
and a newline after it. It is read in one forward pass per row, with the special tokens the tokenizer adds by
itself; every scored shot (the third to the eighth, so K = 2..7 shots before it) is judged in that pass.

An answer counts as correct if every one of its tokens is the most probable token at its place (equal to greedy
decoding reaching it). See `scoring.score` for the other measures and `evaluation.Evaluation` for the tables.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from synthetic_tasks.baselines import baselines
from synthetic_tasks.catalogue import find
from synthetic_tasks.evaluation import Evaluation
from synthetic_tasks.example import Row
from synthetic_tasks.scoring import (
    Answers,
    Encoding,
    Forward,
    Question,
    encode,
    pad,
    padding_of,
    questions,
    score,
    unknown_of,
)

# done, total (both in rows) and a short message; raising from it stops the evaluation.
Progress = Callable[[int, int, str], None]


def evaluate(
    model: Any,
    rows: Sequence[Row],
    *,
    tokenizer: Any = None,
    batch_size: int = 4,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    name: str = "",
    bootstrap: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Score a model on rows.

    Args:
        model: a TransformerLens bridge, a transformers causal LM, or any function from token ids [row, pos] to
            logits [row, pos, vocab] (or to an object with `.logits`). Hooks on a bridge act; where its
            `cfg.default_prepend_bos` is False, nothing is put before a row.
        rows: generated or read; `read_jsonl(path)` reads a file of the released format
        tokenizer: needed unless the model is a bridge, which brings its own
        batch_size: rows per forward pass; memory is batch_size x longest row x vocabulary x 4 bytes for the logits
        progress: called after each batch
        folder: where to keep scores while running and the results at the end; an interrupted evaluation of the same
            model and rows goes on from there
        name: of the model, for the tables; by default the one the model states
        bootstrap, seed: of no effect: intervals are computed, where version 0.1 drew them

    Raises:
        ValueError: no rows, no tokenizer, one that does not know an answer, rows longer than the model's context, or a
            folder of another evaluation.

    Cost: one forward pass per row, no gradients.
    """
    import torch

    rows = list(rows)
    if not rows:
        raise ValueError("there are no rows to evaluate; generate some or read a file")
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
    tokenizer = tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise ValueError("this model has no tokenizer; pass tokenizer=...")
    name = name or model_name(model)
    encodings, asked = encode_rows(rows, tokenizer, context_length(model), opens_texts(model))
    pad_id = padding_of(tokenizer)
    store, done, where = None, dict[int, list[dict[str, Any]]](), numbering(rows)
    with torch.inference_mode(), evaluating(model) as forward:
        if folder is not None:
            probe = probe_of(torch, forward, encodings[0], pad_id)
            store = Store(folder, fingerprint(model, rows, encodings, name), probe, tolerance_of(model))
            done = store.load()
        todo = sorted((place for place in range(len(rows)) if place not in done), key=lambda p: len(encodings[p].ids))
        for start in range(0, len(todo), batch_size):
            batch = todo[start : start + batch_size]
            fresh = score_batch(torch, forward, [encodings[p] for p in batch], [asked[p] for p in batch], pad_id)
            for place, scored in zip(batch, fresh, strict=True):
                done[place] = [{**describe(rows, place, where[place], q), **s} for q, s in scored]
                for record in done[place]:
                    record["greedy"] = decode(tokenizer, record["greedy"])
            if store:
                store.add({place: done[place] for place in batch})
            if progress:
                progress(len(done), len(rows), f"{len(done)} of {len(rows)} rows")
    records = [record for place in sorted(done) for record in done[place]]
    result = Evaluation(name, records, baselines(rows), bootstrap, seed)
    if store:
        result.save(store.folder)
        store.clear()
    return result


def opens_texts(model: Any) -> bool:
    """Whether texts get the special tokens that the tokenizer adds by itself: not if a bridge says it reads none.

    TransformerLens makes every tokenizer put a first token before a text; a model that was trained without one reads a
    word that it never saw there.
    """
    return not is_bridge(model) or bool(getattr(getattr(model, "cfg", None), "default_prepend_bos", True))


def is_bridge(model: Any) -> bool:
    """Whether a model is a TransformerLens bridge."""
    return hasattr(model, "original_model")


def encode_rows(
    rows: Sequence[Row], tokenizer: Any, context: int | None, special: bool = True
) -> tuple[list[Encoding], list[list[Question]]]:
    """Token ids of every row and its questions; ValueError if a row does not fit the context, or an answer is unknown.

    special: whether rows get the special tokens that the tokenizer adds by itself.
    """
    answers = Answers(tokenizer)
    encodings = [encode(tokenizer, row.prompt, special) for row in rows]
    longest = max(len(encoding.ids) for encoding in encodings)
    if context is not None and longest > context:
        raise ValueError(
            f"the longest row has {longest} tokens, the model takes {context}; give rows with fewer examples, such as "
            "those of `dcinterp tasks generate FILE --examples N` (--data FILE, or data=)"
        )
    asked = [questions(row, encoding, answers) for row, encoding in zip(rows, encodings, strict=True)]
    unknown = unknown_of(tokenizer)
    for encoding, of_row in zip(encodings, asked, strict=True):
        for question in of_row:
            if unknown in encoding.ids[question.positions.start : question.positions.stop]:
                raise ValueError(
                    f"the tokenizer does not know the answer {question.example.answer!r}, so it cannot be told from "
                    "others that it does not know; choose tasks whose words it knows"
                )
    return encodings, asked


def score_batch(
    torch: Any, forward: Forward, encodings: list[Encoding], asked: list[list[Question]], pad_id: int
) -> Iterator[list[tuple[Question, dict[str, Any]]]]:
    """Scores of every question of a batch of rows, row by row."""
    ids, mask = pad(torch, encodings, pad_id)
    logits = forward(ids, mask)
    for place, row_questions in enumerate(asked):
        scored = []
        for question in row_questions:
            at = question.positions
            # Only the few rows of the logits that predict answers are normalised.
            logprobs = logits[place, at.start - 1 : at.stop - 1].float().log_softmax(dim=-1).cpu()
            scored.append((question, score(logprobs, encodings[place].ids[at.start : at.stop], question)))
        yield scored


PROBED, ALIKE, ALIKE_IN_HALF = 64, 0.02, 0.5
"""Tokens of the first row whose log-probabilities are kept, and how far they may lie apart on another machine: kernels
add in other orders, which in half precision matters more."""


def probe_of(torch: Any, forward: Forward, encoding: Encoding, pad_id: int) -> list[float]:
    """What a model says of the first row: it tells models with other hooks apart, and functions, which have no weights.

    Returns the log-probability of each of the last tokens of the row, rounded.
    """
    ids, mask = pad(torch, [encoding], pad_id)
    last = slice(-PROBED - 1, -1)
    logprobs = forward(ids, mask)[0, last].float().log_softmax(dim=-1).cpu()
    following = ids[0, 1:][-len(logprobs) :]
    return [round(float(row[token]), 4) for row, token in zip(logprobs, following, strict=True)]


def tolerance_of(model: Any) -> float:
    """How far the probes of one model may lie apart."""
    sizes = [each.element_size() for each in getattr(model, "parameters", lambda: iter(()))()]
    return ALIKE_IN_HALF if sizes and min(sizes) < 4 else ALIKE


def alike(probe: Any, other: Sequence[float], tolerance: float = ALIKE) -> bool:
    """Whether a kept probe is of the same model; one of an earlier version, which kept none, counts as such."""
    if not isinstance(probe, list) or len(probe) != len(other):
        return probe is None
    pairs = list(zip(probe, other, strict=True))
    return all(str(one) == str(each) or abs(one - each) <= tolerance for one, each in pairs)  # also where not finite


@contextmanager
def evaluating(model: Any) -> Iterator[Forward]:
    """A forward function of ids and mask for any kind of model, in evaluation mode while it is used."""
    device = next((parameter.device for parameter in getattr(model, "parameters", lambda: iter(()))()), "cpu")
    bridged = is_bridge(model)
    is_transformers = hasattr(model, "config") and hasattr(model, "generate") and not bridged

    def forward(ids: Any, mask: Any) -> Any:
        if bridged:
            return model(ids.to(device), return_type="logits")
        if is_transformers:
            return model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
        output = model(ids.to(device))
        return getattr(output, "logits", output)

    was_training = bool(getattr(model, "training", False))
    if was_training:
        model.eval()
    try:
        yield forward
    finally:
        if was_training:
            model.train()


def describe(rows: Sequence[Row], place: int, number: int, question: Question) -> dict[str, Any]:
    """What the tables group by."""
    task = find(rows[place].task_id)
    return {
        "row": place,
        "shots": question.shot,
        "task": task.id,
        "pattern": task.qk,
        "transformation": task.relation,
        "family": f"{task.qk} x {task.relation}",
        "domain": task.domain,
        "surface": task.surface,
        # Partner tasks share facts, so the same row number of both is one draw (docs/tasks.md).
        "cluster": f"{task.partner}#{number}",
        "source": question.example.source,
        "answer": question.example.answer,
    }


def numbering(rows: Sequence[Row]) -> list[int]:
    """The number of each row within its task."""
    seen: Counter[str] = Counter()
    numbers = []
    for row in rows:
        numbers.append(seen[row.task_id])
        seen[row.task_id] += 1
    return numbers


def decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids)).strip()


def model_name(model: Any) -> str:
    """The name a model states: that of its checkpoint, else of its class."""
    inner = getattr(model, "original_model", model)
    name = getattr(getattr(model, "cfg", None), "model_name", "") or getattr(
        getattr(inner, "config", None), "_name_or_path", ""
    )
    return str(name or type(inner).__name__)


def context_length(model: Any) -> int | None:
    """The longest input the model states, if it states one."""
    config = getattr(getattr(model, "original_model", model), "config", None)
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


def fingerprint(model: Any, rows: Sequence[Row], encodings: Sequence[Encoding], name: str) -> str:
    """A hash of rows, of the ids they are read as and of a sample of every weight: all three must be as they were."""
    digest = blake2b(name.encode(), digest_size=12)
    for row, encoding in zip(rows, encodings, strict=True):
        digest.update(row.text.encode())
        digest.update(repr(encoding.ids).encode())
    inner = getattr(model, "original_model", model)
    for parameter in getattr(inner, "parameters", lambda: iter(()))():
        digest.update(repr((tuple(parameter.shape), parameter.detach().flatten()[:4].tolist())).encode())
    return digest.hexdigest()


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_scored(record: Any) -> bool:
    """Whether a line holds what `Store.add` writes for a row."""
    if (
        not isinstance(record, dict)
        or type(record.get("place")) is not int
        or not isinstance(record.get("records"), list)
    ):
        return False
    return all(isinstance(each, dict) and each.get("row") == record["place"] for each in record["records"])


MADE_OF = "fingerprint.txt"
"""Beside a finished evaluation: the digest of its model, rows and tokens, and what the model said of the first row."""


class Store:
    """Scores of finished rows in a folder, so that an interrupted evaluation can go on."""

    def __init__(self, folder: str | Path, print_: str, probe: list[float], tolerance: float = ALIKE) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "unfinished.jsonl"
        self.print, self.probe, self.tolerance = print_, probe, tolerance

    def load(self) -> dict[int, list[dict[str, Any]]]:
        """Rows scored before, by place; a line that a crash cut off, or that is damaged, is scored again."""
        done: dict[int, list[dict[str, Any]]] = {}
        finished = self.folder / MADE_OF
        print_, _, probe = finished.read_text(encoding="utf-8").partition("\n") if finished.exists() else ("", "", "")
        if finished.exists() and not self._is_of(print_, _json(probe)):
            raise ValueError(
                f"{self.folder} holds an evaluation of another model, other rows or other tokens; choose another folder"
            )
        if not self.path.exists():
            self.path.write_text(json.dumps({"fingerprint": self.print, "probe": self.probe}) + "\n", encoding="utf-8")
            return done
        lines = self.path.read_text(encoding="utf-8").split("\n")
        opening = _json(lines[0])
        if not isinstance(opening, dict) or not self._is_of(opening.get("fingerprint"), opening.get("probe")):
            raise ValueError(
                f"{self.folder} holds an unfinished evaluation of another model, other rows or other tokens; "
                f"choose another folder or delete {self.path.name} in it"
            )
        # Every whole line ends with a newline, so the last piece is empty or cut off.
        complete = [line for line in lines[1:-1] if _is_scored(_json(line))]
        for record in map(json.loads, complete):
            done[record["place"]] = record["records"]
        self.path.write_text("\n".join([lines[0], *complete, ""]), encoding="utf-8")
        return done

    def _is_of(self, print_: Any, probe: Any) -> bool:
        """Whether what is kept is of this model, these rows and these tokens."""
        return print_ == self.print and alike(probe, self.probe, self.tolerance)

    def add(self, done: dict[int, list[dict[str, Any]]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for place, records in done.items():
                file.write(json.dumps({"place": place, "records": records}) + "\n")

    def clear(self) -> None:
        """Leave what was finished, with what it was made of."""
        made_of = f"{self.print}\n{json.dumps(self.probe)}\n"
        (self.folder / MADE_OF).write_text(made_of, encoding="utf-8")
        self.path.unlink(missing_ok=True)
