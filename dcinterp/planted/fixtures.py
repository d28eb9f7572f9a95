"""Models with circuits that are known, for whoever tests an attribution method: planted by hand, or trained.

    from dcinterp.planted.fixtures import fixtures, load_fixture

    fixture = load_fixture("lookup-post-kp")                 # trained; or a planted one, "chain background=0.05 seed=2"
    fixture.edges                    # ("L0H0 -> L0H0 (pre skip)", "L0H0 -> L0H1 (post kp)")
    fixture.pairs(8)                 # prompts with answers, and their counterfactuals
    bridge = fixture.bridge()        # a TransformerBridge: run_with_cache, run_with_hooks, ...

Needs torch, transformers and tokenizers (and TransformerLens for `bridge`), but nothing of the app or of figures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcinterp.planted.circuit import PlantedExample, Traits
from dcinterp.planted.circuits import FORMER, circuits
from dcinterp.planted.models import read_plant
from dcinterp.planted.stated import Asked, Stated, words_of_stated
from dcinterp.planted.words import COLOUR, KIND, tokenizer
from dcinterp.support.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dcinterp.bridge.protocol import Bridge
    from dcinterp.model.decoder import DCFormerForCausalLM

FOLDER = Path(__file__).parent / "trained"
MANY = 80
"""Examples of a planted model among which a counterfactual is looked for."""


@dataclass(frozen=True)
class FixturePair:
    """A prompt with its answer and a wrong one, and a counterfactual prompt of the same length and question.

    What the finder finds stands elsewhere on the counterfactual prompt.
    """

    prompt: str
    answer: str
    foil: str
    counterfactual: str


@dataclass(frozen=True)
class Fixture:
    """A model with its truth. edges: the composition edges that make the answers to the prompts of `pairs`.

    layers: that the truth is about; in the others the composition edges may matter too.
    """

    name: str
    model: DCFormerForCausalLM
    tokenizer: PreTrainedTokenizerBase
    edges: tuple[str, ...]
    layers: tuple[int, ...]
    draw: Callable[[int, int], list[FixturePair]] = field(repr=False)

    def pairs(self, number: int, seed: int = 0) -> list[FixturePair]:
        """So many prompts of one kind of question, all with the same true edges."""
        return self.draw(number, seed)

    def bridge(self) -> Bridge:
        """The model for TransformerLens."""
        from dcinterp.bridge import wrap

        return wrap(self.model, self.tokenizer, self.name)


def trained() -> tuple[str, ...]:
    """The names of the trained models that are shipped."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/model.safetensors")))


def fixtures() -> tuple[str, ...]:
    """The names of all models: the planted kinds (settings such as seed=2 may follow), and the trained ones."""
    return (*circuits(), *trained())


def load_fixture(name: str, case: str = "") -> Fixture:
    """A model with a known circuit.

    Args:
        name: one of `fixtures`; of a planted one with settings, as in "share-by-kp background=0.05 seed=2".
        case: of a circuit whose true edges depend on the question: which; by default the first.

    Raises:
        UserError: there is none of this name, no such case or setting.
    """
    kind, *settings = name.replace(",", " ").split() or [""]
    if kind in trained():
        if settings:
            raise UserError(f"{kind} is a trained model and has no settings; leave out {' '.join(settings)}.")
        return _trained(kind, case)
    if FORMER.get(kind, kind) not in circuits():
        raise UserError(f"There is no fixture {name!r}; {nearest(kind, fixtures())}")
    return _planted(name, case)


def stated_of(name: str) -> Stated:
    """The stated circuit of a shipped model."""
    return read_circuit(FOLDER / name / "circuit.json")[0]


def read_circuit(file: Path) -> tuple[Stated, dict[str, Any]]:
    """The stated circuit of a trained model's circuit.json, and the marks that the model reached."""
    fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    marks = fields.pop("marks")
    fields.pop("steps")
    return Stated.from_json(json.dumps(fields)), marks


def _trained(name: str, case: str) -> Fixture:
    from dcinterp.model.decoder import DCFormerForCausalLM

    circuit = stated_of(name)
    cases = tuple(dict.fromkeys(hop.case for hop in circuit.hops))
    case = _one_of(name, case, cases)
    model = DCFormerForCausalLM.from_pretrained(FOLDER / name).eval()

    def draw(number: int, seed: int) -> list[FixturePair]:
        random_ = random.Random(f"{name} {case} {seed}")
        return [_stated_pair(circuit, case, random_) for _ in range(number)]

    return Fixture(name, model, words_of_stated(), circuit.edges(case), tuple(range(circuit.layers)), draw)


def _stated_pair(circuit: Stated, case: str, draw: random.Random) -> FixturePair:
    """Both prompts find other facts, and the fact that stands where the other one finds its own gives the other answer.

    So whatever of the circuit is patched, the answer is one of the two.
    """
    while True:
        one, other = (_in_case(circuit.draw(draw), case) for _ in range(2))
        places, there = one.places(), other.places()
        moved = all(a != b for a, b in zip(places, there, strict=True))
        if moved and one.answer() != other.answer() == one.answer({len(there) - 1: there[-1]}):
            return FixturePair(one.prompt, one.answer(), other.answer(), other.prompt)


def _in_case(asked: Asked, case: str) -> Asked:
    return Asked(asked.task, asked.keys, asked.values, asked.key, case)


def _planted(name: str, case: str) -> Fixture:
    planted = read_plant(name)
    kind = circuits()[planted.circuit]
    drawn = planted.examples(MANY, seed=1)
    cases = tuple(dict.fromkeys(each.case or each.question for each in drawn))
    case = _one_of(name, case, cases)
    first = next(each for each in drawn if (each.case or each.question) == case)

    def draw(number: int, seed: int) -> list[FixturePair]:
        many = planted.examples(MANY + 8 * number, seed=1 + seed)
        alike = [each for each in many if (each.case or each.question) == case]
        found = (pair for one in alike if (pair := _planted_pair(one, alike[:MANY])) is not None)
        return list(islice(found, number))

    layers = tuple(range(1, Traits.of(kind).LAYERS))
    # Layer 0 is the same in all kinds, and looks at the same places in every prompt.
    edges = tuple(edge for edge in planted.truth(first).names() if not edge.startswith("L0"))
    return Fixture(name, planted.model, tokenizer(), edges, layers, draw)


def _planted_pair(one: PlantedExample, others: Sequence[PlantedExample]) -> FixturePair | None:
    """Beside a prompt with another answer that stands elsewhere.

    Best where what stands there in this prompt has another kind and another colour, and where its answer is the foil.
    """
    able = [
        other
        for other in others
        if other.target != one.target and all(a != b for a, b in zip(one.sources, other.sources, strict=True))
    ]
    words = one.prompt.split()
    right = words[one.sources[-1]]

    def apart(other: PlantedExample) -> tuple[int, bool]:
        there = words[other.sources[-1]]
        return sum(meaning[there] != meaning[right] for meaning in (KIND, COLOUR)), other.target == one.foil

    return FixturePair(one.prompt, one.target, one.foil, max(able, key=apart).prompt) if able else None


def _one_of(name: str, case: str, cases: Sequence[str]) -> str:
    if case and case not in cases:
        raise UserError(f"{name} has no case {case!r}; it has {', '.join(map(repr, sorted(cases)))}.")
    return case or sorted(cases)[0]
