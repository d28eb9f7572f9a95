"""Image classification with the same blocks: patches instead of tokens, and attention without a mask."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from dcinterp.model.block import Block
from dcinterp.model.compose.base import take_extra_loss
from dcinterp.model.config import DCViTConfig
from dcinterp.model.decoder import DCFormerPreTrainedModel
from dcinterp.model.norm import build_norm
from dcinterp.shapes import Attention, Residual
from dcinterp.support.errors import UserError

Images = Float[Tensor, "batch channel height width"]


class PatchEmbeddings(nn.Module):
    """One vector per patch, row by row from the top left, plus a learned vector per place."""

    def __init__(self, config: DCViTConfig) -> None:
        super().__init__()
        self.shape = (config.num_channels, config.image_size, config.image_size)
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, config.patch_size, config.patch_size)
        self.positions = nn.Parameter(torch.empty(config.num_patches, config.hidden_size))

    def forward(self, pixel_values: Images) -> Residual:
        if tuple(pixel_values.shape[1:]) != self.shape:
            raise ValueError(
                f"The images are {tuple(pixel_values.shape[1:])} (channels, height, width), but this model takes "
                f"{self.shape}; resize them."
            )
        return (
            self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2) + self.positions
        )


class DCViTPreTrainedModel(DCFormerPreTrainedModel):
    """What the image models share."""

    config_class = DCViTConfig
    config: DCViTConfig
    main_input_name = "pixel_values"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PatchEmbeddings):
            init.normal_(module.positions, std=self.config.initializer_range)


class DCViTModel(DCViTPreTrainedModel):
    """Patches, blocks, final norm."""

    def __init__(self, config: DCViTConfig) -> None:
        super().__init__(config)
        self.embeddings = PatchEmbeddings(config)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Images,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        x = self.embeddings(pixel_values)
        streams = [x] if output_hidden_states else None
        patterns: list[Attention | None] | None = [] if output_attentions else None
        between = self._between_layers()
        for block in self.layers:
            x = block(x, None, None, None, patterns, **between)
            if streams is not None:
                streams.append(x)
        x = self.norm(x)
        if streams is not None:
            streams[-1] = x
        return BaseModelOutput(
            last_hidden_state=x,
            hidden_states=tuple(streams) if streams is not None else None,
            attentions=tuple(patterns) if patterns is not None else None,  # type: ignore[arg-type]
        )


class DCViTForImageClassification(DCViTPreTrainedModel):
    """ViT or DCViT: the mean over the patches of the last stream, and a linear map to the classes."""

    accepts_loss_kwargs = False
    """The loss is a mean over images: `transformers.Trainer` divides it by its steps of accumulation itself."""

    def __init__(self, config: DCViTConfig) -> None:
        super().__init__(config)
        if config.problem_type not in (None, "single_label_classification"):
            raise UserError(
                f"problem_type is {config.problem_type!r}; the image models tell classes apart, one for each image: "
                "leave it out."
            )
        self.model = DCViTModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Images,
        labels: Int[Tensor, " batch"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        """Logits [batch, class], and with `labels` the mean cross-entropy in nats."""
        output = self.model(
            pixel_values,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(output.last_hidden_state.mean(1))
        loss = cross_entropy(logits.float(), labels) if labels is not None else None
        if loss is not None and self.training and (extra := take_extra_loss(self.model)) is not None:
            loss = loss + extra
        return ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


def register() -> None:
    """Make AutoConfig, AutoModel and AutoModelForImageClassification find our models; safe to call again."""
    AutoConfig.register(DCViTConfig.model_type, DCViTConfig, exist_ok=True)
    AutoModel.register(DCViTConfig, DCViTModel, exist_ok=True)
    AutoModelForImageClassification.register(DCViTConfig, DCViTForImageClassification, exist_ok=True)


register()
