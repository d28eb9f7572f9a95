"""Finding the hooks of a model, and the code that reads or replaces the value at one."""

from __future__ import annotations

from typing import Any

import streamlit as st

from workbench import examples, models


def find_hooks(name: str, words: str, layer: int | None) -> tuple[Any, ...]:
    """The hooks of a model that fit; UserError when none does."""
    return _find_hooks(name, models.stamp(name), words.strip(), layer)


@st.cache_data(max_entries=64, show_spinner="Running the model to list its hooks ...")
def _find_hooks(name: str, stamp: int, words: str, layer: int | None) -> tuple[Any, ...]:
    import dcinterp

    with models.lock(name):
        return dcinterp.list_hooks(models.model(name), words, layer=layer)


def readable_prompt(name: str) -> str:
    """A text that the model can read."""
    own = examples.own(name)
    return str((own[0] if own else examples.held_out("task2", 0)).prompt)


def code_for_hook(name: str, hook: Any) -> str:
    """A cell that reads the value at a hook, and one that sets it to zero."""
    source, tokenizer = models.parts(name)
    given = "" if tokenizer is None else f", tokenizer={tokenizer!r}"
    reads_text = models.model(name).tokenizer is not None
    imports = "" if reads_text else "import torch\n\n"
    prompt = repr(readable_prompt(name)) if reads_text else "torch.arange(8)[None]"
    switch = f"bridge.{hook.switch}(True)\n" if hook.switch else ""
    return (
        f"{imports}import dcinterp\n\nbridge = dcinterp.load({source!r}{given})\n{switch}prompt = {prompt}\n"
        f"_, cache = bridge.run_with_cache(prompt, names_filter=[{hook.name!r}])\n"
        f"value = cache[{hook.name!r}]  # {hook.shape}\n\n"
        f"without = bridge.run_with_hooks(prompt, fwd_hooks=[({hook.name!r}, lambda value, hook: value * 0)])"
    )
