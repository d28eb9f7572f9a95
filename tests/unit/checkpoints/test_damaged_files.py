"""Files of people that are not what they say: one sentence that names file and field, at once, and nothing read twice.

Every change here was made to real files, at random and thousands of times, before it became a line of a table.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dcinterp
from dcinterp import UserError
from dcinterp.checkpoints.fit import require_counts, require_finite
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.checkpoints.pickled_file import PickledFile
from dcinterp.checkpoints.safetensors_file import SafetensorsFile
from dcinterp.checkpoints.tensor_files import CheckpointTensors, checkpoint_files
from dcinterp.support.json_files import read_json_object

WEIGHTS = "model.safetensors"
SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 31}
ENDLESS = "[" * 200_000


def said(act: Callable[[], Any], *named: str) -> str:
    """The sentence with which something is refused: short, one line, and with all that it must name."""
    with pytest.raises(UserError) as refused:
        act()
    sentence = str(refused.value)
    assert len(sentence) <= 300
    assert "\n" not in sentence
    for name in named:
        assert name in sentence
    return sentence


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A tiny model of each kind: ours, a released layout, and one that transformers reads."""
    from transformers import GPT2Config, GPT2LMHeadModel

    root = tmp_path_factory.mktemp("damaged")
    torch.manual_seed(0)
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", **SIZES, max_position_embeddings=16, head_dim=4)
    dcinterp.DCFormerForCausalLM(config).save_pretrained(root / "ours")
    shipped = {"hidden_size": 24, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    model = dcinterp.DCFormerForCausalLM(dcinterp.DCFormerConfig.preset("tiny-dcformer++", **shipped, vocab_size=31))
    from dcinterp.checkpoints.layouts import write_foreign

    write_foreign(model, root / "released", "dcformer")
    GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=8, n_layer=1, n_head=2)).save_pretrained(
        root / "foreign"
    )
    return root


KINDS = ("ours", "released", "foreign")


@pytest.fixture
def folder(folders, tmp_path, request) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(folders / request.param, tmp_path / "model"))


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", None, "shape of 'b' is None"),
        ("shape", "x", "shape of 'b' is 'x'"),
        ("shape", [-1, -3], "shape of 'b'"),
        ("shape", [True, 3], "shape of 'b'"),
        ("shape", [1.5], "shape of 'b'"),
        ("shape", [10**30], "shape of 'b'"),
        ("shape", [10**9, 10**9], "the size of 'b' is wrong"),
        ("shape", [4], "the size of 'b' is wrong"),
        ("dtype", 3, "dtype of 'b' is 3"),
        ("dtype", "F64", "the size of 'b' is wrong"),
        ("data_offsets", [], "data_offsets of 'b' are"),
        ("data_offsets", [8], "data_offsets of 'b' are"),
        ("data_offsets", [20, 8], "data_offsets of 'b' are"),
        ("data_offsets", {"a": 1}, "data_offsets of 'b' is"),
        ("data_offsets", [0, 12], "do not follow"),  # over the tensor before it
        ("data_offsets", [12, 24], "do not follow"),  # with a hole
        (None, None, "the entry of 'b' is None"),
    ],
)
def test_a_header_is_held_against_its_file(tmp_path, field, value, message):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}, path)
    assert SafetensorsFile(path).shape("b") == (3,)
    header, data = header_of(path)
    order = sorted("abc", key=lambda name: header[name]["data_offsets"])
    assert order == ["a", "b", "c"]
    if field is None:
        header["b"] = value
    else:
        header["b"][field] = value
    write(path, header, data)
    said(lambda: SafetensorsFile(path), str(path), message)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 7, struct.pack("<Q", 2**62), struct.pack("<Q", 9) + b"[1, 2, 3]", struct.pack("<Q", 2) + b"\xff\xff"],
)
def test_what_is_no_header_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    said(lambda: SafetensorsFile(path), str(path), "is damaged")
    write(path, ENDLESS.encode(), b"")
    said(lambda: SafetensorsFile(path), str(path), "is damaged")


def test_random_bits_of_a_header_never_get_through(tmp_path):
    """Whatever is turned, the file is refused or still holds the tensors, in bounds."""
    path, random_ = tmp_path / "x.safetensors", random.Random(0)
    save_file({"a": torch.zeros(2), "b": torch.arange(3.0)}, path)
    whole, sentences = path.read_bytes(), []
    for _ in range(200):
        raw = bytearray(whole)
        raw[random_.randrange(8 + struct.unpack("<Q", whole[:8])[0])] ^= 1 << random_.randrange(8)
        path.write_bytes(raw)
        try:
            file = SafetensorsFile(path)
        except UserError as error:
            sentences.append(str(error))
        else:
            assert sorted(file.shape(name) for name in file.names()) == [(2,), (3,)]
    assert len(sentences) > 100
    assert all(str(path) in sentence and len(sentence) <= 300 for sentence in sentences)


