r"""Which relations every head's OV circuit applies to words: how often it promotes the value that a relation gives.

    score[l, h, r] = share of the pairs (w, v) of relation r with v among the k largest of ov_{l,h}(w)

Pairs of one value repeat each other (all instruments lead to "musical instrument"), so the interval counts values, not
pairs. The head that scores best was chosen on the pairs that it is scored on, of many heads: `held_out` chooses on half
of the values and scores on the other half.

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
from dcinterp.mechanism.ov_logits import MLP0, ov_logits, require_tokens
from dcinterp.mechanism.prompt import word_tokens
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count

Pairs = list[tuple[int, tuple[int, ...]]]
"""(token of a word, tokens of its accepted values)."""

ORDER = ("score", "control", "control_low", "control_high", "low", "high", "first_half", "second_half")


@dataclass(frozen=True)
class OVTransformations(Result):
    """How often a relation's value is among the `k` tokens that a head promotes most, for every head and relation.

    score [layer, head, relation], a share of the relation's `pairs`, with its 95 % interval by values (low, high; NaN
    for a relation of one value); first_half, second_half: the score on two halves of the relation's values, None in
    results of version 0.1;
    control: the mean share when values are paired with words at random, and the middle 95 % of such pairings
    (control_low, control_high); skipped: pairs left out because a word is not one token.
    Of many heads some are above the control by chance: intervals are not corrected for the number of heads.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(ORDER, ("layer", "head", "relation")),
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
    first_half: Float[Tensor, "layer head relation"] | None = None
    second_half: Float[Tensor, "layer head relation"] | None = None
    mlp0: str = "later"

    def labels(self, axis: str) -> list[str] | None:
        return list(self.relations) if axis == "relation" else None

    @property
    def above_control(self) -> Bool[Tensor, "layer head relation"]:
        """Where the interval of the score lies above the middle 95 % of random pairings; nowhere if there is none."""
        return self.low > self.control_high

    def best(self, relation: str) -> tuple[int, int]:
        """(layer, head) with the largest score minus control, for one relation.

        Raises:
            UserError: the relation was not scored.
        """
        return self._largest(self.score, self._place(relation))

    def held_out(self, relation: str) -> float:
        """The score of the best head on pairs that it was not chosen on.

        The head with the largest score minus control on one half of the values is scored on the other half, and the
        other way round; this is the mean of both. It is NaN for a relation of one pair.

        Raises:
            UserError: the relation was not scored, or the result is of version 0.1, which kept no halves.
        """
        if self.first_half is None or self.second_half is None:
            raise UserError("A result of version 0.1 has no halves to choose and judge on; compute it again.")
        r = self._place(relation)
        halves = (self.first_half, self.second_half)
        scores = [other[(*self._largest(half, r), r)] for half, other in zip(halves, reversed(halves), strict=True)]
        return float(sum(scores) / 2)

    def _place(self, relation: str) -> int:
        if relation not in self.relations:
            raise UserError(f"Relation {relation!r} was not scored; {nearest(relation, self.relations)}")
        return self.relations.index(relation)

    def _largest(self, score: Tensor, r: int) -> tuple[int, int]:
        """(layer, head) with the largest score minus control of a relation."""
        margin = (score - self.control)[:, :, r]
        layer, head = divmod(int(margin.nan_to_num(-1).argmax()), margin.shape[1])
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
    mlp0: MLP0 = "later",
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
        mlp0: which layers read a word through the first MLP: "later" ones, as in a run; "always", also layer 0, the
            other reading of the paper's words; or "never".
        permutations: random pairings in the control.
        seed: seed of the pairings.
        progress: called after each layer.

    Cost: as of `ov_top_tokens`; per head one unembedding of all the words (about 300), [word, d_vocab] at a time.

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
    tables: dict[str, Any] = {name: torch.zeros(shape) for name in ORDER}
    for layer in layers:
        for head, logits in zip(heads, ov_logits(bridge, layer, ids, heads, final_norm, mlp0), strict=True):
            for r, (pairs, _) in enumerate(lexicon.values()):
                rows = torch.tensor([words.index(word) for word, _ in pairs])
                hits = _hits(logits[rows], [values for _, values in pairs], k)
                numbers = (*_against_chance(hits, permutations, seed), *_by_value(hits, pairs))
                for name, value in zip(ORDER, numbers, strict=True):
                    tables[name][layer, head, r] = value
        progress(layer + 1, len(layers), f"layer {layer}")
    return OVTransformations(
        k=k,
        vocabulary=bridge.cfg.d_vocab,
        relations=tuple(lexicon),
        notes=tuple(notes),
        **tables,
        mlp0=mlp0,
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
    """score; control, control_low, control_high."""
    n = len(hits)
    orders = torch.rand(permutations, n, generator=torch.Generator().manual_seed(seed)).argsort(1)
    shuffled = hits[torch.arange(n), orders].float().mean(1)
    edges = shuffled.quantile(torch.tensor([0.025, 0.975]))
    return float(hits.diagonal().float().mean()), float(shuffled.mean()), float(edges[0]), float(edges[1])


def _by_value(hits: Bool[Tensor, "word values"], pairs: Pairs) -> tuple[float, ...]:
    """low, high of the score; the score on two halves of the values."""
    from synthetic_tasks.intervals import share_interval

    values = [accepted for _, accepted in pairs]
    groups = torch.tensor([list(dict.fromkeys(values)).index(accepted) for accepted in values])
    right, sizes = hits.diagonal().double(), torch.bincount(groups)
    sums = torch.zeros(len(sizes), dtype=torch.double).index_add_(0, groups, right)
    low, high = share_interval(sums.numpy(), sizes.numpy())
    first = _half(groups, sizes)
    return float(low), float(high), *(float(right[half].mean()) for half in (first, ~first))


def _half(groups: Int[Tensor, " pair"], sizes: Int[Tensor, " value"]) -> Bool[Tensor, " pair"]:
    """Which pairs are of the first half: about half of them, no value in both; every other pair of a single value."""
    if len(sizes) == 1:
        return torch.arange(len(groups)) % 2 == 0
    first, filled = torch.zeros(len(sizes), dtype=torch.bool), [0, 0]
    for value in sizes.argsort(descending=True, stable=True).tolist():
        side = int(filled[1] < filled[0])
        first[value] = side == 0
        filled[side] += int(sizes[value])
    return first[groups]


def _lexicon(
    bridge: Bridge, relations: Sequence[str] | None, multi_token: str
) -> tuple[dict[str, tuple[Pairs, int]], list[str]]:
    """Relation -> (its pairs as token ids, how many were left out), and notes about it."""
    from synthetic_tasks import TASKS
    from synthetic_tasks.relations import RELATIONS

    if multi_token not in ("skip", "first"):
        raise UserError(f"multi_token is 'skip' or 'first', not {multi_token!r}.")
    if relations is not None and not len(relations):
        raise UserError("There are no relations to score; name at least one, or leave them out for all of the tasks.")
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
        if not pairs and relations is None:
            why = "none of its pairs is one token on both sides" if multi_token == "skip" else "its words are not known"
            notes.append(f"{name} was left out: {why}, e.g. {several[0]}.")
            continue
        if not pairs and multi_token == "first":
            raise UserError(
                f"This vocabulary has no pair of relation {name!r}, not even in several tokens; leave it out of "
                "`relations`."
            )
        if not pairs:
            raise UserError(
                f"No pair of relation {name!r} is one token on both sides in this vocabulary; leave it out of "
                "`relations`, or choose 'first' for multi_token."
            )
        found[name] = (pairs, len(several) if multi_token == "skip" else 0)
        if several:
            verb = "were left out" if multi_token == "skip" else "are represented by first tokens"
            notes.append(f"{name}: {len(several)} pairs with a word that is not one token {verb}, e.g. {several[0]}.")
    if not found and multi_token == "skip" and _knows_a_pair(bridge, known):
        raise UserError(
            "No pair of any relation is one token on both sides in this vocabulary; choose 'first' for multi_token."
        )
    if not found:
        raise UserError(
            "This vocabulary lacks the words of the relations, which are of the tasks; `ov_top_tokens` reads any words."
        )
    return found, notes


def _knows_a_pair(bridge: Bridge, relations: Sequence[str]) -> bool:
    """Whether any pair of the relations can be written in this vocabulary."""
    return any(
        all(_known_tokens(bridge, text) for text in (word, *accepted))
        for name in relations
        for word, accepted in word_pairs(name)
    )


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
