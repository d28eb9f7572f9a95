r"""When the edges of the composition start to matter, over the seeds of an experiment.

    lag_s       = start of the loss - start of the main edge's effect on it          steps, of seed s
    lag_right_s = start of the share of right answers - start of the main edge's effect on that

The main edge of a model is the one that matters most at its last checkpoint, chosen on documents that its curve is not
measured on. A start is the split of a curve into two levels (dcinterp.mechanism.change_point). A positive lag says that
the edge's split comes before that of the loss; not that it makes it fall. Nats grow with confidence, so an edge's
effect on the loss rises longer than its effect on the answers, and its split depends on where training ends: the sign
of the lag says more than its size. The second lag, of the answers, is described without a verdict. It does not show
that composition causes what the model learns.

It reads `curves.csv` and `starts.csv` of the experiment's folder, which its measure.py writes from the checkpoints of
the runs, and computes the mean lag and its interval over seeds. What one run says, `training_edges` measures.

Identity that the tests assert: the mean is over the seeds whose two curves are steps, and all seeds are told.

    found = dcinterp.edge_starts("experiments/birth")
    found.sentences()
    dcinterp.figures.plot(found, seed=20)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dcinterp.mechanism.statistics import bootstrap_interval, without_width
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.table_files import require_numbers
from dcinterp.support.text import beside
from dcinterp.train.config.recipe import find_config

CURVES, STARTS = "curves.csv", "starts.csv"
FIXED = ("seed", "step", "loss", "right")
MEASURED = tuple(
    f"{curve}_{what}" for curve in ("loss", "right", "main", "main_right") for what in ("start", "explained")
)
MEASURED += ("main_low", "main_high", "edges_that_matter")
STEP_LIKE = 0.5
"""Share of the variance of a curve that two levels must hold, for it to have a start."""


@dataclass(frozen=True)
class EdgeStarts(Result):
    """Curves of every seed, where the loss and the main edge start, and how far apart.

    loss, right and effect are means over documents, of every checkpoint. main: the main edge, as interventions name it.
    *_explained: the share of the curve's variance that its two levels hold, 0 where it goes the wrong way. lag:
    loss_start - main_start; lag_right: right_start - main_right_start. The means and their 95 % intervals are over the
    seeds whose curves are steps.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("checkpoint",),
        "loss": ("seed", "checkpoint"),
        "right": ("seed", "checkpoint"),
        "effect": ("seed", "checkpoint", "edge"),
        **dict.fromkeys(
            ("loss_start", "right_start", "main_start", "main_low", "main_high", "main_right_start"), ("seed",)
        ),
        **dict.fromkeys(("loss_explained", "right_explained", "main_explained", "main_right_explained"), ("seed",)),
        **dict.fromkeys(("edges_that_matter", "lag", "lag_right"), ("seed",)),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"seeds": ("seed",), "main": ("seed",), "edges": ("edge",)}

    experiment: str
    seeds: tuple[int, ...]
    edges: tuple[str, ...]
    main: tuple[str, ...]
    step: Int[Tensor, " checkpoint"]
    loss: Float[Tensor, "seed checkpoint"]
    right: Float[Tensor, "seed checkpoint"]
    effect: Float[Tensor, "seed checkpoint edge"]
    loss_start: Int[Tensor, " seed"]
    right_start: Int[Tensor, " seed"]
    main_start: Int[Tensor, " seed"]
    main_low: Int[Tensor, " seed"]
    main_high: Int[Tensor, " seed"]
    main_right_start: Int[Tensor, " seed"]
    loss_explained: Float[Tensor, " seed"]
    right_explained: Float[Tensor, " seed"]
    main_explained: Float[Tensor, " seed"]
    main_right_explained: Float[Tensor, " seed"]
    edges_that_matter: Int[Tensor, " seed"]
    lag: Float[Tensor, " seed"]
    lag_right: Float[Tensor, " seed"]
    mean_lag: tuple[float, float, float]
    mean_lag_right: tuple[float, float, float]

    @property
    def has_lag(self) -> Bool[Tensor, " seed"]:
        """Whose curves of the loss and of the main edge are steps, so that there is a lag."""
        return _kept(self.loss_explained, self.main_explained)

    @property
    def has_lag_right(self) -> Bool[Tensor, " seed"]:
        """As `has_lag`, of the share of right answers."""
        return _kept(self.right_explained, self.main_right_explained)

    def labels(self, axis: str) -> list[Any] | None:
        names: dict[str, list[Any]] = {
            "checkpoint": self.step.tolist(),
            "seed": list(self.seeds),
            "edge": list(self.edges),
        }
        return names.get(axis)

    def strongest(self, seed: int, k: int = 6) -> list[int]:
        """The places of the edges that matter most at the last checkpoint of a seed, the strongest first."""
        return self.effect[self.seeds.index(seed), -1].argsort(descending=True)[:k].tolist()

    def table(self) -> pd.DataFrame:
        """One row a seed; where a curve is no step, it has no start."""
        rows = [
            {
                "seed": seed,
                "right at the end": f"{float(self.right[s, -1]):.3f}",
                "main edge": self.main[s],
                "it starts at": _start(self.main_start[s], self.main_explained[s]),
                "from": _start(self.main_low[s], self.main_explained[s]),
                "to": _start(self.main_high[s], self.main_explained[s]),
                "the loss": _start(self.loss_start[s], self.loss_explained[s]),
                "in answers": _start(self.main_right_start[s], self.main_right_explained[s]),
                "right answers": _start(self.right_start[s], self.right_explained[s]),
                "edges that matter": int(self.edges_that_matter[s]),
                "steps held": f"{min(float(self.loss_explained[s]), float(self.main_explained[s])):.2f}",
            }
            for s, seed in enumerate(self.seeds)
        ]
        return pd.DataFrame(rows)

    def sentences(self) -> list[str]:
        """The two lags with their verdicts, and which branch the main edges are of."""
        branches = Counter(".".join(edge.split(".")[1:3]) for edge in self.main)
        listed = ", ".join(f"`{branch}` in {count}" for branch, count in branches.most_common())
        return [
            _said("the loss", self.mean_lag, int(self.has_lag.sum()), verdict=True),
            _said("the share of right answers", self.mean_lag_right, int(self.has_lag_right.sum())),
            f"The main edge is of {listed} of {len(self.seeds)} seeds.",
        ]

    def warnings(self) -> list[str]:
        said = []
        for has, what in ((self.has_lag, "A curve"), (self.has_lag_right, "A curve of the answers")):
            if without := [seed for seed, kept in zip(self.seeds, has.tolist(), strict=True) if not kept]:
                listed = ", ".join(map(str, without))
                said.append(f"{what} of seed {listed} is no step that goes its way, so it has no start and no lag.")
        return said


