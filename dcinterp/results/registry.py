"""The analyses by name, and how each result remembers how it was made.

    @analysis(title="Head attribution", question="Which head writes the answer?", guide="analyses/head-attribution.md",
              example={"prompt": EXAMPLE_PROMPT, "target": "tea"})
    def attribute_heads(bridge, prompt, target, foil=None, *, ..., progress=silent) -> HeadAttribution: ...

    ANALYSES["attribute_heads"].title
    attribute_heads(bridge, ...).call        # see dcinterp.results.call

An analysis takes the model as its first argument, `bridge` (one that takes none has no such argument), and otherwise
plain data: texts, numbers, token ids, examples of the tasks, lists of these. It returns a `Result`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

from dcinterp.bridge.protocol import Bridge, alone, stages_of
from dcinterp.checkpoints.fingerprint import drops_out, fingerprint, has_hooks, is_unchanged, revision
from dcinterp.results.call import Call, plain, same
from dcinterp.results.catalogue import GROUP, homes, import_added, import_all, import_analysis
from dcinterp.results.options import parameter_types
from dcinterp.results.result import CALLS_NOW, TYPES_NOW, Result
from dcinterp.results.stored import check_fields
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.extensions import entries, load_entry, of_package
from dcinterp.support.former_names import renamed, warn_of

P = ParamSpec("P")
R = TypeVar("R", bound=Result)

EXAMPLE_PROMPT = "There are tea, meat, meat. Which is not meat? The"
"""The prompt of the examples in declarations; the shipped models answer it."""


@dataclass(frozen=True)
class Analysis:
    """An analysis as the command line, the documentation and the app see it: what its declaration says, and no more.

    question, guide: what it answers, and the page of docs/ that explains it. example: arguments of a call that takes
    seconds, as one types them; help, documentation and tests run it. in_units: its work is many units that do not need
    each other, such as examples, and can go to the workers of a cluster. ignored: parameters that do not change the
    result and are not recorded (progress, say). former: what parameters were called in earlier versions.
    """

    name: str
    title: str
    function: Callable[..., Result]
    needs_composition: bool = False
    needs_decoder: bool = False
    question: str = ""
    guide: str = ""
    example: Mapping[str, str] = field(default_factory=dict)
    in_units: bool = False
    ignored: tuple[str, ...] = ()
    former: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)

    def arguments_now(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a recorded call as this version calls them, with what an earlier version left unsaid."""
        return {**self.before, **renamed(recorded, self.former)}

    def unknown_argument(self, given: Collection[str]) -> str:
        """A sentence on the first of these names, of a recorded call, that is no parameter; nothing where all are."""
        unknown = next((name for name in given if name not in self.parameters), None)
        return f"This version's {self.name} has no argument {unknown!r}; use the version that made it." * bool(unknown)

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

    @cached_property
    def types(self) -> dict[str, Any]:
        """The types of the parameters, with their ranges (see dcinterp.support.ranges)."""
        return parameter_types(self.function, ranges=True)

    @property
    def kind(self) -> str:
        """The name of the kind of result that it returns."""
        made = self.function.__annotations__["return"]  # a name where annotations are postponed, else the class
        return str(getattr(made, "__name__", made))

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]


