"""DCMHA: the maps over heads are computed from the tokens, and every ablation of the paper is a flag."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import gelu
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.by_sides import ComposerBySides
from dcinterp.model.compose.static import StaticMap
from dcinterp.model.kernels.fused.plain import (
    SideMaps,
    StageMaps,
    Watch,
    as_written,
    no_global_hooks,
    nobody_looks,
    side_fits,
)
from dcinterp.model.kernels.fused.weights import Made, Sizes, dynamic_weights
from dcinterp.model.norm import rms_normalise
from dcinterp.shapes import Attention, Gate, LowRank, Residual


class SideWeights(nn.Module):
    """The dynamic weights of one side (query or key) of one stage.

        w_1, w_2 = chunk(gelu(X W_1) W_2);   w_1 <- rmsnorm over the heads of a group;   w_g = tanh(X W_g)

    W_1: [D, 2 H R] and W_2: [2 H R, 2 H R] for one group; with G groups, G such pairs for H/G heads each.
    `down` is W_1, `up` is W_2, `gate` is W_g.
    """

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__()
        self.groups, self.rank = config.compose_groups, config.compose_rank
        self.group_heads = config.num_attention_heads // self.groups
        inner = 2 * self.group_heads * self.rank
        if config.compose_projection:
            self.down = nn.Linear(config.hidden_size, self.groups * inner, bias=False)
            self.up = nn.Parameter(torch.empty(self.groups, inner, inner))
        if config.compose_gate:
            self.gate = nn.Linear(config.hidden_size, config.num_attention_heads, bias=False)
            # For where it is all there is: transformers passes over modules without parameters of their own, and never
            # calls this one's `initialise`.
            self.gate.init_std = self._gate_std()  # type: ignore[assignment]

    def forward(self, x: Residual) -> tuple[LowRank | None, LowRank | None, Gate | None]:
        w1 = w2 = wg = None
        if hasattr(self, "down"):
            w1, w2 = self._low_rank(gelu(self.down(x)))
        if hasattr(self, "gate"):
            wg = torch.tanh(self.gate(x))
        return w1, w2, wg

    def _low_rank(self, inner: Float[Tensor, "batch pos inner"]) -> tuple[LowRank, LowRank]:
        shape = (2 * self.rank, self.groups, self.group_heads)
        if self.groups == 1:  # as below, in few operations: one token pays for their number
            both = (inner @ self.up[0]).unflatten(-1, shape)
        else:
            both = torch.einsum("bpgi,gio->bpgo", inner.unflatten(-1, (self.groups, -1)), self.up)
            both = both.unflatten(-1, shape[::2]).transpose(2, 3)  # [b, p, 2 rank, group, head]
        w1, w2 = both.chunk(2, dim=2)
        return rms_normalise(w1).flatten(3), w2.flatten(3)

    def maps(self) -> SideMaps | None:
        """The parameters, if calling this module is what is written above and nothing else."""
        modules = self._modules
        if not as_written(self, SideWeights) or {"down", "up", "gate"} & vars(self).keys():
            return None
        found: list[Tensor | None] = []
        for name in ("down", "gate"):
            reader = modules.get(name)
            if reader is not None and not (as_written(reader, nn.Linear) and reader._parameters["bias"] is None):
                return None
            found.append(None if reader is None else reader._parameters["weight"])
        return SideMaps(found[0], self._parameters.get("up"), found[1])

    @torch.no_grad()
    def initialise(self) -> None:
        """The paper's initialisation: composition starts close to the identity."""
        if hasattr(self, "down"):
            # Of a checkpoint that has it: transformers marks the parameter, and not the rows of a group.
            loaded = getattr(self.down.weight, "_is_hf_initialized", False)
            for rows in () if loaded else self.down.weight.chunk(self.groups):
                init.xavier_normal_(rows)
            inner = self.up.shape[1]
            # sqrt(2HR)(H+R), per group: the width of W_2 and the heads and rank that share its output.
            init.normal_(self.up, std=0.02 / (math.sqrt(inner) * (self.group_heads + self.rank)))
        if hasattr(self, "gate"):  # once more, so that a seed gives the weights that it always gave
            init.normal_(self.gate.weight, std=self._gate_std())

    def _gate_std(self) -> float:
        return 0.05 * math.sqrt(2 / (self.gate.in_features + self.gate.out_features))

    @torch.no_grad()
    def start_at_identity(self) -> None:
        """w_2 and w_g are zero for every token, and w_1 is not: the gradient of w_2 = X_inner W_2 is made of w_1."""
        if hasattr(self, "up"):
            self.up[..., self.up.shape[-1] // 2 :] = 0
        if hasattr(self, "gate"):
            self.gate.weight.zero_()


class DynamicCompose(ComposerBySides):
    """One Compose of DCMHA: static map, query side and key side, each as the config asks."""

    name: ClassVar[str] = "dynamic"
    SIDE: ClassVar[type[nn.Module]] = SideWeights
    how: ClassVar[str] = "for every pair of positions"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "dynamically composable heads (DCMHA)",
        "A' = A + A W_b + O_qp + O_qg + O_kp + O_kg",
        "identity, and low rank and diagonal from the query and from the key",
        "layouts `dcformer` and `dcpythia`, loaded",
    )

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """The weights of this stage from the normed input of the layer at the query and at the key positions."""
        w_q1, w_q2, w_qg = self.query(x_query) if self.query is not None else (None, None, None)
        w_k1, w_k2, w_kg = self.key(x_key) if self.key is not None else (None, None, None)
        static = self.static.head_map() if self.static is not None else None
        skip, groups = self.config.compose_skip, self.config.compose_groups
        return ComposeWeights(w_q1, w_q2, w_qg, w_k1, w_k2, w_kg, static, skip, groups)

    def kernel_maps(self, x: Tensor) -> StageMaps | None:
        """What the kernels make the weights with, where everything is as it is written here."""
        known = self.__dict__.get("_known")
        # Past what a config of transformers does at every access, which a token would notice.
        given = x.dtype, x.shape[-1], object.__getattribute__(self.config, "compose_skip")
        if known is None or known.given != given or _found() != _WRITTEN or not known.still():
            sides = self._sides(x)
            if sides is None:
                return None
            self.__dict__["_known"] = None  # so that its place among the attributes is there when these are counted
            known = self.__dict__["_known"] = Watch(self, StageMaps(*sides, given[-1], None), given)
        maps: StageMaps = known.found
        return maps if self.static is None else maps._replace(static=self.static.head_map())

    def _sides(self, x: Tensor) -> tuple[SideMaps | None, SideMaps | None, int, int, int] | None:
        """The maps of both sides, heads, rank and groups; None if anything is not as it is written here."""
        if not (as_written(self, DynamicCompose) and "weights" not in self.__dict__ and _found() == _WRITTEN):
            return None
        sides: list[SideMaps | None] = []
        heads, rank, groups = self.config.num_attention_heads, 1, 1
        for name in ("query", "key"):
            side = self._modules.get(name)
            maps = side.maps() if isinstance(side, SideWeights) else None
            if maps is None and getattr(self, name) is not None:
                return None
            if isinstance(side, SideWeights):
                rank, groups = side.rank, side.groups
                if maps is None or not side_fits(maps, x, heads, rank, groups):
                    return None
            sides.append(maps)
        return sides[0], sides[1], heads, rank, groups

    @classmethod
    def together(cls, stages: Sequence[Composer], x: Residual) -> list[ComposeWeights] | None:
        """One matrix product with all the maps that read x, and C++ for the rest."""
        if x.numel() == 0 or not nobody_looks(x) or not no_global_hooks():
            return None
        found = [maps for stage in stages if (maps := stage.kernel_maps(x)) is not None]
        sizes = {Sizes(maps.heads, maps.rank, maps.groups) for maps in found}
        # Every side that makes anything, and its module.
        sides = [
            (side, getattr(stage, name))
            for stage, maps in zip(stages, found, strict=False)
            for name, side in (("query", maps.query), ("key", maps.key))
            if side is not None and not side.empty
        ]
        if len(found) < len(stages) or len(sizes) != 1 or not sides:
            return None
        (size,) = sizes
        by_torch = partial(_by_torch, [module for _, module in sides])
        made = iter(dynamic_weights(x, [side for side, _ in sides], size, by_torch))
        weights = []
        for maps in found:
            own = [(None, None, None) if side is None or side.empty else next(made) for side in maps[:2]]
            weights.append(ComposeWeights(*own[0], *own[1], maps.static, maps.skip, maps.groups))
        return weights

    def readers(self) -> list[nn.Linear]:
        return [getattr(side, name) for side in self.sides for name in ("down", "gate") if hasattr(side, name)]

    @classmethod
    def cost(cls, config: ComposeConfig) -> Cost:
        """4HR FLOPs a pair for each low-rank branch (gather and share), 2H for each gate; see `model/complexity.py`."""
        width, heads, groups = config.hidden_size, config.num_attention_heads, config.compose_groups
        inner = 2 * (heads // groups) * config.compose_rank
        sides = config.compose_query_wise + config.compose_key_wise
        read = config.compose_projection * groups * (inner * width + inner**2) + config.compose_gate * heads * width
        pair = config.compose_projection * 4 * heads * config.compose_rank + config.compose_gate * 2 * heads
        static = StaticMap.cost(config) if config.compose_static else Cost()
        return Cost(sides * read + static.parameters, 2 * sides * read, sides * pair + static.per_pair)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        sides = [side for side in ("query", "key") if getattr(config, f"compose_{side}_wise")]
        kinds = [f"rank {config.compose_rank}"] * config.compose_projection + ["gates"] * config.compose_gate
        static = " and a static map" if config.compose_static else ""
        groups = f" in {config.compose_groups} groups" if config.compose_groups > 1 else ""
        return f"composed{groups} by {' and '.join(sides)}: {' and '.join(kinds) or 'nothing'}{static}"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        out = attention.clone() if config.compose_skip else torch.zeros_like(attention)
        if config.compose_static:
            StaticMap.add_written_out(out, attention, tensors["static.weight"])
        size, rank = config.num_attention_heads // config.compose_groups, config.compose_rank
        for side, shape in (("query", (-1, x.shape[1], 1)), ("key", (-1, 1, x.shape[1]))):
            for group in range(config.compose_groups):
                own = range(group * size, (group + 1) * size)
                if f"{side}.up" in tensors:
                    inner = 2 * size * rank
                    hidden = x @ tensors[f"{side}.down.weight"][group * inner : (group + 1) * inner].T
                    both = (hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2) @ tensors[f"{side}.up"][group]
                    w1, w2 = both.view(*x.shape[:2], 2, rank, size).unbind(2)
                    w1 = w1 / torch.sqrt((w1 * w1).mean(-1, keepdim=True) + 1e-6)
                    for r in range(rank):
                        gathered = sum(w1[:, :, r, i].reshape(shape) * attention[:, h] for i, h in enumerate(own))
                        for i, to in enumerate(own):
                            out[:, to] += w2[:, :, r, i].reshape(shape) * gathered
                if f"{side}.gate.weight" in tensors:
                    gate = torch.tanh(x @ tensors[f"{side}.gate.weight"].T)
                    for h in own:
                        out[:, h] += gate[:, :, h].reshape(shape) * attention[:, h]
        return out


def _by_torch(modules: Sequence[SideWeights], x: Tensor, sides: Sequence[SideMaps]) -> Made:
    """What the modules give with these maps for their parameters: for the kernels, which compute the same."""
    names = ("down.weight", "up", "gate.weight")
    made: Made = []
    for module, maps in zip(modules, sides, strict=True):
        own = {name: each for name, each in zip(names, maps, strict=True) if each is not None}
        made.append(functional_call(module, own, (x,)))
    return made


def _found() -> tuple[Callable[..., Any], ...]:
    """The functions that the kernels stand in for."""
    return DynamicCompose.weights, SideWeights.forward, SideWeights._low_rank, nn.Linear.forward


_WRITTEN = _found()
