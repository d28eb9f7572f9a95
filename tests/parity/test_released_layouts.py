"""Random checkpoints in the released layouts against an implementation that shares no code with ours."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import dcinterp
from dcinterp.checkpoints.layouts import LAYOUTS, write_foreign
from dcinterp.checkpoints.read import read_model
from dcinterp.support.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
from released import fields, forward, random_tensors, write

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dcformer": (fields("dcformer"), {}),
    "dcformer-all-global": (fields("dcformer", window_size=None), {}),
    "dcformer-LGLL": (fields("dcformer", window_type="LGLL", n_layer=5), {}),
    "dcformer-LGL6": (fields("dcformer", window_type="LGL6"), {}),
    "dcformer-no-qk-norm": (fields("dcformer", use_qk_norm=False, rope_base=500000), {}),
    "dcformer-mgate": (fields("dcformer", mgate=True), {}),
    "dcformer-query-wise": (fields("dcformer", query_wise=True), {}),
    "dcformer-split": (fields("dcformer"), dict(split=True)),
    "dcformer-static": (fields("dcformer"), dict(static=True)),
    "dcpythia": (fields("dcpythia"), {}),
    "dcpythia-LG": (fields("dcpythia", window_type="LG"), {}),
    "dcpythia-sequential": (fields("dcpythia", use_parallel_residual=False), {}),
    "dcpythia-no-bias": (fields("dcpythia", use_linear_bias=False), {}),
    "dcpythia-split": (fields("dcpythia", use_qk_norm=False, rotary_pct=0.25), dict(split=True)),
    "dcpythia-query-wise": (fields("dcpythia", query_wise=True, window_size=None), {}),
    "dcpythia-static": (fields("dcpythia"), dict(static=True)),
    "dcformer-shared-keys": (fields("dcformer", n_local_heads=2), {}),
    "dcpythia-one-key-head-split": (fields("dcpythia", n_local_heads=1), dict(split=True)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Path]:
    f, how = CASES[request.param]
    tensors = random_tensors(f, seed=len(request.param), **how)
    return f, tensors, write(tmp_path / "released", f, tensors)


def ids(length: int = 14) -> torch.Tensor:
    return torch.randint(0, 31, (2, length), generator=torch.Generator().manual_seed(0))


def test_logits_stages_and_cached_decoding(case: tuple[dict[str, Any], dict[str, torch.Tensor], Path]) -> None:
    f, tensors, folder = case
    tokens = ids()
    logits, stages = forward(f, tensors, tokens)
    bridge = dcinterp.load(folder, dtype=torch.float64)
    with torch.no_grad():
        got, cache = bridge.run_with_cache(tokens)
        torch.testing.assert_close(got, logits, atol=1e-8, rtol=0)
        for name, expected in stages.items():
            layer, stage, end = name.replace("_proj.", ".").split(".")
            torch.testing.assert_close(cache[f"blocks.{layer}.attn.{stage}.hook_{end}"], expected, atol=1e-8, rtol=0)
        model = read_model(folder)
        past, decoded = None, []
        for step in (tokens[:, :6], *(tokens[:, i : i + 1] for i in range(6, 14))):
            output = model(step, past_key_values=past, use_cache=True)
            past = output.past_key_values
            decoded.append(output.logits)
    torch.testing.assert_close(torch.cat(decoded, 1).double(), logits, atol=1e-4, rtol=0)


def test_a_round_trip_through_our_layout_keeps_every_tensor(
    case: tuple[dict[str, Any], dict[str, torch.Tensor], Path], tmp_path: Path
) -> None:
    f, _, folder = case
    read_model(folder).save_pretrained(tmp_path / "ours")
    ours = read_model(tmp_path / "ours")
    write_foreign(ours, tmp_path / "back", f["model_type"])
    with torch.no_grad():
        expected = read_model(folder)(ids()).logits
        assert torch.equal(ours(ids()).logits, expected)
        assert torch.equal(read_model(tmp_path / "back")(ids()).logits, expected)
    again = json.loads((tmp_path / "back" / "config.json").read_text())
    free = ("mgate_dim", "window_size", "window_type")  # several values say the same
    assert {name: again[name] for name in f if name not in free} == {k: v for k, v in f.items() if k not in free}


def test_sharded_safetensors(tmp_path: Path) -> None:
    f = fields("dcformer")
    tensors = random_tensors(f)
    whole = write(tmp_path / "whole", f, tensors)
    parts = tmp_path / "parts"
    parts.mkdir()
    shutil.copy(whole / "config.json", parts)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, parts / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    with torch.no_grad():
        assert torch.equal(read_model(parts)(ids()).logits, read_model(whole)(ids()).logits)
    (parts / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks model-00002-of-00002\.safetensors, which .*index\.json lists"):
        read_model(parts)


def test_bin_files_hold_tensors_or_are_refused(tmp_path: Path) -> None:
    f = fields("dcpythia")
    tensors = random_tensors(f)
    folder = write(tmp_path / "bin", f, tensors)
    with torch.no_grad():
        expected = read_model(folder)(ids()).logits
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with torch.no_grad():
        assert torch.equal(read_model(folder)(ids()).logits, expected)

    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"weights": Harmful()}, folder / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(
        UserError, match=r"holds more than tensors, which is not safe to open .*; ask for a safetensors"
    ):
        read_model(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(n_layer=4), "do not fit its config.json .it asks for 4 layers, and they have 3"),
        (dict(intermediate_size=52), "do not fit its config.json"),
        (dict(n_local_heads=3), "has n_local_heads = 3, which does not divide n_head = 4"),
        (dict(n_local_heads=2), "do not fit its config.json|which a dcformer checkpoint of this config does not"),
        (dict(window_type="LLLL"), "window_type is 'LLLL'; this layout knows LG, LGLL, LGL6, or null"),
    ],
)
def test_a_config_that_does_not_belong_is_one_sentence(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    f = fields("dcformer")
    folder = write(tmp_path, f | change, random_tensors(f))
    with pytest.raises(UserError, match=message) as raised:
        read_model(folder)
    assert "\n" not in str(raised.value)


def test_a_missing_field_or_cut_file_is_one_sentence(tmp_path: Path) -> None:
    f = fields("dcformer")
    folder = write(tmp_path, {k: v for k, v in f.items() if k != "dim"}, random_tensors(f))
    with pytest.raises(UserError, match="has no field 'dim'; copy the one that belongs"):
        read_model(folder)
    write(tmp_path, f, random_tensors(f))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"is damaged \(its size does not fit its header\); copy or download it again"):
        read_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint at all")
    with pytest.raises(UserError, match=r"is damaged"):
        read_model(tmp_path)


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    f = fields("dcformer")
    folder = write(tmp_path, f | {"window_sise": 3}, random_tensors(f))
    with pytest.warns(UserWarning, match="ignoring unknown fields window_sise"):
        read_model(folder)


def test_a_layout_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    model = dcinterp.DCFormerForCausalLM(
        dcinterp.DCFormerConfig.preset("tiny-dcformer++", vocab_size=9, compose_groups=2)
    )
    with pytest.raises(UserError, match="has no place for compose_groups=2"):
        write_foreign(model, tmp_path, "dcformer")
    with pytest.raises(UserError, match="has no place for norm_type='rmsnorm'"):
        write_foreign(model, tmp_path, "dcpythia")
    with pytest.raises(UserError, match="no checkpoint layout 'dcformr'; did you mean dcformer"):
        write_foreign(model, tmp_path, "dcformr")
    assert {"dcformer", "dcpythia"} <= set(LAYOUTS)


MEMORY = """
import sys
from pathlib import Path
from dcinterp.checkpoints.load import read_model

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

