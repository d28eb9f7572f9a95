"""The fields of a config held against their annotations: a config.json may have anything in them."""

from __future__ import annotations

import inspect
import math
from functools import cache
from typing import Any, Literal, get_origin

from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

LARGEST = 2**31 - 1
"""Of a size; none of a model comes near it, and a tensor of that size fits nowhere."""

ABOVE_ZERO = ("norm_eps", "qk_norm_eps", "rotary_base")
NOT_BELOW_ZERO = ("initializer_range", "embedding_initializer_range", "mlp_gate_groups")


def check_field_types(config: Any, root: type) -> None:
    """Refuse a value of another type than its field's, and numbers that no model can have.

    Args:
        config: a config of transformers.
        root: the class whose fields, and those of its subclasses, are checked; transformers sees to those below it.

    Raises:
        UserError: the message names the field.
    """
    kind: Any = type(config)
    for name, annotation in _annotations(kind, root).items():
        value = getattr(config, name)
        require_fitting(name, value, annotation)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} is {value}; it must be a finite number.")
        if isinstance(value, int) and value > LARGEST:
            raise UserError(f"{name} is {shown(value, 30)}; it must be at most {LARGEST:,}.")
    for name in ABOVE_ZERO:
        if not getattr(config, name) > 0:
            raise UserError(f"{name} is {getattr(config, name)}; it must be above 0.")
    for name in NOT_BELOW_ZERO:
        if (getattr(config, name) or 0) < 0:
            raise UserError(f"{name} is {getattr(config, name)}; it must not be below 0.")
    if not 0 <= config.rotary_fraction <= 1:
        raise UserError(f"rotary_fraction is {config.rotary_fraction}; it is a share, from 0 to 1.")


@cache
def _annotations(kind: type, root: type) -> dict[str, Any]:
    ours = [each for each in reversed(kind.__mro__) if issubclass(each, root)]
    hints = {name: hint for each in ours for name, hint in inspect.get_annotations(each, eval_str=True).items()}
    # Of words, the config itself says which there are.
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not Literal} | {
        "compose_stages": tuple | list
    }
