"""The paper's models by name: parameter counts that fit the names, recipes, and no memory taken."""

import resource

import pytest
import torch

from dcinterp.model.build import build_model, count_parameters
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.presets import family, preset, presets
from dcinterp.support.errors import UserError

SIZES = {"m": 1e6, "b": 1e9}
PAPER = [name for name in presets() if name.rsplit("-", 1)[-1][-1] in SIZES and not name.startswith("tiny")]


@pytest.mark.parametrize("name", PAPER)
def test_the_count_fits_the_name(name: str) -> None:
    size = name.rsplit("-", 1)[-1]
    stated = float(size[:-1]) * SIZES[size[-1]]
    count = count_parameters(DCFormerConfig.preset(name))
    # DC models carry the composition on top of the size they are named after; names are rounded.
    assert 0.97 * stated < count < 1.06 * stated


def test_the_image_models_are_the_size_of_the_paper() -> None:
    assert count_parameters(DCFormerConfig.preset("vit-s/16")) == pytest.approx(22e6, rel=0.02)
    assert count_parameters(DCFormerConfig.preset("vit-m/16")) == pytest.approx(39e6, rel=0.02)


def test_every_paper_size_is_there() -> None:
    expected = {
        f"{m}-{s}" for m in ("transformer", "transformer++", "dcformer", "dcformer++") for s in ("405m", "834m", "1.4b")
    }
    expected |= {f"{m}-{s}" for m in ("pythia", "dcpythia") for s in ("2.8b", "6.9b")}
    expected |= {f"dcformer++-{s}" for s in ("2.8b", "6.9b", "13b", "33b")}
    expected |= {f"{m}-{s}" for m in ("vit", "dcvit") for s in ("s/16", "m/16")}
    assert expected <= set(presets())


def test_33b_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        model = build_model(DCFormerConfig.preset("dcformer++-33b"))
    assert sum(p.numel() for p in model.parameters()) > 3.2e10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


@pytest.mark.parametrize("size", ["405m", "834m", "1.4b"])
def test_the_recipe_of_the_paper(size: str) -> None:
    rates, tokens = dict(zip(("405m", "834m", "1.4b"), (3e-4, 2.5e-4, 2e-4), strict=True)), (7e9, 15e9, 26e9)
    training = preset(f"dcformer++-{size}").training
    assert training["learning_rate"] == rates[size]
    assert training["tokens"] in tokens
    assert (training["betas"], training["gradient_clipping"], training["weight_decay"]) == ((0.9, 0.95), 1.0, 0.1)
    assert (training["warmup_fraction"], training["final_learning_rate_fraction"]) == (0.01, 0.1)


def test_the_families_differ_as_the_paper_says() -> None:
    config = DCFormerConfig.preset("dcpythia-2.8b")
    assert (config.norm_type, config.mlp_type, config.rotary_fraction) == ("layernorm", "gelu", 0.25)
    assert config.use_parallel_residual
    assert config.use_qk_norm
    assert config.use_bias
    assert config.attention_windows == (256, None)
    baseline = DCFormerConfig.preset("transformer++-405m")
    assert (baseline.norm_type, baseline.mlp_type, baseline.use_bias) == ("rmsnorm", "swiglu", False)
    assert baseline.attention_windows == (None,), "the paper's baselines attend globally"
    assert family("dcformer")["position_type"] == "learned"


def test_a_preset_takes_changes_and_any_case() -> None:
    config = DCFormerConfig.preset("DCFormer++-405M", num_hidden_layers=2)
    assert config.num_hidden_layers == 2
    assert isinstance(DCFormerConfig.preset("tiny-dcvit"), DCViTConfig)
    with pytest.raises(UserError, match=r"no preset 'dcformer\+\+-400m'; did you mean dcformer\+\+-405m"):
        preset("dcformer++-400m")


def test_presets_on_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dcinterp.cli.presets import command
    from dcinterp.model import presets as table

    tiny = {name: each for name, each in table.presets().items() if name.startswith("tiny")}
    monkeypatch.setattr(table, "presets", lambda: tiny)
    command(None)
    shown = capsys.readouterr().out
    assert all(name in shown for name in tiny)
    command("tiny-dcformer++")
    assert '"parameters": 13' in capsys.readouterr().out


def test_another_way_of_composing_leaves_out_what_the_presets_own_one_takes():
    assert DCFormerConfig.preset("tiny-gated", compose="none").stages == ()
    assert DCFormerConfig.preset("tiny-fish", compose="gated").stages == ("post",)
    with pytest.raises(UserError, match=r"id2label is .*; it must have a name for every number"):
        DCFormerConfig(id2label=["cat", "dog"])
