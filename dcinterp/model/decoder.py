"""The decoder and its language-model head: every family of the paper, told apart by the config alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from dcinterp.model.attention import HandedOn
from dcinterp.model.block import Block
from dcinterp.model.cache import fit_cache, new_cache
from dcinterp.model.card import write_card, write_card_of_hub
from dcinterp.model.compose.base import take_extra_loss
from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.kernels.select import check_implementation
from dcinterp.model.mask import Sight, attention_mask
from dcinterp.model.norm import RMSNorm, build_norm
from dcinterp.model.rotary import Rotation, rotation
from dcinterp.shapes import Attention, Residual, TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.file_modes import open_like

log = logging.getLogger(__name__)


class DCFormerPreTrainedModel(PreTrainedModel):
    """What the models share: config class, initialisation, what transformers may do with them."""

    config_class = DCFormerConfig
    config: DCFormerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config: DCFormerConfig) -> None:
        check_implementation(config._attn_implementation or "auto")  # before transformers looks for it at the hub
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if (initialise := getattr(module, "initialise", None)) is not None:  # a way of composing knows its own
            initialise()
        elif isinstance(module, nn.Embedding):
            embedding_std = self.config.embedding_initializer_range
            init.normal_(module.weight, std=self.config.initializer_range if embedding_std is None else embedding_std)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            std = self.config.initializer_range * getattr(module, "init_scale", 1.0)
            init.normal_(module.weight, std=getattr(module, "init_std", std))
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, RMSNorm | nn.LayerNorm):
            init.ones_(module.weight)
            if isinstance(bias := getattr(module, "bias", None), Tensor):
                init.zeros_(bias)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """As in transformers, with the names of `composed_attention`: auto (also for None), eager, chunked, ..."""
        check_implementation(name := requested_attention or "auto")
        return name

    def _between_layers(self) -> dict[str, HandedOn]:
        """What blocks pass on beside the stream, as an argument of theirs: in most models nothing.

        Raises:
            UserError: gradient checkpointing, which runs layers again out of order, when they read each other's scores.
        """
        config = self.config
        if not config.stages or not composer_class(config.compose).HANDS_ON:
            return {}
        if self.gradient_checkpointing and self.training:
            raise UserError(
                f"compose={config.compose!r} hands scores from layer to layer, which gradient checkpointing would take "
                "from the wrong layer; train without gradient checkpointing."
            )
        return {"handed": HandedOn()}

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, and a model card where the folder has none."""
        if Path(save_directory).is_file():
            raise UserError(f"{save_directory} is a file; give the name of a folder to save the model to.")
        super().save_pretrained(save_directory, *args, **kwargs)
        if (config := Path(save_directory) / "config.json").is_file():  # of several processes one writes
            open_like(config)
            write_card(self.config, self.num_parameters(), save_directory)

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with our card in the place of its empty one."""
        write_card_of_hub(self.config, self.num_parameters(), working_dir, repo_id)
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


class DCFormerModel(DCFormerPreTrainedModel):
    """Embedding, blocks, final norm."""

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        if config.position_type == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    def _require_positions(self, given: Tensor | None) -> None:
        """Refuse learned positions that there are not."""
        if given is None or torch.compiler.is_compiling() or not given.numel():
            return  # the value of a tensor is unknown while a graph is traced
        if int(given.max()) >= self.config.max_position_embeddings:
            raise UserError(
                f"position_ids go up to {int(given.max())}, but this model has {self.config.max_position_embeddings} "
                "learned positions."
            )

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value  # type: ignore[assignment]

    @can_return_tuple
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds, one of the two.")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._cache(past_key_values, use_cache)
        past = cache.get_seq_length() if cache is not None else 0
        length = past + x.shape[1]  # compared as a number: the value of a tensor is unknown while a graph is traced
        if length > self.config.max_position_embeddings:
            raise UserError(
                f"The text is {length} tokens long, but this model's context is "
                f"{self.config.max_position_embeddings}; shorten the text."
            )
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(
                f"attention_mask has {attention_mask.dim()} axes; give one of [batch, position], which says "
                "what is padding."
            )
        if attention_mask is not None and attention_mask.shape[-1] < length:
            raise ValueError(
                f"attention_mask covers {attention_mask.shape[-1]} positions, but the cache and the new tokens are "
                f"{length}; it must cover the cached positions too."
            )
        if not past:
            _require_one_document(position_ids, attention_mask)
        slots = torch.arange(past, length, device=x.device)
        positions = position_ids if position_ids is not None else _positions(slots, attention_mask, x.shape[0])
        turn = self._rotation(positions, x.dtype)
        if self.config.position_type == "learned":
            self._require_positions(position_ids)
            x = x + self.embed_positions(positions)
        windows = self.config.windows
        sights = self._sights(set(windows), slots, length, attention_mask)
        streams = [x] if output_hidden_states else None
        patterns: list[Attention | None] | None = [] if output_attentions else None
        between = self._between_layers()
        for layer, block in enumerate(self.layers):
            sight = sights[windows[layer]]
            if cache is not None:
                sight = _last_keys(sight, windows[layer], past)
            x = block(x, turn, sight, cache, patterns, **between)
            if streams is not None:
                streams.append(x)
        x = self.norm(x)
        if streams is not None:
            streams[-1] = x
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=tuple(streams) if streams is not None else None,
            attentions=tuple(patterns) if patterns is not None else None,  # type: ignore[arg-type]
        )

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            if given is not None and given.get_seq_length():
                raise UserError(
                    "Gradient checkpointing runs layers again, which a cache would see twice; train without the tokens "
                    "that are cached, or without gradient checkpointing."
                )
            if given is not None or use_cache:
                _say_once("Gradient checkpointing runs layers again, which a cache would see twice: there is no cache.")
            return None
        if given is not None:
            return fit_cache(given, self.config)
        wanted = self.config.use_cache and not self.training if use_cache is None else use_cache
        return new_cache(self.config) if wanted else None

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        if self.config.position_type != "rotary":
            return None
        config = self.config
        return rotation(positions, config.rotary_width, config.rotary_base, dtype, config.rotary_scaling)

    def _sights(
        self, windows: set[int | None], slots: Tensor, length: int, padding: Tensor | None
    ) -> dict[int | None, Sight]:
        """What the queries in `slots` see, by window: a rule, and with padding a mask over all slots so far."""
        if padding is not None and not torch.compiler.is_compiling() and bool(padding.all()):
            padding = None
        allowed = None
        if padding is not None:
            keys = torch.arange(length, device=slots.device)
            allowed = attention_mask(slots, keys, padding=padding)
        return {w: Sight(window=w, allowed=allowed) for w in windows}


def _require_one_document(positions: Tensor | None, padding: Tensor | None) -> None:
    """Refuse positions that start again within a row, as of packed documents: their tokens would see each other."""
    if positions is None or torch.compiler.is_compiling() or positions.shape[-1] < 2:
        return
    again = positions[..., 1:] < positions[..., :-1]
    if padding is not None:  # positions of padding are anything
        real = padding[:, : positions.shape[-1]].bool()
        again = again & real[:, 1:] & real[:, :-1]
    if bool(again.any()):
        raise UserError(
            "position_ids start again within a row, as where documents are packed into one, and here each would see "
            "those before it; give every document a row of its own, with an attention_mask for the padding."
        )


@cache
def _say_once(sentence: str) -> None:
    log.warning(sentence)


def _last_keys(sight: Sight, window: int | None, past: int) -> Sight:
    """`sight` over the keys that a local layer's cache still holds."""
    if window is None or sight.allowed is None:
        return sight
    return replace(sight, allowed=sight.allowed[..., past - min(past, window - 1) :])


