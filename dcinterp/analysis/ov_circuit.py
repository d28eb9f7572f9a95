r"""What a head writes when it reads a word: the OV circuit from token to token.

    x(w)  = e_w + MLP_0(norm(e_w))                 the word, enriched by the first MLP (layer 0 reads e_w alone)
    ov(w) = norm_l(x(w)) W_V^h W_O^h W_U           [d_vocab], in logits before the final norm

Source: the DCMHA paper (appendix "Interpretation and Visualization"), with the first MLP as part of the embedding.
Biases of values and outputs are the same for every word and are left out, as are positions.

It does not show that the head reads this word in any prompt, that later layers leave what it wrote alone, or that the
residual stream at a word's position still looks like x(w) in later layers; attention and ablation say more.

Identity that the tests assert: ov(w) is what the head adds to the residual stream, times W_U, in a run on the word
alone in which attention before it is switched off.

    top = dcinterp.ov_top_tokens(model, layer=1, head=5, words=["violin", "beetle"])
    top.top_tokens[0]                            # ("musical", "guitar", ...)
    scores = dcinterp.ov_transformations(model)  # [layer, head, relation], with a shuffled-pairs control
    dcinterp.figures.plot(scores)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dcinterp.analysis.prompt import Token, layer_number, str_tokens, word_tokens
from dcinterp.analysis.registry import analysis
from dcinterp.analysis.result import Result
from dcinterp.analysis.statistics import bootstrap_interval
from dcinterp.errors import UserError, nearest
from dcinterp.progress import Progress, silent


@dataclass(frozen=True)
class OVTopTokens(Result):
    """The tokens that a head's OV circuit promotes most for each word, and where the word itself stands among all.

    top_ids, logit [word, top]; own_rank [word] counts from 1 (1: the head copies the word). `notes` name the words
    that were represented by their first token.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "top_ids": ("word", "top"),
        "logit": ("word", "top"),
        "own_rank": ("word",),
    }

    layer: int
    head: int
    words: tuple[str, ...]
    top_tokens: tuple[tuple[str, ...], ...]
    vocabulary: int
    notes: tuple[str, ...]
    top_ids: Int[Tensor, "word top"]
    logit: Float[Tensor, "word top"]
    own_rank: Int[Tensor, " word"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.words) if axis == "word" else None

    def to_dataframe(self) -> pd.DataFrame:
        """One row per word and place, with the token's text."""
        frame = super().to_dataframe()
        frame["token"] = [token for row in self.top_tokens for token in row]
        return frame

    def banners(self) -> list[str]:
        """The words that several tokens stand for."""
        return list(self.notes)


