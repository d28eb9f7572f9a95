r"""The DCMHA paper's motifs of a composition map, by stated rules: pure functions of one [head_from, head_to] matrix.

The input is what composition adds: the map without the skip, whose identity would drown the gates. An entry is
*strong* when its size reaches `share` of the largest entry. Then

    mutual excitation    strong entries a -> b and b -> a, both positive
    mutual inhibition    strong entries a -> b and b -> a, both negative
    one-to-many          a head with strong entries to at least `many` other heads
    many-to-one          a head with strong entries from at least `many` other heads
    self-gating          a strong entry a -> a: positive amplifies the head's own attention, negative silences it

A head may be part of several motifs. The paper names the motifs and shows examples; the thresholds are ours. A motif is
a statement about weights: it has no effect if there is no attention to share.

    for motif in find_motifs(map - torch.eye(heads)):
        print(motif.sentence)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dcinterp.shapes import HeadMap
from dcinterp.support.errors import UserError

MotifName = Literal["mutual excitation", "mutual inhibition", "one-to-many", "many-to-one", "self-gating"]

SHARE = 0.5
MANY = 3


@dataclass(frozen=True)
class Motif:
    """One motif: the heads that share (`sources`), those that borrow (`targets`), and the weights in that order.

    For the mutual motifs sources are (a, b) and targets (b, a); for the others one side is a single head.
    """

    name: MotifName
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def strength(self) -> float:
        """The size of the weakest entry that the motif needs."""
        return min(map(abs, self.weights))

    @property
    def sentence(self) -> str:
        """The motif in words."""
        first, others = (self.sources, self.targets) if len(self.sources) == 1 else (self.targets, self.sources)
        named = ", ".join(f"{head} ({weight:+.2f})" for head, weight in zip(others, self.weights, strict=True))
        match self.name:
            case "self-gating":
                verb = "amplifies" if self.weights[0] > 0 else "weakens"
                return f"self-gating: head {first[0]} {verb} its own attention ({self.weights[0]:+.2f})"
            case "one-to-many":
                return f"one-to-many: head {first[0]} shares its attention with heads {named}"
            case "many-to-one":
                return f"many-to-one: head {first[0]} borrows attention from heads {named}"
            case _:
                a, b = self.sources
                return f"{self.name}: heads {a} and {b} ({self.weights[0]:+.2f}, {self.weights[1]:+.2f})"


def find_motifs(added: HeadMap, *, share: float = SHARE, many: int = MANY) -> tuple[Motif, ...]:
    """The motifs of a map, the strongest of each kind first.

    Args:
        added: what composition adds, [head_from, head_to], without the skip.
        share: entries of at least this share of the largest (in size) are strong.
        many: how many other heads make a one-to-many or many-to-one.

    Raises:
        UserError: `share` is not in (0, 1], `many` is below 2, or the map is not square.
    """
    if not 0 < share <= 1 or many < 2:
        raise UserError(f"share {share:g} and many {many} do not define motifs; use e.g. 0.5 and 3.")
    if added.dim() != 2 or added.shape[0] != added.shape[1]:
        raise UserError(f"A map over heads is square, but this one has shape {tuple(added.shape)}.")
    w = added.double()
    largest = float(w.abs().max()) if w.numel() else 0.0
    if largest == 0:
        return ()
    strong = w.abs() >= share * largest
    heads = range(len(w))
    found: list[Motif] = []
    for a in heads:
        for b in range(a + 1, len(w)):
            pair = (float(w[a, b]), float(w[b, a]))
            if strong[a, b] and strong[b, a] and pair[0] * pair[1] > 0:
                name: MotifName = "mutual excitation" if pair[0] > 0 else "mutual inhibition"
                found.append(Motif(name, (a, b), (b, a), pair))
    for head in heads:
        to = tuple(h for h in heads if h != head and strong[head, h])
        if len(to) >= many:
            found.append(Motif("one-to-many", (head,), to, tuple(float(w[head, h]) for h in to)))
        heads_from = tuple(h for h in heads if h != head and strong[h, head])
        if len(heads_from) >= many:
            found.append(Motif("many-to-one", heads_from, (head,), tuple(float(w[h, head]) for h in heads_from)))
        if strong[head, head]:
            found.append(Motif("self-gating", (head,), (head,), (float(w[head, head]),)))
    order = ("mutual excitation", "mutual inhibition", "one-to-many", "many-to-one", "self-gating")
    return tuple(sorted(found, key=lambda m: (order.index(m.name), -m.strength)))
