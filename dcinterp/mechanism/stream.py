"""A prompt's residual stream, entered at any layer: runs that repeat a prompt leave out the layers that cannot differ.

    stream = Stream(bridge, ids)
    logits = stream.run(rows=16, layer=20, hooks=[("blocks.20.attn.hook_z", replace)])    # runs layers 20 and up
    taps = stream.read(["blocks.20.attn.hook_v"])                                        # runs layer 20

What a layer reads is computed once. In a run that starts at layer l the blocks below l hand on what they are given, and
the last of them hands on the stored stream instead; embedding, masks, positions, final norm and unembedding remain the
model's own. So this works for any bridge whose blocks pass on nothing but the stream. Whether a model's do is tried
once, on the prompt itself: if a run from the middle does not give the logits of a whole run, every run is a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, alone
from dcinterp.shapes import Residual, TokenIds

Hooks = Sequence[tuple[str, Callable[..., Any]]]

SAME = 1e-4
"""Logits that differ by less than this share of the largest one are the same but for rounding."""


def layer_of(name: str) -> int | None:
    """The block that a hook is in; None outside of blocks."""
    found = re.match(r"blocks\.(\d+)\.", name)
    return int(found[1]) if found else None


def first_layer(names: Sequence[str]) -> int:
    """The lowest block that any of these hooks is in; 0 if one is in none."""
    return min((layer_of(name) or 0 for name in names), default=0)


class Stream:
    """The stream of one prompt, and runs of the prompt from a layer on.

    It keeps what one layer reads, that of the last run, and goes on from there when a higher layer is asked for: asked
    layer by layer, all together cost one forward pass and hold one [1, pos, d_model].

    Args:
        bridge: any bridge.
        ids: the prompt, [1, pos].
        hooks: forward hooks that are on in every run, such as frozen weights; made for any batch size.

    Cost: one and a half forward passes at the first use, to see that the model allows it.
    """

    def __init__(self, bridge: Bridge, ids: TokenIds, hooks: Hooks = ()) -> None:
        self.bridge, self.ids, self.hooks = bridge, ids, tuple(hooks)
        self._layer, self._entering = 0, torch.zeros(0)
        self._whole_tuples: bool | None = None
        self._allowed: bool | None = None

    def run(
        self, rows: int, layer: int, hooks: Hooks = (), places: Sequence[int] | None = None
    ) -> Float[Tensor, "row place vocab"]:
        """The logits of `rows` copies of the prompt, with layers below `layer` as they are on the untouched prompt.

        Args:
            rows: size of the batch.
            layer: the lowest layer that any of `hooks` changes.
            hooks: forward hooks of this run alone.
            places: positions whose logits are wanted: [rows, place, vocabulary]. All positions without.
        """
        entering = self.entering(layer)
        with self._between(entering, layer if entering is not None else 0, self.layers, places):
            logits: Tensor = self.bridge.run_with_hooks(self.ids.expand(rows, -1), fwd_hooks=[*self.hooks, *hooks])
        # The unembedding may have been left alone because somebody listens there.
        return logits if places is None or logits.shape[1] == len(places) else logits[:, list(places)]

    def layer(self, layer: int, rows: int, hooks: Hooks) -> None:
        """Run one layer alone on `rows` copies of what it reads, for what hooks see and change in it."""
        entering = self.entering(layer)
        end = layer + 1 if self.allowed else self.layers
        with self._between(entering, layer if entering is not None else 0, end, () if end < self.layers else None):
            self.bridge.run_with_hooks(self.ids.expand(rows, -1), fwd_hooks=[*self.hooks, *hooks])

    @torch.no_grad()
    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors of the untouched prompt by hook name, [1, ...]; only the layers of these hooks run."""
        layers = [layer_of(name) for name in names]
        first, end = 0, self.layers
        if names and None not in layers and self.allowed:
            first, end = min(layer or 0 for layer in layers), max(layer or 0 for layer in layers) + 1
        entering = self.entering(first)
        with self._between(entering, first, end, () if end < self.layers else None), self._hooked():
            cache = self.bridge.run_with_cache(self.ids, names_filter=list(names))[1]
        return {name: cache[name].detach() for name in names}

    @torch.no_grad()
    def entering(self, layer: int) -> Residual | None:
        """What a layer reads on the untouched prompt, [1, pos, d_model]; None if the run has to start below."""
        if layer == 0 or not self.allowed:
            return None
        if layer < self._layer:
            self._layer = 0
        if layer > self._layer:
            seen: list[Tensor] = []
            with self._between(self._entering if self._layer else None, self._layer, layer, (), seen):
                self.bridge.run_with_hooks(self.ids, fwd_hooks=list(self.hooks))
            self._layer, self._entering = layer, seen[0].detach()
        return self._entering

    @property
    def layers(self) -> int:
        return int(self.bridge.cfg.n_layers)

    @property
    def allowed(self) -> bool:
        """Whether runs of this model may start at a layer; tried on the prompt when first asked."""
        if self._allowed is None:
            self._allowed = self._try()
        return self._allowed

    @torch.no_grad()
    def _try(self) -> bool:
        middle = self.layers // 2
        blocks = getattr(self.bridge, "blocks", None)
        if middle == 0 or blocks is None or len(blocks) != self.layers:
            return False
        given: list[Any] = []
        with alone(self.bridge):
            watches = [block.register_forward_hook(lambda _, args, out: given.append(out)) for block in blocks]
            try:
                whole = self.bridge.run_with_hooks(self.ids, fwd_hooks=list(self.hooks))
            finally:
                for watch in watches:
                    watch.remove()
        tuples = {isinstance(out, tuple) for out in given}
        plain = all(isinstance(out, Tensor) or (isinstance(out, tuple) and len(out) == 1) for out in given)
        if len(given) != self.layers or len(tuples) != 1 or not plain:
            return False
        self._whole_tuples = tuples.pop()
        self._allowed = True
        try:
            part = self.run(1, middle)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return False  # the model wants more from a block than we know of
        return bool((part - whole).abs().max() <= SAME * whole.abs().max())

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        if not self.hooks:
            yield
            return
        with self.bridge.hooks(fwd_hooks=list(self.hooks)):
            yield

    @contextmanager
    def _between(
        self,
        entering: Tensor | None,
        first: int,
        end: int,
        places: Sequence[int] | None,
        seen: list[Tensor] | None = None,
    ) -> Iterator[None]:
        """While it is open, forwards run blocks first <= l < end on `entering`, and unembed `places` alone.

        seen: gets what block `end` would read.
        """
        if entering is None and end == self.layers and places is None:
            yield
            return

        def hand_on(layer: int) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                x = args[0] if args else kwargs["hidden_states"]
                if layer == first - 1 and entering is not None:
                    x = entering.expand(len(x), -1, -1)
                if layer == end and seen is not None:
                    seen.append(x)
                return (x,) if self._whole_tuples else x

            return forward

        unembed = getattr(self.bridge, "unembed", None)
        replaced: list[tuple[Any, Callable[..., Any]]] = [
            (block, hand_on(layer))
            for layer, block in enumerate(self.bridge.blocks)
            if (layer < first and entering is not None) or layer >= end
        ]
        # Forwards of another thread must not meet what is replaced here, nor this one what another has replaced.
        with alone(self.bridge):
            if places is not None and unembed is not None and not _listened(unembed):
                whole = unembed.forward
                replaced.append((unembed, lambda x, *args, **kwargs: whole(x[:, list(places)], *args, **kwargs)))
            try:
                for module, forward in replaced:
                    # TransformerLens would set it on the component that the bridge wraps.
                    object.__setattr__(module, "forward", forward)
                yield
            finally:
                for module, _ in replaced:
                    vars(module).pop("forward", None)


