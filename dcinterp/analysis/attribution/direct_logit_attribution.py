r"""What every part of a model adds to the answer by itself: direct logit attribution.

    f = logit[target] - logit[foil] = sum over parts of c(part) + gap,       c(part) = part · u
    u = the direction of the residual stream that the final norm and the unembedding read as f

The stream before the final norm is a sum: embeddings, what each head writes (its hook_z through its own W_O), what each
MLP writes, and the biases of attention and MLPs. The final norm is linear when its scale is held at the value it has on
this prompt, and so each part has a share of f. The norm's own bias and that of the unembedding are two further parts. A
bias of values is in what its head reads, and stays with the head.

Source: Elhage et al. 2021 ("direct path" terms); Wang et al. 2022. TransformerLens's `logit_attrs` and
`direct_logit_attribution` give the same, but need a bridge whose final norm is folded into the unembedding; here the
norm is asked for its gain, so any bridge will do and none is changed.

It does not show what a part does through later layers, nor what would happen without it: then the norm would have
another scale, and later layers would answer the change. Where heads are composed, a head's part is what it writes; the
attention by which it read may have come from other heads (see attribute_edges).

Identities that the tests assert: parts and gap sum to f, and the gap is rounding error; a model whose last layer lacks
a head loses that head's part when its final norm keeps its scale; on a folded bridge TransformerLens says the same.

    parts = dcinterp.direct_logit_attribution(model, "< Ruth has a violin. ...", "fruit", "animal")
    parts.heads, parts.mlps, parts.token_embedding, parts.gap
    dcinterp.figures.plot(parts)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.objective import AnswerMetric, explain, other_answer
from dcinterp.mechanism.prompt import Prompt, Token, str_tokens
from dcinterp.mechanism.readout import held_norm, require_text, unembedding
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.text import in_sentence_apart

ROUNDING = 1e-3
"""A gap above this share of f (or of one logit, if that is more) is more than rounding in float32."""
MISSED = 0.02
"""The share of the stream that parts may miss, in length: more than rounding in bfloat16 makes."""


@dataclass(frozen=True)
class DirectLogitAttribution(Result):
    """What each part adds to the metric, in logits.

    heads [layer, head]; mlps [layer], without their output biases; attention_bias, mlp_bias [layer]: what these output
    biases add; token_embedding, position_embedding (0 where positions are not embedded), norm_bias, unembedding_bias;
    gap = metric - the sum of them all. scale: what the final norm divides by, at the (first) explained position.
    position: of the token that is explained; of several, the last.
    answer: the model's own most likely token (or tokens) in the place of the target.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "heads": ("layer", "head"),
        "mlps": ("layer",),
        "attention_bias": ("layer",),
        "mlp_bias": ("layer",),
    }

    tokens: tuple[str, ...]
    position: int
    target: str
    foil: str
    answer: str
    right: bool
    metric: float
    heads: Float[Tensor, "layer head"]
    mlps: Float[Tensor, " layer"]
    attention_bias: Float[Tensor, " layer"]
    mlp_bias: Float[Tensor, " layer"]
    token_embedding: float
    position_embedding: float
    norm_bias: float
    unembedding_bias: float
    gap: float
    scale: float
    scales: tuple[float, ...] = ()

    @property
    def best(self) -> tuple[int, int]:
        """(layer, head) of the head that adds most."""
        layer, head = divmod(int(self.heads.argmax()), self.heads.shape[1])
        return layer, head

    def parts(self) -> dict[str, float]:
        """Every part by name, in the order of the forward pass; L1H3 is a head."""
        named = {"token embedding": self.token_embedding, "position embedding": self.position_embedding}
        for layer, heads in enumerate(self.heads.tolist()):
            named |= {f"L{layer}H{head}": value for head, value in enumerate(heads)}
            named[f"L{layer} attention bias"] = float(self.attention_bias[layer])
            named[f"L{layer} MLP"] = float(self.mlps[layer])
            named[f"L{layer} MLP bias"] = float(self.mlp_bias[layer])
        return named | {"final norm bias": self.norm_bias, "unembedding bias": self.unembedding_bias}

    def table(self) -> pd.DataFrame:
        """One row a part, the largest first; parts that add nothing at all are left out."""
        rows = [(name, value) for name, value in self.parts().items() if value]
        frame = pd.DataFrame(rows, columns=["part", "logits"])
        return frame.sort_values("logits", key=abs, ascending=False, ignore_index=True)

    def sentence(self) -> str:
        """The metric, the sum of the parts and the largest."""
        target, foil = in_sentence_apart(self.target, self.foil)
        what = f'The logit of "{target}"' + (f' minus that of "{foil}"' if self.foil else "")
        name, value = max(self.parts().items(), key=lambda part: abs(part[1]))
        held = f"scale of the final norm held at {self.scale:.3g}"
        if len(self.scales) > 1:
            what = f'The logits of the {len(self.scales)} tokens of "{target}", each behind those before it, sum to'
            held = f"scales of the final norm held at {', '.join(f'{scale:.3g}' for scale in self.scales)}"
        return (
            f"{what}{'' if len(self.scales) > 1 else ' is'} {self.metric:z.2f}. With the {held}, the parts sum "
            f"to {self.metric - self.gap:z.2f} (gap {self.gap:.0e}). The largest part is {name} with {value:+z.2f}."
        )

    def warnings(self) -> list[str]:
        sentences = []
        if said := other_answer(self.answer, self.target, self.right):
            sentences.append(f"The model {said}: the parts explain an answer that it does not give.")
        if abs(self.gap) > ROUNDING * max(1.0, abs(self.metric)):
            sentences.append(
                f"The parts miss {self.gap:+.2g} logits: the model computes in low precision, or changes its logits "
                "after the unembedding (caps them, say). The parts are of the logits before that."
            )
        return sentences


