"""`dcinterp load`: what is this model, does it load, and what does it take?"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from dcinterp.cli._models import MODEL, TOKENIZER
from dcinterp.cli._options import require_apart
from dcinterp.cli._outputs import print_json
from dcinterp.support.text import printable


def command(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Read config.json and the headers of the weights; load nothing.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Where to load it: cpu (the default), cuda, mps.")] = None,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: sizes, bytes, windows; hooks and seconds if it was loaded.")
    ] = False,
) -> None:
    """Load a model and describe it: family, sizes, memory, and how its heads are composed.

    Exit code 2 if it cannot be loaded.

    Examples:

        dcinterp load dcformer++

        dcinterp load dcformer++ --files-only

        dcinterp load model.gguf

        dcinterp load EleutherAI/pythia-70m --json
    """
    import time

    from dcinterp.checkpoints.describe import describe, size

    require_apart(ctx, "files_only", "device", "tokenizer")
    if files_only:
        described = describe(model)
        print_json(described.record()) if as_json else typer.echo(printable("\n".join(described.sentences())))
        return
    from dcinterp.checkpoints.load import load

    start = time.perf_counter()
    bridge = load(model, device=device, tokenizer=tokenizer)
    seconds = time.perf_counter() - start
    described = describe(bridge)
    hooks, layers = len({id(hook) for hook in bridge.hook_dict.values()}), bridge.cfg.n_layers
    if as_json:
        print_json(described.record() | {"hooks": hooks, "seconds": round(seconds, 3)})
        return
    typer.echo(printable("\n".join(described.sentences())))
    typer.echo(f"hooks: {hooks} in {layers} layers; list them with: dcinterp hooks {shlex.quote(model)}")
    most = resident_bytes()
    meanwhile = f", at most {size(most)} in memory meanwhile" if most is not None else ""
    typer.echo(f"loaded in {seconds:.1f} s{meanwhile}")


def resident_bytes() -> int | None:
    """The most memory that this process has held; None where the system does not say."""
    import sys

    try:
        import resource
    except ImportError:  # Windows
        return None

    # Linux counts in kilobytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
