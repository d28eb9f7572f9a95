"""Where a model came from, whether its weights are still those, and what else acts on its runs.

That is what a result has to know to be made again.
"""

from __future__ import annotations

import hashlib
from typing import cast

import torch
from torch import Tensor, nn

from dcinterp.bridge.protocol import Bridge

SAMPLED = 2**18
"""Entries of a tensor that enter the fingerprint; larger tensors are read at this many evenly spaced places."""


def mark_source(bridge: Bridge, source: str, dtype: torch.dtype | None, tokenizer: str | None = None) -> None:
    """Note on a bridge what `dcinterp.load` was given, and the fingerprint that its weights have now."""
    # Past nn.Module's bookkeeping: these are no parts of the model.
    object.__setattr__(bridge, "source", source)
    object.__setattr__(bridge, "source_dtype", str(dtype).removeprefix("torch.") if dtype is not None else None)
    object.__setattr__(bridge, "source_tokenizer", tokenizer)
    object.__setattr__(bridge, "source_fingerprint", fingerprint(bridge))
    object.__setattr__(bridge, "source_hooks", hooks_on(bridge))


WATCHES = "only_watches"
"""An attribute of hooks that change nothing, such as the count of a bench."""


def hooks_on(bridge: Bridge) -> frozenset[int]:
    """Torch's numbers of the hooks on the passes, forward and backward, of a bridge's modules and of its model's.

    Without those by which transformers and TransformerLens, in the first run, begin to note what modules return, and
    without those that say of themselves that they only watch (`WATCHES`).
    """
    points = {id(point) for point in bridge.hook_dict.values()}
    found = set()
    for module in (*cast(nn.Module, bridge).modules(), *bridge.original_model.modules()):
        forward = (module._forward_hooks, module._forward_pre_hooks)
        backward = (module._backward_hooks, module._backward_pre_hooks)
        for number, hook in (pair for hooks in (*forward, *backward) for pair in hooks.items()):
            # What a person hangs on a hook point is wrapped by TransformerLens too.
            home = "" if id(module) in points else getattr(hook, "__module__", None) or ""
            if home.split(".")[0] not in ("transformers", "transformer_lens") and not hasattr(hook, WATCHES):
                found.add(number)
    return frozenset(found)


def has_hooks(bridge: Bridge) -> bool:
    """Whether somebody hung a hook on a bridge since it was loaded."""
    # TransformerLens itself hangs some on a few architectures.
    return bool(hooks_on(bridge) - getattr(bridge, "source_hooks", frozenset()))


def drops_out(bridge: Bridge) -> bool:
    """Whether a module is in training mode and leaves out parts at random, so that no two runs are the same."""
    for module in bridge.original_model.modules():
        if module.training:
            # Attention of transformers keeps the rate as a number and hands it on.
            rates = [value for name, value in vars(module).items() if "drop" in name]
            rates += [module.p] if isinstance(module, nn.modules.dropout._DropoutNd) else []
            if any(isinstance(rate, float) and rate > 0 for rate in rates):
                return True
    return False


def fingerprint(bridge: Bridge) -> str:
    """Sixteen hex digits of the names, shapes and values of a bridge's weights.

    It is computed again only when a weight was replaced or changed in place since the last call. A change through
    `parameter.data`, which torch does not count, is seen only on another bridge.
    """
    named = [(clean_name(name), p) for name, p in bridge.original_model.named_parameters()]
    versions = tuple((p.data_ptr(), p._version, p.dtype) for _, p in named)
    known = bridge.__dict__.get("_fingerprint")
    if known is not None and known[0] == versions:
        return str(known[1])
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(_sample(parameter))
    object.__setattr__(bridge, "_fingerprint", (versions, digest.hexdigest()))
    return digest.hexdigest()


def is_unchanged(bridge: Bridge) -> bool:
    """Whether the weights are those that `dcinterp.load` read."""
    return fingerprint(bridge) == getattr(bridge, "source_fingerprint", None)


def clean_name(name: str) -> str:
    """The name of a parameter as it was before the model was wrapped in a bridge."""
    return name.replace("._original_component", "").removeprefix("_original_component.")


def revision(bridge: Bridge) -> str | None:
    """The commit of a model from the hub, where transformers noted one."""
    model: nn.Module = bridge.original_model
    return getattr(getattr(model, "config", None), "_commit_hash", None)


def _sample(parameter: Tensor) -> bytes:
    flat = parameter.detach().flatten()
    flat = flat[:: -(-flat.numel() // SAMPLED) or 1].contiguous().cpu()
    return flat.view(torch.uint8).numpy().tobytes()
