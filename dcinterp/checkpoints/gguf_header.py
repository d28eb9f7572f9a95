"""The header of a GGUF file, held against the file before a library believes its counts and sizes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

from dcinterp.checkpoints.fit import count_layers
from dcinterp.support.errors import UserError, reason
from dcinterp.support.json_files import require_plain_file
from dcinterp.support.text import shown

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values and how the module struct calls them."""
STRING, ARRAY = 8, 9
DEEPEST = 4
"""Arrays within arrays; real files have one level."""


class HeaderWalk:
    """Reads a header from its beginning, and never past the end of the file."""

    def __init__(self, path: Path) -> None:
        self.size = require_plain_file(path)
        self.file = path.open("rb")
        self.order = "<"

    def octets(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError("its header says more than the file holds")
        return self.file.read(count)

    def number(self, kind: str) -> Any:
        return struct.unpack(self.order + kind, self.octets(struct.calcsize(self.order + kind)))[0]

    def text(self) -> str:
        return self.octets(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """A value; of an array only its length, for the words of a vocabulary are many."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY or depth == DEEPEST:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in SCALARS:
            self.octets(count * struct.calcsize(SCALARS[inner]))
            return count
        if count > self.size:
            raise ValueError("its header says more than the file holds")
        for _ in range(count):
            self.value(inner, depth + 1)
        return count


class Header(NamedTuple):
    """The names of the tensors, and the single numbers that are set, without the name of the architecture in front."""

    tensors: list[str]
    settings: dict[str, Any]


def require_header(path: Path, octets_of: Callable[[int, int], int], names: Iterable[str]) -> Header:
    """Refuse a GGUF file whose header does not fit it.

    Args:
        path: the file.
        octets_of: (type of a tensor, number of its entries) -> its bytes; ValueError or KeyError for an unknown type.
        names: what tensors of any model are called, without .weight and the like; {bid} and {xid} stand for numbers.

    Returns:
        the names of its tensors, and what it sets.

    Raises:
        UserError: its rotary embedding is scaled, which transformers leaves out without a word; a count, a size or an
            offset leads past its end, its layers are not those that it says, a number is none, or a tensor has a name
            that no model has: a reader would leave it out without a word.
    """
    walk = HeaderWalk(path)
    try:
        with walk.file:
            return _check(walk, octets_of, names)
    except UserError:
        raise
    except (ValueError, KeyError, struct.error, OverflowError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); copy or download it again.") from error


def _check(walk: HeaderWalk, octets_of: Callable[[int, int], int], names: Iterable[str]) -> Header:
    walk.octets(4)
    version = walk.number("I")
    if version & 0xFFFF == 0:  # written by a machine of the other byte order
        walk.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, not 2 or 3")
    tensors, pairs = walk.number("Q"), walk.number("Q")
    fields = {}
    for _ in range(pairs):
        name = walk.text()
        fields[name] = walk.value(walk.number("I"))
    for name, value in fields.items():
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{shown(name)} is {value}")
    if isinstance(parts := fields.get("split.count", 1), int) and parts > 1:
        raise UserError(
            f"{walk.file.name} is one of {parts} parts of a model; join them with `llama-gguf-split --merge`, and open "
            "the file that it writes."
        )
    found = [_tensor(walk) for _ in range(tensors)]
    known = set(names)
    for name, *_ in found:
        if known.isdisjoint(_stems(name)):
            raise ValueError(f"no model has a tensor {shown(name)}")
    _refuse_scaled(walk.file.name, fields, [name for name, *_ in found])
    step = fields.get("general.alignment", 32)
    if not isinstance(step, int) or not 0 < step <= 2**20:
        raise ValueError(f"general.alignment is {shown(step, 30)}")
    data = -(-walk.file.tell() // step) * step
    for name, shape, kind, offset in found:
        if data + offset + octets_of(kind, prod(shape)) > walk.size:
            raise ValueError(f"the tensor {shown(name)} reaches past its end")
    layers = fields.get(f"{fields.get('general.architecture')}.block_count")
    there = count_layers(name for name, *_ in found)
    if not isinstance(layers, int) or layers > there:
        raise ValueError(f"block_count is {shown(layers, 30)}, and it has {there} layers")
    start = f"{fields.get('general.architecture')}."
    settings = {
        name.removeprefix(start): value
        for name, value in fields.items()
        if name.startswith(start) and isinstance(value, int | float)
    }
    return Header([name for name, *_ in found], settings)


def _refuse_scaled(file: str, fields: dict[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a rotary embedding that is scaled: of such files transformers reads the plain one.

    Raises:
        UserError: as said.
    """
    kind = fields.get("general.architecture")
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    for key in ("rope.scale_linear", *("rope.scaling.factor",) * (f"{kind}.rope.scaling.type" not in fields)):
        if fields.get(f"{kind}.{key}", 1) != 1:  # without a type llama.cpp takes it as linear
            scaling = "linear"
    if kind == "gpt-oss" or (scaling in ("none", "") and not any(name.startswith("rope_f") for name in tensors)):
        return
    how = "by factors of its own (rope_freqs)" if scaling in ("none", "") else f"({shown(scaling, 20)})"
    raise UserError(
        f"{file} scales its rotary embedding {how}, which transformers does not read from GGUF files, so its logits "
        "would be wrong; open the model in its original format, a folder with config.json and safetensors."
    )


def layer_biases(names: Iterable[str]) -> list[str]:
    """Of the names of tensors those of biases of layers, but for experts': these are joined, or are no parameters."""
    return [name for name in names if re.fullmatch(r"blk\.\d+\..*(?<!_exps)(?<!exp_probs_b)\.bias", name)]


def _stems(name: str) -> set[str]:
    """A tensor's name as the tables of the package gguf may have it: blk.3.attn_q.weight is a blk.{bid}.attn_q."""
    general = re.sub(r"\bblk\.\d+\.", "blk.{bid}.", name)
    stem = re.sub(r"\.\d+$", ".{xid}", general.rpartition(".")[0])
    return {general, stem}  # a few have no ending


def _tensor(walk: HeaderWalk) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape, type, offset) of the next tensor."""
    name, axes = walk.text(), walk.number("I")
    if axes > 8:
        raise ValueError(f"the tensor {shown(name)} has {axes} axes")
    shape = tuple(walk.number("Q") for _ in range(axes))
    return name, shape, walk.number("I"), walk.number("Q")
