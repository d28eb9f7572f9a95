"""`dcinterp scaling`: loss against compute for two families, and the compute that one saves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    table: Annotated[Path, typer.Argument(help="results.csv of a sweep.")],
    base: Annotated[str, typer.Option(help="Family to compare with.")] = "transformer++",
    other: Annotated[str, typer.Option(help="Family whose savings are asked for.")] = "dcformer++",
    loss: Annotated[str | None, typer.Option(help="Column of the loss.")] = None,
    figure: Annotated[Path | None, typer.Option(help="HTML file for the figure.")] = None,
    save: Annotated[Path | None, typer.Option(help="Folder for the result.")] = None,
) -> None:
    """Fit loss against compute for two families, and report the compute multiplier at equal loss.

    Refuses, with the reason, when the runs do not support a fit.

    Example:

        dcinterp scaling runs/scaling/results.csv --base transformer++ --other dcformer++ --figure scaling.html
    """
    import dcinterp

    fit = dcinterp.scaling_fit(str(table), base=base, other=other, loss=loss)
    for number, family in enumerate(fit.families):
        runs = sum(point[0] == family for point in fit.points)
        interval = f"{fit.exponent_low[number]:.4f} to {fit.exponent_high[number]:.4f}"
        typer.echo(
            f"{family}: loss ~ compute^-{fit.exponent[number]:.4f} (95 % interval {interval}), {runs} runs, largest "
            f"residual {fit.largest_residual[number]:.4f} in log loss"
        )
    for at in range(len(fit.loss)):
        typer.echo(
            f"  loss {float(fit.loss[at]):.4f}: {float(fit.multiplier[at]):.2f}x "
            f"({float(fit.multiplier_low[at]):.2f} to {float(fit.multiplier_high[at]):.2f})"
        )
    typer.echo(fit.sentence())
    for sentence in fit.banners():
        typer.echo(sentence)
    if figure is not None:
        from dcinterp.figures import export

        figure.write_bytes(export.html(dcinterp.figures.plot(fit), title="Scaling fit"))
        typer.echo(f"Figure: {figure}")
    if save is not None:
        typer.echo(f"Result: {fit.save(save)}")
