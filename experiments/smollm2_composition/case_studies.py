"""What the learnt composition does on English prompts: the case studies of protocol.md, from the runs of run.py.

python experiments/smollm2_composition/case_studies.py --runs runs/smollm2_composition --budget full
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from run import BUDGETS  # beside this file
from torch import Tensor

import dcinterp
from dcinterp.checkpoints.composition import open_start
from dcinterp.evidence.script import run_script
from dcinterp.model.added_composition import AddedComposition, add_composition, is_added
from dcinterp.support.errors import UserError, require_known

PROMPTS = {
    "The capital of France is": " Paris",
    "The Eiffel Tower stands in the city of": " Paris",
    "When Mary and John went to the shop, John gave a drink to": " Mary",
    "Hot is the opposite of": " cold",
    "Two plus two equals": " four",
    "Monday, Tuesday, Wednesday,": " Thursday",
    "The largest planet of the solar system is": " Jupiter",
    "On a clear day the sky is": " blue",
}
MATTERS = 0.1
"""An edge matters that changes the logit difference by this share of it, or more."""


def ended_run(place: Path, seed: int, steps: int) -> tuple[Path, dict[str, Tensor]]:
    """The file of the run of a seed, and the parameters that it trained.

    Raises:
        UserError: there is none, or several rates have one, or it has not come to its end.
    """
    found = sorted(place.glob(f"composition-seed{seed}-rate*-steps{steps}.pt"))
    if len(found) != 1:
        count = "no trained composition" if not found else f"{len(found)} trained compositions, at several rates,"
        raise UserError(f"There is {count} of seed {seed} in {place}; run.py makes it, and one alone must be there.")
    saved = torch.load(found[0], weights_only=True)
    if (done := len(saved["losses"])) < steps:
        raise UserError(f"{found[0]} is at step {done} of {steps}; let run.py go on to its end first.")
    return found[0], saved["trained"]


def saved_composition(base: Path, run: Path, trained: dict[str, Tensor], folder: Path, seed: int) -> Path:
    """The trained parameters of a run as a folder that `dcinterp.load` opens, made anew where the run is newer."""
    made = folder / "composition.json"
    if not made.is_file() or made.stat().st_mtime < run.stat().st_mtime:
        plain = open_start(str(base)).model
        composed = add_composition(plain, {}, seed=seed)
        for name, parameter in composed.named_parameters():
            if is_added(name):
                parameter.data.copy_(trained[name])
        AddedComposition.of(plain, str(base.resolve()), composed.config).write(composed, folder)
    return folder


def lines(base: Any, models: dict[int, Any], prompts: dict[str, str]) -> Iterator[str]:
    """The table as Markdown, and the counts that the protocol asks for."""
    yield "| prompt and answer | seed | P(answer), base | P(answer) | logit difference | head | its layer |"
    yield "strongest edge | effect (zero) |\n|---|---|---|---|---|---|---|---|---|\n"
    total = mattering = 0
    same = []
    for prompt, answer in prompts.items():
        others = [other for other in prompts if other != prompt]
        before = dcinterp.predict(base, prompt, answer).answer_probability
        edges = []
        for seed, bridge in models.items():
            study = dcinterp.case_study(bridge, prompt, answer, reference=others)
            edge, effect, at_zero = study.strongest[:3]
            edges.append(edge)
            total += 1
            mattering += abs(effect) >= MATTERS * abs(study.logit_difference)
            layer = study.logit_difference - study.logit_difference_uncomposed
            yield (
                f"| {prompt} _{answer.strip()}_ | {seed} | {before:.3f} | {study.prediction.answer_probability:.3f} "
                f"| {study.logit_difference:+.2f} | {study.layer}.{study.head} | {layer:+.3f} "
                f"| {edge} | {effect:+.3f} ({at_zero:+.3f}) |\n"
            )
        same.append(len(set(edges)) == 1)
    yield f"\nThe strongest edge matters (at least {MATTERS:.0%} of the logit difference) in {mattering} of {total}; "
    yield f"it is the same in all seeds for {sum(same)} of {len(same)} prompts.\n"


def main(
    runs: Annotated[Path, typer.Option(help="The --output of run.py.")] = Path("runs/smollm2_composition"),
    budget: Annotated[str, typer.Option(help="pilot or full, as protocol.md says.")] = "full",
) -> None:
    """Study every prompt with the composition of every seed, and print the table."""
    require_known("budget", budget, BUDGETS)
    place, steps, models = runs / budget, BUDGETS[budget].steps, {}
    for seed in BUDGETS[budget].seeds:
        folder = saved_composition(
            runs / "base", *ended_run(place, seed, steps), place / f"composition-seed{seed}", seed
        )
        models[seed] = dcinterp.load(folder)
    table = ""
    for part in lines(dcinterp.load(runs / "base"), models, PROMPTS):
        typer.echo(part, nl=False)
        table += part
    (place / "case_studies.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    run_script(main)
