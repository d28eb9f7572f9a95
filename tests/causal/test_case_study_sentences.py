"""Hold the sentences of case studies against interventions written by hand: no number and no word of them may be false.

    python tests/causal/test_case_study_sentences.py 20     # 20 fresh case studies of the shipped model

Nothing here uses the ablations of the library: mean maps, edges and head outputs are taken from the cache of the
reference prompts and put in by hooks of this file.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp.analysis.case_study.following import source_positions
from dcinterp.mechanism.dataset import prompts

NUMBER = r"([+-]?\d+\.\d\d)"
WAY = "(reduces|increases|changes)"
HALF = 0.0051
"""What rounding to two decimals may hide."""


class ByHand:
    """One prompt and the logit difference under changes."""

    def __init__(self, bridge: Any, study: Any, ids: torch.Tensor, reference: list[torch.Tensor]) -> None:
        self.bridge, self.study, self.ids = bridge, study, ids
        self.target, self.foil = (
            bridge.tokenizer.convert_tokens_to_ids(w) for w in (study.attribution.target, study.attribution.foil)
        )
        self.layers = range(bridge.cfg.n_layers)
        caches = [bridge.run_with_cache(other)[1] for other in reference]
        self.cache = bridge.run_with_cache(ids)[1]
        self.z = {n: torch.cat([c[f"blocks.{n}.attn.hook_z"][0] for c in caches]).mean(0) for n in self.layers}
        self.maps = {}
        for n in self.layers:
            for stage in ("pre", "post"):
                at = f"blocks.{n}.attn.{stage}.hook_w_"
                for side in "qk":
                    low = [torch.einsum("prf,prh->pfh", c[f"{at}{side}1"][0], c[f"{at}{side}2"][0]) for c in caches]
                    self.maps[n, stage, f"{side}p"] = torch.cat(low).mean(0)
                    gate = torch.cat([c[f"{at}{side}g"][0] for c in caches]).mean(0)
                    self.maps[n, stage, f"{side}g"] = torch.diag(gate)

    def difference(self, hooks: list[Any] = (), against: int | None = None) -> float:
        with torch.no_grad():
            logits = self.bridge.run_with_hooks(self.ids, fwd_hooks=list(hooks))[0, -1]
        return float(logits[self.target] - logits[self.foil if against is None else against])

    def edge(
        self, layer: int, stage: str, pairs: list[tuple[int, int]], names: str, where: Any, zero: bool = False
    ) -> list[Any]:
        """Hooks that put the mean (or nothing) in what f adds to h, for pairs (f, h), at [query, key] = where."""
        seen: dict[str, torch.Tensor] = {}
        at = f"blocks.{layer}.attn.{stage}.hook_"

        def see(tensor: torch.Tensor, hook: Any) -> None:
            seen[hook.name.removeprefix(at)] = tensor[0]

        def put(tensor: torch.Tensor, hook: Any) -> torch.Tensor:
            name, tensor = hook.name.removeprefix(f"{at}o_"), tensor.clone()
            side = name[0]
            for f, h in pairs:
                if name[1] == "p":
                    own = (seen[f"w_{side}1"][..., f] * seen[f"w_{side}2"][..., h]).sum(-1)
                elif f == h:
                    own = seen[f"w_{side}g"][:, h]
                else:
                    continue
                mean = 0 if zero else self.maps[layer, stage, name][f, h]
                change = seen["in"][f] * ((mean - own)[:, None] if side == "q" else (mean - own)[None, :])
                tensor[0, h][where] += change[where]
            return tensor

        read = [f"{at}in", *(f"{at}w_{name}" for name in ("q1", "q2", "qg", "k1", "k2", "kg"))]
        return [*((name, see) for name in read), *((f"{at}o_{name}", put) for name in names.split())]

    def head(self, layer: int, head: int, new: Any, *, alone: bool) -> list[Any]:
        """Hooks that put `new` in a head's output: at the last position with all others held, or at all positions."""

        def put(z: torch.Tensor, hook: Any, name: str) -> torch.Tensor:
            z = self.cache[name].clone() if alone else z.clone()
            if name == f"blocks.{layer}.attn.hook_z":
                z[0, -1 if alone else slice(None), head] = new
            return z

        names = [f"blocks.{n}.attn.hook_z" for n in self.layers]
        return [(name, partial(put, name=name)) for name in (names if alone else names[layer : layer + 1])]


ADDED = "qp kp qg kg"