def analysis(
    *,
    title: str,
    question: str = "",
    guide: str = "",
    example: Mapping[str, str] | None = None,
    needs_composition: bool = False,
    needs_decoder: bool = False,
    in_units: bool = False,
    ignore: tuple[str, ...] = (),
    former: Mapping[str, str] | None = None,
    before: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare an analysis: the one place from which public name, verb, help, documentation and tests are made.

    Args:
        title: for people, as in "Head diversity".
        question: what it answers, for the table in docs/analyses.md.
        guide: the page of docs/ that explains how it is used and read.
        example: arguments of a call on the shipped model that takes seconds, as one types them on the command line.
        needs_composition: refuse models whose heads are not composed, in the same sentence everywhere.
        needs_decoder: for the documentation: it refuses models of other people, which are not decoders of dcinterp.
        in_units: it makes its units with `all_once`, and nothing that takes long beside them.
        ignore: further parameters, beside `progress`, that do not change the result.
        former: what parameters and their words were called in earlier versions (see dcinterp.support.former_names).
        before: the values of parameters that came later, in calls that were recorded without them: where a default
            changes the numbers, a saved result is made again as it was made then.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in entry.former.keys() & kwargs.keys():
                warn_of(f"{old}=", f"{entry.former[old]}=")
            bound = _bound(entry, args, renamed(kwargs, entry.former))
            bound.apply_defaults()
            bound.arguments.update({n: int(each) for n, each in bound.arguments.items() if _is_whole(each)})
            bound.arguments.update({n: each.tolist() for n, each in bound.arguments.items() if _is_plain(each)})
            bridge = bound.arguments.get("bridge")
            if needs_composition and bridge is not None and not stages_of(bridge):
                raise UserError(
                    f"{title} needs heads that are composed, and this model has none. Load a DCFormer, such as "
                    "'dcformer++'."
                )
            if entry.takes_model and not hasattr(bridge, "run_with_hooks"):
                raise UserError(
                    f"{entry.name} takes a model with hooks first, such as dcinterp.load('dcformer++'), "
                    f"not {type(bridge).__name__}."
                )
            for name, value in bound.arguments.items():
                if name in entry.types:
                    require_fitting(name, value, entry.types[name])
            if bridge is not None and entry.takes_model and drops_out(bridge):
                raise UserError(
                    "This model is in training mode, in which dropout changes every run; call eval() on it."
                )
            call = _call(entry, bound)
            # Attributions need gradients, which inference mode would not give.
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
                made = function(*bound.args, **bound.kwargs)
            require_result(entry.name, made)
            return made.with_call(call)

        entry = Analysis(
            name=function.__name__,
            title=title,
            function=run,
            needs_composition=needs_composition,
            needs_decoder=needs_decoder,
            in_units=in_units,
            question=question,
            guide=guide,
            example=example or {},
            ignored=("progress", *ignore),
            former=former or {},
            before=before or {},
        )
        require_types(entry)
        require_own_name(function)
        _registered[function.__name__] = entry
        return run

    return register


def require_own_name(function: Callable[..., Any]) -> None:
    """Refuse an analysis whose name another one has.

    Raises:
        TypeError: as said.
    """
    name, module = function.__name__, function.__module__
    there = _registered.get(name)
    other = homes().get(name) or (module if there is None else inspect.unwrap(there.function).__module__)
    if module != other and "__main__" not in (module, other):
        raise TypeError(f"{other} has an analysis {name} already; call this one something else.")


def require_types(entry: Analysis) -> None:
    """Refuse an analysis whose options and result nobody could tell, where it is declared.

    Raises:
        TypeError: a parameter that a person chooses, or what it returns, has no annotation, or the model is not called
            `bridge`.
    """
    first = next(iter(entry.signature.parameters), "")
    if (entry.needs_composition or first == "model") and not entry.takes_model:
        raise TypeError(f"{entry.name} takes a model, and its first parameter is {first!r}; call it 'bridge'.")
    if unsaid := [each for each in (*entry.parameters, "return") if each not in entry.function.__annotations__]:
        raise TypeError(f"{entry.name} says no type for {unsaid[0]!r}, from which its options are made; annotate it.")


def require_result(name: str, made: Any) -> None:
    """Refuse what an analysis returns and cannot be saved, where it is made and not when it is read.

    Raises:
        TypeError: it is no `Result`, or a field does not fit its type or `AXES`.
    """
    if not isinstance(made, Result):
        raise TypeError(f"{name} returned a {type(made).__name__}; an analysis returns a Result.")
    if lost := [each for each in made.tensors() if each not in made.AXES]:
        raise TypeError(f"{name} returned a {type(made).__name__} whose tensor {lost[0]!r} has no place in AXES.")
    try:
        check_fields(type(made), {each.name: getattr(made, each.name) for each in fields(made) if each.name != "call"})
    except UserError as error:
        raise TypeError(
            f"{name} returned a {type(made).__name__} that does not fit its own fields: {error}."
        ) from error


_registered: dict[str, Analysis] = {}


class _Analyses(Mapping[str, Analysis]):
    """The registered analyses; a module is imported when somebody asks for its analysis, all when for what there is."""

    def _all(self) -> dict[str, Analysis]:
        import_all()
        import_added()
        return _registered

    def __getitem__(self, name: str) -> Analysis:
        if name not in _registered and name in homes():
            import_analysis(homes()[name])
        if name not in _registered and name in entries(GROUP):
            _register_of_package(name)
        if name not in _registered:
            raise UserError(f"There is no analysis {name!r}; {nearest(name, self._all())}")
        return _registered[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all()))

    def __len__(self) -> int:
        return len(self._all())