@analysis(
    title="Direct logit attribution",
    question="What does each part of the model add to the answer by itself?",
    guide="analyses/logit-attribution.md",
    example={"prompt": EXAMPLE_PROMPT, "target": "tea", "foil": "meat"},
)
@torch.no_grad()
def direct_logit_attribution(
    bridge: Bridge, prompt: Prompt, target: Token, foil: Token | None = None, *, at: int = -1
) -> DirectLogitAttribution:
    """Split the logit of `target` (minus that of `foil`, if given) into what each part of the model adds to it.

    Args:
        bridge: any TransformerLens bridge, folded or not; it is not changed.
        prompt: text, or token ids as in [5, 7, 9].
        target: the answer; if it takes several tokens, their logits are explained together.
        foil: the answer it competes with, at the first token where the two differ. Without one, parts that raise the
            logits of all tokens alike count too.
        at: the position whose next-token logits are explained.

    Cost: one forward pass.

    Raises:
        UserError: prompt, target, foil or position do not fit the model, or it has no heads or no final norm.
    """
    require_text(bridge)
    explanation = explain(bridge, prompt, target, foil, at=at)
    metric = explanation.metric
    assert isinstance(metric, AnswerMetric)
    names = _names(bridge)
    logits, cache = bridge.run_with_cache(explanation.ids, names_filter=names)
    places = list(explanation.positions)
    stream = {name: cache[name][0, places].detach() for name in names if name in cache}
    norm = held_norm(bridge, stream[f"blocks.{bridge.cfg.n_layers - 1}.hook_resid_post"])
    towards, constant = _directions(bridge, metric)
    u = norm.transposed(towards)
    parts = _split(bridge, stream, u)
    single = {name: float(parts.pop(name)) for name in ("token_embedding", "position_embedding")}
    single |= {"norm_bias": float((towards * norm.bias).sum()), "unembedding_bias": constant}
    value = float(metric(logits)[0])
    return DirectLogitAttribution(
        tokens=str_tokens(bridge, explanation.ids),
        position=places[-1],
        target=explanation.target,
        foil=explanation.foil,
        answer=explanation.answer(bridge, logits),
        right=explanation.is_right(logits),
        metric=value,
        gap=value - sum(single.values()) - sum(float(part.sum()) for part in parts.values()),
        scale=float(norm.scale[0]),
        scales=tuple(norm.scale.flatten().tolist()),
        **{name: part.float() for name, part in parts.items()},  # type: ignore[arg-type]
        **single,  # type: ignore[arg-type]
    )


