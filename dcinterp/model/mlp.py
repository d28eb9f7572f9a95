"""The MLP of a block: SwiGLU (LLaMA style) or GELU (GPT-3 and Pythia style), with an optional gate over groups."""

from __future__ import annotations

import warnings

from torch import nn
from torch.nn.functional import gelu, silu

from dcinterp.model.config import DCFormerConfig
from dcinterp.shapes import Residual


class MLP(nn.Module):
    """down(silu(gate x) * up x), or down(gelu(up x)).

    With `mlp_gate_groups` = E the hidden units form E equal groups and each group is scaled by its share of a
    softmax over E scores of x (`mgate` in the released checkpoints). Without units (`intermediate_size` 0) it
    adds nothing: a model of attention alone.
    """

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__()
        width, hidden, bias = config.hidden_size, config.intermediate_size, config.has_mlp_bias
        self.gated = config.mlp_type == "swiglu"
        with warnings.catch_warnings():
            # torch warns when it draws the weights of no units at all.
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            if self.gated:
                self.gate_proj = nn.Linear(width, hidden, bias=bias)
            self.up_proj = nn.Linear(width, hidden, bias=bias)
            self.down_proj = nn.Linear(hidden, width, bias=bias)
        self.groups = config.mlp_gate_groups
        if self.groups:
            self.group_gate = nn.Linear(width, self.groups, bias=False)

    def forward(self, x: Residual) -> Residual:
        hidden = silu(self.gate_proj(x)) * self.up_proj(x) if self.gated else gelu(self.up_proj(x))
        if self.groups:
            share = self.group_gate(x).softmax(-1)
            hidden = (hidden.unflatten(-1, (self.groups, -1)) * share.unsqueeze(-1)).flatten(-2)
        return self.down_proj(hidden)