def _listened(unembed: Any) -> bool:
    """Whether a hook on the unembedding expects all positions."""
    hooks = (unembed, *(hook for hook in (getattr(unembed, n, None) for n in ("hook_in", "hook_out")) if hook))
    return any(h._forward_hooks or h._forward_pre_hooks for h in hooks)


def metric_of(stream: Stream, metric: Callable[[Tensor], Tensor], rows: int, hooks: Hooks) -> Tensor:
    """The metric of `rows` copies of a prompt under hooks, [row]; only layers that these can change are run."""
    places = getattr(metric, "places", None)
    logits = stream.run(rows, first_layer([name for name, _ in hooks]), hooks, places)
    return metric(logits) if places is None else metric.at_places(logits)  # type: ignore[attr-defined]


def replace_rows(parts: Sequence[tuple[slice, Mapping[str, Tensor]]], rows: int) -> Hooks:
    """Hooks that put tensors in the place of some rows of a batch: (rows, tensors by hook name) of every part."""
    by_name: dict[str, list[tuple[slice, Tensor]]] = {}
    for place, tensors in parts:
        for name, tensor in tensors.items():
            by_name.setdefault(name, []).append((place, tensor))

    def put(tensor: Tensor, hook: Any, name: str) -> Tensor:
        some = by_name[name]
        if len(some) == 1 and len(some[0][1]) == rows:
            return some[0][1]
        out = tensor.clone()
        for place, new in some:
            out[place] = new
        return out

    return [(name, partial(put, name=name)) for name in by_name]