read_model(Path(sys.argv[1]))  # whatever the first call imports
Path("/proc/self/clear_refs").write_text("5")  # forget the highest water mark so far
before = status("VmRSS")
model = read_model(Path(sys.argv[2]))
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures memory by Linux's /proc")
@pytest.mark.usefixtures("warm_python")
def test_loading_takes_the_memory_of_the_model_and_little_more(tmp_path: Path) -> None:
    import subprocess

    small = write(tmp_path / "small", fields("dcformer"), random_tensors(fields("dcformer")))
    f = fields("dcformer", n_layer=12, dim=512, n_head=8, head_dim=64, n_local_heads=8, intermediate_size=1408)
    tensors = {k: t.to(torch.bfloat16) for k, t in random_tensors(f).items() if not k.endswith("_m")}
    large = write(tmp_path / "large", f, tensors)
    size = (large / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", MEMORY, str(small), str(large)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 1.15 * size, f"{int(ran.stdout) / size:.2f} times the size of the tensors"


def test_convert_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dcinterp.cli.convert import command

    f = fields("dcpythia")
    folder = write(tmp_path / "released", f, random_tensors(f))
    (folder / "tokenizer_config.json").write_text("{}")
    there, back = tmp_path / "ours", tmp_path / "back"
    command(folder, there)
    assert "parameters, layout ours" in capsys.readouterr().out
    assert (there / "tokenizer_config.json").is_file()
    command(there, back, to="dcpythia")
    with torch.no_grad():
        assert torch.equal(read_model(back)(ids()).logits, read_model(folder)(ids()).logits)
    with pytest.raises(UserError, match="holds other files; give another folder"):
        command(folder, there)


def test_a_gate_that_the_config_says_must_be_there(tmp_path: Path) -> None:
    f = fields("dcformer", mgate=True)
    tensors = {name: t for name, t in random_tensors(f).items() if not name.endswith("mg.weight")}
    with pytest.raises(UserError, match=r'has "mgate": true in its config.json, but no feed_forward.mg.weight'):
        read_model(write(tmp_path, f, tensors))
