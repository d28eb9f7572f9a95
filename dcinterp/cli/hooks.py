"""`dcinterp hooks`: every place in a model where one can read or intervene."""

from __future__ import annotations

from typing import Annotated

import typer

from dcinterp.cli._models import MODEL, TOKENIZER
from dcinterp.cli._outputs import print_json


def command(
    model: Annotated[str, MODEL] = "dcformer++",
    match: Annotated[
        str, typer.Option(help="Only hooks with all these words in name or meaning; * and ? make a pattern of names.")
    ] = "",
    layer: Annotated[int | None, typer.Option(help="Only hooks of this layer; negative counts from the last.")] = None,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: per hook its names, axes, sizes and meaning.")
    ] = False,
) -> None:
    """List the places in a model where one can read or intervene, with their axes and meaning.

    Found by running it. Exit code 2 if nothing matches.

    Examples:

        dcinterp hooks

        dcinterp hooks dcformer++ --match post.hook_o --layer 1

        dcinterp hooks transformer++ --match "*.hook_z" --json
    """
    from dcinterp.bridge.hook_catalogue import list_hooks
    from dcinterp.checkpoints.load import load

    bridge = load(model, tokenizer=tokenizer)
    hooks = list_hooks(bridge, match, layer=layer)
    if as_json:
        print_json([hook.record() for hook in hooks])
        return
    # Plain lines instead of a table that folds: names are for copying, and for grep.
    name_width, axes_width = (
        max(len(text) for text in texts) for texts in zip(*((h.name, h.shape) for h in hooks), strict=True)
    )
    for hook in hooks:
        silent = f" (after {hook.switch}(True))" if hook.switch else ""
        typer.echo(f"{hook.name:<{name_width}}  {hook.shape:<{axes_width}}  {hook.meaning}{silent}")
    others = sum(len(hook.aliases) for hook in hooks)
    typer.echo(f"{len(hooks)} hooks, and {others} more names for them (--json shows both).")
