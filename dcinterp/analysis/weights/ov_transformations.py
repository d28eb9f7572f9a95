r"""Which relations every head's OV circuit applies to words: how often it promotes the value that a relation gives.

    score[l, h, r] = share of the pairs (w, v) of relation r with v among the k largest of ov_{l,h}(w)

ov is that of `ov_top_tokens`. The control pairs the same words with the same values at random: a head that promotes
"fruit" whatever it reads scores on both.

Source: the DCMHA paper (appendix "Interpretation and Visualization") reads single heads in this way; the count over all
pairs of a relation, and its control, are ours.

It does not show that the head attends to such words in any prompt, nor that its output has an effect on the answer.

Identity that the tests assert: a head built to copy is the one whose score is above its control, and a head that
promotes the same tokens whatever it reads scores what its control does.

    scores = dcinterp.ov_transformations(model)  # [layer, head, relation]
    scores.best("obj->superclass")               # (layer, head) with the largest score minus control
    dcinterp.figures.plot(scores)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ov_logits import ov_logits, require_tokens
from dcinterp.mechanism.prompt import word_tokens
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count


@dataclass(frozen=True)
class OVTransformations(Result):
    """How often a relation's value is among the `k` tokens that a head promotes most, for every head and relation.

    score [layer, head, relation], a share of the relation's `pairs`, with its 95 % interval over pairs (low, high);
    control: the mean share when values are paired with words at random, and the middle 95 % of such pairings
    (control_low, control_high); skipped: pairs left out because a word is not one token.
    Of many heads some are above the control by chance: intervals are not corrected for the number of heads.
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
        """(layer, head) with the largest score minus control, for one relation.

        Raises:
            UserError: the relation was not scored.
        """
        if relation not in self.relations:
            raise UserError(f"Relation {relation!r} was not scored; {nearest(relation, self.relations)}")
        margin = (self.score - self.control)[:, :, self.relations.index(relation)]
        layer, head = divmod(int(margin.argmax()), margin.shape[1])
        return layer, head

    def warnings(self) -> list[str]:
        """The pairs that were left out."""
        return list(self.notes)


@analysis(
    title="What every head's OV circuit does to words",
    question="Which relations do the heads' OV circuits apply to words?",
    guide="analyses/ov-circuits.md",
    example={},
)
def ov_transformations(
    bridge: Bridge,
    *,
    relations: Sequence[str] | None = None,
    k: Count = 10,
    final_norm: bool = False,
    multi_token: Literal["skip", "first"] = "skip",
    permutations: int = 1000,
    seed: int = 0,
    progress: Progress = silent,
) -> OVTransformations:
    """How often each relation of the tasks' lexicon leads from a word to one of the `k` tokens that a head promotes.

    The pairs of a relation are all its words with their accepted values ("violin" -> "musical instrument" under
    obj->superclass; a word to itself under copy). The control pairs the same words with the same values in random
    order: a head that promotes "fruit" whatever it reads scores on both.

    Args:
        bridge: any bridge over a language model.
        relations: names of relations; all of the released tasks by default.
        k: how many promoted tokens count; 1 for the most promoted alone.
        final_norm: apply the final norm to the head's output, gain included, before W_U.
        multi_token: leave out pairs in which a word or its value is several tokens, or use the first token.
        permutations: random pairings in the control.
        seed: seed of the pairings and of the intervals.
        progress: called after each layer.

    Cost: no forward pass; per head one unembedding of all the words (about 300), [word, d_vocab] at a time.

    Raises:
        UserError: a relation is unknown, no pair of it fits the tokenizer, or as `ov_top_tokens` raises.
    """
    require_tokens(bridge)
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
        for head, logits in zip(heads, ov_logits(bridge, layer, ids, heads, final_norm), strict=True):
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
    bridge: Bridge, relations: Sequence[str] | None, multi_token: str
) -> tuple[dict[str, tuple[Pairs, int]], list[str]]:
    """Relation -> (its pairs as token ids, how many were left out), and notes about it."""
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
        if not pairs and relations is None and multi_token == "skip":
            notes.append(f"{name} was left out: none of its pairs is one token on both sides, e.g. {several[0]}.")
            continue
        if not pairs:
            raise UserError(
                f"No pair of relation {name!r} is one token on both sides in this vocabulary; leave it out of "
                "`relations`, or pass multi_token='first'."
            )
        found[name] = (pairs, len(several) if multi_token == "skip" else 0)
        if several:
            verb = "were left out" if multi_token == "skip" else "are represented by first tokens"
            notes.append(f"{name}: {len(several)} pairs with a word that is not one token {verb}, e.g. {several[0]}.")
    if not found:
        raise UserError(
            "No pair of any relation is one token on both sides in this vocabulary; pass multi_token='first'."
        )
    return found, notes


def _known_tokens(bridge: Bridge, word: str) -> tuple[int, ...]:
    """The tokens of a word, none if the vocabulary lacks it."""
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
