"""Attention with composed heads: the figure of the paper, top to bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import Cache

from dcinterp.model import cache as caching
from dcinterp.model.compose.base import Composer, Place
from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import STAGES, DCFormerConfig
from dcinterp.model.kernels import composed_attention
from dcinterp.model.kernels.fused import step
from dcinterp.model.kernels.fused.plain import anybody_listens, no_global_hooks
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads, attention_pattern, read_values
from dcinterp.model.kernels.select import fused_here, require_equation, require_portable
from dcinterp.model.mask import Sight, as_sight
from dcinterp.model.norm import RMSNorm
from dcinterp.model.rotary import Rotation, rotate
from dcinterp.shapes import Attention, Mask, PerHead, Residual, SharedHeads


@dataclass
class HandedOn:
    """The composed scores of the last layer that ran, for a composition that reads them (`Composer.HANDS_ON`)."""

    scores: Attention | None = None


class ComposedAttention(nn.Module):
    """Multi-head attention whose heads are composed before (`pre`) and after (`post`) the softmax.

    Several query heads may share the keys and values of one (grouped-query attention); every query head still has an
    attention matrix of its own, and it is these that are composed.

    With `taps` None it takes the fast path and returns no pattern; with taps (an object with callables
    `hook_rot_q`, `hook_rot_k`, `hook_attn_scores`, `hook_pattern`) it goes stage by stage and shows every tensor.
    """

    def __init__(self, config: DCFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        self.head_dim, width, bias = config.head_dim, config.hidden_size, config.has_qkv_bias
        inner, shared = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, shared, bias=bias)
        self.v_proj = nn.Linear(width, shared, bias=bias)
        self.o_proj = nn.Linear(inner, width, bias=config.has_output_bias)
        if config.use_qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.qk_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.qk_norm_eps)
        for stage in config.stages:
            setattr(self, stage, composer_class(config.compose)(config).place(Place(layer_idx, stage)))
        self._stages: step.Stages | None = None

    def forward(
        self,
        hidden_states: Residual,
        rotation: Rotation | None = None,
        mask: Mask | Sight | None = None,
        cache: Cache | None = None,
        taps: Any = None,
        output_attentions: bool = False,
        handed: HandedOn | None = None,
    ) -> tuple[Residual, Attention | None]:
        x = hidden_states
        z, pattern = self.attend(*self.project(x), x, x, rotation, mask, cache, taps, output_attentions, handed)
        return self.write(z), pattern

    def project(self, x: Residual) -> tuple[PerHead, SharedHeads, SharedHeads]:
        """Queries, keys and values."""
        return self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))

    def write(self, z: PerHead) -> Residual:
        """What all heads together add to the residual stream."""
        return self.o_proj(z.transpose(1, 2).flatten(2))

    def attend(
        self,
        q: PerHead,
        k: SharedHeads,
        v: SharedHeads,
        x_query: Residual,
        x_key: Residual,
        rotation: Rotation | None,
        mask: Mask | Sight | None,
        cache: Cache | None = None,
        taps: Any = None,
        output_attentions: bool = False,
        handed: HandedOn | None = None,
    ) -> tuple[PerHead, Attention | None]:
        """What each head reads; `x_query` and `x_key` are what the dynamic weights are made from.

        handed: the scores of the previous layer, which become those of this one; None where no layer reads another's.
        """
        if "q_norm" in self._modules:
            q, k = self.q_norm(q), self.k_norm(k)
        sight, rows = as_sight(mask), q.shape[2]
        asked = self.config._attn_implementation or "auto"
        fast = taps is None and not output_attentions and handed is None and fused_here(asked, q)
        if fast and cache is not None and x_query is x_key:
            z = self.step(q, k, v, x_query, rotation, sight, cache)
            if z is not None:
                return z, None
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
            if taps is not None:
                q, k = taps.hook_rot_q(q), taps.hook_rot_k(k)
        stages = self.weights(x_query, x_key, together=fast)
        # Scores that are convolved over queries read those of earlier ones: the cache holds their queries too.
        taps_back = stages["pre"].taps_back() if "pre" in stages else 0
        if cache is not None:
            held = caching.with_queries(v, q) if taps_back else v
            k, held, full = caching.update(cache, self.layer_idx, k, held, list(stages.values()))
            stages = dict(zip(stages, full, strict=True))
            if taps_back:
                v, q = caching.split_queries(held, q)
                q = q[:, :, -(rows + taps_back) :]
            else:
                v = held
        if handed is not None:
            stages["pre"] = stages["pre"].after(handed.scores)
        if handed is not None:
            require_equation(asked)
        elif any(stage.reads_beyond() for stage in stages.values()):
            require_portable(asked)
        # A convolution over queries reads no padding, of which the rule for keys does not tell, and those of the cache.
        whole = not taps_back or (q.shape[2] == rows and sight.causal and sight.allowed is None)
        if taps is None and not output_attentions and handed is None and whole and not self.hooked():
            return self.read_out(self.read(q, k, v, stages, sight), x_query), None
        pattern = self.pattern(q, k, stages, sight, rows, taps, handed)
        return self.read_out(read_values(pattern, v), x_query), pattern

    def hooked(self) -> bool:
        """Whether somebody listens to a stage itself, so that it must be called and not only read."""
        return anybody_listens(self._modules.get(name) for name in STAGES)

    def composers(self) -> dict[str, Composer]:
        """The stages that there are; what a bridge has put around them is left out."""
        found: dict[str, Any] = {}
        for name in STAGES:
            if (each := self._modules.get(name)) is not None:
                found[name] = each if isinstance(each, Composer) else getattr(each, "original_component", each)
        return found

    def weights(self, x_query: Residual, x_key: Residual, *, together: bool = False) -> dict[str, ComposeWeights]:
        """The weights of the stages there are; with `together`, at once where their composer knows a faster way."""
        composers = self.composers()
        stages = list(composers.values())
        if together and x_query is x_key and all(type(each) is type(stages[0]) for each in stages):
            made = stages[0].together(stages, x_query) if stages and isinstance(stages[0], Composer) else None
            if made is not None:
                return dict(zip(composers, made, strict=True))
        return {name: getattr(self, name).weights(x_query, x_key) for name in composers}

    def step(
        self,
        q: QueryHeads,
        k: SharedHeads,
        v: SharedHeads,
        x: Residual,
        rotation: Rotation | None,
        sight: Sight,
        cache: Cache,
    ) -> PerHead | None:
        """`attend` for a few tokens on top of the cache, in one call of the kernel; None where that does not serve."""
        if not step.takes(x, q, k, v, rotation) or not no_global_hooks():
            return None
        composers = self.composers()
        maps = [
            composers[name].kernel_maps(x) if isinstance(composers.get(name), Composer) else None for name in STAGES
        ]
        if len([each for each in maps if each is not None]) != len(composers):
            return None
        stages = self._stages
        if stages is None or stages.maps[0] is not maps[0] or stages.maps[1] is not maps[1]:
            stages = self._stages = step.Stages(*maps)
        heads = q.shape[1]
        if not stages.fit(x, heads):
            return None
        width = self.head_dim + heads // k.shape[1] * stages.channels
        held = caching.global_layer(cache, self.layer_idx, k, width)
        if held is None or not step.mask_fits(sight, q, held.keys.shape[2] + q.shape[2]):
            return None
        packed = held.kept() if stages.channels else None
        keys, values = held.open(q.shape[2])
        # Of tensors of inference mode nobody can tell whether they changed.
        if stages.channels and not values.is_inference():
            if packed is None or not packed.serves(stages, keys):
                packed = step.Packed(stages, keys, held.places())
            held.keep(packed)
        z = step.step(x, q, k, v, rotation, sight, stages, keys, values, packed)
        if z is None:  # something is NaN or infinite: the equation says where that goes
            full = [composers[name].weights(x, x) for name in composers]
            v = values[..., : self.head_dim]
            if values.shape[-1] > self.head_dim:
                full = caching.unpack_key_weights(values[..., self.head_dim :], full)
            q = q if rotation is None else rotate(q, rotation)
            z = self.read(q, keys, v, dict(zip(composers, full, strict=True)), sight)
        return z

    def read(
        self, q: QueryHeads, k: KeyHeads, v: KeyHeads, stages: dict[str, ComposeWeights], sight: Sight
    ) -> QueryHeads:
        """What each head reads, by the implementation that the config names."""
        return composed_attention(
            q,
            k,
            v,
            stages.get("pre"),
            stages.get("post"),
            causal=sight.causal,
            window=sight.window,
            mask=sight.allowed,
            implementation=self.config._attn_implementation or "auto",
        )

    def read_out(self, z: PerHead, x_query: Residual) -> PerHead:
        """What the heads write: what they have read, unless their composition ends in a norm or a gate."""
        return self.post.read_out(z, x_query) if hasattr(self, "post") else z

    def pattern(
        self,
        q: Float[Tensor, "batch head query d_head"],
        k: KeyHeads,
        stages: dict[str, ComposeWeights],
        sight: Sight,
        rows: int,
        taps: Any = None,
        handed: HandedOn | None = None,
    ) -> Float[Tensor, "batch head row key"]:
        """The composed attention matrix of the last `rows` queries, stage by stage; earlier ones are only read."""
        keys, device = k.shape[2], k.device
        seen = sight.dense(rows, keys, device)
        # What a convolution may read is what any of these queries sees, and nothing of padding.
        mask = sight.readable(q.shape[2], keys, device) if "pre" in stages and stages["pre"].conv is not None else seen

        # The modules of the stages and not `compose` alone: where somebody listens, they bring the taps of their own.
        composed = (
            (lambda scores: self._scores(scores, stages["pre"].within(mask), rows, handed))
            if "pre" in stages
            else None,
            (lambda weights: self.post(weights, stages["post"].within(seen))) if "post" in stages else None,
        )
        return attention_pattern(q, k, *composed, seen, taps)

    def _scores(
        self, scores: Attention, weights: ComposeWeights, rows: int, handed: HandedOn | None
    ) -> Float[Tensor, "batch head row key"]:
        """The composed scores of the last `rows` queries, and the same for the next layer where it reads them."""
        composed: Tensor = self.pre(scores, weights)[:, :, -rows:]
        if handed is not None:
            handed.scores = composed
        return composed

    def heads(self, x: Tensor) -> PerHead:
        """[batch, pos, head * d_head] as [batch, head, pos, d_head]."""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim).transpose(1, 2)
