"""`dcinterp load`: what is this model, does it load, and what does it take?"""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A shipped model, a folder, or a hub id.")],
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Read config.json and the headers of the weights; load nothing.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Where to load it, such as cuda; the CPU by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Load a model and describe it: family, sizes, memory, how its heads are composed, and how many hooks it has.

    Exit code 2 if it cannot be loaded.

    Examples:

        dcinterp load dcformer++

        dcinterp load DCPythia-6.9B --files-only

        dcinterp load EleutherAI/pythia-70m --json
    """
    import json
    import time

    from dcinterp.description import describe, size

    if files_only:
        described = describe(model)
        typer.echo(json.dumps(described.record(), indent=1) if as_json else "\n".join(described.sentences()))
        return
    from dcinterp.loading import load

    start = time.perf_counter()
    bridge = load(model, device=device)
    seconds = time.perf_counter() - start
    described = describe(bridge)
    hooks, layers = len(bridge.hook_dict), bridge.cfg.n_layers
    if as_json:
        typer.echo(json.dumps(described.record() | {"hooks": hooks, "seconds": round(seconds, 3)}, indent=1))
        return
    typer.echo("\n".join(described.sentences()))
    typer.echo(f"hooks: {hooks} in {layers} layers; list them with: dcinterp hooks {model}")
    typer.echo(f"loaded in {seconds:.1f} s, {size(resident_bytes())} in memory")


def resident_bytes() -> int:
    """The most memory that this process has held."""
    import resource
    import sys

    # Linux counts in kilobytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
