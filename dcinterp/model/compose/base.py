"""The contract of every way of composing heads: what a composer says about itself, so that nobody has to know its kind.

A composer is a module of one stage of one layer. It must make that stage's weights; from these everything that
attention, kernels, caches and hooks do follows, because what is done with the weights is defined once (`branches`).
What the weights alone cannot tell, a composer says in the methods below. What it leaves out, it refuses by name: an
operation that needs it ends with one sentence and never with a wrong number.

| said by | used for | if it is left out |
|---|---|---|
| `weights` | the model, kernels, caches, hooks, maps over heads, edges, interventions | there is no composer |
| `kernel_maps`, `together` | the same weights by C++, where nobody looks | operations of torch |
| `extra_loss` | training: set by `weights`, added to the loss of the model (`ExtraLoss`) | nothing is added |
| `finish`, `out_hooks` | a norm or gate on what heads have read, after attention | heads write what they have read |
| `readers` | folding norms (`bridge/folding.py`), which checks it on random inputs | refused, if maps read the input |
| `cost` (`cost_at`, by place) | `dcinterp complexity` | refused |
| `start_at_identity` | `dcinterp compose`, which adds the composer to a trained model | refused |
| `written_out` | `dcinterp verify`, whose oracle shares no arithmetic with the model | refused |
| `describe`, `how` | `dcinterp load`, the model card | the name is given |
| `MECHANISM` | the table of mechanisms: `docs/models.md`, `dcinterp presets --mechanisms`, the app | it is not listed |
| `OPTIONS` | the config's `compose_options` | it takes none |
| `STAGES` | where it can stand | before and after the softmax |
| `PAIRWISE`, `HANDS_ON` | what reads other pairs, or the layer before | A' is made of A of this pair |
| `keeps_heads` | maps over heads and edges, which are square | as many heads come out as go in |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dcinterp.model.compose.branches import ComposeWeights, branches, compose
from dcinterp.model.kernels.fused.plain import StageMaps
from dcinterp.shapes import Attention, HeadMap, PerHead, Residual, ZByPosition
from dcinterp.support.errors import UserError, nearest


@runtime_checkable
class ComposeConfig(Protocol):
    """The fields of a model's config that composers read (`DCFormerConfig` says what they mean)."""

    hidden_size: int
    num_attention_heads: int
    head_dim: int | None
    norm_eps: float
    compose: str
    compose_stages: tuple[Any, ...] | list[Any]
    compose_options: dict[str, Any]
    compose_rank: int
    compose_groups: int
    compose_static: bool
    compose_skip: bool
    compose_projection: bool
    compose_gate: bool
    compose_query_wise: bool
    compose_key_wise: bool
    attention_windows: tuple[int | None, ...] | list[int | None]


@dataclass(frozen=True)
class Cost:
    """Parameters of one stage of a layer, FLOPs per query (its weights, of both sides) and per query-key pair."""

    parameters: int = 0
    per_query: int = 0
    per_pair: int = 0


@dataclass(frozen=True)
class Place:
    """Where in the model a composer stands."""

    layer: int = 0
    stage: str = "post"


@dataclass(frozen=True)
class Mechanism:
    """A row of the table of mechanisms (`registry.mechanism_rows`).

    title: what papers call it; formula: A' of one pair of positions; head_map: what M is in A' = A M,
    [head_from, head_to]; released: checkpoints with it, and whether they load here.
    """

    title: str
    formula: str
    head_map: str
    released: str = "none known"


ExtraLoss = Tensor | Callable[[Tensor | None], Tensor]
"""What a composer adds to the loss: a number, or what makes one of the positions that count, [batch, pos], or of None
where all do. Padding does not: what the attention mask leaves out, or else what is behind a row's last scored token."""


