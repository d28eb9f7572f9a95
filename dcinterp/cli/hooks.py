"""`dcinterp hooks`: every place of a model where one can read or intervene."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A shipped model, a folder, or a hub id.")] = "dcformer++",
    match: Annotated[
        str, typer.Option(help="Only hooks with all these words in name or meaning; * and ? make a pattern.")
    ] = "",
    layer: Annotated[int | None, typer.Option(help="Only hooks of this layer; negative counts from the last.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List hooks with their axes, sizes and meaning, as the model shows them when it runs.

    Exit code 2 if nothing matches.

    Examples:

        dcinterp hooks

        dcinterp hooks dcformer++ --match post.hook_o --layer 1

        dcinterp hooks EleutherAI/pythia-70m --match "*.hook_z" --json
    """
    import json

    from dcinterp.hook_reference import list_hooks
    from dcinterp.loading import load

    bridge = load(model)
    hooks = list_hooks(bridge, match, layer=layer)
    if as_json:
        typer.echo(json.dumps([hook.record() for hook in hooks], indent=1, ensure_ascii=False))
        return
    # Plain lines instead of a table that folds: names are for copying, and for grep.
    name_width, axes_width = (
        max(len(text) for text in texts) for texts in zip(*((h.name, h.shape) for h in hooks), strict=True)
    )
    for hook in hooks:
        silent = f" (after {hook.switch}(True))" if hook.switch else ""
        typer.echo(f"{hook.name:<{name_width}}  {hook.shape:<{axes_width}}  {hook.meaning}{silent}")
    others = sum(len(hook.aliases) for hook in hooks)
    typer.echo(f"{len(hooks)} hooks, and {others} further names for them (--json shows both).")