@dataclass(frozen=True)
class OVTransformations(Result):
    """How often a relation's value is among the `k` tokens that a head promotes most, for every head and relation.

    score [layer, head, relation], a share of the relation's `pairs`, with its 95 % interval over pairs (low, high);
    control: the mean share when values are paired with words at random, and the middle 95 % of such pairings
    (control_low, control_high); skipped: pairs left out because a word is not one token.
    Over many heads some stand above the control by chance: intervals are not corrected for how many are looked at.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{
            name: ("layer", "head", "relation")
            for name in ("score", "low", "high", "control", "control_low", "control_high")
        },
        "pairs": ("relation",),
        "skipped": ("relation",),
    }

    k: int
    vocabulary: int
    relations: tuple[str, ...]
    notes: tuple[str, ...]
    score: Float[Tensor, "layer head relation"]
    low: Float[Tensor, "layer head relation"]
    high: Float[Tensor, "layer head relation"]
    control: Float[Tensor, "layer head relation"]
    control_low: Float[Tensor, "layer head relation"]
    control_high: Float[Tensor, "layer head relation"]
    pairs: Int[Tensor, " relation"]
    skipped: Int[Tensor, " relation"]

    def labels(self, axis: str) -> list[str] | None:
        return list(self.relations) if axis == "relation" else None

    @property
    def above_control(self) -> Bool[Tensor, "layer head relation"]:
        """Where the interval of the score lies above the middle 95 % of random pairings."""
        return self.low > self.control_high

    def best(self, relation: str) -> tuple[int, int]:
        """(layer, head) whose score stands highest above its control, for one relation.

        Raises:
            UserError: the relation was not scored.
        """
        if relation not in self.relations:
            raise UserError(f"Relation {relation!r} was not scored; {nearest(relation, self.relations)}")
        lead = (self.score - self.control)[:, :, self.relations.index(relation)]
        layer, head = divmod(int(lead.argmax()), lead.shape[1])
        return layer, head

    def banners(self) -> list[str]:
        """What was left out."""
        return list(self.notes)


@analysis(title="OV circuit of a head")
def ov_top_tokens(
    bridge: Any,
    layer: int,
    head: int,
    words: Sequence[Token],
    k: int = 10,
    *,
    final_norm: bool = False,
    multi_token: Literal["refuse", "first"] = "refuse",
) -> OVTopTokens:
    """The `k` tokens that a head's OV circuit promotes most when it reads each of `words`.

    Args:
        bridge: any bridge over a language model.
        layer: the layer; negative counts from the last.
        head: the head.
        words: words (as in running text, so with a space before them where the tokenizer knows that) or token ids.
        k: how many tokens.
        final_norm: apply the final norm to what the head writes, gain included, before W_U; the paper's equation does
            not, and a gain far from 1 changes the ranking.
        multi_token: what to do with a word of several tokens: refuse it, or take its first token and note that.

    Cost: no forward pass; one MLP, one norm and an unembedding of as many vectors as there are words.

    Raises:
        UserError: the layer or head does not exist, a word is unknown or several tokens, or the model has no tokens.
    """
    _require_tokens(bridge)
    layer, head = layer_number(bridge, layer), _head_number(bridge, head)
    if not words:
        raise UserError("There are no words to read; give at least one.")
    if k < 1:
        raise UserError(f"k counts tokens and must be at least 1, not {k}.")
    ids, notes = _ids_of(bridge, words, multi_token)
    logits = next(iter(_ov_logits(bridge, layer, ids, [head], final_norm)))
    top = logits.topk(min(k, logits.shape[1]))
    return OVTopTokens(
        layer=layer,
        head=head,
        words=tuple(word if isinstance(word, str) else str_tokens(bridge, torch.tensor([[word]]))[0] for word in words),
        top_tokens=tuple(str_tokens(bridge, row[None]) for row in top.indices),
        vocabulary=logits.shape[1],
        notes=tuple(notes),
        top_ids=top.indices,
        logit=top.values,
        own_rank=_ranks(logits, ids[:, None])[:, 0],
    )


@analysis(title="What every head's OV circuit does to words")
def ov_transformations(
    bridge: Any,
    *,
    relations: Sequence[str] | None = None,
    k: int = 10,
    final_norm: bool = False,
    multi_token: Literal["skip", "first"] = "skip",
    permutations: int = 1000,
    seed: int = 0,
    progress: Progress = silent,
) -> OVTransformations:
    """How often each relation of the tasks' lexicon carries a word to one of the `k` tokens that a head promotes.

    The pairs of a relation are all its words with their accepted values ("violin" -> "musical instrument" under
    obj->superclass; a word to itself under copy). The control pairs the same words with the same values in random
    order: a head that promotes "fruit" whatever it reads scores on both.

    Args:
        bridge: any bridge over a language model.
        relations: names of relations; all of the released tasks when None.
        k: how many promoted tokens count; 1 for the most promoted alone.
        final_norm: as in `ov_top_tokens`.
        multi_token: leave out pairs in which a word or its value is several tokens, or let the first token stand.
        permutations: random pairings in the control.
        seed: of the pairings and of the intervals.
        progress: called after each layer.

    Cost: no forward pass; per head one unembedding of all the words (about 300), [word, d_vocab] at a time.

    Raises:
        UserError: a relation is unknown, no pair of it fits the tokenizer, or as `ov_top_tokens` raises.
    """
    _require_tokens(bridge)
    if k < 1 or permutations < 1:
        raise UserError("k and permutations must be at least 1.")
    lexicon, notes = _lexicon(bridge, relations, multi_token)
    words = sorted({word for pairs, _ in lexicon.values() for word, _ in pairs})
    ids = torch.tensor(words)
    heads, layers = range(bridge.cfg.n_heads), range(bridge.cfg.n_layers)
    shape = (len(layers), len(heads), len(lexicon))
    names = ("score", "low", "high", "control", "control_low", "control_high")
    tables: dict[str, Any] = {name: torch.zeros(shape) for name in names}
    for layer in layers:
        for head, logits in zip(heads, _ov_logits(bridge, layer, ids, heads, final_norm), strict=True):
            for r, (pairs, _) in enumerate(lexicon.values()):
                rows = torch.tensor([words.index(word) for word, _ in pairs])
                hits = _hits(logits[rows], [values for _, values in pairs], k)
                for name, value in zip(names, _against_chance(hits, permutations, seed), strict=True):
                    tables[name][layer, head, r] = value
        progress(layer + 1, len(layers), f"layer {layer}")
    return OVTransformations(
        k=k,
        vocabulary=bridge.cfg.d_vocab,
        relations=tuple(lexicon),
        notes=tuple(notes),
        **tables,
        pairs=torch.tensor([len(pairs) for pairs, _ in lexicon.values()]),
        skipped=torch.tensor([skipped for _, skipped in lexicon.values()]),
    )


def ov_ranks(
    bridge: Any, words: Sequence[Token], targets: Sequence[Token], *, final_norm: bool = False
) -> Int[Tensor, "layer head word"]:
    """Where, from 1, each word's target stands among the tokens that every head promotes when it reads the word.

    Args:
        bridge, final_norm: as in `ov_top_tokens`.
        words: what is read, one token each.
        targets: what is looked for, one for each word; the words themselves say how well a head copies.

    Raises:
        UserError: as `ov_top_tokens` raises.
    """
    _require_tokens(bridge)
    ids, wanted = (_ids_of(bridge, some, "refuse")[0] for some in (words, targets))
    heads = range(bridge.cfg.n_heads)
    ranks = [
        _ranks(logits, wanted[:, None])[:, 0]
        for layer in range(bridge.cfg.n_layers)
        for logits in _ov_logits(bridge, layer, ids, heads, final_norm)
    ]
    return torch.stack(ranks).unflatten(0, (-1, len(heads)))


@torch.no_grad()
def _ov_logits(
    bridge: Any, layer: int, ids: Int[Tensor, " word"], heads: Sequence[int], final_norm: bool
) -> Iterator[Float[Tensor, "word d_vocab"]]:
    """ov(w) of every word, one head after the other."""
    attention = bridge.blocks[layer].attn
    values, out, unembed = (weight.detach() for weight in (attention.W_V, attention.W_O, bridge.W_U))
    x = _read(bridge, layer, ids)
    for head in heads:
        # With grouped-query attention several heads share one W_V.
        written = x @ values[head * len(values) // len(out)] @ out[head]
        if final_norm:
            with _lock(bridge):
                written = bridge.ln_final(written[None])[0]
        yield (written @ unembed).float().cpu()


@torch.no_grad()
def _read(bridge: Any, layer: int, ids: Int[Tensor, " word"]) -> Float[Tensor, "word d_model"]:
    """norm_l(x(w)), what the heads of a layer read at a word."""
    device = next(bridge.original_model.parameters()).device
    with _lock(bridge):
        x = bridge.embed(ids.to(device)[None])
        if layer > 0:
            x = x + bridge.blocks[0].mlp(bridge.blocks[0].ln2(x))
        return bridge.blocks[layer].ln1(x)[0]


def _lock(bridge: Any) -> Any:
    """Parts of a bridge may carry the hooks of another thread's run, except while its lock is held."""
    return getattr(bridge, "lock", None) or nullcontext()


