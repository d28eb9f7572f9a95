"""`dcinterp scaling`: loss against compute for two families, and the compute that one saves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dcinterp.cli._outputs import (
    print_result_json,
    require_different,
    require_figure_place,
    require_result_place,
    save_result,
    write_figure,
)


def command(
    tables: Annotated[list[Path], typer.Argument(help="The results.csv of a sweep, or of several.")],
    base: Annotated[str, typer.Option(help="Family to compare with.")] = "transformer++",
    other: Annotated[str, typer.Option(help="Family that saves compute.")] = "dcformer++",
    loss: Annotated[
        str | None,
        typer.Option(help="Column of the loss; validation_loss if the table has it, else loss.", metavar="COLUMN"),
    ] = None,
    over: Annotated[
        Literal["runs", "seeds"], typer.Option(help="What intervals are over; of seeds, each gets a line of its own.")
    ] = "runs",
    through: Annotated[
        Literal["line", "pieces"], typer.Option(help="What gives a seed's compute at a loss: a line, or pieces of it.")
    ] = "line",
    without: Annotated[
        list[str] | None,
        typer.Option(help="An arm of an experiment that is left out; may be given again.", metavar="ARM"),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the figure to this .html, .png or .svg file.", metavar="FILE")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the result to this folder.", metavar="FOLDER")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON document, as `dcinterp analyze` does.")
    ] = False,
) -> None:
    """Fit loss against compute for two families, and report how much compute one saves at equal loss.

    Refuses, with the reason, when the runs do not support a fit.

    Examples:

        dcinterp sweep configs/sweeps/scaling.yaml

        dcinterp scaling runs/scaling/results.csv --figure scaling.html

        dcinterp scaling runs/scaling/results.csv --over seeds
    """
    import dcinterp
    from dcinterp.analysis.training.scaling_fit import end_text

    require_figure_place(figure)
    require_result_place(save, "ScalingFit")
    require_different(figure, save, *tables)
    runs = str(tables[0]) if len(tables) == 1 else [str(table) for table in tables]
    fit = dcinterp.scaling_fit(
        runs, base=base, other=other, loss=loss, over=over, through=through, without=without or None
    )
    write_figure(fit, figure)
    save_result(fit, save)
    if as_json:
        print_result_json(fit)
        return
    for number, family in enumerate(fit.families):
        count = sum(point[0] == family for point in fit.points)
        interval = f"{fit.exponent_low[number]:.4f} to {fit.exponent_high[number]:.4f}"
        typer.echo(
            f"{family}: loss ~ compute^-{fit.exponent[number]:.4f} (95 % interval {interval}), {count} runs, largest "
            f"residual {fit.largest_residual[number]:.4f} in log loss"
        )
    for at in range(len(fit.loss)):
        typer.echo(
            f"  loss {float(fit.loss[at]):.4f}: {float(fit.multiplier[at]):.2f}x "
            f"({float(fit.multiplier_low[at]):.2f} to {end_text(float(fit.multiplier_high[at]))})"
        )
    typer.echo(fit.sentence())
    for sentence in fit.warnings():
        typer.echo(sentence)
    for name, path in (("Figure", figure), ("Result", save)):
        if path is not None:
            typer.echo(f"{name}: {path}")
