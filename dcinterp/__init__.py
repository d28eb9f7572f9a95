"""dcinterp: a workbench for looking inside DCFormer, whose attention heads are composed on the fly.

    import dcinterp

    model = dcinterp.load("dcformer++")
    scores = dcinterp.attribute_heads(model, "...", target="fruit", foil="animal")
    terms = dcinterp.compose_breakdown(model, "...", layer=1, query=-1, key=7)
    dcinterp.figures.plot(scores)

Names are imported when they are first used, so that `import dcinterp` loads neither torch nor plotly.
"""

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "dcinterp.loading",
    "shipped_models": "dcinterp.loading",
    "DCFormerConfig": "dcinterp.model.config",
    "DCFormerForCausalLM": "dcinterp.model.decoder",
    "DCViTConfig": "dcinterp.model.config",
    "DCViTForImageClassification": "dcinterp.model.vit",
    "presets": "dcinterp.model.presets",
    "read_model": "dcinterp.loading",
    "verify": "dcinterp.verification",
    "describe": "dcinterp.description",
    "list_hooks": "dcinterp.hook_reference",
    "composed_attention": "dcinterp.model.kernels",
    "predict": "dcinterp.analysis.prediction",
    "attribute_heads": "dcinterp.analysis.head_attribution",
    "attribute_edges": "dcinterp.analysis.edge_attribution",
    "attribute_edges_over": "dcinterp.analysis.edge_attribution_set",
    "intervene": "dcinterp.analysis.intervention_effect",
    "calibrate": "dcinterp.analysis.calibration",
    "attribute_heads_over": "dcinterp.analysis.head_attribution_set",
    "compose_breakdown": "dcinterp.analysis.compose_breakdown",
    "composition_map": "dcinterp.analysis.composition_map",
    "mean_composition_map": "dcinterp.analysis.mean_composition_map",
    "static_composition_map": "dcinterp.analysis.composition_map",
    "composition_importance": "dcinterp.analysis.composition_importance",
    "attention_rows": "dcinterp.analysis.attention_rows",
    "case_study": "dcinterp.story.study",
    "load_result": "dcinterp.analysis.result",
    "replay": "dcinterp.reproduction",
    "training_curves": "dcinterp.analysis.training_curves",
    "loss_curves": "dcinterp.analysis.loss_curves",
    "training_strengths": "dcinterp.analysis.training_watch",
    "training_diversity": "dcinterp.analysis.training_watch",
    "scaling_fit": "dcinterp.analysis.scaling_fit",
    "ov_top_tokens": "dcinterp.analysis.ov_circuit",
    "ov_transformations": "dcinterp.analysis.ov_transformations",
    "head_diversity": "dcinterp.analysis.head_diversity",
    "compare_head_diversity": "dcinterp.analysis.head_diversity",
    "branch_ablation": "dcinterp.analysis.branch_ablation",
    "attention_patterns": "dcinterp.analysis.attention_patterns",
    "task_accuracy": "dcinterp.analysis.task_accuracy",
    "method_benchmark": "dcinterp.method_trials",
    "plant": "dcinterp.planted",
    "UserError": "dcinterp.errors",
}

__all__ = ["__version__", "figures", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module("dcinterp.figures")
    if name not in _HOMES:
        raise AttributeError(f"module 'dcinterp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


if "transformers" in sys.modules:
    # Whoever works with transformers expects its Auto classes to know our models from now on.
    import_module("dcinterp.model.decoder")


def __dir__() -> list[str]:
    return __all__