@analysis(
    title="Starts of edges, over seeds",
    question="Does composition start to matter before the model gets better?",
    guide="experiments.md",
    example={"experiment": "experiments/birth"},
)
def edge_starts(experiment: str) -> EdgeStarts:
    """Where the loss and the main edge of every seed start, and how far apart they are.

    Args:
        experiment: the folder of an experiment whose measure.py has measured its checkpoints.

    Raises:
        UserError: the folder has no such measurements, or they do not fit together.
    """
    folder = _folder_of(experiment)
    curves, starts = _read(folder / CURVES, FIXED), _read(folder / STARTS, ("seed", "main", *MEASURED))
    seeds, steps = tuple(int(seed) for seed in starts["seed"]), sorted(set(curves["step"]))
    edges = tuple(name for name in curves if name not in FIXED)
    if len(curves) != len(seeds) * len(steps) or set(curves["seed"]) != set(seeds):
        raise UserError(f"{folder / CURVES} and {STARTS} beside it are not of the same seeds; measure them again.")
    ordered = curves.set_index(["seed", "step"]).loc[[(seed, step) for seed in seeds for step in steps]]

    def per_seed(*names: str) -> Tensor:
        return torch.tensor(ordered[list(names)].to_numpy(float), dtype=torch.float32).reshape(
            len(seeds), len(steps), -1
        )

    column = {name: torch.tensor(starts[name].to_numpy()) for name in starts if name not in ("seed", "main")}
    lag = (column["loss_start"] - column["main_start"]).float()
    lag_right = (column["right_start"] - column["main_right_start"]).float()
    explained = {name: column[f"{name}_explained"].float() for name in ("loss", "right", "main", "main_right")}
    starts_at = ("loss_start", "right_start", "main_start", "main_low", "main_high", "main_right_start")
    fields: dict[str, Any] = {name: column[name] for name in starts_at}
    fields |= {f"{name}_explained": value for name, value in explained.items()}
    return EdgeStarts(
        experiment=str(experiment),
        seeds=seeds,
        edges=edges,
        main=tuple(starts["main"]),
        step=torch.tensor(steps),
        loss=per_seed("loss")[..., 0],
        right=per_seed("right")[..., 0],
        effect=per_seed(*edges),
        **fields,
        edges_that_matter=column["edges_that_matter"],
        lag=lag,
        lag_right=lag_right,
        mean_lag=_mean(lag, _kept(explained["loss"], explained["main"])),
        mean_lag_right=_mean(lag_right, _kept(explained["right"], explained["main_right"])),
    )


