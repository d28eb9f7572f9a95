r"""Which head carries the answer, and at which position: activation patching head by head and position by position.

    share[layer, head, pos] = (f(patched) - f(corrupted)) / (f(clean) - f(corrupted))

One run has one site of one head at one position from the other prompt. At the site `pattern`, and at branches of the
composition, a position is a query: one row of the head's matrix, which all keys share.

Source: as of patch_heads; the sites are its.

It does not show what several positions do together, and shares need not add up; `patch_heads` patches all at once.

Identity that the tests assert: with one position that differs alone, it is `patch_heads`; each patch is a hook written
by hand.

    patched = dcinterp.patch_head_positions(model, "There are tea, meat, meat. Which is not meat? The", site="z")
    patched.table().head(8)
    dcinterp.figures.plot(patched)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.head_sites import head_index, require_sites
from dcinterp.mechanism.patching import Direction, PairPatching, Patch, read_pair, sweep
from dcinterp.mechanism.prompt import Prompt, Token
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class HeadPositionPatching(PairPatching):
    """What one site of every head does at every position.

    logit_difference, share [layer, head, pos]: as of all patching (dcinterp.mechanism.patching.PairPatching).
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "logit_difference": ("layer", "head", "pos"),
        "share": ("layer", "head", "pos"),
    }

    site: str

    def labels(self, axis: str) -> list[str] | None:
        return self.token_pairs() if axis == "pos" else None


@analysis(
    title="Patching heads by position",
    question="Which head carries the answer, and at which token?",
    guide="analyses/patching.md",
    example={"prompt": EXAMPLE_PROMPT, "site": "v"},
)
def patch_head_positions(
    bridge: Bridge,
    prompt: Prompt,
    counterfactual: Prompt | None = None,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    site: str = "z",
    change: str = "question",
    direction: Direction = "denoising",
    at: int = -1,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> HeadPositionPatching:
    """Put one site of one head at one position of one prompt into the run of another.

    Args:
        bridge: any TransformerLens bridge; sites of the composition need heads that are composed.
        prompt: the clean prompt: text, or token ids as in [5, 7, 9].
        counterfactual, target, foil: as of `patch_heads`.
        site: what to patch: "q", "k", "v", "z", "pattern", "post.kp", "post.w_k1", ... (see `patch_heads`).
        change: what the counterfactual of a task changes: question, source, relation, polarity or position.
        direction: "denoising" puts clean tensors into the counterfactual run, "noising" the other way round.
        at: the position whose next token is the answer.
        batch_size: rows of one forward pass; bounds the memory.
        progress: called with what the work takes before it begins, and after every batch.

    Cost: layers times heads times positions rows, each from its layer on.

    Raises:
        UserError: as of `patch_heads`.
    """
    hook = require_sites(bridge, (site,))[site]
    pair = read_pair(bridge, prompt, counterfactual, target, foil, change=change, at=at, direction=direction)
    layers, heads, length = int(bridge.cfg.n_layers), int(bridge.cfg.n_heads), pair.run.shape[1]
    patches = [
        Patch(f"blocks.{layer}.attn.{hook}", head_index(bridge, site, head, pos))
        for layer in range(layers)
        for head in range(heads)
        for pos in range(length)
    ]
    values = sweep(bridge, pair, patches, batch_size=batch_size, progress=progress).view(layers, heads, length)
    return HeadPositionPatching(
        **pair.record(bridge), site=site, logit_difference=values.float(), share=pair.share(values).float()
    )
