"""Strength of every branch of the composition against steps of training."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.training.training_strengths import TrainingStrengths
from dcinterp.figures.base.style import BRANCH_COLOURS, BRANCH_NAMES, THEMES, finish
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.support.errors import UserError, require_number

RESULT = "TrainingStrengths"
KIND = ""


def plot(
    result: TrainingStrengths, *, theme: str = "light", layer: int | None = None, checkpoint: int | None = None
) -> go.Figure:
    """One line per branch, solid before the softmax and dashed after it.

    Args:
        result: the strengths.
        theme: "light" or "dark".
        layer: one layer; the mean over all when None.
        checkpoint: number of a checkpoint to mark, as a slider gives it.
    """
    stages, layers = result.strength.shape[1:3]
    if layer is not None and not -layers <= layer < layers:
        raise UserError(f"There is no layer {layer}; the model has {layers}.")
    values = result.strength.nanmean(2) if layer is None else result.strength[:, :, layer]
    figure = go.Figure()
    for stage in range(stages):
        for number, branch in enumerate(result.labels("branch") or []):
            line = values[:, stage, number]
            # The attention before composition is the unit, at 1.
            if branch == BRANCHES["skip"].hook or bool(line.isnan().all()):
                continue
            name = f"{(result.labels('stage') or [])[stage]} {BRANCH_NAMES[branch]}"
            figure.add_scatter(
                x=result.step.tolist(),
                y=line.tolist(),
                name=name,
                mode="lines+markers",
                line={"color": BRANCH_COLOURS[branch], "width": 2, "dash": ("solid", "dash")[stage]},
                marker={"size": 4},
                hovertemplate=f"{name}: %{{y:.3f}} at step %{{x:,}}<extra></extra>",
            )
    if not figure.data:
        figure.add_scatter(x=[], y=[], name="no composition")
    if checkpoint is not None:
        require_number("checkpoint", checkpoint, len(result.step))
        figure.add_vline(x=int(result.step[checkpoint]), line_width=1, line_dash="dot", line_color=THEMES[theme].text)
    figure.update_xaxes(title="step", rangemode="tozero")
    figure.update_yaxes(title="size relative to the attention before composition", rangemode="tozero")
    return finish(figure, theme, height=380)
