"""The analyses by name, and how each result remembers how it was made.

    @analysis(title="Head attribution")
    def attribute_heads(bridge, prompt, target, foil=None, *, ..., progress=silent) -> HeadAttribution: ...

    ANALYSES["attribute_heads"].title
    attribute_heads(bridge, ...).call        # see dcinterp.results.call

An analysis takes the model as its first argument, `bridge` (one that takes none has no such argument), and otherwise
plain data: texts, numbers, token ids, examples of the tasks, lists of these. It returns a `Result`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from dcinterp.checkpoints.fingerprint import fingerprint, revision
from dcinterp.results.call import Call, plain, same
from dcinterp.results.catalogue import homes, import_all
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest

P = ParamSpec("P")
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Analysis:
    """An analysis as the command line and the app see it.

    ignored: parameters that do not change the result, and are not recorded (progress, say).
    """

    name: str
    title: str
    function: Callable[..., Result]
    needs_composition: bool
    ignored: tuple[str, ...]

    @cached_property
    def signature(self) -> inspect.Signature:
        """That of the function, the model included."""
        return inspect.signature(self.function)

    @property
    def takes_model(self) -> bool:
        """Whether the first argument is a bridge."""
        return next(iter(self.signature.parameters), "") == "bridge"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What a person chooses: all parameters but the model and the ignored ones."""
        return {n: p for n, p in self.signature.parameters.items() if n not in ("bridge", *self.ignored)}

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


def analysis(
    *, title: str, needs_composition: bool = False, ignore: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function under its name, and let its results remember the call.

    Args:
        title: for people, as in "Head diversity".
        needs_composition: refuse models whose heads are not composed, in the same sentence everywhere.
        ignore: further parameters, beside `progress`, that do not change the result.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = entry.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bridge = bound.arguments.get("bridge")
            if needs_composition and bridge is not None and not getattr(bridge, "stages", ()):
                raise UserError(
                    f"{title} needs heads that are composed, and this model has none. Load a DCFormer, such as "
                    "'dcformer++'."
                )
            _require_counts(bound.arguments)
            call = _call(entry, bound)
            return function(*args, **kwargs).with_call(call)

        entry = Analysis(function.__name__, title, run, needs_composition, ("progress", *ignore))
        _registered[function.__name__] = entry
        return run

    return register


_registered: dict[str, Analysis] = {}


class _Analyses(Mapping[str, Analysis]):
    """The registered analyses; a module is imported when somebody asks for its analysis, all when for what there is."""

    def _all(self) -> dict[str, Analysis]:
        import_all()
        return _registered

    def __getitem__(self, name: str) -> Analysis:
        if name not in _registered and name in homes():
            import_module(homes()[name])
        if name not in _registered:
            raise UserError(f"There is no analysis {name!r}; {nearest(name, self._all())}")
        return _registered[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())


ANALYSES: Mapping[str, Analysis] = _Analyses()


def _call(entry: Analysis, bound: inspect.BoundArguments) -> Call:
    """The record of this run; what stands in the way of repeating it becomes its `obstacle`."""
    bridge = bound.arguments.get("bridge")
    arguments, obstacle = {}, _obstacle(bridge) if bridge is not None else ""
    for name in entry.parameters:
        try:
            arguments[name] = plain(bound.arguments[name])
        except TypeError:
            kind = type(bound.arguments[name]).__name__
            obstacle = obstacle or f"This result was made with {name}= a {kind} in memory, which no snippet can hold."
    defaults = {name: parameter.default for name, parameter in entry.parameters.items()}
    home = inspect.unwrap(entry.function).__module__
    return Call(
        analysis=entry.name,
        home=home,
        model=getattr(bridge, "source", None),
        dtype=getattr(bridge, "source_dtype", None),
        revision=revision(bridge) if bridge is not None else None,
        fingerprint=fingerprint(bridge) if bridge is not None else None,
        arguments=arguments,
        shown=tuple(name for name, value in arguments.items() if not same(value, defaults[name])),
        public=homes().get(entry.name) == home,
        obstacle=obstacle,
    )


COUNTS = dict.fromkeys(("k", "rows", "examples", "steps", "max_steps", "batch_size", "seeds", "resamples", "limit"), 1)
COUNTS |= {"check": 0}
"""Parameters that, as numbers, count things, and how many of them there must be at least."""


def _require_counts(arguments: Mapping[str, Any]) -> None:
    """Refuse numbers that no analysis can do anything with, in the same sentence everywhere."""
    for name, value in arguments.items():
        if name in COUNTS and isinstance(value, int) and value < COUNTS[name]:
            raise UserError(f"{name} is {value}; it must be at least {COUNTS[name]}.")
        if name == "level" and not 0 < value < 1:
            raise UserError(f"level is {value}; it must lie between 0 and 1.")
        if name == "tolerance" and not value >= 0:
            raise UserError(f"tolerance is {value}; it must be at least 0.")


def _obstacle(bridge: Any) -> str:
    if getattr(bridge, "source", None) is None:
        return "This result cannot be made again by a snippet: its model was built in memory, not by dcinterp.load."
    if fingerprint(bridge) != bridge.source_fingerprint:
        return "This result cannot be made again by a snippet: its model's weights were changed after loading."
    if any(hook._forward_hooks or hook._forward_pre_hooks for hook in bridge.hook_dict.values()):
        return "This result cannot be made again by a snippet: hooks were active on its model when it was made."
    return ""