def false_claims(
    bridge: Any, study: Any, ids: torch.Tensor, reference: list[torch.Tensor], source: list[int]
) -> tuple[int, list[str]]:
    """(how many claims were held against a measurement, those that are false). source: positions of the fact's item."""
    tokens = study.prediction.tokens
    hand, layer, head, key = ByHand(bridge, study, ids, reference), study.layer, study.head, study.key
    clean, false, checked = hand.difference(), [], 0
    entry, everywhere = (-1, key), (slice(None), slice(None))
    others = [f for f in range(bridge.cfg.n_heads) if f != head]

    def claim(said: str | float, value: float, what: str) -> None:
        nonlocal checked
        checked += 1
        if abs(float(said) - value) > HALF:
            false.append(f"{what}: says {said}, measured {value:.4f}")

    def expect(true: bool, what: str) -> None:
        nonlocal checked
        checked += 1
        if not true:
            false.append(what)

    def after(hooks: list[Any]) -> float:
        return hand.difference(hooks)

    sentence = study.step("head").sentence
    found = re.search(
        rf"goes from {NUMBER} to {NUMBER} logits \((-?\d+)% of the difference; set to zero: {NUMBER}\)", sentence
    )
    if found:
        value = after(hand.head(layer, head, hand.z[layer][head], alone=True))
        claim(found[1], clean, "clean")
        claim(found[2], value, "direct effect")
        expect(int(found[3]) == round(100 * (clean - value) / clean), "share of the direct effect")
        claim(found[4], after(hand.head(layer, head, 0.0, alone=True)), "direct effect at zero")
    found = re.search(
        rf"at all positions {WAY} the difference by {NUMBER} \(.*?set to zero: {NUMBER}\)",
        sentence,
    )
    sign = {"reduces": 1, "increases": -1, "changes": 1}
    if found:
        value = clean - after(hand.head(layer, head, hand.z[layer][head], alone=False))
        claim(sign[found[1]] * float(found[2]), value, "ablation of the head")
        claim(found[3], after(hand.head(layer, head, 0.0, alone=False)) - clean, "ablation of the head at zero")
    sentence = study.step("source").sentence
    found = re.search(
        rf"from {NUMBER} to {NUMBER} logits \((-?\d+)% of the difference; set to zero: {NUMBER}\)", sentence
    )
    if found:
        pairs = [(f, head) for f in range(bridge.cfg.n_heads)]
        claim(found[2], after(hand.edge(layer, "post", pairs, ADDED, entry)), "source")
        claim(found[4], after(hand.edge(layer, "post", pairs, ADDED, entry, zero=True)), "source at zero")
    if found := re.search(
        rf"logit difference (falls|rises) by {NUMBER}, (-?\d+)% of the direct effect, so (.*?)\.", sentence
    ):
        effects = []
        for word in study.control.words:
            other, new = ids.clone(), bridge.tokenizer(word, add_special_tokens=False)["input_ids"]
            if (place := [key] if key not in source else source) and len(new) != len(place):
                break  # Only the tokens that differ are named: where they stand cannot be read off.
            other[0, place] = torch.tensor(new)
            z = bridge.run_with_cache(other)[1][f"blocks.{layer}.attn.hook_z"][0, -1, head]
            effects.append(clean - after(hand.head(layer, head, z, alone=True)))
        # A token that occurs twice may be that of two facts, and both are replaced.
        if len(effects) == len(study.control.words) and tokens.count(tokens[key]) == 1:
            claim({"falls": 1, "rises": -1}[found[1]] * float(found[2]), sum(effects) / len(effects), "control")
        expect(("follows" in found[4]) == (int(found[3]) >= 50), "verdict of the control")
    sentence = study.step("sharing").sentence
    where = {"here": entry, "all": everywhere}
    pattern = rf"Having this attention replaced by its mean {WAY} the logit difference by {NUMBER}"
    if found := re.search(pattern, sentence):
        pair = [(study.head_from, head)]
        claim(
            sign[found[1]] * float(found[2]),
            clean - after(hand.edge(layer, "post", pair, ADDED, where["here"])),
            "shared",
        )
        found = re.search(rf"at every position, {WAY} it by {NUMBER}", sentence)
        claim(
            sign[found[1]] * float(found[2]), clean - after(hand.edge(layer, "post", pair, ADDED, everywhere)), "edge"
        )
    found = re.search(rf"would be {NUMBER} instead of {NUMBER} \(set to zero: {NUMBER}\)", sentence)
    whole = [(f, h) for f in range(bridge.cfg.n_heads) for h in range(bridge.cfg.n_heads)]
    claim(found[1], after(hand.edge(layer, "post", whole, ADDED, everywhere)), "layer")
    claim(found[3], after(hand.edge(layer, "post", whole, ADDED, everywhere, zero=True)), "layer at zero")
    pattern = rf"is head (\d+) -> head (\d+) of layer (\d+) \((pre|post).*?positions {WAY} .*? by {NUMBER}"
    found = re.search(pattern, sentence)
    pair, top = [(int(found[1]), int(found[2]))], sign[found[5]] * float(found[6])
    claim(top, clean - after(hand.edge(int(found[3]), found[4], pair, ADDED, everywhere)), "strongest edge")
    for f in others:
        effect = clean - after(hand.edge(layer, "post", [(f, head)], ADDED, everywhere))
        expect(abs(effect) <= abs(top) + HALF, f"edge {f}>{head} is stronger than the strongest")
    summary = study.summary
    way = rf"(falls|goes|rises) from {NUMBER} to {NUMBER} logits(?:: (.*?))? ?\(?(?:\d+%; )?set to zero: {NUMBER}\)"
    if found := re.search(way, summary):
        pair = [(study.head_from, head)]
        value = after(hand.edge(layer, "post", pair, ADDED, entry))
        claim(found[3], value, "summary")
        claim(found[5], after(hand.edge(layer, "post", pair, ADDED, entry, zero=True)), "summary at zero")
        share = round(100 * (clean - value) / clean)
        verdict = found[4] or ""
        expect(("small part" in verdict) == (2 <= share < 10), f"small part at {share}%: {verdict}")
        expect(("notable part" in verdict) == (10 <= share < 50), f"notable part at {share}%: {verdict}")
        expect(("hardly matters" in verdict) == (-2 < share < 2), f"hardly matters at {share}%: {verdict}")
        expect((found[1] == "rises") == (share <= -2), f"rises at {share}%")
    sentence = study.step("gate").sentence
    pattern = rf"Head (\d+) of layer (\d+) copies \"(.*?)\".*?Having both gates .*? {WAY} the .*? by {NUMBER}"
    if found := re.search(pattern, sentence):
        word, pair = int(ids[0, key]), [(int(found[1]), int(found[1]))]
        hooks = hand.edge(int(found[2]), "post", pair, "qg kg", entry)
        effect = hand.difference(against=word) - hand.difference(hooks, against=word)
        claim(sign[found[4]] * float(found[5]), effect, "gates")
        h, n = int(found[1]), int(found[2])
        expect(float(study.after[n, h]) <= 0.905 * float(study.before[n, h]), "called silenced, but attends as much")
    everything = " ".join([summary, *(step.sentence for step in study.steps)])
    expect(not re.search(r"-0\.00?\b(?!\d)", everything), "a minus before a zero")
    return checked, false


