r"""Training a small DCFormer to compute its answers by a stated circuit, and by nothing else.

    loss = cross entropy of (answer of the high-level model with some hops patched | the model with edges patched)

Of a prompt and a random other one, every row of a batch patches a random part of the edges of the graph with their
values on the other prompt: of each hop none, or some of its edges; and of all edges outside the circuit a random
share. A patched hop has to answer by the place that the other prompt finds; a patched edge outside changes nothing.

Source: strict interchange intervention training (SIIT) of Gupta et al. 2024 (InterpBench, arXiv 2407.14494). There
nodes are patched, here edges of dcinterp.mechanism.circuit_graph, so that a branch of a composition can be asked for.

    interchange   share of right answers with all edges of one hop patched (each hop in turn; of a chain, both)
    outside       share of answers that change when all edges outside the circuit are patched together
    worst         the largest such share when one composition edge outside is patched alone
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dcinterp.mechanism.circuit_run import CircuitRun, Cut
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.planted.fixtures import read_circuit
from dcinterp.planted.stated import FACTS, Asked, Stated, vocabulary, words_of_stated
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent
from dcinterp.support.whole_files import whole

BATCH, RATE, WARM = 128, 4e-3, 50
ENOUGH_RIGHT, ENOUGH_QUIET = 0.99, 0.01
"""The marks: interchange accuracy of at least, and effect of what is outside of at most."""
CHECKED_ROWS = 512
EVERY = 100
"""Steps between two looks at the marks, and between two saved states."""


@dataclass(frozen=True)
class Marks:
    """How well a model keeps to its circuit, as shares of fresh prompts."""

    accuracy: float
    interchange: float
    outside: float
    worst: float | None
    worst_edge: str

    @property
    def reached(self) -> bool:
        """Whether it does."""
        quiet = self.worst is not None and max(self.outside, self.worst) <= ENOUGH_QUIET
        return min(self.accuracy, self.interchange) >= ENOUGH_RIGHT and quiet


class Draws:
    """Random prompts with their other prompts, and which edges are which."""

    def __init__(self, circuit: Stated, run: CircuitRun, seed: int) -> None:
        self.circuit, self.run, self.random = circuit, run, random.Random(seed)
        self.number = {word: place for place, word in enumerate(vocabulary())}
        place = {name: at for at, name in enumerate(run.graph.names)}
        self.cases = tuple(dict.fromkeys(hop.case for hop in circuit.hops))
        self.hops = {
            case: [(n, [place[edge] for edge in hop.edges(circuit.stages)]) for n, hop in circuit.in_use(case)]
            for case in self.cases
        }
        own = [
            place[name]
            for name in (*circuit.inside(), *(edge for hop in circuit.hops for edge in hop.edges(circuit.stages)))
        ]
        self.outside = torch.ones(run.graph.size, dtype=torch.bool)
        self.outside[own] = False
        # The borrower that a case does not ask for has to be silent in it.
        self.idle = {
            case: [
                p
                for hop in circuit.hops
                if hop.case not in ("", case)
                for e in hop.edges(circuit.stages)
                if (p := place[e])
            ]
            for case in self.cases
        }
        for case in self.cases:
            shared = {p for _, places in self.hops[case] for p in places}
            self.idle[case] = [p for p in self.idle[case] if p not in shared]

    def pairs(self, rows: int) -> tuple[list[Asked], list[Asked], Tensor, Tensor]:
        """Prompts, their other prompts (of the same case), and the tokens of both."""
        some = [self.circuit.draw(self.random) for _ in range(rows)]
        others = []
        for one in some:
            other = self.circuit.draw(self.random)
            others.append(Asked(other.task, other.keys, other.values, other.key, one.case))
        return some, others, self.tokens(some), self.tokens(others)

    def tokens(self, some: Sequence[Asked]) -> Tensor:
        return torch.tensor([[self.number[word] for word in one.prompt.split()] for one in some])

    def training(self, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(tokens, tokens of the other prompts, gates [row, edge], answers) of one step."""
        some, others, ids, other_ids = self.pairs(rows)
        gates, answers = torch.ones(rows, self.run.graph.size), list[int]()
        for row, (one, other) in enumerate(zip(some, others, strict=True)):
            found = dict[int, int]()
            for number, places in self.hops[one.case]:
                if self.random.random() < 0.5:
                    chosen = [p for p in places if self.random.random() < 0.5] or [self.random.choice(places)]
                    gates[row, chosen] = 0
                    found[number] = other.places()[number]
            answers.append(self.number[one.answer(found)])
        share = torch.rand(rows, 1).square() * torch.randint(2, (rows, 1))
        drop = (torch.rand(rows, self.run.graph.size) < share) | (torch.rand(rows, 1) < self.circuit.alone)
        quiet = self.outside.expand(rows, -1).clone()
        for row, one in enumerate(some):
            quiet[row, self.idle[one.case]] = True
        return ids, other_ids, gates.masked_fill(drop & quiet, 0.0), torch.tensor(answers)


