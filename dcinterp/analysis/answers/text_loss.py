r"""How well files of text are predicted: the loss of one model, or of two on the same tokens, by kind of token.

    loss = sum over files of -log p(token) / sum over files of tokens            nats a token

A file begins with the token that ends a text, and is cut into rows of the model's context; the first token of a row is
not scored. Kinds are what stands before a token in its row (dcinterp.mechanism.token_kinds): `repeated` ones can be
found by induction, a `seen name` by copying.

Intervals are over files: of a ratio of sums, by what each file adds to it (the delta method). Files are drawn by a hash
of what they say, the lowest first; those below `share` are what `data.text.hold_out: files` with this validation_share
keeps from training. It does not show how a token is predicted: a common word that stood there before is `repeated`
too, and a model that knows the word needs no induction. And one model of each kind says nothing of other seeds.

Identity that the tests assert: the loss of all tokens is cross entropy on the same rows.

    found = dcinterp.text_loss(model, "python", other="runs/mine/model")
    found.table()
    dcinterp.figures.plot(found)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.readout import require_text
from dcinterp.mechanism.statistics import ratio_interval
from dcinterp.mechanism.token_kinds import KINDS, kinds_of
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, all_once, silent
from dcinterp.support.ranges import AtLeast, Count, Level
from dcinterp.support.text import apart, interval_name
from dcinterp.support.vocabulary import ends_texts, unknown_words

HELD_OUT = 0.03
"""The share of files that configs/source-code.yaml holds out."""

DIFFERENCE = "difference"
ROWS_AT_ONCE = 16

Parts = tuple[Tensor, Tensor]
"""(nats [model, kind], tokens [kind]) of a file."""


@dataclass(frozen=True)
class TextLoss(Result):
    """nats [model, kind, file]: sums of -log p; tokens [kind, file]: how many were scored; size [file]: bytes of these.

    unknown: the share of tokens that stand for what the vocabulary lacks.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "nats": ("model", "kind", "file"),
        "tokens": ("kind", "file"),
        "size": ("file",),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"models": ("model",), "token_kinds": ("kind",), "files": ("file",)}

    models: tuple[str, ...]
    token_kinds: tuple[str, ...]
    files: tuple[str, ...]
    level: float
    unknown: float
    nats: Float[Tensor, "model kind file"]
    tokens: Int[Tensor, "kind file"]
    size: Int[Tensor, " file"]

    def labels(self, axis: str) -> list[Any] | None:
        return {"model": list(self.models), "kind": list(self.token_kinds), "file": list(self.files)}.get(axis)

    @property
    def loss(self) -> Float[Tensor, " model"]:
        """Nats a token, of all kinds together."""
        return self.nats.sum((1, 2)) / self.tokens.sum()

    @property
    def bits_per_byte(self) -> Float[Tensor, " model"]:
        """As it compares between tokenizers."""
        return self.nats.sum((1, 2)) / self.size.sum() / torch.tensor(2.0).log()

    def table(self) -> pd.DataFrame:
        """For all tokens and for each kind, a row a model and, of two, the first minus the second ("difference").

        "low" and "high" end an interval over files; a kind that no file has is left out.
        """
        places = range(len(self.token_kinds))
        groups = {"all": list(places)} | {self.token_kinds[place]: [place] for place in places}
        rows = []
        for kind, chosen in groups.items():
            count, sums = self.tokens[chosen].sum(0).double(), self.nats[:, chosen].sum(1).double()
            if not count.any():
                continue
            named = dict(zip(self.models, sums, strict=True))
            if len(self.models) == 2:
                named[DIFFERENCE] = sums[0] - sums[1]
            rows += [
                {"kind": kind, "tokens": int(count.sum()), "model": name}
                | _interval(nats, count, self.level, least=-math.inf if name == DIFFERENCE else 0.0)
                for name, nats in named.items()
            ]
        return pd.DataFrame(rows)

    def sentences(self) -> list[str]:
        """The loss of all tokens and, of two models, their difference with its interval."""
        whole = self.table().query("kind == 'all'").set_index("model")
        read = f"{int(self.tokens.sum()):,} tokens of {len(self.files)} file{'s' * (len(self.files) != 1)}"
        said = [
            f"{model}: {whole.loc[model, 'nats']:.3f} nats a token ({bits:.3f} bits a byte) on {read}."
            for model, bits in zip(self.models, self.bits_per_byte.tolist(), strict=True)
        ]
        if len(self.models) == 2:
            nats, low, high = whole.loc[DIFFERENCE, ["nats", "low", "high"]]
            over = f"{interval_name(self.level)} over files {low:+.3f} to {high:+.3f}"
            said.append(
                f"{self.models[0]} minus {self.models[1]}: {nats:+.3f} nats a token, "
                f"{over if low == low else 'of one file, so without an interval'}."
            )
        return said

    def warnings(self) -> list[str]:
        said = []
        if self.unknown > 0.01:
            said.append(
                f"The vocabulary lacks {self.unknown:.0%} of these tokens, so the loss is of a text full of gaps."
            )
        if len(self.files) < 5:
            many = f"{len(self.files)} files say" if len(self.files) > 1 else "One file says"
            said.append(f"{many} little of others; give more (files=20).")
        return said


