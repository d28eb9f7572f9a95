"""Theorems 1 and 2 and the complexity formulas."""

import pytest
import torch

from dcinterp.mechanism.theory import expand_ov, expand_qk
from dcinterp.model.complexity import analytic_overhead, counted_overhead
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.presets import presets
from dcinterp.support.errors import UserError

BATCH, HEADS, QUERIES, KEYS, WIDTH, D = 2, 3, 5, 7, 24, 4


@pytest.fixture
def draw():
    g = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


def test_theorem_1_composed_scores_are_expanded_projections(draw) -> None:
    w_q, w_k, head_map = draw(HEADS, WIDTH, D), draw(HEADS, WIDTH, D), draw(HEADS, HEADS)
    x_q, x_k = draw(BATCH, QUERIES, WIDTH), draw(BATCH, KEYS, WIDTH)
    scores = torch.einsum("btm,hmd,bsn,hnd->bhts", x_q, w_q, x_k, w_k)
    composed = torch.einsum("bfts,fo->bots", scores, head_map)
    wide_q, wide_k = expand_qk(w_q, w_k, head_map)
    assert wide_q.shape == (HEADS, WIDTH, HEADS * D)
    assert wide_k.shape == (WIDTH, HEADS * D)
    plain = torch.einsum("btm,hmd,bsn,nd->bhts", x_q, wide_q, x_k, wide_k)
    torch.testing.assert_close(plain, composed, atol=1e-10, rtol=1e-12)
    assert torch.linalg.matrix_rank(w_q[0] @ w_k[0].T) == D
    assert torch.linalg.matrix_rank(wide_q[0] @ wide_k.T) == HEADS * D, "what composition gains: rank"


def test_theorem_2_composed_weights_are_expanded_projections(draw) -> None:
    w_v, w_o, head_map = draw(HEADS, WIDTH, D), draw(HEADS, D, WIDTH), draw(HEADS, HEADS)
    weights, x = draw(BATCH, HEADS, QUERIES, KEYS).softmax(-1), draw(BATCH, KEYS, WIDTH)
    composed = torch.einsum("bfts,fo->bots", weights, head_map)
    output = torch.einsum("bhts,bsm,hmd,hdn->btn", composed, x, w_v, w_o)
    wide_v, wide_o = expand_ov(w_v, w_o, head_map)
    assert wide_v.shape == (HEADS, WIDTH, HEADS * D)
    assert wide_o.shape == (HEADS * D, WIDTH)
    plain = torch.einsum("bhts,bsm,hme,en->btn", weights, x, wide_v, wide_o)
    torch.testing.assert_close(plain, output, atol=1e-10, rtol=1e-12)


def test_the_theorems_on_two_heads_by_hand() -> None:
    w_q = torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]])  # head 0 reads the first number, head 1 the second
    head_map = torch.tensor([[1.0, 0.0], [2.0, 1.0]])  # head 1 shares its scores with head 0, twice
    wide_q, wide_k = expand_qk(w_q, w_q, head_map)
    assert wide_q[0].tolist() == [[1, 0], [0, 2]]
    assert wide_q[1].tolist() == [[0, 0], [0, 1]]
    assert wide_k.tolist() == [[1, 0], [0, 1]]
    wide_v, _ = expand_ov(w_q, w_q.transpose(1, 2), head_map)
    assert wide_v[1].tolist() == [[2, 0], [0, 1]]


@pytest.mark.parametrize("name", [n for n in presets() if n.startswith(("dcformer", "dcpythia", "dcvit", "tiny-dc"))])
def test_the_formulas_agree_with_counting(name: str) -> None:
    config = DCFormerConfig.preset(name)
    formula, counted = analytic_overhead(config, 128), counted_overhead(config, 128)
    # The formulas take the MLP for 8 D^2; SwiGLU widths are rounded up by a few per cent.
    assert counted.parameters == pytest.approx(formula.parameters, rel=0.03)
    assert counted.flops == pytest.approx(formula.flops, rel=0.03)


@pytest.mark.parametrize(
    "changes",
    [
        dict(compose_stages=("pre",)),
        dict(compose_key_wise=False),
        dict(compose_gate=False),
        dict(compose_projection=False),
        dict(compose_rank=4),
        dict(compose_rank=1),
        dict(compose_groups=16),
        dict(compose_groups=16, compose_rank=1),
        dict(compose_static=True),
        dict(compose="static"),
        dict(compose="multi-token", compose_options={"queries": 1, "keys": 1}),
    ],
)
def test_the_formulas_know_the_ablations(changes: dict) -> None:
    config = DCFormerConfig.preset("dcformer-405m", **changes)
    formula, counted = analytic_overhead(config, 256), counted_overhead(config, 256)
    assert counted.parameters == pytest.approx(formula.parameters, rel=0.01)
    assert counted.flops == pytest.approx(formula.flops, rel=0.01)


def test_the_published_size_of_the_overhead() -> None:
    """(2R + 1 + 4R^2/d) / (3d) at rank 2 and heads of 64: 2.7 % more parameters."""
    config = DCFormerConfig.preset("dcformer-405m")
    assert analytic_overhead(config, 2048).parameters == pytest.approx((2 * 2 + 1 + 16 / 64) / (3 * 64))


def test_complexity_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from dcinterp.cli.complexity import command

    command(["dcformer-405m"], keys=2048, markdown=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| preset | keys |")
    assert lines[2:] == ["| dcformer-405m | 2048 | 2.73 % | 2.73 % | 5.96 % | 5.96 % |"]
    command(["dcformer++-33b"])
    assert "dcformer++-33b" in capsys.readouterr().out
    with pytest.raises(UserError, match="transformer-405m composes no heads"):
        command(["dcformer-405m", "transformer-405m"])


def test_a_model_card_is_written_once(tmp_path) -> None:
    from dcinterp.model.build import build_model

    config = DCFormerConfig.preset("tiny-dcformer++", vocab_size=20)
    model = build_model(config)
    model.save_pretrained(tmp_path / "small")
    card = (tmp_path / "small" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert f"{model.num_parameters():,} parameters" in card
    assert "composed for every pair of positions" in card
    (tmp_path / "small" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "small")
    assert (tmp_path / "small" / "README.md").read_text() == "mine"
    build_model(DCFormerConfig.preset("tiny-vit")).save_pretrained(tmp_path / "vit")
    assert "image-classification" in (tmp_path / "vit" / "README.md").read_text()
