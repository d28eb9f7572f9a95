r"""When each edge of the composition starts to matter, by the checkpoints of a run.

    effect[c, e, d]       = loss of document d without edge e at checkpoint c - loss with it      nats a scored token
    effect_right[c, e, d] = share of right tokens with it - share without

The loss is the mean of -log p over what is scored in the document. Without: the edge's entry of the map over heads is
replaced by its mean over tokens and documents, so that it no longer depends on the token. Edges lead from a head to
another or itself, by the branches that the model has; a gate (qg, kg) from a head to itself.

An edge starts where its curve over checkpoints is best split into two levels (dcinterp.mechanism.change_point), and so
does the loss. The interval of a start is over documents, of this run: other seeds may differ by far more.
It does not show that an edge is needed: a model that was trained with composition comes to depend on it. A mean map
that was never seen in training also has an effect of its own. And nats grow with confidence: an edge that is needed for
the same answers costs more of them when the model is surer, so its effect on the loss goes on rising where that on the
share of right tokens has ended.

Identity that the tests assert: the effects of the last checkpoint are those of `intervene` on the trained model.

    found = dcinterp.training_edges("runs/mine")
    found.sentences()
    dcinterp.figures.plot(found)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.change_point import LEAST, ChangePoint, change_points
from dcinterp.mechanism.dataset import equal_lengths
from dcinterp.mechanism.intervention_hooks import References, edge_hooks, references
from dcinterp.mechanism.interventions import Intervention, all_units
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.results.registry import analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Level
from dcinterp.train.loop.checkpoints import PREFIX, steps_in

if TYPE_CHECKING:
    from dcinterp.train.data.held_out import Scored

KIND = "mean"
FEW_DOCUMENTS = 0.05
"""Of all documents: where as few have half of an effect, a mean over them is hardly known."""


@dataclass(frozen=True)
class TrainingEdges(Result):
    """Loss, share right and the effects of every edge on both, of every document at every checkpoint.

    edges: as interventions name them. start, with start_low and start_high: the first step of the upper level of its
    curve; `explained`: the share of variance of the two levels, 0 where the edge matters less after the split than
    before; loss_start and the like: of the loss, which falls.
    final, with final_low and final_high: the effect at the last checkpoint, with intervals that are corrected for the
    number of edges (Bonferroni); where few documents carry an effect they hold for all together less often than that.
    unit: what the documents are, "documents" or, of a run on text, "rows of text".
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("checkpoint",),
        "loss": ("checkpoint", "document"),
        "right": ("checkpoint", "document"),
        "effect": ("checkpoint", "edge", "document"),
        "effect_right": ("checkpoint", "edge", "document"),
        **dict.fromkeys(
            ("start", "start_low", "start_high", "explained", "final", "final_low", "final_high"), ("edge",)
        ),
    }
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"edges": ("edge",)}

    run: str
    level: float
    edges: tuple[str, ...]
    step: Int[Tensor, " checkpoint"]
    loss: Float[Tensor, "checkpoint document"]
    right: Float[Tensor, "checkpoint document"]
    effect: Float[Tensor, "checkpoint edge document"]
    effect_right: Float[Tensor, "checkpoint edge document"]
    start: Int[Tensor, " edge"]
    start_low: Int[Tensor, " edge"]
    start_high: Int[Tensor, " edge"]
    explained: Float[Tensor, " edge"]
    final: Float[Tensor, " edge"]
    final_low: Float[Tensor, " edge"]
    final_high: Float[Tensor, " edge"]
    loss_start: int
    loss_start_low: int
    loss_start_high: int
    loss_explained: float
    unit: str = "documents"

    def labels(self, axis: str) -> list[Any] | None:
        names: dict[str, list[Any]] = {"checkpoint": self.step.tolist(), "edge": list(self.edges)}
        return names.get(axis)

    @property
    def has_start(self) -> Bool[Tensor, " edge"]:
        """Which edges start: they are shown to raise the loss at the end, and did not matter more before."""
        return (self.final_low > 0) & (self.explained > 0)

    def strongest(self, k: int = 6) -> list[int]:
        """The places of the edges that matter most at the last checkpoint, the strongest first."""
        return self.final.argsort(descending=True)[:k].tolist()

    def table(self) -> pd.DataFrame:
        """One row an edge, the one that matters most at the end first; a start where it has one (`has_start`)."""
        starts = {"starts at step": self.start, "from": self.start_low, "to": self.start_high}
        rows = [
            {
                "edge": self.edges[place],
                "effect at the end": float(self.final[place]),
                "low": float(self.final_low[place]),
                "high": float(self.final_high[place]),
                **{name: int(step[place]) if self.has_start[place] else None for name, step in starts.items()},
                "explained": float(self.explained[place]),
            }
            for place in self.strongest(len(self.edges))
        ]
        return pd.DataFrame(rows).astype(dict.fromkeys(starts, "Int64"))

    def sentences(self) -> list[str]:
        """The loss, the edge that matters most at the end, and how many matter."""
        n, most = self.loss.shape[1], self.strongest(1)[0]
        sure, at = int((self.final_low > 0).sum()), f"{100 * self.level:g} %"
        if self.final_low[most] <= 0:
            start = "That it raises the loss is not shown, so it has no start."
        elif self.explained[most] <= 0:
            start = "It mattered more before, so it has no start."
        else:
            start = (
                f"It starts at step {int(self.start[most]):,} ({at} interval {int(self.start_low[most]):,} to "
                f"{int(self.start_high[most]):,})."
            )
        split = (
            f"its split into two levels is at step {self.loss_start:,} ({at} interval over {n} {self.unit} "
            f"{self.loss_start_low:,} to {self.loss_start_high:,})."
        )
        if self.loss_explained <= 0:
            split = "of two levels the later is not the lower one, so it has no start."
        return [
            f"The loss goes from {float(self.loss[0].mean()):.2f} to {float(self.loss[-1].mean()):.2f} nats; {split}",
            f"Of {len(self.edges)} edges, `{self.edges[most]}` has the largest effect at the end: replaced by its mean "
            f"it changes the loss by {float(self.final[most]):+.3f} nats ({float(self.final_low[most]):+.3f} to "
            f"{float(self.final_high[most]):+.3f}). {start}",
            f"{sure} {'edge raises' if sure == 1 else 'edges raise'} the loss at the end when replaced, by {at} "
            f"intervals that are corrected for the {len(self.edges)} edges (as the one above is).",
        ]

    def warnings(self) -> list[str]:
        said = []
        place = self.strongest(1)[0]
        sizes = self.effect[-1, place].abs().sort(descending=True).values
        few = int((sizes.cumsum(0) < sizes.sum() / 2).sum()) + 1
        if bool(sizes.any()) and few <= FEW_DOCUMENTS * len(sizes):
            said.append(
                f"Half of the effect of `{self.edges[place]}` comes from {few} of {len(sizes)} {self.unit}: intervals "
                "over so uneven ones are rough, the more so corrected for many edges."
            )
        if 0 < self.loss_explained < 0.5:
            said.append(
                f"The two levels hold {self.loss_explained:.0%} of the variance of the loss, so it has no one start."
            )
        if 0 < self.explained[self.strongest(1)[0]] < 0.5:
            said.append("The curve of the edge that matters most is no step, so its start means little.")
        return said


