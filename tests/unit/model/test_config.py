"""Configurations that cannot work say so in one sentence that names the field and the way out."""

import json

import pytest

from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError

WRONG = {
    "heads": (dict(hidden_size=100, num_attention_heads=3), "3 heads do not divide the width 100"),
    "unknown": (dict(compose_rnak=2), "no field 'compose_rnak'. Did you mean compose_rank"),
    "norm": (dict(norm_type="batchnorm"), "norm_type is 'batchnorm'; choose one of rmsnorm, layernorm"),
    "compose": (dict(compose="dynamite"), "compose is 'dynamite'; choose one of "),
    "stage": (dict(compose_stages=("mid",)), "compose_stages has 'mid'; choose from 'pre' and 'post'"),
    "rank": (dict(compose_rank=0), "compose_rank is 0; it must be a whole number of at least 1"),
    "groups": (dict(num_attention_heads=8, compose_groups=3), "8 heads do not divide into 3 composition groups"),
    "window": (dict(attention_windows=(0,)), "attention_windows has 0; each entry is a number of keys >= 1, or None"),
    "windows": (dict(attention_windows=()), "attention_windows is empty; use (None,)"),
    "gates": (
        dict(intermediate_size=352, mlp_gate_groups=5),
        "intermediate_size 352 does not divide into 5 gate groups",
    ),
    "shared heads": (dict(num_key_value_heads=3), "num_key_value_heads is 3; choose a divisor of the 8 query heads"),
    "no shared heads": (dict(num_key_value_heads=0), "num_key_value_heads is 0; choose a divisor of the 8"),
    "head width": (dict(head_dim=0), "head_dim is 0; it must be a whole number of at least 1"),
    "scaling": (dict(rotary_scaling={"rope_type": "longrope"}), "rope_type 'longrope'; this decoder scales rotary"),
    "scaling fields": (dict(rotary_scaling={"rope_type": "linear"}), "'linear' has or lacks 'factor'; its fields are"),
    "yarn": (
        dict(
            rotary_base=1.0,
            rotary_scaling=dict(
                rope_type="yarn",
                factor=2.0,
                original_max_position_embeddings=64,
                beta_fast=32.0,
                beta_slow=1.0,
                attention_factor=1.0,
                truncate=True,
            ),
        ),
        "rotary_base is 1, and yarn stretches angles by its logarithm",
    ),
    "balance": (
        dict(compose="mixture-of-heads", compose_options={"load_balance": float("nan")}),
        "'load_balance' = nan; it weighs a loss",
    ),
    "norm of no stage": (
        dict(compose="multi-token", compose_stages=("pre",), compose_options={"norm": True}),
        "'norm', which follows the stage post",
    ),
    "rotary": (dict(hidden_size=24, num_attention_heads=8), "rotary positions turn pairs of channels"),
    "size": (dict(vocab_size=-1), "vocab_size is -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_named_with_a_remedy(case: str) -> None:
    fields, message = WRONG[case]
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        DCFormerConfig(**fields)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no preset 'tiny-dcfromer\+\+'; did you mean tiny-dcformer\+\+"):
        DCFormerConfig.preset("tiny-dcfromer++")


def test_a_config_survives_json() -> None:
    config = DCFormerConfig(attention_windows=(256, None), compose_stages=("post",))
    again = DCFormerConfig.from_dict(json.loads(config.to_json_string()))
    assert again.to_dict() == config.to_dict()
    assert again.attention_windows == (256, None)
    assert [again.window(layer) for layer in range(4)] == [256, None, 256, None]


def test_a_window_may_include_its_edge() -> None:
    assert DCFormerConfig(attention_windows=(16,), window_includes_edge=True).window(0) == 17


def test_stages_follow_the_order_of_computation() -> None:
    assert DCFormerConfig(compose_stages=("post", "pre")).stages == ("pre", "post")
    assert DCFormerConfig(compose="none").stages == ()


def test_fields_of_other_tools_are_no_error():
    config = DCFormerConfig(tokenizer_class="T", sep_token_id=None, quantization_config=None, task_specific_params={})
    assert config.hidden_size == DCFormerConfig().hidden_size
    with pytest.raises(UserError, match="no field 'quantization_config'"):
        DCFormerConfig(quantization_config={"bits": 4})
