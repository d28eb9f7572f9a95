"""Where TransformerLens finds the parts of our image classifiers."""

from __future__ import annotations

from typing import Any

from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.generalized_components.vision_classifier_head import VisionClassifierHeadBridge

from dcinterp.bridge.adapter import DCFormerAdapter
from dcinterp.model.config import DCFormerConfig


class DCViTAdapter(DCFormerAdapter):
    """The same for the image classifiers. They have no unembedding, so weights cannot be folded for text tools."""

    supports_generation = False
    supports_compatibility_mode = False

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.is_visual_model = True

    def _mapping(self, config: DCFormerConfig) -> dict[str, Any]:
        return {
            "embed": GeneralizedComponent("model.embeddings", config=self.cfg),
            "blocks": self._blocks(config),
            "ln_final": self._norm(config, "model.norm"),
            "classifier_head": VisionClassifierHeadBridge(name="classifier", config=self.cfg),
        }