def _interval(nats: Tensor, count: Tensor, level: float, *, least: float = -math.inf) -> dict[str, float]:
    """The ratio of the sums over files, with its interval; that is never below `least`."""
    low, high = ratio_interval(nats, count, level=level)
    return {"nats": float(nats.sum() / count.sum()), "low": float(np.maximum(low, least)), "high": float(high)}


@analysis(
    title="Loss on files",
    question="How well are files of text predicted, and which of their tokens?",
    guide="analyses/prediction.md",
    in_units=True,
    example={"text": "python", "files": "2", "tokens": "200"},
)
def text_loss(
    bridge: Bridge,
    text: str = "python",
    *,
    other: str = "",
    files: Count = 20,
    tokens: Count = 2048,
    share: Annotated[float, AtLeast(0)] = 0.0,
    pattern: str = "*",
    level: Level = 0.95,
    progress: Progress = silent,
) -> TextLoss:
    """The loss of a model on files, by kind of token, and that of another one beside it.

    Args:
        bridge: any bridge with a tokenizer.
        text: a file or folder; or names of installed packages with commas between them, whose Python sources are
            read, "python" for the standard library.
        other: a shipped model, a folder or a hub id with the same tokens; loaded with the `dtype` that the first was.
        files: how many at most, those of the lowest hash first.
        tokens: how many of the first of each file are read at most.
        share: read files whose hash is below this; 0 stands for 1 with a path, and with packages for 0.03, what
            configs/source-code.yaml holds out.
        pattern: of the files of a folder, as in "*.py".
        level: confidence level of the intervals.
        progress: called after each file.

    Cost: one forward pass over the files, for each model.

    Raises:
        UserError: there is no such text, no file is left, or the models have no tokenizer or not the same one.
    """
    # With transformers and all: not for the help.
    from dcinterp.train.data.files_by_hash import documents_by_hash, is_packages

    _require_tokenizer(bridge)
    bridges = [bridge, *([_second(bridge, other)] if other else [])]
    named = documents_by_hash(text, share or (HELD_OUT if is_packages(text) else 1.0), files, pattern)
    if not named:
        raise UserError(f"No file of {text} has a hash below the share; raise share, up to 1 for all files.")
    context = min(each.cfg.n_ctx for each in bridges)
    cut = [_rows(bridge, document, tokens, context) for _, document in named]
    rows = [part for part, *_ in cut]
    words = {token: bridge.tokenizer.decode([token]) for token in _tokens_of(rows).unique().tolist()}
    units = [(name, partial(_parts, bridges, each, words)) for (name, _), each in zip(named, rows, strict=True)]
    made = all_once(progress, units)
    return TextLoss(
        models=apart([getattr(bridge, "source", None) or bridge.cfg.model_name, *([other] if other else [])]),
        token_kinds=KINDS,
        files=tuple(name for name, _ in named),
        level=level,
        unknown=sum(gaps for *_, gaps in cut) / max(len(_tokens_of(rows)), 1),
        nats=torch.stack([nats for nats, _ in made], -1),
        tokens=torch.stack([count for _, count in made], -1),
        size=torch.tensor([round(size) for _, size, _ in cut]),
    )