def _folder_of(experiment: str) -> Path:
    try:
        return find_config(Path(experiment) / CURVES).parent
    except UserError as error:
        raise UserError(
            f"{experiment} has no {CURVES}; give the folder of an experiment whose measure.py has measured its runs, "
            "such as experiments/birth."
        ) from error


def _read(file: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        found = pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); run the experiment and its measure.py first.") from error
    missing = [name for name in needed if name not in found]
    if missing:
        raise UserError(f"{file} has no column {missing[0]!r}; run the experiment's measure.py again.")
    numbers = [name for name in found if name != "main"]
    require_numbers(found, numbers, file)
    if found[numbers].isna().any(axis=None):
        name = next(name for name in numbers if found[name].isna().any())
        raise UserError(f"{file} has an empty cell in column {name!r}; run the experiment's measure.py again.")
    return found


def is_step(explained: Tensor) -> Tensor:
    """Whether a curve of which two levels explain this share of the variance is a step, so that it has a start."""
    return explained >= STEP_LIKE


def _kept(first: Float[Tensor, " seed"], second: Float[Tensor, " seed"]) -> Bool[Tensor, " seed"]:
    return is_step(first) & is_step(second)


def _start(step: Tensor, explained: Tensor) -> int | str:
    """A start as the table has it."""
    return int(step) if is_step(explained) else "none"


def _mean(values: Float[Tensor, " seed"], kept: Bool[Tensor, " seed"]) -> tuple[float, float, float]:
    """(mean, low, high) over the seeds that count; NaN without any."""
    some = values[kept]
    if not len(some):
        return (float("nan"),) * 3
    low, high = bootstrap_interval(some)
    return float(some.mean()), float(low), float(high)


def _said(what: str, lag: tuple[float, float, float], count: int, *, verdict: bool = False) -> str:
    mean, low, high = lag
    if count < 2:
        return f"Fewer than two seeds have curves with a start, too few to compare the main edge with {what}."
    if without_width(low, high):
        same = f"{mean:+.0f} in all {count} seeds, so that there is no interval"
        return f"The lag between the main edge's effect on {what} and {what} is {same}."
    side, sure = ("before" if mean > 0 else "after"), low > 0 or high < 0
    apart = f"{abs(mean):.0f} steps {side}" if round(mean) else "at the same step as"
    end = f": {side if sure else 'which comes first is open'}." if verdict else "."
    return (
        f"The main edge's effect on {what} splits {apart} {what}, on average (lag {mean:+.0f}, "
        f"95 % interval {beside(low, 0, 0, '+')} to {beside(high, 0, 0, '+')}, {count} seeds){end}"
    )