class Composer(nn.Module, ABC):
    """One stage of composition; a subclass is a way of composing.

    name: what the config's `compose` calls it. how: ends the sentence "its attention heads are composed ...".
    MECHANISM: its row in the table of mechanisms. STAGES: where it can stand. PAIRWISE: A' of a pair of positions is
    made of A of this pair alone. HANDS_ON: layers read the composed scores of the layer before.
    OPTIONS: its options in `compose_options`, with their defaults. keeps_heads: as many heads come out as go in.
    zero_is_identity: with all parameters at zero, attention stays as it is (or vanishes, without the skip).

    A module with parameters that are not those of a `Linear` has `initialise()`, which gives them their first values.
    """

    name: ClassVar[str] = ""
    how: ClassVar[str] = ""
    MECHANISM: ClassVar[Mechanism | None] = None
    STAGES: ClassVar[tuple[str, ...]] = ("pre", "post")
    PAIRWISE: ClassVar[bool] = True
    HANDS_ON: ClassVar[bool] = False
    OPTIONS: ClassVar[Mapping[str, Any]] = {}
    keeps_heads: ClassVar[bool] = True
    zero_is_identity: ClassVar[bool] = True

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__()
        self.config, self.placed = config, Place()
        self.extra_loss = None

    @property
    def extra_loss(self) -> ExtraLoss | None:
        """What the last forward in training adds to the loss of the model."""
        return self._extra_loss

    @extra_loss.setter
    def extra_loss(self, value: ExtraLoss | None) -> None:
        self._extra_loss, self._made_with_gradients = value, torch.is_grad_enabled()

    def __getstate__(self) -> dict[str, Any]:
        """What is copied: not the loss of the last step, which belongs to its graph."""
        return self.__dict__ | {"_extra_loss": None}

    def place(self, place: Place) -> Composer:
        """Tell a new composer where it stands; extend it for parameters that depend on this."""
        self.placed = place
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            raise TypeError(f"{cls.__name__} has a forward of its own, which only some paths would run; use weights().")

    @abstractmethod
    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The weights of this stage, from the layer's normed input at the query and at the key positions.

        What belongs to a position may depend on the input at that position only; that makes composing causal.
        """

    def kernel_maps(self, x: Tensor) -> StageMaps | None:
        """What the kernels make the weights with; None unless they would make what `weights(x, x)` gives, unseen.

        A composer whose weights they can make offers it: where a hook, a subclass or another module stands in between,
        or a parameter is not of the shape and type that fit x, it must say None.
        """
        return None

    @classmethod
    def together(cls, stages: Sequence[Composer], x: Residual) -> list[ComposeWeights] | None:
        """`weights(x, x)` of the stages of a layer, all at once by the kernels; None where they cannot."""
        return None

    @final  # type: ignore[misc]  # torch declares forward as a variable
    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        """Compose(A); the same for every composer, and what all kernels compute."""
        return compose(attention, weights, taps)

    @final
    def read_out(self, z: PerHead, x_query: Residual, taps: Any = None) -> PerHead:
        """What the heads write, from what they have read: the same on every path of attention.

        Args:
            z: composed attention times values.
            x_query: the layer's normed input at the query positions.
            taps: an object with the `hook_<name>` of `out_hooks`; `hook_read` sees, and may replace, z.
        """
        if not self.out_hooks():
            return z
        by_position = z.transpose(1, 2)
        if taps is not None:
            by_position = taps.hook_read(by_position)
        return self.finish(by_position, x_query, taps).transpose(1, 2)

    def out_hooks(self) -> tuple[str, ...]:
        """Names of the taps after attention, "read" first; none for a composer without a `finish`."""
        return ()

    def finish(self, z: ZByPosition, x_query: Residual, taps: Any = None) -> ZByPosition:
        """A norm or a gate on what the heads have read; only where `out_hooks` has names, and only after the softmax.

        What it makes of a position may depend on this position alone.
        """
        return z

    def start_at_identity(self) -> None:
        """Change the initialised parameters so that attention stays as it is, and training can still change it.

        What is at zero must have a factor that is not, or no gradient would ever reach either of them.

        Raises:
            UserError: there are no such parameters, or not with these fields of the config.
        """
        self.refuse_identity()

    @classmethod
    def refuse_identity(cls, why: str = "") -> NoReturn:
        """Raises:
        UserError: a model that this composer is added to would not compute what it did before.
        """
        raise UserError(
            f"The composer {cls.name!r} cannot start at the identity{f' ({why})' if why else ''}, so a model would not "
            "compute the same with it; choose another composer, such as 'dynamic' with its skip."
        )

    def readers(self) -> Sequence[nn.Linear]:
        """The linear maps that read the layer's normed input; folding a norm folds it into them."""
        return ()

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """What one stage of one layer costs, by formula.

        Raises:
            UserError: the composer does not say.
        """
        cls.refuse("what it costs", "cost")

    @classmethod
    def cost_at(cls, config: ComposeConfig, place: Place) -> Cost:
        """`cost`, of a composer that is not the same at both stages, or in all layers."""
        return cls.cost(config)

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        """Compose(A) once more, in loops over heads and sharing no arithmetic with the module: for the oracle.

        Args:
            config: of the model.
            tensors: the state dict of one composer, in float64; with `HANDS_ON`, from the second layer on, also
                "before": the composed scores of the layer before.
            x: the layer's normed input, in float64.
            attention: A, not to be changed; zero where a query may not look.

        Raises:
            UserError: the composer is not written out.
        """
        cls.refuse("what it computes for the plain reference", "written_out")

    @classmethod
    def finish_written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, z: ZByPosition
    ) -> ZByPosition:
        """`finish` once more, for the oracle; arguments as of `written_out`.

        Raises:
            UserError: there is a `finish` that is not written out.
        """
        if cls.finish is not Composer.finish:
            cls.refuse("what becomes of what heads have read, for the plain reference", "finish_written_out")
        return z

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        """How heads are composed, in words that follow "weights (post)"; options are named after them."""
        return f"composed by {cls.name!r}"

    @classmethod
    def analyses(cls) -> str:
        """Which analyses apply, in words, by what the composer says of itself."""
        if not cls.keeps_heads:
            return "of attention matrices and of heads; no maps over heads, no edges"
        if cls.PAIRWISE and not cls.HANDS_ON:
            return "all"
        return "all but breakdowns of scores; maps are of what a pair takes from its own attention"

    @classmethod
    def options(cls, config: ComposeConfig) -> dict[str, Any]:
        """All options, those that the config leaves out at their defaults."""
        return {**cls.OPTIONS, **config.compose_options}

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        """Refuse options that do not exist or have another type than their default; extend it for further rules.

        Raises:
            UserError: names the field.
        """
        for option, value in config.compose_options.items():
            if option not in cls.OPTIONS:
                known = nearest(str(option), cls.OPTIONS) if cls.OPTIONS else "it has none, leave it out."
                raise UserError(f"compose_options has {option!r}, which is no option of compose={cls.name!r}; {known}")
            kind = type(cls.OPTIONS[option])
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise UserError(
                    f"compose_options has {option!r} = {value!r}; compose={cls.name!r} takes a {kind.__name__} there."
                )

    @classmethod
    def in_words(cls, config: ComposeConfig) -> str:
        """`describe`, and the options but those that are off."""
        given = {name: value for name, value in cls.options(config).items() if value is not False}
        options = ", ".join(name if value is True else f"{name} {value}" for name, value in given.items())
        return cls.describe(config) + (f" ({options})" if options else "")

    @classmethod
    def refuse(cls, what: str, method: str) -> NoReturn:
        """Raises:
        UserError: this composer does not say `what`; its `method` would.
        """
        raise UserError(
            f"The composer {cls.name!r} does not say {what}; give it a method `{method}` (see docs/extending.md)."
        )

    def require_square(self, what: str) -> None:
        """Raises:
        UserError: other heads come out than go in, and `what` needs a map from head to head.
        """
        if not self.keeps_heads:
            raise UserError(
                f"{what} needs as many heads after composition as before it, which the composer {self.name!r} does not "
                "keep; choose an analysis of attention matrices or of heads."
            )

    @torch.no_grad()
    def probe(self) -> ComposeWeights:
        """The weights at one pair of positions with an input of zeros: which there are, and what no token changes."""
        x = next(self.parameters(), torch.zeros(1)).new_zeros(1, 1, self.config.hidden_size)
        return self.weights(x, x)

    def existing(self) -> set[str]:
        """Hooks of the branches, names of the dynamic weights, and taps after attention, that this composer has."""
        weights = self.probe()
        like = next(self.parameters(), torch.zeros(1))
        nothing = like.new_zeros(1, self.config.num_attention_heads, 1, 1)
        terms = branches(nothing, weights.after(nothing))
        return {*terms, *(name for name, _ in weights.dynamic()), *self.out_hooks()}

    @property
    def skip(self) -> bool:
        """Whether the untouched attention is part of the sum."""
        return self.probe().skip

    @property
    def groups(self) -> int:
        """Groups of heads that are composed among themselves only."""
        return self.probe().groups

    @property
    def reads_beyond(self) -> bool:
        """Whether a pair takes something from the pairs around it, or from the previous layer."""
        return self.probe().reads_beyond()

    @property
    def has_bias(self) -> bool:
        """Whether O_b has a part that is made of no head's attention."""
        return self.probe().bias is not None

    def base_map(self) -> HeadMap:
        """What no token changes: the skip and the static map W_b, in the type of its weights; on the CPU. No bias.

        Raises:
            UserError: the composer does not keep the heads.
        """
        self.require_square("A map over heads")
        weights, heads = self.probe(), self.config.num_attention_heads
        total = torch.eye(heads) if weights.skip else torch.zeros(heads, heads)
        if weights.static is not None:
            static = weights.static.detach().cpu()
            total = total.to(static) + static
        return total


def take_extra_loss(model: nn.Module, counted: Callable[[], Tensor | None] = lambda: None) -> Tensor | None:
    """What the composers of all layers add to the loss of a model since this was last asked; None for nothing.

    Args:
        counted: asked, where something is added, which positions count, [batch, pos]; None for all.

    Raises:
        UserError: it was made without gradients and is asked for with them, as reentrant checkpointing does.
    """
    adding = [each for each in model.modules() if isinstance(each, Composer) and each.extra_loss is not None]
    positions = counted() if adding else None
    total = None
    for composer in adding:
        extra, with_gradients = composer.extra_loss, composer._made_with_gradients
        composer.extra_loss = None
        if torch.is_grad_enabled() and not with_gradients:
            raise UserError(
                f"compose={composer.config.compose!r} adds to the loss, and reentrant gradient checkpointing drops "
                "the gradient of that; give gradient_checkpointing_kwargs={'use_reentrant': False}."
            )
        extra = extra(positions) if callable(extra) else extra
        total = extra if total is None else total + extra
    return total
