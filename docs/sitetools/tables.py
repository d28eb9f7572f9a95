"""The tables of hooks, from the list that the code makes of them (`dcinterp.list_hooks`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.bridge.hook_catalogue import COMPOSITION, Hook


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@cache
def _hooks() -> tuple[Hook, ...]:
    return dcinterp.list_hooks(dcinterp.load("dcformer++"))


def _composes(hook: Hook) -> bool:
    return re.search(r"\.attn\.(pre|post)\.", hook.name) is not None


@cache
def _hooks_of_other_composers() -> tuple[Hook, ...]:
    """Of compositions with a gate on what heads have read, and with terms from other pairs or the layer before."""
    hooks: list[Hook] = []
    for preset in ("tiny-gated", "tiny-multi-token", "tiny-dense-collaboration"):
        config = dcinterp.DCFormerConfig.preset(preset, vocab_size=8, num_hidden_layers=2)
        hooks += dcinterp.list_hooks(wrap(dcinterp.DCFormerForCausalLM(config)))
    return tuple(hooks)


def composition_table() -> str:
    """The hooks of the composition, once for both stages."""
    rows = []
    for tap, meaning in COMPOSITION.items():
        found, stages = {h.axes for h in _hooks() if _composes(h) and h.name.endswith(f".{tap}")}, "{pre,post}"
        if not found:
            there = [h for h in _hooks_of_other_composers() if _composes(h) and h.name.endswith(f".{tap}")]
            found, (stages,) = {h.axes for h in there}, {h.name.split(".")[3] for h in there}
        (axes,) = found  # the same in all layers and both stages
        rows.append([f"`blocks.{{l}}.attn.{stages}.{tap}`", f"[{', '.join(axes)}]", meaning])
    return table(["hook", "axes", "what"], rows)


def standard_table() -> str:
    """The other hooks, once for all blocks."""
    rows = []
    for hook in _hooks():
        if _composes(hook) or (hook.layer or 0) > 0:
            continue
        names = [hook.name, *hook.aliases]
        shown = [f"`{name.replace('blocks.0.', 'blocks.{l}.')}`" for name in names]
        silent = f" (after `{hook.switch}(True)`)" if hook.switch else ""
        axes = f"[{', '.join(hook.axes)}]" if hook.axes else ""
        rows.append([" = ".join(shown), axes, f"{hook.meaning}{silent}"])
    return table(["hook", "axes", "what"], rows)
