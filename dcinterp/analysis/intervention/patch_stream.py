r"""Where and when the answer is decided: activation patching of the residual stream, layer by position.

    share[site, layer, pos] = (f(patched) - f(corrupted)) / (f(clean) - f(corrupted))

The clean prompt and a counterfactual with as many tokens differ in little and have different answers; f is the logit of
the clean answer minus that of the counterfactual's. One run has the tensor of the other at one site, layer and
position. Sites: what a block reads (`resid_pre`), what its attention writes (`attn_out`) and what its MLP writes
(`mlp_out`). "denoising" (clean tensors into the counterfactual run) asks what restores the answer, "noising" what is
needed for it.

Source: Meng et al. 2022 (causal tracing), with a counterfactual in the place of noise; Heimersheim & Nanda 2024. The
shares are those of `transformer_lens.patching.get_act_patch_resid_pre` (`attn_out`, `mlp_out`) with this metric.

It does not show which head did it (see patch_heads), nor anything that both prompts have in common. A share is of one
place alone: shares of several need not add up, and one place may stand in for another.

Identities that the tests assert: all positions of resid_pre give 1 at any layer, or 0 with noising (where composition
hands scores on beside the stream, as dense collaboration does, at the first layer alone); positions before
the first token that differs give the other; all sites agree with the functions of TransformerLens.

    patched = dcinterp.patch_stream(model, "There are tea, meat, meat. Which is not meat? The")
    patched.share[patched.sites.index("resid_pre")]           # [layer, pos]
    dcinterp.figures.plot(patched, site="attn_out")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.patching import Direction, PairPatching, Patch, read_pair, sweep
from dcinterp.mechanism.prompt import Prompt, Token
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count

Site = Literal["resid_pre", "attn_out", "mlp_out"]
SITES: tuple[Site, ...] = get_args(Site)


@dataclass(frozen=True)
class StreamPatching(PairPatching):
    """What one site of one layer does at one position.

    logit_difference, share [site, layer, pos]: as of all patching (dcinterp.mechanism.patching.PairPatching).
    all_positions [site, layer]: the share with all positions patched together. hands_on: layers also read the composed
    scores of the layer before.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "logit_difference": ("site", "layer", "pos"),
        "share": ("site", "layer", "pos"),
        "all_positions": ("site", "layer"),
    }

    sites: tuple[Site, ...]
    all_positions: Float[Tensor, "site layer"]
    hands_on: bool = False

    def warnings(self) -> list[str]:
        said = super().warnings()
        if self.hands_on:
            said.append(
                "In this model scores also go from layer to layer beside the stream, where they stay those of the "
                "prompt that is run: from layer 1 on a patch of the stream is a mix of both prompts."
            )
        return said

    def labels(self, axis: str) -> list[str] | None:
        names: dict[str, list[str]] = {"site": list(self.sites), "pos": self.token_pairs()}
        return names.get(axis)


@analysis(
    title="Patching the stream",
    question="At which layer and position is the answer decided?",
    guide="analyses/patching.md",
    example={"prompt": EXAMPLE_PROMPT},
)
def patch_stream(
    bridge: Bridge,
    prompt: Prompt,
    counterfactual: Prompt | None = None,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    change: str = "question",
    direction: Direction = "denoising",
    at: int = -1,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> StreamPatching:
    """Put the stream of one prompt into the run of another, one layer and position at a time.

    Args:
        bridge: any TransformerLens bridge; its heads need not be composed.
        prompt: the clean prompt: text, or token ids as in [5, 7, 9].
        counterfactual: a prompt with as many tokens and another answer; that of the task, if the prompt is one.
        target: the answer to the clean prompt; by default that of the task, or the model's own if the counterfactual
            is given. A text is read as it stands behind the prompt (with a space in front where the vocabulary has
            one) if the counterfactual is found, and as it is written if it is given.
        foil: the answer to the counterfactual; by default as for the target.
        change: what the counterfactual of a task changes: question, source, relation, polarity or position.
        direction: "denoising" puts clean tensors into the counterfactual run, "noising" the other way round.
        at: the position whose next token is the answer.
        batch_size: rows of one forward pass; bounds the memory.
        progress: called with what the work takes before it begins, and after every batch.

    Cost: three sites times layers times (positions + 1) rows, each from its layer on.

    Raises:
        UserError: the prompts differ in length or hardly in their logit difference, there is no counterfactual, or an
            argument does not fit the model.
    """
    pair = read_pair(bridge, prompt, counterfactual, target, foil, change=change, at=at, direction=direction)
    layers, length = int(bridge.cfg.n_layers), pair.run.shape[1]
    names = [f"blocks.{layer}.hook_{site}" for site in SITES for layer in range(layers)]
    if missing := [name for name in names if name not in bridge.hook_dict]:
        raise UserError(f"This model has no {missing[0]} to patch; load a model of attention and MLP blocks.")
    patches = [Patch(name, index) for name in names for index in (*((pos,) for pos in range(length)), ())]
    values = sweep(bridge, pair, patches, batch_size=batch_size, progress=progress).view(len(SITES), layers, length + 1)
    share = pair.share(values)
    return StreamPatching(
        **pair.record(bridge),
        sites=SITES,
        logit_difference=values[..., :-1].float().contiguous(),
        share=share[..., :-1].float().contiguous(),
        all_positions=share[..., -1].float().contiguous(),
        hands_on=any(composer_of(bridge, 0, stage).HANDS_ON for stage in stages_of(bridge)),
    )
