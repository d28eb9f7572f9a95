"""The one table of kinds of ablation: how each is called, what it puts in the place of a part, and what it removes.

Help, documentation and app take their words from here. Imports no torch, so that pages can have it at once; what a kind
puts in is made by dcinterp.mechanism.ablation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["mean", "zero", "resample", "resample-token", "rotate"]
"""The names of `ABLATIONS`, for signatures."""


@dataclass(frozen=True)
class AblationKind:
    """A kind of ablation in words.

    name: in arguments, lines and links; label: in menus; put: what happens to the part, as the end of a sentence;
    done: the same in a few words; removes: what is gone afterwards, and what stays; reference: whether it needs other
    prompts.
    """

    name: Kind
    label: str
    put: str
    done: str
    removes: str
    reference: bool = True

    @property
    def line(self) -> str:
        """Both in one line, for help and documentation."""
        return f"{self.put}; {self.removes}"


_TABLE = (
    AblationKind(
        "mean",
        "mean",
        "is replaced by its mean over all positions of the reference prompts",
        "replaced by its mean",
        "removes what depends on the token and the example, and keeps what all have in common",
    ),
    AblationKind(
        "zero",
        "zero",
        "is set to zero",
        "set to zero",
        "removes all of it, also what is the same for every token; a state that the model never trained in",
        reference=False,
    ),
    AblationKind(
        "resample",
        "resample (same position)",
        "is replaced by what it is at the same position of another reference prompt",
        "resampled at the same position",
        "removes what depends on this example, and keeps the size and the spread",
    ),
    AblationKind(
        "resample-token",
        "resample (same token)",
        "is replaced by what it is where the same token stands in another reference prompt",
        "resampled at the same token",
        "removes what depends on the token's context, and keeps what the token alone decides",
    ),
    AblationKind(
        "rotate",
        "rotate",
        "is replaced by that of the head before it",
        "replaced by its neighbour's",
        "removes which head gets it, and keeps the size: a control",
        reference=False,
    ),
)

ABLATIONS: dict[str, AblationKind] = {kind.name: kind for kind in _TABLE}
"""By name; the first is the default."""

DEFAULT: Kind = "mean"
"""The kind that stays closest to what the model computes on its tasks."""

OF_ATTENTION = ("zero", "scale")
"""Kinds of change of all of a head's attention (`attention 1.3 zero`): the others replace the map over heads too."""


def kinds_in_words() -> str:
    """The kinds and what each removes, a line each, in Markdown."""
    return "\n\n".join(f"**{kind.name}**: {kind.line}." for kind in ABLATIONS.values())


def takes_reference(kinds: Iterable[str]) -> bool:
    """Whether one of these kinds of change takes its values from reference prompts."""
    return any(kind in ABLATIONS and ABLATIONS[kind].reference for kind in kinds)
