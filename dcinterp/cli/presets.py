"""`dcinterp presets`: the named models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dcinterp.cli._models import preset_names
from dcinterp.cli._outputs import print_json
from dcinterp.cli._screen import print_table


def command(
    name: Annotated[
        str | None, typer.Argument(help="Print everything about this one, as JSON.", autocompletion=preset_names)
    ] = None,
    mechanisms: Annotated[
        bool, typer.Option("--mechanisms", help="List the ways of composing heads instead, with what each one is.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON: by name the family, fields, training recipe and parameters; or the mechanisms."
        ),
    ] = False,
) -> None:
    """List the named models with their shapes, parameter counts and the paper's training recipe.

    heads: 8/2 are 8 that share 2 of keys and values; windows: keys that a layer sees, layer by layer in turn ("all"
    without limit); lr: the highest learning rate; tokens: how many it was trained on. Empty where the paper does not
    say.

    Examples:

        dcinterp presets

        dcinterp presets dcformer++-405m

        dcinterp presets --mechanisms

        dcinterp presets --json
    """
    from rich.table import Table

    from dcinterp.model.build import count_parameters
    from dcinterp.model.compose.registry import MECHANISM_COLUMNS, mechanism_rows
    from dcinterp.model.config import DCFormerConfig
    from dcinterp.model.presets import preset, presets
    from dcinterp.support.errors import UserError

    if mechanisms and name is not None:
        raise UserError("--mechanisms lists all of them; leave the name out.")
    if mechanisms and as_json:
        columns = [name.strip("`") for name in MECHANISM_COLUMNS]
        print_json(
            [dict(zip(columns, (text.replace("`", "") for text in row), strict=True)) for row in mechanism_rows()]
        )
        return
    if mechanisms:
        for title, compose, formula, head_map, released, analyses in mechanism_rows():
            typer.echo(f"{title} (compose: {compose})\n    {formula}\n    M: {head_map}")
            typer.echo(f"    released checkpoints: {released}\n    analyses: {analyses}")
        return
    if name is not None or as_json:
        chosen = [preset(name)] if name is not None else list(presets().values())
        shown = {
            each.name: {"family": each.family}
            | each.fields
            | {"training": each.training, "parameters": count_parameters(DCFormerConfig.preset(each.name))}
            for each in chosen
        }
        print_json(shown)
        return
    table = Table(box=None)
    for column in ("preset", "layers", "width", "heads", "windows", "parameters", "lr", "tokens"):
        table.add_column(column, no_wrap=True)
    for each in presets().values():
        config = DCFormerConfig.preset(each.name)
        windows = ":".join("all" if window is None else str(window) for window in config.attention_windows)
        heads = str(config.num_attention_heads)
        if config.num_key_value_heads != config.num_attention_heads:
            heads += f"/{config.num_key_value_heads}"
        shape = (config.num_hidden_layers, config.hidden_size, heads, windows)
        rate, tokens = each.training.get("learning_rate"), each.training.get("tokens")
        count = _short(count_parameters(config))
        table.add_row(each.name, *map(str, shape), count, _rate(rate), _short(tokens) if tokens else "")
    print_table(table)
    typer.echo("Parameters with 50,257 tokens (text) or 1,000 classes (images); a tokenizer may set another number.")


def _short(count: float) -> str:
    return f"{count / 1e9:,.4g}B" if count >= 9.995e8 else f"{count / 1e6:.3g}M"


def _rate(rate: Any) -> str:
    return f"{rate:.2g}" if rate else ""