@pytest.fixture(scope="module")
def studied(shipped):
    example = synthetic_tasks.generate("task2", 1, 5, examples=1, split="held-out")[0].examples[0]
    study = dcinterp.case_study(shipped, example, reference="task2 n=4 seed=7 split=held-out")
    reference = prompts(shipped, "task2 n=4 seed=7 split=held-out")
    return study, shipped.to_tokens(example.prompt), reference, source_positions(shipped, example)


def test_no_sentence_of_a_case_study_is_false(shipped, studied):
    checked, false = false_claims(shipped, *studied)
    assert false == []
    assert checked > 15


def test_a_false_sentence_would_be_found(shipped, studied):
    """With another reference the numbers are others, and so all those of the sentences are false."""
    study, ids, _, source = studied
    assert len(false_claims(shipped, study, ids, prompts(shipped, "task56 n=2"), source)[1]) > 3
    wrong = replace(study, summary=study.summary + " -0.00")
    assert "a minus before a zero" in false_claims(shipped, wrong, *studied[1:])[1]


def main(number: int = 20, seed: int = 11) -> None:
    """Print every false claim of fresh case studies, and how many were checked."""
    import typer

    from synthetic_tasks import TASKS, generate

    bridge = dcinterp.load("dcformer++")
    tasks = list(TASKS.values())
    total = wrong = 0
    for n in range(number):
        example = generate(tasks[(n * 7 + seed) % len(tasks)], 1, seed + n, examples=1, split="held-out")[0].examples[0]
        study = dcinterp.case_study(bridge, example)
        ids, reference = bridge.to_tokens(example.prompt), prompts(bridge, study.reference)
        checked, false = false_claims(bridge, study, ids, reference, source_positions(bridge, example))
        total, wrong = total + checked, wrong + len(false)
        typer.echo(f"{example.task_id}: {study.summary}")
        for claim in false:
            typer.echo(f"   FALSE {claim}")
    typer.echo(f"{number} case studies, {total} claims checked, {wrong} false.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