@analysis(
    title="Edges in training",
    question="When did each edge of the composition start to matter?",
    guide="training.md",
    example={"run": "runs/my-run"},
)
def training_edges(
    run: str | Path,
    *,
    edges: Sequence[str] = (),
    every: Count = 1,
    documents: Count = 64,
    reference: Count = 64,
    level: Level = 0.95,
    seed: int = 0,
    batch_size: Count = 64,
    progress: Progress = silent,
) -> TrainingEdges:
    """The effect of every edge at every checkpoint that a run has kept, and where it starts.

    Args:
        run: the output folder of `dcinterp train`, of a model with composition, with three checkpoints or more
            (`keep_checkpoints`).
        edges: measure only these, by names such as "1.post.kp.6>1"; all by default. Choose them by other documents
            than these, or by another run: the largest of many measured effects are too large.
        every: leave out checkpoints between every so many, counted from the last.
        documents: held-out documents that the effects are measured on.
        reference: further ones that the means are taken over.
        level: confidence level of the intervals.
        seed: of the draws of the intervals.
        batch_size: rows of one pass; bounds the memory.
        progress: called after each checkpoint.

    Cost: for every checkpoint, a forward pass over the documents for every edge, with all taps of its layer.

    Raises:
        UserError: the folder is no run, its model has no composition or no such edge, or too few checkpoints or
            documents are there.
    """
    # Whoever only reads or draws such a result need not wait for the libraries of training.
    from dcinterp.checkpoints.load import load
    from dcinterp.train.data.held_out import held_out_documents, unit_of

    steps = steps_in(Path(run) / "checkpoints")
    places = {step: Path(run) / "checkpoints" / f"{PREFIX}{step}" for step in steps[::-1][::every][::-1]}
    scored = held_out_documents(run, documents + reference)
    if len(places) < LEAST:
        left = f", of which every={every} leaves {len(places)}" if every > 1 else ""
        raise UserError(
            f"{run} keeps {len(steps)} checkpoints{left}, and {LEAST} are needed; train with a larger keep_checkpoints."
        )
    if len(scored) <= reference or len(scored) - reference < 2:
        raise UserError(f"{run} has {len(scored)} held-out documents; ask for fewer of them as reference.")
    asked, others = scored[:-reference], [ids for ids, _ in scored[-reference:]]
    made, units = [], []
    for number, folder in enumerate(places.values()):
        bridge = load(str(folder))
        units = _chosen(composition_edges(bridge), edges, run)
        values = references(bridge, units, 1, reference=others)
        made.append(measure_edges(bridge, asked, units, values, batch_size))
        progress(number + 1, len(places), "measuring checkpoints")
    loss, right, effect, effect_right = (torch.stack(parts) for parts in zip(*made, strict=True))
    step = torch.tensor(list(places))
    found = change_points(step, torch.cat([loss[:, None], effect], 1), level=level, seed=seed)
    low, high = bootstrap_interval(effect[-1].T, level=1 - (1 - level) / len(units), seed=seed)
    return TrainingEdges(
        run=str(run),
        level=level,
        edges=tuple(map(name_of, units)),
        step=step,
        unit=unit_of(run),
        loss=loss,
        right=right,
        effect=effect,
        effect_right=effect_right,
        final=effect[-1].mean(-1),
        final_low=low,
        final_high=high,
        **_starts(found),
    )


