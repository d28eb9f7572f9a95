r"""Which tokens a head promotes when it attends to a word: the OV circuit from token to token.

    x(w)  = e_w + MLP_0(norm(e_w))                 the word, enriched by the first MLP (see `mlp0`)
    ov(w) = norm_l(x(w)) W_V^h W_O^h W_U           [d_vocab], in logits before the final norm

Source: the DCMHA paper (appendix "Interpretation and Visualization"), with the first MLP as part of the embedding. In a
run the heads of layer 0 stand before that MLP and read e_w alone, which is the default; mlp0="always" takes the words
for every layer. The two readings of layer 0 may promote other tokens.
Biases of values and outputs are the same for every word and are left out, as are positions.

It does not show that the head attends to this word in any prompt, that later layers do not change its output, or that
the residual stream at a word's position is still close to x(w) in later layers; attention and ablation show more.

Identity that the tests assert: ov(w) is what the head adds to the residual stream, times W_U, in a run on the word
alone in which attention before it is switched off.

    top = dcinterp.ov_top_tokens(model, layer=1, head=5, words=["violin", "beetle"])
    top.top_tokens[0]                            # ("musical", "guitar", ...)
    dcinterp.figures.plot(top)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ov_logits import MLP0, has_post_norm, ov_logits, require_tokens
from dcinterp.mechanism.prompt import Token, head_number, layer_number, str_tokens, word_tokens
from dcinterp.mechanism.readout import likeliest, rank_of
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class OVTopTokens(Result):
    """The tokens that a head's OV circuit promotes most for each word, and the rank of the word itself.

    top_ids, logit [word, top]; own_rank [word] counts from 1 (1: the head copies the word). `notes` name the words
    that were represented by their first token, and say what is left out of the logits.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "top_ids": ("word", "top"),
        "logit": ("word", "top"),
        "own_rank": ("word",),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"top_tokens": ("word", "top")}

    layer: int
    head: int
    words: tuple[str, ...]
    top_tokens: tuple[tuple[str, ...], ...]
    vocabulary: int
    notes: tuple[str, ...]
    top_ids: Int[Tensor, "word top"]
    logit: Float[Tensor, "word top"]
    own_rank: Int[Tensor, " word"]
    mlp0: str = "later"

    def labels(self, axis: str) -> list[str] | None:
        return list(self.words) if axis == "word" else None

    def warnings(self) -> list[str]:
        """The words that are represented by their first token, and what is left out of the logits."""
        return list(self.notes)


@analysis(
    title="OV circuit of a head",
    question="Which tokens does a head promote when it attends to a word?",
    guide="analyses/ov-circuits.md",
    example={"layer": "1", "head": "3", "words": "violin,lime"},
)
def ov_top_tokens(
    bridge: Bridge,
    layer: int,
    head: int,
    words: Sequence[Token],
    k: Count = 10,
    *,
    final_norm: bool = False,
    multi_token: Literal["refuse", "first"] = "refuse",
    mlp0: MLP0 = "later",
) -> OVTopTokens:
    """The `k` tokens that a head's OV circuit promotes most for each of `words`.

    Args:
        bridge: any bridge over a language model.
        layer: the layer; negative counts from the last.
        head: the head.
        words: words (as in running text, so with a space before them where the tokenizer knows that) or token ids.
        k: how many tokens.
        final_norm: apply the final norm to the head's output, gain included, before W_U; the paper's equation does
            not, and a gain far from 1 changes the ranking.
        multi_token: what to do with a word of several tokens: refuse it, or take its first token and note that.
        mlp0: which layers read a word through the first MLP: "later" ones, as in a run; "always", also layer 0, the
            other reading of the paper's words; or "never".

    Cost: one MLP (of models of others, a run of block 0), one norm and an unembedding of as many vectors as there are
    words.

    Raises:
        UserError: the layer or head does not exist, a word is unknown or several tokens, the model has no tokens, or
            its blocks add their parts in a way that is not known here.
    """
    require_tokens(bridge)
    layer, head = layer_number(bridge, layer), head_number(bridge, head)
    if len(words) == 0:
        raise UserError("There are no words to read; give at least one.")
    if k < 1:
        raise UserError(f"k counts tokens and must be at least 1, not {k}.")
    ids, notes = _ids_of(bridge, words, multi_token)
    if has_post_norm(bridge, layer) and not final_norm:
        notes.append(
            "A norm follows the attention of this layer: its gain is in these logits and its scale, which hangs on the "
            "other heads, is not. Tokens keep their ranks; sizes are not those in a run."
        )
    logits = next(iter(ov_logits(bridge, layer, ids, [head], final_norm, mlp0)))
    if alike := int((logits.amax(1) == logits.amin(1)).sum()):
        notes.append(
            f"For {alike} of the {len(ids)} words this head promotes no token above another: the order of their tokens "
            "is that of the vocabulary."
        )
    top_ids = likeliest(logits, k)
    return OVTopTokens(
        layer=layer,
        head=head,
        words=tuple(word if isinstance(word, str) else str_tokens(bridge, torch.tensor([[word]]))[0] for word in words),
        top_tokens=tuple(str_tokens(bridge, row[None]) for row in top_ids),
        vocabulary=logits.shape[1],
        notes=tuple(notes),
        top_ids=top_ids,
        logit=logits.gather(-1, top_ids),
        own_rank=rank_of(logits, ids),
        mlp0=mlp0,
    )


def ov_ranks(
    bridge: Bridge, words: Sequence[Token], targets: Sequence[Token], *, final_norm: bool = False
) -> Int[Tensor, "layer head word"]:
    """The rank, from 1, of each word's target among the tokens that every head promotes for the word.

    Args:
        bridge, final_norm: as in `ov_top_tokens`.
        words: the source words, one token each.
        targets: one token for each word; with the words themselves the ranks show how well a head copies.

    Raises:
        UserError: as `ov_top_tokens` raises.
    """
    require_tokens(bridge)
    ids, wanted = (_ids_of(bridge, some, "refuse")[0] for some in (words, targets))
    heads = range(bridge.cfg.n_heads)
    ranks = [
        rank_of(logits, wanted)
        for layer in range(bridge.cfg.n_layers)
        for logits in ov_logits(bridge, layer, ids, heads, final_norm)
    ]
    return torch.stack(ranks).unflatten(0, (-1, len(heads)))


def _ids_of(bridge: Bridge, words: Sequence[Token], multi_token: str) -> tuple[Int[Tensor, " word"], list[str]]:
    """One token for each word, and a note for each that has several."""
    if multi_token not in ("refuse", "first"):
        raise UserError(f"multi_token is 'refuse' or 'first', not {multi_token!r}.")
    ids, notes = [], []
    for word in words:
        tokens = word_tokens(bridge, word)
        if len(tokens) > 1:
            if multi_token == "refuse":
                raise UserError(
                    f"{word!r} is {len(tokens)} tokens in this model's vocabulary; give a word that is one token, or "
                    "choose 'first' for multi_token."
                )
            first = str_tokens(bridge, torch.tensor([tokens[:1]]))[0]
            notes.append(f'"{word}" is {len(tokens)} tokens; it is represented by the first, "{first}".')
        ids.append(tokens[0])
    return torch.tensor(ids), notes