def _positions(slots: Tensor, padding: Tensor | None, batch: int) -> Tensor:
    """Positions of the new slots; with padding on the left, the first real token has position 0."""
    if padding is None or padding.dim() != 2:
        return slots[None].expand(batch, -1)
    return (padding.long().cumsum(-1) - 1).clamp(min=0)[:, slots]


class DCFormerForCausalLM(DCFormerPreTrainedModel, GenerationMixin):
    """The decoder with an unembedding: a causal language model for `transformers`."""

    _tied_weights_keys: dict[str, str] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: DCFormerConfig) -> None:
        super().__init__(config)
        self.model = DCFormerModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> Any:
        """As in transformers, with layers that know our windows from the start (rolling back needs them then).

        Raises:
            ValueError: a kind of cache is asked for that has no room for the key side of the composition.
        """
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", "dynamic_full"):
            raise ValueError(
                f"cache_implementation {kind!r} has no room for what composition caches beside keys and values; leave "
                "it out."
            )
        returned = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # type: ignore[misc]
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, Cache) and cache.get_seq_length() == 0:
            fit_cache(cache, self.config)
            if generation_config.is_assistant:
                cache.activate_past_recording()
        return returned

    def _extra_loss(self, stream: Residual, labels: Tensor, padding: Tensor | None, items: Any) -> Tensor | float:
        """What composers add to the loss in training; of a part of a batch, by its share of the scored tokens.

        Without an attention mask, what lies behind the last scored token of a row counts as padding.
        """

        def counted() -> Tensor | None:
            if padding is not None and padding.shape == stream.shape[:2]:
                return padding.bool()
            return (labels != -100).flip(1).cumsum(1).flip(1) > 0 if labels.shape == stream.shape[:2] else None

        extra = take_extra_loss(self.model, counted) if self.training else None
        if extra is None:
            return 0.0
        return extra if items is None else extra * (labels[:, 1:] != -100).sum() / items

    @can_return_tuple
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, pos, vocab], and with `labels` (-100 = not scored) the mean next-token loss in nats."""
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=kwargs.pop("output_attentions", None),
            output_hidden_states=kwargs.pop("output_hidden_states", None),
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.vocab_size,
                **{name: kwargs[name] for name in ("num_items_in_batch",) if name in kwargs},
            )
            loss = loss + self._extra_loss(
                output.last_hidden_state, labels, attention_mask, kwargs.get("num_items_in_batch")
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


def register() -> None:
    """Make AutoConfig, AutoModel and AutoModelForCausalLM find our models; safe to call again."""
    AutoConfig.register(DCFormerConfig.model_type, DCFormerConfig, exist_ok=True)
    AutoModel.register(DCFormerConfig, DCFormerModel, exist_ok=True)
    AutoModelForCausalLM.register(DCFormerConfig, DCFormerForCausalLM, exist_ok=True)


register()
