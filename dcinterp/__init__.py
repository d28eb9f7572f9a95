"""dcinterp: a workbench for looking inside DCFormer, whose attention heads are composed on the fly.

    import dcinterp

    model = dcinterp.load("dcformer++")
    scores = dcinterp.attribute_heads(model, "...", target="fruit", foil="animal")
    terms = dcinterp.compose_breakdown(model, "...", layer=1, query=-1, key=7)
    dcinterp.figures.plot(scores)

Names are imported when they are first used, so that `import dcinterp` loads neither torch nor plotly.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"

_LIBRARY = {
    "load": "dcinterp.checkpoints.load",
    "read_model": "dcinterp.checkpoints.read",
    "shipped_models": "dcinterp.checkpoints.names",
    "compose": "dcinterp.checkpoints.composition",
    "describe": "dcinterp.checkpoints.describe",
    "verify": "dcinterp.checkpoints.verify",
    "list_hooks": "dcinterp.bridge.hook_catalogue",
    "DCFormerConfig": "dcinterp.model.config",
    "DCFormerForCausalLM": "dcinterp.model.decoder",
    "DCViTConfig": "dcinterp.model.config",
    "DCViTForImageClassification": "dcinterp.model.vit",
    "presets": "dcinterp.model.presets",
    "composed_attention": "dcinterp.model.kernels",
    "ComposeWeights": "dcinterp.model.kernels",
    "load_result": "dcinterp.results.result",
    "replay": "dcinterp.results.replay",
    "plant": "dcinterp.planted",
    "UserError": "dcinterp.support.errors",
}
"""Public names that are no analyses; those are found in their files (see dcinterp.results.catalogue)."""


def _homes() -> dict[str, str]:
    from dcinterp.results.catalogue import homes

    return _LIBRARY | homes()


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module("dcinterp.figures")
    if name == "__all__":
        return ["__version__", "figures", *sorted(_homes())]
    home = _LIBRARY.get(name) or (None if name.startswith("_") else _homes().get(name))
    if home is None:
        raise AttributeError(f"module 'dcinterp' has no attribute {name!r}")
    return getattr(import_module(home), name)


# Whoever works with transformers expects its Auto classes to know our models, whichever of the two came first.
import_module("dcinterp.model.auto_classes").register_lazily()


def __dir__() -> list[str]:
    return __getattr__("__all__")
