"""The bridge to TransformerLens; see dcinterp.bridge.dcbridge."""

from dcinterp.bridge.dcbridge import (
    ComposeBridge,
    CompositionWarning,
    DCActivationCache,
    DCAttentionBridge,
    DCBridge,
    DCFormerAdapter,
    DCViTAdapter,
    TransformerBridge,
    boot,
    existing_taps,
    wrap,
)

__all__ = [
    "ComposeBridge",
    "CompositionWarning",
    "DCActivationCache",
    "DCAttentionBridge",
    "DCBridge",
    "DCFormerAdapter",
    "DCViTAdapter",
    "TransformerBridge",
    "boot",
    "existing_taps",
    "wrap",
]