def _ranks(logits: Float[Tensor, "word d_vocab"], tokens: Int[Tensor, "word some"]) -> Int[Tensor, "word some"]:
    """Places of tokens in each word's logits, the largest being 1."""
    return (logits[:, None, :] > logits.gather(1, tokens)[:, :, None]).sum(-1) + 1


def _hits(
    logits: Float[Tensor, "word d_vocab"], values: Sequence[tuple[int, ...]], k: int
) -> Bool[Tensor, "word values"]:
    """Whether any accepted value of pair j is among the k tokens promoted most for word i."""
    promoted = torch.zeros_like(logits, dtype=torch.bool).scatter_(
        1, logits.topk(min(k, logits.shape[1])).indices, True
    )
    return torch.stack([promoted[:, list(accepted)].any(1) for accepted in values], dim=1)


def _against_chance(hits: Bool[Tensor, "word values"], permutations: int, seed: int) -> tuple[float, ...]:
    """score, low, high; control, control_low, control_high."""
    right = hits.diagonal().float()
    low, high = bootstrap_interval(right, seed=seed)
    n = len(hits)
    orders = torch.rand(permutations, n, generator=torch.Generator().manual_seed(seed)).argsort(1)
    shuffled = hits[torch.arange(n), orders].float().mean(1)
    edges = shuffled.quantile(torch.tensor([0.025, 0.975]))
    return float(right.mean()), float(low), float(high), float(shuffled.mean()), float(edges[0]), float(edges[1])


