"""Talking heads as timm has them in CaiT: scores and weights mixed by a linear map with a bias.

timm is no dependency of the tests: where it is installed (`pip install --no-deps timm`) this runs, else it is skipped.
Only the attention class is taken out of its file, because the package itself needs torchvision.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from dcinterp.model.attention import ComposedAttention
from dcinterp.model.config import DCFormerConfig

WIDTH, HEADS = 24, 4


@pytest.fixture(scope="module")
def talking_head_attention() -> Callable[..., torch.nn.Module]:
    spec = find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    source = (Path(spec.origin).parent / "models/cait.py").read_text(encoding="utf-8")
    found = next(x for x in ast.parse(source).body if isinstance(x, ast.ClassDef) and x.name == "TalkingHeadAttn")
    names: dict[str, Any] = {"nn": torch.nn, "torch": torch}
    exec(compile(ast.Module([found], type_ignores=[]), "cait.py", "exec"), names)
    made: Callable[..., torch.nn.Module] = names["TalkingHeadAttn"]
    return made


@torch.no_grad()
@pytest.mark.parametrize("output_attentions", [False, True], ids=["fast", "stage by stage"])
def test_it_is_the_attention_of_cait(talking_head_attention: Any, output_attentions: bool) -> None:
    torch.manual_seed(0)
    theirs = talking_head_attention(WIDTH, HEADS, qkv_bias=True).double()
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    config = DCFormerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        use_bias=True,
        position_type="learned",
        compose="static",
        compose_skip=False,
        compose_options={"bias": True},
    )
    ours = ComposedAttention(config, 0).double()
    for own, (weight, bias) in zip(
        (ours.q_proj, ours.k_proj, ours.v_proj),
        zip(theirs.qkv.weight.chunk(3), theirs.qkv.bias.chunk(3), strict=True),
        strict=True,
    ):
        own.weight.copy_(weight)
        own.bias.copy_(bias)
    ours.o_proj.load_state_dict(theirs.proj.state_dict())
    for stage, proj in ((ours.pre, theirs.proj_l), (ours.post, theirs.proj_w)):
        stage.static.weight.copy_(proj.weight.T[None])
        stage.bias.copy_(proj.bias)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(ours(x, output_attentions=output_attentions)[0], theirs(x), atol=1e-10, rtol=0)
