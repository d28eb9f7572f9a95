"""Several models of one shape as one whose parameters have one axis more, and their optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import pad as pad_tensor
from torch.utils.data import Dataset

from dcinterp.train.config.recipe import RecipeSection, TrainConfig
from dcinterp.train.data.batches import NOT_SCORED, Batches, is_no_padding
from dcinterp.train.data.made_documents import MadeBatches
from dcinterp.train.loop.trainer import EPSILON, optimised_groups


class StackedBatch(NamedTuple):
    """What all runs read in one step.

    ids: of tokens; shorter documents are padded on the right.
    labels: the same, with -100 where nothing is scored.
    items: scored tokens of each run, which its loss is divided by.
    tokens: read by each run, padding left out.
    """

    ids: Int[Tensor, "run batch pos"]
    labels: Int[Tensor, "run batch pos"]
    items: Int[Tensor, " run"]
    tokens: Int[Tensor, " run"]


class StackedBatches(Dataset[StackedBatch]):
    """Item i is the batches of all runs at step i."""

    def __init__(self, batches: Sequence[Batches | MadeBatches], pad: int | None) -> None:
        self.batches, self.pad = batches, pad

    def __len__(self) -> int:
        return len(self.batches[0])

    def __getitem__(self, step: int) -> StackedBatch:
        parts = [each[step] for each in self.batches]
        longest = max(part["input_ids"].shape[1] for part in parts)

        def together(key: str, filler: int) -> Tensor:
            return torch.stack([pad_tensor(p[key], (0, longest - p[key].shape[1]), value=filler) for p in parts])

        return StackedBatch(
            together("input_ids", self.pad or 0),
            together("labels", NOT_SCORED),
            # The first token of a row is nobody's next token.
            torch.stack([(part["labels"][:, 1:] != NOT_SCORED).sum() for part in parts]),
            torch.stack([is_no_padding(part["input_ids"], self.pad).sum() for part in parts]),
        )


class Group(NamedTuple):
    """Parameters that are optimised alike.

    names: of the parameters, in the order in which they lie.
    held: their numbers, [run, number].
    share: of the learning rate.
    decay: of the weights.
    """

    names: tuple[str, ...]
    held: Float[Tensor, "run number"]
    share: float
    decay: float


class Graphs:
    """A CUDA graph for every shape of a batch: a step then costs what its arithmetic does, and not its launches."""

    WARM = 3
    """Calls before a capture, as torch asks for: libraries choose their ways in the first ones."""
    ROUNDING = 1e-2
    """How far a run's gradient may be from that of the call before, by its norm: sums have no fixed order."""
    EVEN = 16
    """Lengths are padded to a multiple of this, for fewer graphs."""

    def __init__(self, longest: int) -> None:
        """Graphs of documents that may be `longest` tokens long."""
        self.longest = longest
        self.made: dict[torch.Size, tuple[Any, StackedBatch, Any]] = {}
        self.pool: Any = None

    def replay(self, function: Callable[[StackedBatch], Any], batch: StackedBatch) -> Any:
        """What `function` gives for `batch`, valid until the next call."""
        length = batch.ids.shape[2]
        more = max(0, min(-length % self.EVEN, self.longest - length))
        batch = batch._replace(
            ids=pad_tensor(batch.ids, (0, more)), labels=pad_tensor(batch.labels, (0, more), value=NOT_SCORED)
        )
        if batch.ids.shape not in self.made:
            self.made[batch.ids.shape] = self._capture(function, batch)
        graph, given, result = self.made[batch.ids.shape]
        for to, new in zip(given, batch, strict=True):
            to.copy_(new)
        graph.replay()
        return result

    def _capture(self, function: Callable[[StackedBatch], Any], batch: StackedBatch) -> tuple[Any, StackedBatch, Any]:
        given = StackedBatch(*(x.clone() for x in batch))
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.WARM):
                losses, gradients = function(given)
        torch.cuda.current_stream().wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = function(given)
        self.pool = self.pool or graph.pool()
        # What a graph does not write would be the numbers of another batch: it is looked at once.
        result[0].fill_(float("nan"))
        for gradient in result[1]:
            gradient.fill_(float("nan"))
        graph.replay()
        self._check([result[0], *result[1]], [losses, *gradients])
        return graph, given, result

    def _check(self, found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Raises:
        RuntimeError: a run's numbers by the graph are not those that the model gave, where these are finite.
        """
        for got, want in zip(found, expected, strict=True):
            got, want = (x.reshape(len(x), -1) for x in (got, want))
            error, size = (got - want).norm(dim=1), want.norm(dim=1)
            if bool(((error > self.ROUNDING * size) | error.isnan())[size.isfinite()].any()):
                raise RuntimeError("A CUDA graph gives other numbers than the model; train these runs one by one.")


class StackedModel:
    """Models of one shape: a module without numbers of its own, and the parameters of all runs.

    Parameters that are optimised alike lie side by side in one matrix [run, number]; `parameters` are views of these.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device, recipe: RecipeSection) -> None:
        """Stack models whose parameters have the same names and shapes."""
        first = models[0]
        named = dict(first.named_parameters())
        of_each = [dict(model.named_parameters()) for model in models]
        self.parameters: dict[str, Tensor] = {}
        self.groups: list[Group] = []
        for names, share, decay in optimised_groups(first, recipe):
            rows = [torch.cat([each[name].detach().flatten() for name in names]) for each in of_each]
            held, start = torch.stack(rows).to(device), 0
            for name in names:
                view = held[:, start : start + named[name].numel()].view(len(models), *named[name].shape)
                self.parameters[name] = view.requires_grad_()
                start += named[name].numel()
            self.groups.append(Group(names, held, share, decay))
        self.module: Any = copy.deepcopy(first).to(device)
        longest: Any = self.module.config.max_position_embeddings
        self.graphs: Graphs | None = Graphs(longest) if device.type == "cuda" else None
        self.side_by_side = device.type != "cpu"  # vmap leaves the fused kernel of a CPU out

    def _loss(self, parameters: dict[str, Tensor], ids: Tensor, labels: Tensor, items: Tensor) -> Tensor:
        """Of one run, on its own documents, in nats."""
        given = {"input_ids": ids, "labels": labels, "use_cache": False, "num_items_in_batch": items}
        found: Tensor = functional_call(self.module, parameters, (), given).loss
        return found

    def gradients(self, batch: StackedBatch) -> tuple[Float[Tensor, " run"], list[Float[Tensor, "run number"]]]:
        """Losses, and their gradients group by group, as the parameters lie."""
        return self._gradients(batch) if self.graphs is None else self.graphs.replay(self._gradients, batch)

    def _gradients(self, batch: StackedBatch) -> tuple[Tensor, list[Tensor]]:
        if self.side_by_side:
            losses = vmap(self._loss)(self.parameters, batch.ids, batch.labels, batch.items)
            gradients = torch.autograd.grad(losses.sum(), [*self.parameters.values()])
        else:
            each = [self._of_one(number, batch) for number in range(len(batch.ids))]
            losses = torch.stack([loss for loss, _ in each])
            gradients = tuple(map(torch.stack, zip(*(found for _, found in each), strict=True)))
        found = dict(zip(self.parameters, gradients, strict=True))
        return losses.detach(), [torch.cat([found[name].flatten(1) for name in g.names], 1) for g in self.groups]

    def _of_one(self, number: int, batch: StackedBatch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of one run and its gradients by every parameter; what they need is freed before the next run's."""
        own = {name: held[number].detach().requires_grad_() for name, held in self.parameters.items()}
        loss = self._loss(own, batch.ids[number], batch.labels[number], batch.items[number])
        return loss.detach(), torch.autograd.grad(loss, [*own.values()])

    def finite(self) -> list[bool]:
        """Of every run, whether all its parameters are finite."""
        return torch.stack([group.held.isfinite().all(1) for group in self.groups]).all(0).tolist()

    @torch.no_grad()
    def run(self, number: int) -> Any:
        """The module with the parameters of one run, until this is called for another."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(self.parameters[name][number])
        return self.module


class StackedAdamW:
    """AdamW of `torch.optim` over stacked parameters, with a rate and a clipped gradient for each run."""

    def __init__(self, model: StackedModel, configs: Sequence[TrainConfig]) -> None:
        """Optimise all runs, each by its own config; but for the rates and seeds these must be alike."""
        self.groups, self.steps, self.recipe = model.groups, configs[0].steps, configs[0].recipe
        # A step of AdamW is proportional to its rate: made at the share of the schedule, and then scaled run by run.
        self.optimizer = torch.optim.AdamW(
            [{"params": [group.held], "weight_decay": group.decay} for group in self.groups],
            lr=1.0,
            betas=(self.recipe.beta1, self.recipe.beta2),
            eps=EPSILON,
        )
        for group in self.groups:
            state = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(group.held)}
            self.optimizer.state[group.held] = state | {"exp_avg_sq": torch.zeros_like(group.held)}
        peaks = [config.recipe.learning_rate for config in configs]
        self.peaks = torch.tensor(peaks, device=self.groups[0].held.device)[:, None]

    def share(self, step: int) -> float:
        """The rate of step `step`, from 0, as a share of the peak."""
        return self.recipe.learning_rate_share(step, self.steps)

    @torch.no_grad()
    def step(self, number: int, gradients: Sequence[Float[Tensor, "run number"]]) -> Float[Tensor, " run"]:
        """Make step `number`, from 0; the norm of every run's gradient before it was clipped."""
        norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
        shrink = torch.ones_like(norms) if self.recipe.clip <= 0 else (self.recipe.clip / (norms + 1e-6)).clamp(max=1.0)
        before = [group.held.clone() for group in self.groups]
        share = self.share(number)
        for group, gradient, optimised in zip(self.groups, gradients, self.optimizer.param_groups, strict=True):
            group.held.grad = gradient * shrink[:, None]
            optimised["lr"] = share * group.share
        self.optimizer.step()
        for group, was in zip(self.groups, before, strict=True):
            group.held.copy_(was + self.peaks * (group.held - was))
        return norms

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments, as they are and not copied: what goes on from a step is a function of these."""
        found: dict[str, Tensor] = {}
        for number, group in enumerate(self.groups):
            state = self.optimizer.state[group.held]
            found |= {f"parameters.{number}": group.held.detach()}
            found |= {f"{name}.{number}": state[name] for name in ("step", "exp_avg", "exp_avg_sq")}
        return found