Pairs = list[tuple[int, tuple[int, ...]]]
"""(token of a word, tokens of its accepted values)."""


def _lexicon(
    bridge: Any, relations: Sequence[str] | None, multi_token: str
) -> tuple[dict[str, tuple[Pairs, int]], list[str]]:
    """Relation -> (its pairs as token ids, how many were left out), and what to tell about it."""
    from synthetic_tasks import TASKS
    from synthetic_tasks.relations import RELATIONS

    if multi_token not in ("skip", "first"):
        raise UserError(f"multi_token is 'skip' or 'first', not {multi_token!r}.")
    known = list(dict.fromkeys(task.relation for task in TASKS.values()))
    found: dict[str, tuple[Pairs, int]] = {}
    notes = []
    for name in known if relations is None else relations:
        if name not in RELATIONS:
            raise UserError(f"There is no relation {name!r}; {nearest(name, RELATIONS)}")
        pairs, several = [], []
        for word, accepted in word_pairs(name):
            tokens = [_known_tokens(bridge, text) for text in (word, *accepted)]
            if all(tokens) and (multi_token == "first" or all(len(some) == 1 for some in tokens)):
                pairs.append((tokens[0][0], tuple(some[0] for some in tokens[1:])))
            if not all(len(some) == 1 for some in tokens):
                several.append(f"{word} -> {accepted[0]}")
        if not pairs:
            raise UserError(
                f"No pair of relation {name!r} is one token on both sides in this vocabulary; leave it out of "
                "`relations`, or pass multi_token='first'."
            )
        found[name] = (pairs, len(several) if multi_token == "skip" else 0)
        if several:
            verb = "were left out" if multi_token == "skip" else "are represented by first tokens"
            notes.append(f"{name}: {len(several)} pairs with a word that is not one token {verb}, e.g. {several[0]}.")
    return found, notes


def _known_tokens(bridge: Any, word: str) -> tuple[int, ...]:
    """The tokens of a word, none where the vocabulary lacks it."""
    try:
        return word_tokens(bridge, word)
    except UserError:
        return ()


def word_pairs(relation: str) -> list[tuple[str, tuple[str, ...]]]:
    """All words of a relation's domains with their accepted values, in the order of the tables."""
    from synthetic_tasks.domains import DOMAINS
    from synthetic_tasks.relations import RELATIONS

    pairs: dict[str, tuple[str, ...]] = {}
    for domain in RELATIONS[relation].domains:
        for word in DOMAINS[domain].items:
            try:
                values = RELATIONS[relation].values(word)
            except KeyError:  # the last point of a scale has no next one
                continue
            if values:
                pairs[word] = tuple(values)
    return list(pairs.items())


def _ids_of(bridge: Any, words: Sequence[Token], multi_token: str) -> tuple[Int[Tensor, " word"], list[str]]:
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
                    "pass multi_token='first'."
                )
            first = str_tokens(bridge, torch.tensor([tokens[:1]]))[0]
            notes.append(f'"{word}" is {len(tokens)} tokens; its first, "{first}", stands for it.')
        ids.append(tokens[0])
    return torch.tensor(ids), notes


def _head_number(bridge: Any, head: int) -> int:
    heads = bridge.cfg.n_heads
    if not -heads <= head < heads:
        raise UserError(f"There is no head {head}; this model has heads 0..{heads - 1}.")
    return head % heads


def _require_tokens(bridge: Any) -> None:
    if getattr(bridge.cfg, "is_visual_model", False):
        raise UserError("OV circuits go from token to token, and this model reads images; load a language model.")
