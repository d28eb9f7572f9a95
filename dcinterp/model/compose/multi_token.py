"""Multi-token attention (Golovneva et al. 2025): scores are convolved over queries, keys and groups of heads.

    before the softmax:  A'[h', t, s] = sum over h of W_b[h, h'] sum over i, j of theta[h, i, j] A[h, t - i, s - j]
    after it:            A'[h', t, s] = sum over h of W_b[h, h'] A[h, t, s]
    i = 0 .. queries - 1,    j = -floor(keys / 2) .. ceil(keys / 2) - 1,    A = 0 where a query may not look
    with the option `norm`:  z[h] -> (1 - lambda_0) rmsnorm(z[h])      what a head has read, before W_O
    lambda_0 = 0.8 - 0.6 exp(-0.3 layer)

W_b is the head convolution: heads are mixed within `compose_groups` groups of the same size. What a pair takes from
its own scores, i = j = 0, is a map over heads and part of O_b; what it takes from the pairs around it is one more term,
O_kq, with a tap of its own. The fused kernel does not know that term: a model with it takes the portable path.

At first all of it is the identity, so that without `norm` (the default) attention is plain. The norm has no gain: that
rescales columns of W_O. Left out are the paper's scalar gate behind the norm, its convolutions over queries and keys
after the softmax, and layers without any of it. There is no skip: the middle of the convolution is it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import initialization as init

from dcinterp.model.compose.base import ComposeConfig, Composer, Cost, Mechanism, Place
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.differential import first_lambda
from dcinterp.model.compose.static import StaticMap
from dcinterp.model.norm import rms_normalise
from dcinterp.shapes import Attention, Residual, ZByPosition
from dcinterp.support.errors import UserError


class HeadConvolution(StaticMap):
    """W_b, which is the identity at first: every head by itself, as in the paper."""

    @torch.no_grad()
    def initialise(self) -> None:
        init.copy_(self.weight, torch.eye(self.weight.shape[-1]).to(self.weight).expand_as(self.weight))


class MultiTokenCompose(Composer):
    """The key-query convolution of every head (before the softmax), and the convolution over heads."""

    name: ClassVar[str] = "multi-token"
    how: ClassVar[str] = "by convolutions over queries, keys and heads"
    MECHANISM: ClassVar[Mechanism | None] = Mechanism(
        "multi-token attention",
        "A'[t, s] = (Σ_ij θ[i, j] A[t-i, s-j]) W_b, before the softmax; A' = A W_b after it",
        "learned, in groups of heads; O_kq beside it reads other pairs",
    )
    OPTIONS: ClassVar[Mapping[str, Any]] = {"queries": 6, "keys": 11, "norm": False}
    PAIRWISE: ClassVar[bool] = False
    zero_is_identity: ClassVar[bool] = False

    taps: Tensor
    lambda_init: Tensor

    def __init__(self, config: ComposeConfig) -> None:
        super().__init__(config)
        self.heads = HeadConvolution(config)
        options = self.options(config)
        self.shape = (config.num_attention_heads, options["queries"], options["keys"])

    def place(self, place: Place) -> Composer:
        if place.stage == "pre":
            self.taps = nn.Parameter(torch.empty(self.shape))
        if place.stage == "post" and self.options(self.config)["norm"]:
            # Saved with the weights, so that a layer carries its own wherever it is moved.
            self.register_buffer("lambda_init", torch.tensor(first_lambda(place.layer)))
        return super().place(place)

    @classmethod
    def check(cls, config: ComposeConfig) -> None:
        super().check(config)
        options = cls.options(config)
        for name, taps in ((name, options[name]) for name in ("queries", "keys")):
            if taps < 1:
                raise UserError(f"compose_options has {name!r} = {taps}; a convolution has at least one tap.")
        if options["norm"] and "post" not in config.compose_stages:
            raise UserError(
                "compose_options has 'norm', which follows the stage post; leave it out, or compose there too."
            )
        reads_around = "pre" in config.compose_stages and max(options["queries"], options["keys"]) > 1
        if reads_around and any(window is not None for window in config.attention_windows):
            raise UserError(
                "compose='multi-token' reads scores around a pair, which local layers hide; leave attention_windows "
                "out, or let it mix heads alone by compose_options {queries: 1, keys: 1}."
            )

    @torch.no_grad()
    def initialise(self) -> None:
        """Attention stays as it is at first: the tap in the middle is 1, all others are 0."""
        if hasattr(self, "taps"):
            init.copy_(self.taps, _middle(self.shape).to(self.taps))
        if hasattr(self, "lambda_init"):
            init.constant_(self.lambda_init, first_lambda(self.placed.layer))

    def start_at_identity(self) -> None:
        """It does; the norm over heads does not."""
        if hasattr(self, "lambda_init"):
            self.refuse_identity("its norm rescales what heads have read")

    def weights(
        self, x_query: Float[Tensor, "batch query d_model"], x_key: Float[Tensor, "batch key d_model"]
    ) -> ComposeWeights:
        """Reads no token."""
        static, groups = self.heads.head_map(), self.config.compose_groups
        if not hasattr(self, "taps"):
            return ComposeWeights(static=static, skip=False, groups=groups)
        own = self.taps[:, 0, self.shape[2] // 2]
        if self.shape[1:] == (1, 1):  # around the pair is nothing, and so every kernel computes it
            return ComposeWeights(static=own[:, None] * static, skip=False, groups=groups)
        around = (self.taps * (1 - _middle(self.shape).to(self.taps))).unflatten(0, (groups, -1))
        conv = torch.einsum("gft,gfij->gtfij", self.heads.weight, around).flatten(0, 1)
        return ComposeWeights(static=own[:, None] * static, skip=False, groups=groups, conv=conv)

    def out_hooks(self) -> tuple[str, ...]:
        return ("read",) if hasattr(self, "lambda_init") else ()

    def finish(self, z: ZByPosition, x_query: Residual, taps: Any = None) -> ZByPosition:
        """The norm over every head, where it is asked for."""
        return rms_normalise(z, self.config.norm_eps) * (1 - self.lambda_init)

    @classmethod
    def cost_at(cls, config: ComposeConfig, place: Place) -> Cost:
        """Both convolutions are applied whole, with their zeros; the norm scales every channel of a query."""
        heads, options, static = config.num_attention_heads, cls.options(config), StaticMap.cost(config)
        if place.stage == "post":
            assert config.head_dim is not None
            return replace(static, per_query=2 * heads * config.head_dim * options["norm"])
        taps = heads * options["queries"] * options["keys"]
        alone = options["queries"] == options["keys"] == 1  # one tap goes into the static map
        mixed = 0 if alone else 2 * taps * (heads // config.compose_groups)
        return replace(static, parameters=static.parameters + taps, per_pair=static.per_pair + mixed)

    @classmethod
    def describe(cls, config: ComposeConfig) -> str:
        size = config.num_attention_heads // config.compose_groups
        return f"composed by convolutions over {size} head{'s' * (size > 1)} at a time"

    @classmethod
    def written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, attention: Attention
    ) -> Attention:
        convolved = attention
        if "taps" in tensors:
            convolved, (length, keys) = torch.zeros_like(attention), attention.shape[2:]
            for h, rows in enumerate(tensors["taps"]):
                for i, row in enumerate(rows):
                    for j, tap in enumerate(row, start=-(len(row) // 2)):
                        read = attention[:, h, : max(0, length - i), max(0, -j) : max(0, keys - max(0, j))]
                        convolved[:, h, i:, max(0, j) : max(0, keys + min(0, j))] += tap * read
        out = torch.zeros_like(attention)
        StaticMap.add_written_out(out, convolved, tensors["heads.weight"])
        return out

    @classmethod
    def finish_written_out(
        cls, config: ComposeConfig, tensors: Mapping[str, Tensor], x: Residual, z: ZByPosition
    ) -> ZByPosition:
        if "lambda_init" not in tensors:
            return z
        out = torch.zeros_like(z)
        for h in range(z.shape[2]):
            size = torch.sqrt((z[:, :, h] ** 2).sum(-1) / z.shape[-1] + config.norm_eps)
            out[:, :, h] = (1 - tensors["lambda_init"]) * z[:, :, h] / size[..., None]
        return out


def _middle(shape: tuple[int, ...]) -> Float[Tensor, "head query_tap key_tap"]:
    """1 at the tap that reads the pair itself."""
    one = torch.zeros(shape)
    one[:, 0, shape[2] // 2] = 1
    return one
