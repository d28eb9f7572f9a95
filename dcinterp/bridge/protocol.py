"""What an analysis may expect of the model it is given: the part of TransformerLens's bridge that we use.

`dcinterp.load` returns one, and so is every `TransformerBridge`. Signatures name this, so that a type checker sees them
without transformer_lens being imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol


class Bridge(Protocol):
    """A model with hooks. One whose heads are composed also has `stages`, the stages at which they are.

    cfg: sizes, in TransformerLens's names (n_layers, n_heads, d_model, ...). embed, blocks, ln_final, W_U: the parts of
    the model; each block has its `attn`.
    original_model: the model of transformers underneath. hook_dict: every hook by name.
    """

    cfg: Any
    embed: Any
    blocks: Any
    ln_final: Any
    original_model: Any
    tokenizer: Any

    @property
    def W_U(self) -> Any: ...  # noqa: N802  # TransformerLens's name

    @property
    def hook_dict(self) -> Mapping[str, Any]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any: ...

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any: ...

    def hooks(self, *args: Any, **kwargs: Any) -> Any: ...


def alone(bridge: object) -> AbstractContextManager[Any]:
    """While it is open no other thread runs the model: parts of a bridge may carry the hooks of another one's run.

    A bridge of TransformerLens's own, which `dcinterp.load` did not make, has no lock; there it does nothing.
    """
    return getattr(bridge, "lock", None) or nullcontext()


@contextmanager
def one_input(bridge: Any) -> Iterator[None]:
    """While it is open all heads' queries, keys and values are read from attention's one input, and hooks there count.

    With an input for each head (`set_use_split_qkv_input`, `set_use_attn_in`) they are made from the stream again.
    """
    with alone(bridge):
        forked = [name for name in ("use_split_qkv_input", "use_attn_in") if getattr(bridge.cfg, name, False)]
        for name in forked:
            getattr(bridge, f"set_{name}")(False)
        try:
            yield
        finally:
            for name in forked:
                getattr(bridge, f"set_{name}")(True)


def stages_of(bridge: object) -> tuple[str, ...]:
    """The stages ("pre", "post") at which a model's heads are composed; none for any other model."""
    return tuple(getattr(bridge, "stages", ()))