def _register_of_package(name: str) -> None:
    """Import the analysis that a package adds under a name.

    Raises:
        UserError: it does not load, dcinterp has one of that name, or there is none in it.
    """
    value = entries(GROUP)[name].value
    load_entry(GROUP, name, lambda _: "" if name in _registered else f"{value} declares no analysis of that name")


ANALYSES: Mapping[str, Analysis] = _Analyses()


def as_now(call: Call) -> Call:
    """A recorded call whose code, written by this version, makes the same result: it names what is no default now."""
    if call.analysis in entries(GROUP) and call.analysis not in {*_registered, *homes()}:
        _register_of_package(call.analysis)
    entry = _registered.get(call.analysis)
    if entry is not None and of_package(call.analysis, call.home):  # which may have moved it since
        call = replace(call, home=inspect.unwrap(entry.function).__module__)
    if call.analysis not in homes():  # one of a program that uses ours, if any: no code is written from a file's words
        own = entry is not None and inspect.unwrap(entry.function).__module__ == call.home
        strange = f"This result says that it was made by {call.analysis} of {call.home}, which is no analysis here."
        return replace(call, public=False, obstacle=call.obstacle or ("" if own else strange))
    entry, call = ANALYSES[call.analysis], replace(call, home=homes()[call.analysis], public=True)
    arguments = entry.arguments_now(call.arguments)
    if said := entry.unknown_argument(arguments):
        return replace(call, obstacle=call.obstacle or said)
    defaults = {name: parameter.default for name, parameter in entry.parameters.items()}
    shown = tuple(dict.fromkeys(entry.former.get(name, name) for name in call.shown))
    more = [n for n, value in arguments.items() if n in defaults and n not in shown and not same(value, defaults[n])]
    return replace(call, arguments=arguments, shown=(*shown, *more))


def types_of(analysis: str) -> dict[str, Any]:
    """The types of the parameters of an analysis; none where this version has no such analysis."""
    return parameter_types(ANALYSES[analysis].function) if analysis in ANALYSES else {}


CALLS_NOW.append(as_now)
TYPES_NOW.append(types_of)


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number of numpy's or torch's, as an argmax gives."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0 and not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return isinstance(value, np.integer)


def _is_plain(value: Any) -> bool:
    """Whether it is another number of numpy's, or a list of them, which no JSON file takes as it is."""
    return isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _bound(entry: Analysis, args: Sequence[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments of a call; Python's own errors say neither which function it was nor what arguments there are."""
    known = entry.signature.parameters
    if unknown := [name for name in named if name not in known]:
        raise TypeError(f"{entry.name} has no argument {unknown[0]!r}; it has {', '.join(known)}.")
    try:
        return entry.signature.bind(*args, **named)
    except TypeError as error:
        only = [name for name, each in known.items() if each.kind is each.KEYWORD_ONLY]
        some = f", of which {', '.join(only)} by name" if only else ""
        raise TypeError(f"{entry.name}: {error}; it has {', '.join(known)}{some}.") from None


def _call(entry: Analysis, bound: inspect.BoundArguments) -> Call:
    """The record of this run; what stands in the way of repeating it becomes its `obstacle`."""
    bridge = bound.arguments.get("bridge")
    arguments, obstacle = {}, ""
    if bridge is not None:
        with alone(bridge):  # hooks of another thread's run are none of this result's
            obstacle = _obstacle(bridge)
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
        tokenizer=getattr(bridge, "source_tokenizer", None),
        revision=revision(bridge) if bridge is not None else None,
        fingerprint=fingerprint(bridge) if bridge is not None else None,
        arguments=arguments,
        shown=tuple(name for name, value in arguments.items() if not same(value, defaults[name])),
        public=homes().get(entry.name) == home,
        obstacle=obstacle,
    )


def _obstacle(bridge: Bridge) -> str:
    if getattr(bridge, "source", None) is None:
        return "This result cannot be made again by a snippet: its model was built in memory, not by dcinterp.load."
    if not is_unchanged(bridge):
        return "This result cannot be made again by a snippet: its model's weights were changed after loading."
    if has_hooks(bridge):
        return "This result cannot be made again by a snippet: hooks were active on its model when it was made."
    return ""