@pytest.mark.parametrize(
    "listed",
    [
        *(None, 3, [], {}, {"weight_map": None}, {"weight_map": []}, {"weight_map": {}}, ENDLESS),
        *({"weight_map": {"a": name}} for name in (3, None, ["a"], "", "/etc/passwd", "../model/x.safetensors", "..")),
        *({"weight_map": {"a": name}} for name in ("/dev/zero", "pipe.safetensors", "a\0b", "x" * 5000, ".", "gone")),
    ],
    ids=lambda value: str(value)[:30].replace("\0", "0"),
)
def test_an_index_names_files_of_its_folder(tmp_path, listed):
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe.safetensors")
    save_file({"a": torch.zeros(2)}, folder / "x.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(listed if isinstance(listed, str) else json.dumps(listed))
    said(lambda: checkpoint_files(folder), str(folder))
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    assert list(CheckpointTensors(folder)) == ["a"]


class Stride(torch.nn.Module):
    """A thing that is no table of tensors."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "holds a int"),
        ([torch.zeros(2)], "holds a list"),
        ({"a": torch.zeros(1).expand(10**12)}, "not a plain tensor"),
        ({"a": Stride()}, "not safe to open"),
        ({3: torch.zeros(2)}, "not a plain tensor"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_bin_file_holds_a_table_of_tensors(tmp_path, content, message, zipped):
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    if not zipped and "plain" in message and 3 not in content:
        message = "it says a size of 1,000,000,000,000 bytes"
    said(lambda: PickledFile(path), str(path), message)
    torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=zipped)
    assert PickledFile(path).names() == ["a"]


def test_a_bin_file_that_unpacks_to_more_than_it_is_takes_no_memory(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\0" * 10**7)
    said(lambda: PickledFile(path), str(path), "unpack to more than its size")


@pytest.mark.parametrize("folder", KINDS, indirect=True)
@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
@pytest.mark.parametrize("thing", ["pipe", "device", "folder", "loop", "nothing in it"])
def test_only_plain_files_are_read(folder, name, thing):
    path = folder / name
    path.unlink()
    if thing == "pipe":
        os.mkfifo(path)
    elif thing == "folder":
        path.mkdir()
    elif thing == "nothing in it":
        path.touch()
    else:
        path.symlink_to("/dev/zero" if thing == "device" else path)
    said(lambda: dcinterp.load(folder), str(folder), name)


BILLION = 10**9
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "ours": {
        "num_hidden_layers": (BILLION, None, True, [1], "x", 0, 1.5, 10**30),
        "hidden_size": (BILLION, 10**30),
        "norm_eps": (True, float("nan"), 0, -1, "1e-5", None),
        "rotary_base": (float("inf"), 0, "x"),
        "use_bias": ("false", None, 2),
        "attention_windows": (None, [], [True], "x", [[1]], 3),
        "compose_stages": (None, "pre", [1], 3),
        "compose": (None, [], 3),
        "compose_options": ([], 3),
        "rotary_scaling": ([], {"rope_type": "linear", "factor": "x"}, {"rope_type": "linear", "factor": -1}),
        "id2label": (3, [1]),
    },
    "released": {
        "n_layer": (BILLION, None, True, [1], "x", -1, 1.5),
        "dim": (BILLION, None, [], "x"),
        "norm_eps": (True, float("nan"), -1, [1]),
        "use_qk_norm": ("false", 3, None),
        "query_wise": ("x", None),
        "window_size": ([], "x", True, 0, -1),
        "window_type": (3, [], "LLLL"),
        "n_local_heads": (True, "x", 0, 1.5),
    },
    "foreign": {
        "n_layer": (BILLION, 0, None, [1], "x"),
        "n_embd": (BILLION, "x"),
        "n_positions": (BILLION,),
        "model_type": (None, 3, [], "x", "y" * 500),
        "layer_norm_epsilon": ("x", [1]),
    },
}


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_wrong_values_of_a_config_are_named(folder, request):
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    for field, values in WRONG[request.node.callspec.params["folder"]].items():
        for value in values:
            path.write_text(json.dumps(whole | {field: value}))
            said(lambda: dcinterp.load(folder), str(folder))
    for text in (ENDLESS, "null", "[]", "\x00", json.dumps(whole)[:-1] + f', "vocab_size": {ENDLESS}'):
        path.write_text(text)
        said(lambda: dcinterp.load(folder), str(path))


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_weights_of_another_family_are_refused(folder, folders, request):
    """transformers would make up every weight that the file does not have."""
    for other in set(KINDS) - {request.node.callspec.params["folder"]}:
        shutil.copy(folders / other / WEIGHTS, folder / WEIGHTS)
        said(lambda: dcinterp.load(folder), str(folder))


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_no_weight_is_made_up(folder):
    tensors = load_file(folder / WEIGHTS)
    name = next(each for each in sorted(tensors) if "norm" in each or "ln_1" in each)
    tensors["other"] = tensors.pop(name)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    said(lambda: dcinterp.load(folder), str(folder))


@pytest.mark.parametrize("folder", KINDS, indirect=True)
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_named(folder, number):
    tensors = load_file(folder / WEIGHTS)
    name = next(each for each in sorted(tensors) if "emb" not in each and tensors[each].dim() > 1)
    tensors[name].flatten()[0] = number
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    said(lambda: dcinterp.load(folder), str(folder), "not all finite numbers (see ")


def test_large_weights_are_finite(folders, tmp_path):
    """Their sum is not."""
    model = dcinterp.load(folders / "ours").original_model
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(3e38)
    require_finite(model, "it")


def test_no_model_is_opened_in_whole_numbers_and_a_type_has_a_name(folders):
    for dtype in (torch.int8, "float33", "int64"):
        said(lambda dtype=dtype: dcinterp.load(folders / "ours", dtype=dtype), "dtype is", "torch.bfloat16")
    assert dcinterp.load(folders / "ours", dtype="torch.bfloat16").W_Q.dtype == torch.bfloat16


@pytest.mark.parametrize("folder", ["ours"], indirect=True)
def test_a_config_that_is_not_ours_is_named_without_its_weights_too(folder):
    fields = read_json_object(folder / "config.json", what="a configuration", way="")
    (folder / "config.json").write_text(json.dumps(fields | {"compose_ranks": 4}))
    said(lambda: dcinterp.describe(folder), str(folder / "config.json"), "compose_ranks")


def test_an_address_is_no_name_of_a_model():
    known = {
        "https://huggingface.co/EleutherAI/pythia-70m/tree/main": "EleutherAI/pythia-70m",
        "https://hf.co/EleutherAI/pythia-70m.git": "EleutherAI/pythia-70m",
        "hf://EleutherAI/pythia-70m": "EleutherAI/pythia-70m",
        "https://huggingface.co/gpt2/tree/main?x=1": "gpt2",
    }
    for address, name in known.items():
        said(lambda address=address: dcinterp.load(address), "is an address", f"give the hub id {name}.")
    for address in ("http://nowhere", "https://huggingface.co/datasets/a/b", "https://huggingface.co"):
        said(lambda address=address: dcinterp.load(address), "is an address", "give a folder, or a hub id")
    said(lambda: dcinterp.load("C://models/mine"), "There is no folder")


@pytest.mark.parametrize("folder", ["ours", "released"], indirect=True)
def test_a_model_of_several_types_asks_which(folder):
    tensors = load_file(folder / WEIGHTS)
    name = next(each for each in sorted(tensors) if "embed" in each)
    tensors[name] = tensors[name].bfloat16()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    said(lambda: dcinterp.load(folder), str(folder), "bfloat16", "--dtype float32")
    assert dcinterp.load(folder, dtype=torch.float32)(torch.tensor([[1, 2]])).dtype == torch.float32
    tensors[name] = tensors[name].int()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    said(lambda: dcinterp.load(folder), str(folder), "int32")


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"3", b"\xff\xfe{", ENDLESS.encode(), b"9" * 5000, b"{"])
def test_json_is_an_object_or_refused(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    said(lambda: read_json_object(path), str(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [("fields", None), ("fields", [["compose", "dynamic"]]), ("base_fingerprint", 3), ("base_model_name_or_path", [])],
)
def test_the_record_of_a_composition_is_checked(tmp_path, folders, field, value):
    folder = dcinterp.compose("transformer++", tmp_path / "added")
    path = folder / "composition.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    said(lambda: dcinterp.load(folder), str(path), field)


def test_a_tokenizer_that_is_a_device_is_not_passed_over(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "ours", tmp_path / "model"))
    (folder / "tokenizer.json").symlink_to("/dev/zero")
    said(lambda: dcinterp.load(folder), "tokenizer.json", "device or a pipe")


@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is an optional extra")
def test_a_gguf_header_is_held_against_its_file(tmp_path):
    import gguf
    import numpy as np

    path, random_ = tmp_path / "m.gguf", random.Random(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from dcinterp.checkpoints.gguf_file import require_gguf

    require_gguf(path)
    whole = path.read_bytes()
    for _ in range(60):  # sizes of all sizes, everywhere: refused or let be, and never a hang or another error
        raw, at = bytearray(whole), random_.randrange(len(whole) - 64 - 8)
        raw[at : at + 8] = struct.pack("<Q", random_.choice([0, 1, 7, 2**31, 2**40, 2**63, 2**64 - 1]))
        path.write_bytes(raw)
        with suppress(UserError):
            require_gguf(path)
    path.write_bytes(whole.replace(struct.pack("<I", 4) + struct.pack("<I", 1), struct.pack("<II", 4, BILLION), 1))
    said(lambda: require_gguf(path), "block_count is 1000000000")
    # Readers leave out what they do not know, and answer with a model that nobody stored.
    path.write_bytes(whole.replace(b"blk.0.attn_q", b"blk.0.attn_x"))
    said(lambda: require_gguf(path), "no model has a tensor 'blk.0.attn_x.weight'")
    path.write_bytes(whole.replace(struct.pack("<f", 10000.0), struct.pack("<f", math.nan)))
    said(lambda: require_gguf(path), "'llama.rope.freq_base' is nan")


def test_a_pickle_in_a_zip_cannot_ask_for_more_than_its_file(tmp_path):
    class Large:
        def __reduce__(self):
            return bytearray, (3 * BILLION,)

    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(2)}, path)
    with zipfile.ZipFile(path) as whole:
        entries = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w") as changed:
        for name, content in entries.items():
            changed.writestr(name, pickle.dumps({"a": Large()}, 2) if name.endswith("data.pkl") else content)
    said(lambda: PickledFile(path), str(path), "it asks for bytes that it does not hold")


def test_any_damage_of_a_zipped_pickle_is_a_sentence(tmp_path):
    """Of what is packed, of the directory, of a sum: a stored file as torch writes it, and a deflated one."""
    torch.save({"a": torch.arange(4)}, stored := tmp_path / "stored.bin")
    with zipfile.ZipFile(stored) as file, zipfile.ZipFile(tmp_path / "packed.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in file.infolist():
            packed.writestr(entry.filename, file.read(entry))
    drawn = random.Random(0)
    for whole in (stored, tmp_path / "packed.bin"):
        content = whole.read_bytes()
        for _ in range(150):
            at, damaged = drawn.randrange(len(content)), bytearray(content)
            damaged[at] ^= 1 << drawn.randrange(8)
            (tmp_path / "damaged.bin").write_bytes(damaged)
            with suppress(UserError):
                PickledFile(tmp_path / "damaged.bin")


def test_a_bin_file_needs_no_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.zeros(200)}, tmp_path / "model.bin")
    finally:
        torch.serialization.set_crc32_options(True)
    assert PickledFile(tmp_path / "model.bin").names() == ["a"]


def test_a_count_of_a_part_is_held_against_the_tensors():
    fields = {"text_config": {"num_hidden_layers": BILLION}}
    said(lambda: require_counts(Path("config.json"), fields, 20), "num_hidden_layers", "1,000,000,000")


def test_code_beside_a_model_is_never_run(folders, tmp_path, monkeypatch):
    """Nor is anybody asked at the terminal, as transformers would."""
    folder = tmp_path / "strange"
    shutil.copytree(folders / "foreign", folder)
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"model_type": "strange", "auto_map": {"AutoConfig": "strange.C", "AutoModelForCausalLM": "strange.M"}}
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    said(lambda: dcinterp.load(folder), str(folder), "auto_map", "does not run")
    assert not (tmp_path / "ran").exists()
    # A kind that transformers has itself is read by its own class.
    (folder / "config.json").write_text(json.dumps(fields | {"model_type": "gpt2"}))
    assert dcinterp.load(folder).cfg.n_layers > 0
    assert not (tmp_path / "ran").exists()


def test_a_model_whose_logits_are_nan_answers_nothing(folders):
    bridge = dcinterp.load(folders / "ours")
    with torch.no_grad():
        for name, weight in bridge.original_model.named_parameters():
            if "embed" in name:
                weight.fill_(torch.nan)
    said(lambda: dcinterp.predict(bridge, [1, 2, 3]), "NaN")


def test_a_key_that_stands_twice_is_found_at_once(tmp_path):
    names = ", ".join(f'"k{number}": 1' for number in range(60_000))
    (tmp_path / "many.json").write_text(f'{{{names}, "k59999": 2}}')
    began = time.process_time()
    said(lambda: read_json_object(tmp_path / "many.json", ours=True), "twice")
    assert time.process_time() - began < 3


def test_weights_without_a_tensor_are_a_sentence(tmp_path):
    shutil.copytree(SHIPPED / "dcformer++", tmp_path / "model")
    save_file({}, tmp_path / "model" / "model.safetensors")
    for reads in (dcinterp.load, dcinterp.describe):
        with pytest.raises(UserError, match="hold no tensors"):
            reads(tmp_path / "model")
