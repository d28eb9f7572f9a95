"""How often ablation confirms the top cause of a shared attention entry, on the shipped model.

    python tests/causal/test_composition_causes.py 200       # prints the share of so many cases

A case is one number (a score by the query, by the key, a dynamic weight) of the entry with the strongest sharing
between two different heads at the last position of a prompt, in layers 1 and 2. Confirmed: setting the component with
the largest cause to its mean over the other positions changes the number in the same direction, by a third to three
times as much.
"""

from __future__ import annotations

import sys
from collections import Counter

import dcinterp
from dcinterp.mechanism.dataset import read_questions

SETS = ("same-person", "the-other-person", "same-object", "the-other-object", "different-in-set")


def confirmations(cases: int) -> tuple[Counter[str], Counter[str], int]:
    """(confirmed, tried) by quantity, and of how many the ablation has the sign of the cause."""
    model = dcinterp.load("dcformer++")
    confirmed, tried, signs = Counter(), Counter(), 0
    each = -(-cases // (6 * len(SETS)))
    for question in (q for name in SETS for q in read_questions(model, f"{name} n={each}")):
        for layer in (1, 2):
            names = [f"blocks.{layer}.attn.post.hook_{tap}" for tap in ("in", "out")]
            cache = model.run_with_cache(question.prompt, names_filter=names)[1]
            key = int((cache[names[1]] - cache[names[0]])[0, :, -1].abs().sum(0).argmax())
            terms = dcinterp.compose_breakdown(model, question.prompt, layer, -1, key)
            head_from, head_to = terms.strongest_sharing()
            found = dcinterp.composition_causes(model, question.prompt, layer, head_from, head_to, -1, key)
            for number, quantity in enumerate(found.quantities):
                if sum(tried.values()) < cases:
                    tried[quantity] += 1
                    confirmed[quantity] += found.confirmed(number)
                    at = found.top(number)
                    signs += bool(found.causes[number, at] * found.ablation[number, at] > 0)
    return confirmed, tried, signs


def test_most_top_causes_are_confirmed_by_ablation():
    confirmed, tried, _ = confirmations(30)
    assert sum(confirmed.values()) >= 0.6 * sum(tried.values()) == 0.6 * 30


if __name__ == "__main__":
    confirmed, tried, signs = confirmations(int(sys.argv[1]))
    lines = [f"{quantity}: {confirmed[quantity]} of {tried[quantity]} confirmed" for quantity in tried]
    lines.append(f"all: {sum(confirmed.values())} of {sum(tried.values())}; {signs} have the sign of their ablation")
    sys.stdout.write("\n".join(lines) + "\n")
