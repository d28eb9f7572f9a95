"""How the sentences of the case study are made: a step, the thresholds, and how numbers and ablations are said.

Shares are compared with the thresholds as they are printed, in whole percent, so that 10 % is never called small.
"""

from __future__ import annotations

from typing import NamedTuple

from dcinterp.mechanism.ablation_kinds import ABLATIONS
from dcinterp.mechanism.branches import ADDED, BRANCHES

NOTABLE_SHARE = 0.1
"""If composition changes an attention weight by less than this share, the weight counts as the head's own."""

NOTABLE_EFFECT = 0.1
"""Share of the logit difference; a smaller effect does not support a step."""

FAR_APART = 2.0
"""The sentence says so if the attribution and the measured effect differ by more than this factor."""

NOTABLE_WEIGHT = 0.1
"""With less weight than this, before and after composition, a head does not attend to a token."""

ACCEPTABLE_GAP = 0.01
"""Share of the layer's effect, or of a tenth of the largest; the sentence says so if the integral misses more."""

FOLLOWS = 0.5
"""Share of a head's direct effect; a head that reads a fact loses as much if the fact is another."""

PROMOTED = 10
"""An OV circuit promotes a token if it ranks the token among its first so many."""

FORMER_STEPS = {"lender": "sharing"}
"""What version 0.1 called the steps, and their names now."""

BRANCH_WORDS = {BRANCHES[name].hook: BRANCHES[name].label for name in ADDED}
"""What composition adds, by hook."""


class Step(NamedTuple):
    """One step of the case study; `holds` is False if this example does not behave as the paper describes."""

    name: str
    title: str
    sentence: str
    holds: bool = True


def percent(part: float, whole: float) -> int:
    """A share in whole percent, as it is printed and as thresholds see it."""
    return round(100 * part / whole)


def share_of(effect: float, logit_difference: float, more: str = "") -> str:
    """An effect as a share of the logit difference, to put behind it, and `more`; no share unless the difference is
    positive.
    """
    said = []
    if logit_difference > 0:
        share = percent(effect, logit_difference)
        said = [f"{share}% of the difference" if abs(share) < 200 else f"{share / 100:.1f} times the difference"]
    said += [more] if more else []
    return f" ({'; '.join(said)})" if said else ""


def matters(effect: float, logit_difference: float) -> bool:
    """Whether an effect supports the answer by a tenth of the logit difference or more, and by what shows as a number.

    Where the difference is not above zero there is no share of it.
    """
    if round(effect, 2) <= 0:
        return False
    if logit_difference <= 0:
        return True
    return percent(effect, logit_difference) >= 100 * NOTABLE_EFFECT


def reduces(effect: float, logit_difference: float, of: str = "it", more: str = "") -> str:
    """What an ablation with this effect does to the logit difference (`of`), with the share of it."""
    size = round(effect, 2)
    verb = "reduces" if size > 0 else "increases" if size < 0 else "changes"
    return f"{verb} {of} by {abs(effect):.2f}{share_of(abs(effect), logit_difference, more)}"


class Words(NamedTuple):
    """How sentences speak of the kind of ablation."""

    kind: str

    @property
    def done(self) -> str:
        """As in "with its output replaced by its mean"."""
        return ABLATIONS[self.kind].done

    @property
    def done_to_both(self) -> str:
        """The same of two parts."""
        return self.done.replace("its", "their")

    def at_zero(self, text: str) -> str:
        """What zero does, to put into brackets; empty where zero is the kind."""
        return "" if self.kind == "zero" else f"set to zero: {text}"

    def effect_of_zero(self, effect: float) -> str:
        """By how much zero changes the logit difference, to put into brackets."""
        return self.at_zero(f"{-effect:+z.2f}")
