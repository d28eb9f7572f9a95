"""What a run records about its inside at every checkpoint: how many directions its heads use, and how much each branch
of the composition does.

    variances  [product, layer, component]   of the QK and the OV products of a layer (dcinterp.model.spectra)
    strengths  [stage, layer, branch]        mean |O| / mean |A| over heads and visible pairs of the probe rows

A branch that a model does not have is NaN. The probe rows are the same at every checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.model.compose.branches import ComposeWeights, branches
from dcinterp.model.config import STAGES
from dcinterp.model.mask import attention_mask
from dcinterp.model.spectra import variances
from dcinterp.support.whole_files import whole


def layer_variances(model: PreTrainedModel) -> Float[Tensor, "product layer component"]:
    """Variances along the principal components of every layer's QK and OV products."""
    found = []
    for block in model.model.layers:
        attention = block.self_attn
        d_head, heads = attention.head_dim, attention.config.num_attention_heads
        q, k, v = (getattr(attention, f"{name}_proj").weight.unflatten(0, (-1, d_head)).mT for name in ("q", "k", "v"))
        k, v = (shared.repeat_interleave(heads // len(shared), dim=0) for shared in (k, v))
        o = attention.o_proj.weight.unflatten(1, (heads, d_head)).transpose(0, 1)
        found.append(torch.stack([variances(q, k), variances(o, v)]))
    return torch.stack(found, dim=1).float().cpu()


@torch.no_grad()
def branch_strengths(model: PreTrainedModel, probe: dict[str, Tensor]) -> Float[Tensor, "stage layer branch"]:
    """Mean size of every branch of the composition, in shares of the mean size of what it composes.

    Terms that read other attention than that of their pair (multi-token's o_kq, dense collaboration's o_prev) are no
    branches, and have no place here.

    Args:
        model: any model of the family; all NaN when it composes nothing.
        probe: the model's arguments, without padding.

    Cost: one forward pass that keeps the attention matrices.
    """
    layers = model.model.layers
    strengths = torch.full((len(STAGES), len(layers), len(HOOKS)), torch.nan)
    handles = []

    def measure(stage: int, layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Tensor, ComposeWeights]) -> None:
            a, weights = args[:2]
            slots = torch.arange(a.shape[-1], device=a.device)
            seen: Tensor | float = 1.0
            if "input_ids" in probe:
                seen = attention_mask(slots, slots, window=model.config.window(layer))
            size = (a.abs() * seen).sum()
            for name, term in branches(a, weights).items():
                if name in HOOKS:
                    strengths[stage, layer, HOOKS.index(name)] = float((term.abs() * seen).sum() / size)

        return hook

    for layer, block in enumerate(layers):
        for stage, name in enumerate(STAGES):
            if (module := getattr(block.self_attn, name, None)) is not None:
                handles.append(module.register_forward_pre_hook(measure(stage, layer)))
    training = model.training
    model.eval()
    try:
        model(**{name: value.to(model.device) for name, value in probe.items()}, output_attentions=True)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return strengths


class MechanismLog(TrainerCallback):
    """Writes `watch/step-N.safetensors` at every checkpoint."""

    def __init__(self, folder: Path, probe: dict[str, Tensor], *, writes: bool = True) -> None:
        self.folder, self.probe, self.writes = folder, probe, writes
        self.seconds = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.writes:
            self.folder.mkdir(exist_ok=True)
            for path in self.folder.glob("*step-*"):  # and what a killed process left beside them
                if not (name := path.stem.removeprefix("step-")).isdigit() or int(name) > state.global_step:
                    path.unlink()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % args.save_steps and state.global_step != state.max_steps:
            return
        if not self.writes:
            return
        began = time.monotonic()
        model = kwargs["model"]
        found = {"variances": layer_variances(model), "strengths": branch_strengths(model, self.probe)}
        path = self.folder / f"step-{state.global_step:07d}.safetensors"
        with whole(path) as place:
            place.write_bytes(save(found))  # save_file would keep it from all but its owner
        self.seconds += time.monotonic() - began
