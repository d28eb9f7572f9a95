r"""Which heads carry the answer, and by what: activation patching head by head.

    share[site, layer, head] = (f(patched) - f(corrupted)) / (f(clean) - f(corrupted))

One run has the tensor of the other prompt in one head of one layer, at all positions. Sites of any model: queries,
keys, values (`q`, `k`, `v`), the attention that multiplies the values (`pattern`), and what the head has read (`z`).
Where heads are composed, for both stages (`pre`, `post`): what each branch adds to the attention of a head
(`pre.qp`, `pre.kp`, `pre.qg`, `pre.kg`, the skip `pre.skip`, with the static map in it where there is one) and the
dynamic weights of a head (`pre.w_q1` ...).

f, the counterfactual and the two directions are those of patch_stream. Sources: as there; Wang et al. 2022. The shares
of q, k, v, z and pattern are those of `transformer_lens.patching.get_act_patch_attn_head_*_all_pos` with this metric.

A branch is patched as it is in the other run: its weights there times the attention there. Of w_1 (`w_q1`, `w_k1`) the
head is the one whose attention is gathered; of a branch, w_2 and the gates, the one that uses it. Heads that share
keys and values (grouped-query attention) share the numbers of k and v. Queries and keys are patched before their
rotation.

It does not show at which position (see patch_stream), nor what parts do together: shares need not add up.

Identities that the tests assert: all heads of z are what attention writes (`attn_out` of patch_stream); the standard
sites agree with the functions of TransformerLens; a branch or weight with the same intervention made by hand.

    patched = dcinterp.patch_heads(model, "There are tea, meat, meat. Which is not meat? The")
    patched.share[patched.sites.index("z")]                   # [layer, head]
    dcinterp.figures.plot(patched, site="post.kp")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.head_sites import head_index, require_sites
from dcinterp.mechanism.patching import Direction, PairPatching, Patch, read_pair, sweep
from dcinterp.mechanism.prompt import Prompt, Token
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class HeadPatching(PairPatching):
    """What one site does in one head.

    logit_difference, share [site, layer, head]: as of all patching (dcinterp.mechanism.patching.PairPatching).
    all_heads [site, layer]: the share with all heads of the layer patched together.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "logit_difference": ("site", "layer", "head"),
        "share": ("site", "layer", "head"),
        "all_heads": ("site", "layer"),
    }

    sites: tuple[str, ...]
    all_heads: Float[Tensor, "site layer"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.sites) if axis == "site" else None


@analysis(
    title="Patching heads",
    question="Which heads carry the answer, by their queries, keys, values, attention or composition?",
    guide="analyses/patching.md",
    example={"prompt": EXAMPLE_PROMPT, "sites": "z,v,pattern"},
)
def patch_heads(
    bridge: Bridge,
    prompt: Prompt,
    counterfactual: Prompt | None = None,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    sites: list[str] | None = None,
    change: str = "question",
    direction: Direction = "denoising",
    at: int = -1,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> HeadPatching:
    """Put one head of one prompt into the run of another: its queries, keys, values, attention, output or composition.

    Args:
        bridge: any TransformerLens bridge; sites of the composition need heads that are composed.
        prompt: the clean prompt: text, or token ids as in [5, 7, 9].
        counterfactual: a prompt with as many tokens and another answer; that of the task, if the prompt is one.
        target: the answer to the clean prompt; by default that of the task, or the model's own if the counterfactual
            is given. A text is read as it stands behind the prompt (with a space in front where the vocabulary has
            one) if the counterfactual is found, and as it is written if it is given.
        foil: the answer to the counterfactual; by default as for the target.
        sites: what to patch, of q, k, v, pattern, z, post.kp, post.w_k1 and the like; all that there are by default.
        change: what the counterfactual of a task changes: question, source, relation, polarity or position.
        direction: "denoising" puts clean tensors into the counterfactual run, "noising" the other way round.
        at: the position whose next token is the answer.
        batch_size: rows of one forward pass; bounds the memory.
        progress: called with what the work takes before it begins, and after every batch.

    Cost: sites times layers times (heads + 1) rows, each from its layer on.

    Raises:
        UserError: the model has no such site, the prompts differ in length or hardly in their logit difference, there
            is no counterfactual, or an argument does not fit the model.
    """
    known = require_sites(bridge, None if sites is None else tuple(sites))
    chosen = tuple(known)
    pair = read_pair(bridge, prompt, counterfactual, target, foil, change=change, at=at, direction=direction)
    layers, heads = int(bridge.cfg.n_layers), int(bridge.cfg.n_heads)
    patches = [
        Patch(f"blocks.{layer}.attn.{known[site]}", index)
        for site in chosen
        for layer in range(layers)
        for index in (*(head_index(bridge, site, head) for head in range(heads)), ())
    ]
    values = sweep(bridge, pair, patches, batch_size=batch_size, progress=progress).view(len(chosen), layers, heads + 1)
    share = pair.share(values)
    return HeadPatching(
        **pair.record(bridge),
        sites=chosen,
        logit_difference=values[..., :-1].float().contiguous(),
        share=share[..., :-1].float().contiguous(),
        all_heads=share[..., -1].float().contiguous(),
    )
