"""Ranges of numbers, as part of a parameter's type: `steps: Count` is a whole number of at least one.

require_in_range("steps", 0, get_type_hints(function, include_extras=True)["steps"])        # UserError
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, get_args, get_origin

from dcinterp.support.errors import UserError


@dataclass(frozen=True)
class AtLeast:
    """Numbers from `least` upwards."""

    least: float

    def holds(self, value: float) -> bool:
        return value >= self.least

    def __str__(self) -> str:
        return f"must be at least {self.least:g}"


@dataclass(frozen=True)
class Between:
    """Numbers between two, which are left out."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low < value < self.high

    def __str__(self) -> str:
        return f"must lie between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class Below:
    """Numbers below one, which is left out."""

    most: float

    def holds(self, value: float) -> bool:
        return value < self.most

    def __str__(self) -> str:
        return "must be finite" if self.most == math.inf else f"must be below {self.most:g}"


@dataclass(frozen=True)
class AtMost:
    """Numbers up to `most`."""

    most: float

    def holds(self, value: float) -> bool:
        return value <= self.most

    def __str__(self) -> str:
        return f"must be at most {self.most:g}"


Count = Annotated[int, AtLeast(1)]
"""How many of something there must be: at least one."""

Number = Annotated[int, AtLeast(0)]
"""How many of something there may be: none, too."""

Level = Annotated[float, Between(0, 1)]
"""The confidence level of an interval."""

Tolerance = Annotated[float, AtLeast(0)]

NotNegative = Annotated[float, AtLeast(0), Below(math.inf)]
"""A finite number, zero or above."""

Share = Annotated[float, AtLeast(0), AtMost(1)]
"""A part of a whole."""

Decay = Annotated[float, AtLeast(0), Below(1)]
"""What is kept of a running mean at each step."""


def require_in_range(name: str, value: Any, annotation: Any) -> None:
    """Refuse a number that is out of its parameter's range; values of other types are left to the function.

    Raises:
        UserError: the value is out of the range; the message names both.
    """
    if isinstance(value, bool):
        return
    with suppress(TypeError, RuntimeError, ValueError):
        value = operator.index(value)
    if not isinstance(value, Real):
        return
    value = value if isinstance(value, int) else float(value)
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is Annotated:
            for bound in each.__metadata__:
                if isinstance(bound, AtLeast | AtMost | Below | Between) and not bound.holds(value):
                    raise UserError(f"{name} is {value}; it {bound}.")
