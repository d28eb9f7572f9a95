"""Direct logit attribution as a heatmap: what every head, MLP and bias adds, layer by layer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import torch

from dcinterp.analysis.attribution.direct_logit_attribution import DirectLogitAttribution
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.layer_head_grid import NUMBERED_CELLS

RESULT = "DirectLogitAttribution"
KIND = ""


def plot(result: DirectLogitAttribution, *, theme: str = "light", selected: tuple[int, int] | None = None) -> go.Figure:
    """Layers downwards; across, the heads, the MLP and the biases. Orange adds to the target, blue takes from it.

    The first row has the embeddings, the last the biases behind the blocks.

    Args:
        result: the parts.
        theme: "light" or "dark".
        selected: (layer, head) to outline.
    """
    layers, heads = result.heads.shape
    biases = result.attention_bias + result.mlp_bias
    cells = torch.cat([result.heads, result.mlps[:, None], biases[:, None]], 1).numpy()
    first, last = (np.full((1, heads + 2), np.nan) for _ in range(2))
    first[0, heads] = result.token_embedding + result.position_embedding
    last[0, heads + 1] = result.norm_bias + result.unembedding_bias
    values = np.concatenate([first, cells, last])
    return grid(
        values,
        x=[*(str(head) for head in range(heads)), "MLP, embedding", "biases"],
        y=["embedding", *(str(layer) for layer in range(layers)), "end"],
        x_title="head or part",
        y_title="layer",
        quantity="part of the logit difference" if result.foil else "part of the logit",
        theme=theme,
        selected=None if selected is None else (selected[0] + 1, selected[1]),
        numbers=values.size <= NUMBERED_CELLS,
        height=120 + 46 * (layers + 2),
    )