def _chosen(units: list[Intervention], edges: Sequence[str], run: str | Path) -> list[Intervention]:
    """The edges that are measured, those that were asked for in their own order."""
    if not units:
        raise UserError(f"The model of {run} does not compose its heads, so it has no edges; give another run.")
    named = {name_of(unit): unit for unit in units}
    for name in edges:
        require_known("edge", name, named)
    return [named[name] for name in edges] or units


def name_of(edge: Intervention) -> str:
    """An edge as this result names it, "1.post.kp.6>1"."""
    return edge.unit.removeprefix("edge ")


def composition_edges(bridge: Bridge) -> list[Intervention]:
    """Every edge of the model's composition, of both stages, to be replaced by its mean."""
    return [edge for stage in stages_of(bridge) for edge in all_units(bridge, "edge", stage, KIND)]


@torch.no_grad()
def measure_edges(
    bridge: Bridge, documents: list[Scored], edges: list[Intervention], values: References, batch_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss [document], share right [document], effects on the loss and on the share, [edge, document] both).

    Args:
        bridge: the model of a checkpoint.
        documents: as `held_out_documents` gives them.
        edges, values: what is replaced, and by what (`mechanism.intervention_hooks.references`).
        batch_size: rows of one pass.
    """
    loss, right = torch.zeros(2, len(documents))
    effect, effect_right = torch.zeros(2, len(edges), len(documents))
    for places in equal_lengths([ids for ids, _ in documents], batch_size):
        ids = torch.cat([documents[place][0] for place in places])
        labels = torch.stack([documents[place][1] for place in places])[:, 1:]
        loss[places], right[places] = _scores(bridge(ids), labels)
        for number, edge in enumerate(edges):
            logits = bridge.run_with_hooks(ids, fwd_hooks=list(edge_hooks(bridge, edge, values)))
            without = _scores(logits, labels)
            effect[number, places] = without[0] - loss[places]
            effect_right[number, places] = right[places] - without[1]
    return loss, right, effect, effect_right


def _scores(
    logits: Float[Tensor, "row pos vocabulary"], labels: Int[Tensor, "row next"]
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """(mean loss, share right) over what is scored in each row."""
    asked, logits = labels >= 0, logits[:, :-1].float()
    count = asked.sum(-1)
    losses = torch.nn.functional.cross_entropy(logits.mT, labels.where(asked, 0), reduction="none")
    hits = (logits.argmax(-1) == labels) & asked
    return ((losses * asked).sum(-1) / count).cpu(), (hits.sum(-1) / count).cpu()


def _starts(found: ChangePoint) -> dict[str, Any]:
    """The fields of the result; the first curve is the loss, which should fall, as the effects should rise."""
    names = ("start", "start_low", "start_high", "explained")
    expected = torch.cat([found.rise[:1] < 0, found.rise[1:] > 0])
    columns = (found.start, found.low, found.high, (found.explained * expected).float())
    edges = {name: column[1:] for name, column in zip(names, columns, strict=True)}
    return edges | {f"loss_{name}": column[0].item() for name, column in zip(names, columns, strict=True)}
