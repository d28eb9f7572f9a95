"""DCMHA minus plain wider on the tasks left out, with two, four and eight heads side by side.

    python experiments/recombination_tasks_eight_heads/heads.py

reads the tables of three experiments and prints a table, which is also at the end of the page of this one
(more-heads.md).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dcinterp.analysis.training.compare_arms import compare_arms
from dcinterp.evidence.intervals import difference_text, one_by_one
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import print_text
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import REPLICATION, Experiment
from dcinterp.train.control.experiment_file import read_experiment

HERE = Path(__file__).parent
TEXT_FILE = "more-heads.md"
EXPERIMENTS = {2: "recombination_tasks_two_heads", 4: "recombination_tasks", 8: "recombination_tasks_eight_heads"}
ARM, BASELINE = "DCMHA", "plain wider"
DRAWS = 20_000

TEXT = """## With two, four and eight heads

{arm} minus *{baseline}* in the experiments on these tasks, each with its 95 % interval over seeds. A baseline has as
many parameters and FLOPs as {arm} of its number of heads, or more. *learnt* are the seeds in which both have 95 % of
the tasks seen in training. The rows are three experiments, with other seeds, widths of heads and baselines, and how
well models learnt the tasks differs more between them than {arm} does from *{baseline}*: nothing is pooled, and a
change down a column says nothing of the number of heads. Two and four heads were known when eight were asked.
{again}By {draws:,} draws of the bootstrap, in place of 1,000, the intervals of the last column end at {ends}.

    python experiments/{folder}/heads.py

{table}
"""


AGAIN = "Other seeds of {heads} heads are not in the table; they are on {whose} ({names}, *With other seeds*).\n"


def again_of() -> str:
    """Where other seeds stand, of the numbers of heads that have some."""
    there = {heads: name for heads, name in EXPERIMENTS.items() if (HERE.parent / name / REPLICATION).is_file()}
    names, whose = ", ".join(f"`{name}`" for name in there.values()), "a page each" if len(there) > 1 else "their page"
    heads = " and ".join(", ".join(map(str, there)).rsplit(", ", 1))
    return AGAIN.format(heads=heads, whose=whose, names=names) if there else ""


def row_of(heads: int, experiment: Experiment) -> list[str]:
    """The line of one experiment."""
    found = [compare_arms(str(experiment.folder), measure=each, baseline=BASELINE) for each in experiment.measures]
    arm, baseline = (found[0].arms.index(each) for each in (ARM, BASELINE))
    more = float(found[0].parameters[baseline] / found[0].parameters[arm]) - 1
    seen = next(each for each in found if each.measure == experiment.solved_by)
    learnt = int((seen.values[[arm, baseline]] >= experiment.solved_at).all(0).sum())
    seeds, cells = len(found[0].seeds), []
    for each in found:
        apart = each.by_seed([ARM], [BASELINE])
        interim = f"{float(apart.mean()):+.3f}{one_by_one(apart.tolist(), form='+.3f')}"
        cells += [f"{float(each.mean[baseline]):.3f}", interim if seeds < each.planned else difference_text(each, ARM)]
    return [str(heads), f"{seeds} of {found[0].planned}", str(learnt), f"{more:.1%}", *cells]


def end_on_seen(experiment: Experiment) -> float:
    """The upper end of the interval on the tasks seen, by `DRAWS` draws."""
    found = compare_arms(str(experiment.folder), measure=experiment.solved_by, baseline=BASELINE)
    return replace(found, draws=DRAWS).between([ARM], [BASELINE])[2]


def summary() -> str:
    """The table, as Markdown."""
    head = ["heads", "seeds", "learnt", f"parameters more than {ARM}"]
    for kind in ("never seen", "seen"):
        head += [f"{BASELINE}, tasks {kind}", f"{ARM} minus it"]
    asked = {heads: read_experiment(HERE.parent / name) for heads, name in EXPERIMENTS.items()}
    return TEXT.format(
        arm=ARM,
        baseline=BASELINE,
        folder=HERE.name,
        again=again_of(),
        draws=DRAWS,
        ends=", ".join(f"{end_on_seen(each):+.3f}" for each in asked.values()),
        table=markdown_table(head, [row_of(heads, each) for heads, each in asked.items()]),
    )


def main() -> None:
    """Write the table and print it."""
    text = summary()
    print_text(text, HERE / TEXT_FILE)


if __name__ == "__main__":
    run_script(main)
