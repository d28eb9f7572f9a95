"""Direct logit attribution: parts and gap sum to the logit difference in every family, and a part is what it says."""

from __future__ import annotations

import pytest
import torch
from transformer_lens.tools import analysis

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.support.errors import UserError

IDS = [3, 4, 5, 6, 7, 3]
FAMILIES = {
    "RMSNorm, composed": ("tiny-dcformer++", {}),
    "grouped-query": ("tiny-dcformer++", {"num_key_value_heads": 2}),
    "LayerNorm, positions": ("tiny-dcformer", {}),
    "parallel": ("tiny-dcpythia", {}),
    "not composed": ("tiny-transformer++", {}),
    "gated heads": ("tiny-gated", {}),
    "normed heads": ("tiny-differential", {}),
}


def exact(parts, tolerance):
    total = sum(parts.parts().values())
    assert total + parts.gap == pytest.approx(parts.metric, abs=1e-6)  # parts are kept in float32
    assert abs(parts.gap) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_and_gap_sum_to_the_logit_difference(model, family):
    preset, changes = FAMILIES[family]
    bridge = wrap(model(preset, **changes))
    logits = bridge(torch.tensor([IDS]))[0].detach()
    for foil, metric in ((11, logits[-1, 8] - logits[-1, 11]), (None, logits[-1, 8])):
        parts = dcinterp.direct_logit_attribution(bridge, IDS, 8, foil)
        assert parts.metric == pytest.approx(float(metric))
        exact(parts, 1e-12)
    assert bool(parts.attention_bias.any()) == (family in ("LayerNorm, positions", "parallel"))
    assert bool(parts.position_embedding) == (family == "LayerNorm, positions")
    early = dcinterp.direct_logit_attribution(bridge, IDS, 8, 11, at=2)
    assert early.metric == pytest.approx(float(logits[2, 8] - logits[2, 11]))
    exact(early, 1e-12)


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_other_peoples_models(foreign, family):
    bridge = foreign(family)
    parts = dcinterp.direct_logit_attribution(bridge, [5, 6, 7], 8, 11)
    exact(parts, 1e-5)
    assert not [sentence for sentence in parts.warnings() if "miss" in sentence]


def test_a_norm_behind_attention_and_capped_logits(tmp_path):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"vocab_size": 29, "max_position_embeddings": 40, "num_key_value_heads": 2, "head_dim": 8}
    for cap in (None, 0.5):
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=cap))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(std=0.5 if "norm" in name else 0.2)
        model.save_pretrained(tmp_path / str(cap))
        parts = dcinterp.direct_logit_attribution(dcinterp.load(tmp_path / str(cap)), IDS, 8, 11)
        if cap is None:
            exact(parts, 1e-4)
        else:
            assert abs(parts.gap) > 0.1
            assert "changes its logits after the unembedding" in parts.warnings()[-1]


@pytest.mark.parametrize("preset", ["tiny-dcpythia"])
def test_folded_it_is_what_transformer_lens_says(model, preset):
    raw, folded = (wrap(model(preset, dtype=torch.float32)) for _ in range(2))
    folded.enable_compatibility_mode(disable_warnings=True)
    theirs = analysis.direct_logit_attribution(
        folded, torch.tensor([IDS]), answer_tokens=8, incorrect_tokens=11, unit="head"
    )
    named = dict(zip(theirs.labels, theirs.attribution[:, 0].tolist(), strict=True))
    for bridge in (raw, folded):
        parts = dcinterp.direct_logit_attribution(bridge, IDS, 8, 11)
        for layer in range(2):
            for head in range(4):
                assert float(parts.heads[layer, head]) == pytest.approx(named[f"L{layer}H{head}"], abs=1e-5)


@pytest.mark.parametrize("preset", ["tiny-dcpythia", "tiny-gated"])
def test_without_a_head_its_part_is_gone_when_the_norm_keeps_its_scale(model, preset):
    """In the last layer nothing but the norm (and, in sequential blocks, the MLP) answers the loss of a head."""
    bridge = wrap(model(preset))
    ids = torch.tensor([IDS])
    parts = dcinterp.direct_logit_attribution(bridge, IDS, 8, 11)
    _, cache = bridge.run_with_cache(ids)

    def without(z, hook):
        z = z.clone()
        z[:, :, 2] = 0
        return z

    def same(out, hook):
        return cache[hook.name]

    def rescaled(x, hook):
        """What the norm gives, as if it had divided by the scale of the untouched run."""
        own = bridge.ln_final.original_component
        centre = x.mean(-1, keepdim=True) if preset == "tiny-dcpythia" else 0
        before = cache["blocks.1.hook_resid_post"]
        norm = getattr(own, "eps", 0) or getattr(own, "variance_epsilon", 0)
        wide = before - (before.mean(-1, keepdim=True) if preset == "tiny-dcpythia" else 0)
        scale = (wide.pow(2).mean(-1, keepdim=True) + norm).sqrt()
        bias = getattr(own, "bias", None)
        kept["out"] = (x - centre) / scale * own.weight + (0 if bias is None else bias)

    kept = {}
    hooks = [
        ("blocks.1.attn.hook_z", without),
        ("blocks.1.hook_mlp_out", same),
        ("blocks.1.hook_resid_post", rescaled),
        ("ln_final.hook_out", lambda out, hook: kept["out"]),
    ]
    with torch.no_grad():
        changed = bridge.run_with_hooks(ids, fwd_hooks=hooks)[0, -1]
    lost = parts.metric - float(changed[8] - changed[11])
    assert lost == pytest.approx(float(parts.heads[1, 2]), abs=1e-6)
    assert abs(lost) > 1e-3


def test_an_answer_of_several_tokens(foreign):
    bridge = foreign("llama")
    target, foil = "blueberries", "jeans"
    parts = dcinterp.direct_logit_attribution(bridge, "Ruth has", target, foil)
    exact(parts, 1e-4)
    alone = dcinterp.direct_logit_attribution(bridge, "Ruth has", target)
    exact(alone, 1e-4)
    assert len(alone.tokens) > len(dcinterp.predict(bridge, "Ruth has").tokens)


def test_images_are_refused():
    from dcinterp.model.build import build_model
    from dcinterp.model.config import DCFormerConfig

    vit = build_model(DCFormerConfig.preset("tiny-dcvit")).eval()
    with pytest.raises(UserError, match="this model reads images"):
        dcinterp.direct_logit_attribution(wrap(vit), IDS, 3)
