"""The whole decoder against its equations, and its life as a transformers model."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

Build = Callable[..., DCFormerForCausalLM]


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def compose(a: Tensor, x: Tensor, p: dict[str, Tensor], stage: str) -> Tensor:
    total = a
    for side, move in (
        ("query", lambda w: w.transpose(1, 2)[..., None]),
        ("key", lambda w: w.transpose(1, 2)[:, :, None]),
    ):
        u = x @ p[f"{stage}.{side}.down.weight"].T
        w = (u * 0.5 * (1 + torch.erf(u / math.sqrt(2)))) @ p[f"{stage}.{side}.up"][0]
        w1, w2 = w.view(*x.shape[:2], 2, 2, -1).unbind(2)
        for r in range(2):
            total = total + move(w2[:, :, r]) * (move(rms(w1)[:, :, r]) * a).sum(1, keepdim=True)
        total = total + move(torch.tanh(x @ p[f"{stage}.{side}.gate.weight"].T)) * a
    return total


def turn(x: Tensor) -> Tensor:
    """Rotary positions as complex numbers: channel i and channel i + d/2 are real and imaginary part."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1)


def dcformer_plus_plus(ids: Tensor, p: dict[str, Tensor], heads: int, windows: tuple[int | None, ...]) -> Tensor:
    x = p["model.embed_tokens.weight"][ids]
    batch, length, width = x.shape
    ahead = torch.arange(length)[:, None] - torch.arange(length)
    for layer, window in enumerate(windows):
        at = {k.removeprefix(f"model.layers.{layer}."): v for k, v in p.items()}
        n = rms(x) * at["input_layernorm.weight"]
        own = {k.removeprefix("self_attn."): v for k, v in at.items()}
        q, k, v = ((n @ own[f"{m}_proj.weight"].T).view(batch, length, heads, -1).transpose(1, 2) for m in "qkv")
        a = compose(turn(q) @ turn(k).transpose(-1, -2) / math.sqrt(width / heads), n, own, "pre")
        hidden = (ahead < 0) | (ahead >= (window or length))
        a = compose(a.masked_fill(hidden, -torch.inf).softmax(-1), n, own, "post")
        x = x + (a @ v).transpose(1, 2).flatten(2) @ own["o_proj.weight"].T
        n = rms(x) * at["post_attention_layernorm.weight"]
        gate = n @ at["mlp.gate_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (n @ at["mlp.up_proj.weight"].T)) @ at["mlp.down_proj.weight"].T
    return rms(x) * p["model.norm.weight"] @ p["lm_head.weight"].T


@pytest.mark.parametrize("windows", [(None, None), (3, None)])
def test_logits_are_the_equations(model: Build, windows: tuple[int | None, ...]) -> None:
    built = model(attention_windows=windows)
    ids = torch.randint(0, 29, (2, 7), generator=torch.Generator().manual_seed(3))
    expected = dcformer_plus_plus(ids, dict(built.state_dict()), heads=4, windows=windows)
    with torch.no_grad():
        torch.testing.assert_close(built(ids).logits, expected, atol=1e-10, rtol=0)
        tapped = built(ids, output_attentions=True)
    torch.testing.assert_close(tapped.logits, expected, atol=1e-10, rtol=0)
    assert [a.shape for a in tapped.attentions] == [(2, 4, 7, 7)] * 2


def test_no_token_sees_a_later_one(model: Build) -> None:
    built, ids = model(), torch.randint(0, 29, (1, 8))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 29
    with torch.no_grad():
        before, after = built(ids).logits, built(changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=1e-12, rtol=0)
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


@pytest.mark.parametrize(
    "preset",
    ["tiny-dcformer++", "tiny-transformer++", "tiny-dcformer", "tiny-transformer", "tiny-dcpythia", "tiny-pythia"],
)
def test_save_and_load_give_identical_logits(preset: str, model: Build, tmp_path: Path) -> None:
    built, ids = model(preset, dtype=torch.float32), torch.randint(0, 29, (2, 9))
    built.save_pretrained(tmp_path)
    again = DCFormerForCausalLM.from_pretrained(tmp_path)
    incidental = {"dtype": None, "_name_or_path": None}
    assert again.config.to_dict() | incidental == built.config.to_dict() | incidental
    with torch.no_grad():
        assert torch.equal(again(ids).logits, built(ids).logits)
    assert [f.suffix for f in tmp_path.iterdir() if "model" in f.name] == [".safetensors"]


def test_initial_standard_deviations() -> None:
    config = DCFormerConfig(
        hidden_size=512, num_attention_heads=16, num_hidden_layers=2, intermediate_size=600, vocab_size=300
    )
    torch.manual_seed(0)
    built = DCFormerForCausalLM(config)
    side, heads, rank, width = built.model.layers[1].self_attn.post.key, 16, 2, 512
    inner = 2 * heads * rank
    expected = {
        side.up: 0.02 / (math.sqrt(inner) * (heads + rank)),
        side.gate.weight: 0.05 * math.sqrt(2 / (width + heads)),
        side.down.weight: math.sqrt(2 / (width + inner)),
        built.lm_head.weight: 0.02,
        built.model.embed_tokens.weight: 0.02,
        built.model.layers[0].self_attn.o_proj.weight: 0.02,
        built.model.layers[0].mlp.up_proj.weight: 0.02,
    }
    for parameter, std in expected.items():
        assert parameter.std().item() == pytest.approx(std, rel=0.05)
        assert abs(parameter.mean().item()) < 0.1 * std
    scaled = DCFormerForCausalLM(DCFormerConfig(**(config.to_diff_dict() | {"depth_scaled_init": True})))
    assert scaled.model.layers[0].mlp.down_proj.weight.std().item() == pytest.approx(0.02 / math.sqrt(2 * 2), rel=0.05)


def test_a_fresh_model_starts_close_to_its_twin_without_composition() -> None:
    torch.manual_seed(0)
    built = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", vocab_size=50))
    twin = DCFormerForCausalLM(DCFormerConfig.preset("tiny-transformer++", vocab_size=50))
    twin.load_state_dict(built.state_dict(), strict=False)
    ids = torch.randint(0, 50, (1, 20))
    with torch.no_grad():
        a, b = built(ids).logits, twin(ids).logits
    assert (a - b).std() < 0.1 * a.std()


def test_every_parameter_gets_a_gradient(model: Build) -> None:
    built = model(compose_static=True, mlp_gate_groups=4, use_qk_norm=True)
    ids = torch.randint(0, 29, (2, 9))
    built(ids, labels=ids).loss.backward()
    assert [n for n, p in built.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_text_longer_than_the_context_is_one_sentence(model: Build) -> None:
    with pytest.raises(
        ValueError, match=r"The text is 41 tokens long, but this model's context is 40; shorten the text"
    ):
        model()(torch.zeros(1, 41, dtype=torch.long))


GRAPH = """
import torch
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

sizes = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2}
windows = {"max_position_embeddings": 16, "attention_windows": (3, None)}
model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", **sizes, **windows)).eval()
ids = torch.randint(0, 29, (2, 7))
padding = (torch.arange(7) >= torch.tensor([[0], [2]])).long()
for mask in (None, padding):
    run = lambda ids, mask: model(ids, attention_mask=mask, use_cache=False).logits
    given = {"attention_mask": mask, "use_cache": False}
    with torch.no_grad():
        expected = run(ids, mask)
        torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(ids, mask), expected)
        exported = torch.export.export(model, (ids,), given, strict=False).module()(ids, **given).logits
    torch.testing.assert_close(exported, expected)
print("one graph")
"""
UNPICKLED = """
import sys, torch
model, ids = torch.load(sys.argv[1], weights_only=False)
run = lambda ids: model(ids, use_cache=False).logits
with torch.no_grad():
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(ids), run(ids))
print("one graph")
"""


@pytest.mark.usefixtures("warm_python")
def test_the_whole_model_is_one_graph() -> None:
    """Nothing in the forward pass asks for the value of a tensor, as torch.export and fullgraph=True demand.

    In a process of its own: no compiler can look through the type checks that the tests put into every function.
    """
    done = subprocess.run([sys.executable, "-c", GRAPH], capture_output=True, text=True, timeout=280)
    assert done.stdout == "one graph\n", done.stderr


@pytest.mark.usefixtures("warm_python")
def test_so_is_one_that_another_process_pickled(model: Build, tmp_path: Path) -> None:
    """There nothing of it is built, and so nothing asked before the first pass."""
    torch.save((model().eval(), torch.arange(7)[None]), tmp_path / "model.pt")
    command = [sys.executable, "-c", UNPICKLED, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout == "one graph\n", done.stderr


def test_a_mask_of_pairs_is_one_sentence(model: Build) -> None:
    with pytest.raises(ValueError, match=r"attention_mask has 4 axes; give one of \[batch, position\]"):
        model()(torch.arange(5)[None], attention_mask=torch.ones(5, 5).tril()[None, None])


def test_a_pad_token_outside_the_vocabulary_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="pad_token_id is 31, outside the vocabulary of 31"):
        DCFormerConfig(vocab_size=31, pad_token_id=31)


@pytest.mark.parametrize(
    "changes", [{"compose_projection": False}, {"compose_projection": False, "compose_static": True}]
)
def test_gates_start_as_small_where_they_are_all_there_is(changes) -> None:
    """transformers passes over modules without parameters of their own: these began fifteen times as large."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=512, num_attention_heads=16, num_hidden_layers=1, intermediate_size=64, vocab_size=30)
    post = DCFormerForCausalLM(DCFormerConfig(**sizes, **changes)).model.layers[0].self_attn.post
    for side in (post.query, post.key):
        assert side.gate.weight.std().item() == pytest.approx(0.05 * math.sqrt(2 / 528), rel=0.05)


def test_outputs_are_asked_for_as_in_transformers(model: Build) -> None:
    built, ids = model("tiny-dcformer++"), torch.tensor([[1, 2, 3]])
    whole = built(ids, output_hidden_states=True, output_attentions=True)
    logits, *_ = built(ids, return_dict=False)
    assert torch.equal(logits, built(ids).logits)
    built.config.output_hidden_states = True
    asked = built(ids)
    assert len(asked.hidden_states) == len(whole.hidden_states)
    assert asked.attentions is None


def test_positions_that_were_not_learned_are_one_sentence() -> None:
    sizes = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=30)
    built = DCFormerForCausalLM(DCFormerConfig(**sizes, position_type="learned", max_position_embeddings=8))
    with pytest.raises(UserError, match="position_ids go up to 9, but this model has 8 learned positions"):
        built(torch.tensor([[1, 2]]), position_ids=torch.tensor([[8, 9]]))


def test_packed_documents_are_one_sentence(model: Build) -> None:
    ids, packed = torch.randint(0, 29, (1, 8)), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    for mask in (None, torch.ones_like(ids)):
        with pytest.raises(UserError, match="position_ids start again within a row"):
            model()(ids, position_ids=packed, attention_mask=mask, use_cache=False)
    padded = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    model()(ids, position_ids=packed, attention_mask=padded)
    beside = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])  # a row with padding hides no other one
    with pytest.raises(UserError, match="position_ids start again within a row"):
        model()(ids.repeat(2, 1), position_ids=packed.repeat(2, 1), attention_mask=beside, use_cache=False)


def test_a_cache_is_kept_in_training_where_it_is_asked_for(model: Build, caplog) -> None:
    built, ids = model().train(), torch.randint(0, 29, (2, 9))
    assert built(ids).past_key_values is None
    assert built(ids, use_cache=True).past_key_values.get_seq_length() == 9
    built.gradient_checkpointing_enable({"use_reentrant": False})
    built(ids, labels=ids, past_key_values=DynamicCache()).loss.backward()
    assert "there is no cache" in caplog.text
    with torch.no_grad():  # as `generate` does between steps of training: nothing runs again
        first = built(ids[:, :5], use_cache=True).past_key_values
        assert first.get_seq_length() == 5
        step = built(ids[:, 5:], past_key_values=first).logits
        torch.testing.assert_close(step, built(ids).logits[:, 5:], rtol=1e-4, atol=1e-5)
        filled = built(ids[:, :5], use_cache=True).past_key_values
    with pytest.raises(UserError, match="which a cache would see twice; train without"):
        built(ids[:, 5:], past_key_values=filled)


def test_what_a_checkpoint_has_is_not_drawn_anew(model: Build, tmp_path) -> None:
    saved = model("tiny-dcformer++")
    saved.save_pretrained(tmp_path)
    again = DCFormerForCausalLM.from_pretrained(tmp_path, compose_groups=2, ignore_mismatched_sizes=True)
    before, after = saved.state_dict(), again.state_dict()
    others = [name for name in before if before[name].shape != after[name].shape]
    assert others
    assert all(name.endswith(".up") for name in others)
    assert [name for name in before if name not in others and not torch.equal(before[name], after[name])] == []


def test_nothing_composed_is_handed_on() -> None:
    sizes = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16, vocab_size=30)
    built = DCFormerForCausalLM(DCFormerConfig(**sizes, compose="dense-collaboration", compose_stages=()))
    assert built(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 30)


def test_a_model_is_not_saved_into_a_file(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    sizes = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=30)
    with pytest.raises(UserError, match="is a file; give the name of a folder"):
        DCFormerForCausalLM(DCFormerConfig(**sizes)).save_pretrained(tmp_path / "file")
