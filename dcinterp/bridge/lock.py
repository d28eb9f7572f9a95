"""The lock under which a bridge runs, and the names of its hooks."""

from __future__ import annotations

import copy
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import BoundArguments, Signature, signature
from typing import Any, Self

from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import BlockBridge

from dcinterp.support.errors import UserError, nearest

HOOKS = ("fwd_hooks", "bwd_hooks")


class RunLock:
    """A re-entrant lock that a deep copy of its owner does not share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> RunLock:
        return RunLock()


class LockedBridge(TransformerBridge):
    """A `TransformerBridge` that runs for one thread at a time and takes no wrong name of a hook.

    Runs hold `lock`, because hooks belong to the model and those of two threads would mix. Hold it yourself around
    several calls that belong together (`with bridge.lock:`).
    """

    lock: RunLock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.take_lock()

    def take_lock(self) -> None:
        """Give the bridge a lock of its own, past nn.Module's bookkeeping."""
        object.__setattr__(self, "lock", RunLock())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().forward(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().generate(*args, **kwargs)

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time; a wrong name in `names_filter` is an error, not left out.

        Raises:
            UserError: no hook has that name, and the message suggests the nearest ones; or the hook is switched off. A
                filter function that selects none is only warned about.
        """
        given = self._checked_filter("run_with_cache", args, kwargs)
        with self.lock:
            return super().run_with_cache(*given.args, **given.kwargs)

    def get_caching_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a wrong name in `names_filter` is an error, as in `run_with_cache`."""
        given = self._checked_filter("get_caching_hooks", args, kwargs)
        return super().get_caching_hooks(*given.args, **given.kwargs)

    def add_caching_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a wrong name in `names_filter` is an error, as in `run_with_cache`."""
        given = self._checked_filter("add_caching_hooks", args, kwargs)
        return super().add_caching_hooks(*given.args, **given.kwargs)

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time; a name that is no hook is an error that suggests the nearest."""
        given = self._checked_hooks("run_with_hooks", args, kwargs)
        with self.lock:
            return super().run_with_hooks(*given.args, **given.kwargs)

    def add_hook(self, name: Any, *args: Any, **kwargs: Any) -> None:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        self._check_names(name, self.hook_dict)
        super().add_hook(name, *args, **kwargs)

    def _checked_filter(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
        """The arguments of a method with a `names_filter`, once its names are found to be hooks that are on."""
        given = _signature(method).bind(*args, **kwargs)
        names = given.arguments.get("names_filter")
        if isinstance(names, tuple | set | frozenset):
            names = given.arguments["names_filter"] = list(names)
        if names is not None:
            known = self.hook_dict
            self._check_names(names, known)
            listed = [] if callable(names) else [names] if isinstance(names, str) else names
            for name in listed:
                if (reason := self._gated_hook_reason(known[name].name or name)) is not None:
                    raise UserError(f"The hook {name!r} is off, as {reason} is False; call set_{reason}(True) first.")
            self._check_reached(listed, given.arguments.get("stop_at_layer"))
        return given

    def _check_reached(self, names: Collection[Any], stop: int | None) -> None:
        """Refuse hooks behind the layer at which a run stops: nothing would come by."""
        if stop is None or stop >= self.cfg.n_layers:  # the whole model runs
            return
        last = stop if stop >= 0 else self.cfg.n_layers + stop
        for name in (each for each in names if isinstance(each, str)):
            found = re.match(r"blocks\.(\d+)\.|ln_final|unembed", name)
            if found and (found[1] is None or int(found[1]) >= last):
                raise UserError(f"{name} comes after stop_at_layer={stop}, and nothing would reach it; stop later.")

    def _checked_hooks(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
        """The arguments of a method that takes hooks, once their names are found to be some; iterators become lists."""
        given = _signature(method).bind(*args, **kwargs)
        for hooks in HOOKS:
            if given.arguments.get(hooks) is not None:
                given.arguments[hooks] = listed = list(given.arguments[hooks])
                self._check_reached([name for name, _ in listed], given.arguments.get("stop_at_layer"))
        self._check_hooks(given.arguments)
        return given

    def _check_hooks(self, kwargs: dict[str, Any]) -> None:
        known = self.hook_dict  # worked out anew where it is asked for
        for hooks in HOOKS:
            for name, _ in kwargs.get(hooks) or []:
                self._check_names(name, known)

    def _check_names(self, names: str | list[str] | Callable[[str], bool], known: Collection[str]) -> None:
        if callable(names):
            if not any(names(name) for name in known):
                warnings.warn(
                    f"The filter function selects none of the {len(known)} hooks of this model; print bridge.hook_dict "
                    "for their names.",
                    stacklevel=3,
                )
            return
        for name in [names] if isinstance(names, str) else names:
            if name not in known:
                inside = sorted(each for each in known if str(name) in each)
                way_out = f"names with that in them are {', '.join(inside[:3])}" if inside else nearest(name, known)
                raise UserError(f"There is no hook {name!r} in this model; {way_out}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UserError(
            "A bridge cannot be pickled, as its hooks are functions of this process; write it with save(folder), and "
            "call dcinterp.load(folder) in the other process."
        )

    def __copy__(self) -> Self:
        """Another bridge over the same parts, as Python copies what can be pickled."""
        twin = type(self).__new__(type(self))
        twin.__dict__ = self.__dict__.copy()
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A model of its own: TransformerLens's captures, which would stay with the first one's blocks, come anew."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for part in self.modules():  # GPT-2's attention keeps its last pattern with its graph, which cannot be copied
            for kept in vars(part).values():
                if isinstance(kept, Tensor) and not kept.is_leaf:
                    memo[id(kept)] = kept.detach().clone()
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        for part in twin.modules():
            if isinstance(part, BlockBridge):
                for handle in part._capture_hook_handles:
                    handle.remove()
                part._capture_hook_handles.clear()
                part._capture_hooks_wired = False
        return twin

    @contextmanager
    def hooks(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As in TransformerLens, one thread at a time; a name that is no hook is an error that suggests the nearest."""
        given = self._checked_hooks("hooks", args, kwargs)
        with self.lock, super().hooks(*given.args, **given.kwargs) as hooked:
            yield hooked


@cache
def _signature(method: str) -> Signature:
    """That of a method of TransformerLens, without the bridge."""
    whole = signature(getattr(TransformerBridge, method))
    return whole.replace(parameters=[*whole.parameters.values()][1:])