def _split(bridge: Bridge, stream: Mapping[str, Tensor], u: Float[Tensor, "place d_model"]) -> dict[str, Tensor]:
    """part · u of every part of the stream, by the field of the result.

    Raises:
        UserError: the parts do not sum to the stream.
    """
    entering = _wide(stream["blocks.0.hook_resid_pre"])
    words = _wide(stream["hook_embed"]) if "hook_pos_embed" in stream else entering
    summed, found = entering, []
    for layer in range(bridge.cfg.n_layers):
        block = bridge.blocks[layer]
        heads, bias, written = _attention(bridge, block, stream[f"blocks.{layer}.attn.hook_z"], u)
        mlp, mlp_bias = _wide(stream[f"blocks.{layer}.hook_mlp_out"]), _bias(block.mlp, "b_out", entering)
        summed = summed + written + mlp
        found.append((heads, bias, ((mlp - mlp_bias) * u).sum(), (mlp_bias * u).sum()))
    final = _wide(stream[f"blocks.{bridge.cfg.n_layers - 1}.hook_resid_post"])
    if not (summed - final).norm() <= MISSED * final.norm():
        raise UserError(
            "What the heads and MLPs of this model write does not sum to its residual stream: its blocks do more than "
            "add that, so that its logits cannot be split in this way."
        )
    names = ("heads", "attention_bias", "mlps", "mlp_bias")
    parts = {name: torch.stack(each) for name, each in zip(names, zip(*found, strict=True), strict=True)}
    return parts | {"token_embedding": (words * u).sum(), "position_embedding": ((entering - words) * u).sum()}


def _attention(
    bridge: Bridge, block: Any, z: Float[Tensor, "place head d_head"], u: Float[Tensor, "place d_model"]
) -> tuple[Float[Tensor, " head"], Float[Tensor, ""], Float[Tensor, "place d_model"]]:
    """(each head's part · u, that of the bias, what attention writes). A norm of the sum is held at its scale too."""
    heads = torch.einsum("phd,hdm->phm", _wide(z), _wide(block.attn.W_O))
    bias = _bias(block.attn, "b_O", u)
    whole, norm = heads.sum(1) + bias, getattr(block, "ln1_post", None)
    if norm is None:
        return torch.einsum("phm,pm->h", heads, u), (bias * u).sum(), whole
    held = held_norm(bridge, whole.to(z), norm)
    towards = held.transposed(u)
    shares = torch.einsum("phm,pm->h", heads, towards)
    return shares, (bias * towards).sum() + (held.bias * u).sum(), held(whole)


def _names(bridge: Bridge) -> list[str]:
    """The hooks of all parts of the stream.

    Raises:
        UserError: a layer has no heads.
    """
    names = [name for name in ("hook_embed", "hook_pos_embed") if name in bridge.hook_dict]
    names += ["blocks.0.hook_resid_pre", f"blocks.{bridge.cfg.n_layers - 1}.hook_resid_post"]
    for layer in range(bridge.cfg.n_layers):
        inside = [f"blocks.{layer}.{name}" for name in ("attn.hook_z", "hook_mlp_out")]
        if any(name not in bridge.hook_dict for name in inside) or not hasattr(bridge.blocks[layer].attn, "W_O"):
            raise UserError(
                f"Layer {layer} of this model has no heads and MLP that write into the stream, so its parts cannot be "
                "told apart; load a model of attention and MLP blocks."
            )
        names += inside
    return names


def _wide(tensor: Tensor) -> Tensor:
    """In float64 on the CPU."""
    return tensor.detach().cpu().double()


def _bias(part: Any, name: str, like: Tensor) -> Float[Tensor, "place d_model"]:
    """A bias of the output of attention or an MLP, the same at every place; zeros where there is none."""
    bias = getattr(part, name, None)
    return torch.zeros_like(like) if bias is None else _wide(bias).expand_as(like)


def _directions(bridge: Bridge, metric: AnswerMetric) -> tuple[Float[Tensor, "place d_model"], float]:
    """(what each place's normed stream is multiplied with, what the unembedding's bias adds)."""
    columns, constants = zip(*(unembedding(bridge, token) for token in metric.chosen), strict=True)
    towards, constant = torch.stack(columns), sum(constants)
    if metric.other is not None:
        against, other = unembedding(bridge, metric.other)
        towards[0] -= against
        constant -= other
    return towards, constant