def _require_tokenizer(bridge: Bridge) -> None:
    require_text(bridge)
    if bridge.tokenizer is None:
        raise UserError("This model came without a tokenizer, so it cannot read text; load it with tokenizer=.")


def _second(bridge: Bridge, other: str) -> Bridge:
    """The other model, which must read a text in the same tokens."""
    from dcinterp.checkpoints.load import load_beside

    second = load_beside(bridge, other)
    _require_tokenizer(second)
    if second.tokenizer.get_vocab() != bridge.tokenizer.get_vocab():
        raise UserError(
            f"{other} reads text in other tokens, whose losses do not compare one by one; measure each model by itself "
            "and compare bits a byte."
        )
    return second


def _rows(bridge: Bridge, document: str, most: int, context: int) -> tuple[list[Int[Tensor, "row pos"]], float, int]:
    """The first `most` tokens of a file behind the token that ends a text, the bytes of those that are scored, and how
    many stand for what the vocabulary lacks.

    They are cut into full rows of the context, and the rest; the first token of a row is not scored.
    """
    tokenizer = bridge.tokenizer
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.bos_token_id
    # Tokens are shorter than that, so the rest of a long file need not be read.
    text, fast = document[: 64 * most], getattr(tokenizer, "is_fast", False)
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=fast)
    ids = encoded["input_ids"][:most]
    sizes = token_bytes(text, encoded["offset_mapping"])[:most] if fast else _decoded_bytes(tokenizer, ids)
    begins = [] if end is None else [end]
    flat, counted = torch.tensor([*begins, *ids]), torch.tensor([*(0.0 for _ in begins), *sizes], dtype=torch.float64)
    full = len(flat) // context * context

    def cut(each: Tensor) -> list[Tensor]:
        parts = each[:full].reshape(-1, context), each[None, full:]
        return [part for part in parts if part.shape[1] > 1 and len(part)]

    gaps = sum(token == tokenizer.unk_token_id for token in ids)
    if gaps and ends_texts(tokenizer) and not unknown_words(tokenizer, text):
        gaps = 0  # the end of a text that was typed
    return cut(flat), float(sum(part[:, 1:].sum() for part in cut(counted))), gaps


def token_bytes(text: str, spans: Sequence[tuple[int, int]]) -> list[float]:
    """The bytes of a text that each of its tokens stands for, by its span of characters.

    What lies between two tokens, such as a space, is the second's. Tokens of one character, such as the bytes of an
    umlaut, share its bytes alike.
    """
    sizes: list[float] = []
    read = first = 0
    for number, (_, end) in enumerate(spans):
        if end > read:
            first = number
            sizes.append(float(len(text[read:end].encode())))
            read = end
        else:
            sizes.append(0.0)
            whole, among = sum(sizes[first:]), number + 1 - first
            sizes[first:] = [whole / among] * among
    return sizes


def _decoded_bytes(tokenizer: Any, ids: Sequence[int]) -> list[float]:
    """The same where the tokenizer does not know the places of its tokens: what they decode to one by one."""
    return [float(len(word.encode())) for word in tokenizer.batch_decode([[token] for token in ids])]


@torch.no_grad()
def _parts(bridges: list[Bridge], rows: list[Int[Tensor, "row pos"]], words: Mapping[int, str]) -> Parts:
    nats = torch.zeros(len(bridges), len(KINDS), dtype=torch.float64)
    count = torch.zeros(len(KINDS), dtype=torch.long)
    for ids in (part for row in rows for part in row.split(ROWS_AT_ONCE)):
        kinds = kinds_of(ids, words)[:, 1:].flatten()
        count += kinds.bincount(minlength=len(KINDS))
        for place, bridge in enumerate(bridges):
            nats[place] += torch.zeros(len(KINDS), dtype=torch.float64).index_add_(0, kinds, _losses(bridge, ids))
    return nats, count


def _losses(bridge: Bridge, ids: Int[Tensor, "row pos"]) -> Float[Tensor, " scored"]:
    """-log p of every token but the first of a row, one row after the other."""
    logits = bridge(ids.to(next(bridge.original_model.parameters()).device))[:, :-1].float().cpu()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").double()


def _tokens_of(rows: list[list[Tensor]]) -> Int[Tensor, " token"]:
    return torch.cat([part.flatten() for each in rows for part in each])