def new_model(circuit: Stated) -> DCFormerForCausalLM:
    """An untrained model for a stated circuit, in float32."""
    torch.manual_seed(circuit.seed)
    return DCFormerForCausalLM(config_of(circuit))


def config_of(circuit: Stated) -> DCFormerConfig:
    """RMSNorm, GELU, learned positions, composition before and after the softmax, rank 2; but for its own traits."""
    words = vocabulary()
    fields: dict[str, Any] = dict(
        vocab_size=len(words),
        hidden_size=circuit.width,
        intermediate_size=circuit.width,
        num_hidden_layers=circuit.layers,
        num_attention_heads=circuit.heads,
        max_position_embeddings=FACTS + 2,
        mlp_type="gelu",
        position_type="learned",
        pad_token_id=words.index("<pad>"),
        bos_token_id=words.index("<bos>"),
        eos_token_id=words.index("<eos>"),
    )
    return DCFormerConfig(**fields | dict(circuit.traits))


def train_truth(
    circuit: Stated,
    folder: Path,
    *,
    steps: int = 3000,
    seconds: float = 600.0,
    progress: Progress = silent,
) -> Marks:
    """Train until the marks are reached, or for so many steps or seconds; write the model and its marks.

    Args:
        circuit: what the model is to compute, and how.
        folder: for the model (config.json, model.safetensors), the circuit (circuit.json, with the marks) and, until
            the marks are reached, the state that a later call goes on from.
        steps: at most, those of earlier calls included.
        seconds: at most, of this call.
        progress: called after each look at the marks; raising stops, and the next call goes on from there.

    Returns the marks; a model that has reached them stays as it is.

    Raises:
        UserError: the folder has a model or a training of another circuit, or one that cannot go on.

    Cost: two forward runs and a backward of `BATCH` prompts of 6 tokens a step, some 20 ms on a core.
    """
    from dcinterp.bridge import wrap

    if (ended := _ended(folder, circuit)) is not None:
        return ended
    folder.mkdir(parents=True, exist_ok=True)
    model, until = new_model(circuit), time.monotonic() + seconds
    run = CircuitRun(wrap(model, words_of_stated(), circuit.name))
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    draws = Draws(circuit, run, seed=1000 * circuit.seed)
    done = _resume(folder, circuit, model, optimizer, draws)
    marks = check_truth(circuit, run)
    while done < steps and not marks.reached and time.monotonic() < until:
        for _ in range(min(EVERY, steps - done)):
            loss = _step(run, draws, optimizer, done, steps)
            done += 1
        marks = check_truth(circuit, run)
        _write(folder, circuit, model, marks, done)
        _keep(folder, circuit, model, optimizer, draws, done)
        progress(done, steps, f"loss {loss:.3f}, interchange {marks.interchange:.1%}, outside {marks.outside:.1%}")
    if marks.reached:
        _write(folder, circuit, model, marks, done)
        (folder / STATE).unlink(missing_ok=True)
    return marks


STATE = "state.pt"


