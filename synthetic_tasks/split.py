"""The validation split: a fixed part of all fact sets is held out of training, whatever the task or question.

A fact set (persons and items in their order) is held out if a hash of it says so: the same on every machine,
for every seed and for both surfaces of a task. So no held-out example, and no other question about its facts, is
ever in a training stream that asks for `split="train"`.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, get_args

from synthetic_tasks.example import Example, Fact, Row

Split = Literal["train", "held-out"]
HELD_OUT_FRACTION = 1 / 8

_BOUND = bytes([int(256 * HELD_OUT_FRACTION)])


def check_split(split: str | None) -> None:
    if split is not None and split not in get_args(Split):
        raise ValueError(f"split must be 'train', 'held-out' or None, not {split!r}")


def facts_are_held_out(facts: Sequence[Fact]) -> bool:
    """Whether this fact set belongs to the held-out part."""
    key = "|".join([f"{person}:{item}" for person, item in facts])
    return blake2b(key.encode(), digest_size=1).digest() < _BOUND


def is_held_out(example: Example | Row) -> bool:
    """Whether an example is held out of training; of a row: whether all its examples are."""
    if isinstance(example, Row):
        return all(facts_are_held_out(one.facts) for one in example.examples)
    return facts_are_held_out(example.facts)
