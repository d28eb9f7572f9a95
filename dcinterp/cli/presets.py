"""`dcinterp presets`: the named models."""

from __future__ import annotations

import typer


def command() -> None:
    """List the named models with their shapes and parameter counts.

    Example:

        dcinterp presets
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from dcinterp.model.decoder import DCFormerForCausalLM
    from dcinterp.model.presets import presets

    table = Table("preset", "family", "layers", "width", "heads", "parameters")
    for preset in presets().values():
        config = preset.config()
        with torch.device("meta"):
            count = sum(p.numel() for p in DCFormerForCausalLM(config).parameters())
        shape = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
        table.add_row(preset.name, preset.family, *map(str, shape), f"{count / 1e6:,.1f}M")
    Console().print(table)
    typer.echo(f"A vocabulary of {config.vocab_size:,} tokens is counted in; a tokenizer may set another.")