def _ended(folder: Path, circuit: Stated) -> Marks | None:
    """The marks of a model that reached them in an earlier call; None where there is none."""
    file = folder / "circuit.json"
    if (folder / STATE).exists() or not file.exists():
        return None
    try:
        of, found = read_circuit(file)
        marks = Marks(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{file} cannot be read; choose another folder.") from error
    if of != circuit:
        raise UserError(f"{folder} holds the model of another circuit; choose another folder.")
    if not marks.reached:
        raise UserError(f"{folder} holds a model without the state of its training; choose another folder.")
    return marks


def _step(run: CircuitRun, draws: Draws, optimizer: torch.optim.Optimizer, done: int, steps: int) -> float:
    ids, others, gates, answers = draws.training(BATCH)
    left = max(0.05, 1 - done / steps)
    for group in optimizer.param_groups:
        group["lr"] = RATE * min(1.0, (done + 1) / WARM) * left
    logits, _ = run(ids, Cut(gates, run(others)[1]))
    loss = cross_entropy(logits, answers)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _keep(
    folder: Path,
    circuit: Stated,
    model: DCFormerForCausalLM,
    optimizer: torch.optim.Optimizer,
    draws: Draws,
    done: int,
) -> None:
    version, numbers, following = draws.random.getstate()
    state = {
        "circuit": circuit.to_json(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "done": done,
        "torch": torch.get_rng_state(),
        "draws": [version, list(numbers), following],
    }
    with whole(folder / STATE) as place:
        torch.save(state, place)


def _resume(
    folder: Path, circuit: Stated, model: DCFormerForCausalLM, optimizer: torch.optim.Optimizer, draws: Draws
) -> int:
    """The steps that were made before; model, optimizer and random numbers are as they were then."""
    if not (folder / STATE).exists():
        return 0
    try:
        state: dict[str, Any] = torch.load(folder / STATE, weights_only=True)
        of, done, (version, numbers, following) = state["circuit"], int(state["done"]), state["draws"]
    except Exception as error:  # a file that was cut short fails in many ways, and one of an earlier version lacks keys
        raise UserError(f"{folder / STATE} cannot be read; remove it to begin again.") from error
    if of != circuit.to_json():
        raise UserError(f"{folder} holds the training of another circuit; choose another folder.")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["torch"])
    draws.random.setstate((version, tuple(numbers), following))
    return done


def _write(folder: Path, circuit: Stated, model: DCFormerForCausalLM, marks: Marks, done: int) -> None:
    from safetensors.torch import save_file

    # The bridge wraps modules and gives them further names; the file has those of the model alone.
    names = DCFormerForCausalLM(model.config).state_dict()
    tensors = {name.replace("_original_component.", ""): tensor for name, tensor in model.state_dict().items()}
    plain = {name: tensors[name].detach().clone().contiguous() for name in names}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    record = json.loads(circuit.to_json()) | {"marks": asdict(marks), "steps": done}
    (folder / "circuit.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def check_truth(circuit: Stated, run: CircuitRun, rows: int = CHECKED_ROWS, seed: int = 999) -> Marks:
    """The marks of a model, on fresh prompts."""
    draws = Draws(circuit, run, seed)
    some, others, ids, other_ids = draws.pairs(rows)
    other, size = run(other_ids)[1], run.graph.size
    plain = run(ids)[0].argmax(-1)
    right = torch.tensor([draws.number[one.answer()] for one in some])
    accuracy = float((plain == right).float().mean())
    interchanged = []
    hops = range(2 if circuit.task == "chain" else 1)
    for patched in ([n] for n in hops) if len(hops) == 1 else ([0], [1], [0, 1]):
        gates, expected = torch.ones(rows, size), list[int]()
        for row, (one, that) in enumerate(zip(some, others, strict=True)):
            for number, places in draws.hops[one.case]:
                if number in patched:
                    gates[row, places] = 0
            expected.append(draws.number[one.answer({n: that.places()[n] for n in patched})])
        answers = run(ids, Cut(gates, other))[0].argmax(-1)
        interchanged.append(float((answers == torch.tensor(expected)).float().mean()))
    quiet = draws.outside.expand(rows, -1).clone()
    for row, one in enumerate(some):
        quiet[row, draws.idle[one.case]] = True
    moved = run(ids, Cut((~quiet).float(), other))[0].argmax(-1)
    marks = Marks(accuracy, min(interchanged), float((moved != plain).float().mean()), None, "")
    if not replace(marks, worst=0.0).reached:  # the slow part would change nothing
        return marks
    worst, edge = _worst(run, draws, ids[:64], other.rows(range(64)), plain[:64])
    return replace(marks, worst=worst, worst_edge=edge)


def _worst(run: CircuitRun, draws: Draws, ids: Tensor, other: Any, plain: Tensor) -> tuple[float, str]:
    """The largest share of answers that one composition edge outside changes by itself, and which."""
    places = [p for p in draws.outside.nonzero().flatten().tolist() if run.graph.edges[p].kind != "stream"]
    n, found = len(ids), list[float]()
    for start in range(0, len(places), 32):
        part = places[start : start + 32]
        gates = torch.ones(len(part), run.graph.size)
        gates[torch.arange(len(part)), torch.tensor(part)] = 0
        rows = list(range(n)) * len(part)
        moved = run(ids[rows], Cut(gates.repeat_interleave(n, 0), other.rows(rows)))[0].argmax(-1)
        found += (moved.unflatten(0, (len(part), n)) != plain).float().mean(1).tolist()
    largest = max(range(len(found)), key=found.__getitem__)
    return found[largest], run.graph.names[places[largest]]
