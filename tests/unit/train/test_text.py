"""Any text: split by what it says, packed, cached, each row read once an epoch; and a model that learns it."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import dcinterp
from dcinterp.cli import verbs
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import DataSection, Phase, TextSection, TrainConfig, build_config
from dcinterp.train.data import cache
from dcinterp.train.data.batches import Batches
from dcinterp.train.data.data_source import count_tokens, open_data_source
from dcinterp.train.data.held_out import held_out_documents, unit_of
from dcinterp.train.data.installed import python_sources
from dcinterp.train.data.text import SIDES, TextSource, _unread, assign_sides, find, hash_share, pieces, threshold
from dcinterp.train.data.tokenizer import write_tokenizer
from dcinterp.train.loop.run import train

LINES = [f"Line {n} of the text says {n * n % 97} and {'no' * (n % 5)}. Café!\n" for n in range(1200)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "my.txt"
    path.write_text("".join(LINES), encoding="utf-8")
    return path


def test_pieces_are_the_text_cut_at_line_ends():
    whole = "".join(LINES) + "x" * 5000
    cut = list(pieces(whole, 2048))
    assert "".join(cut) == whole
    assert all(piece.endswith("\n") for piece in cut[:-4])
    assert max(map(len, cut)) < 2 * 2048


def test_no_piece_is_on_both_sides_and_its_side_does_not_depend_on_its_neighbours(text):
    _, documents = find(TextSection(path=str(text)))
    limit = threshold(documents, 0.2, needed=0)
    twice = [*documents(), *documents()]
    sides: dict[str, set[str]] = {side: set() for side in SIDES}
    for side, piece, _ in assign_sides(lambda: twice, limit):
        sides[side].add(piece)
    assert sides["train"]
    assert sides["validation"]
    assert not sides["train"] & sides["validation"]
    share = len(sides["validation"]) / len(sides["train"] | sides["validation"])
    assert 0.05 < share < 0.45
    assert limit == 0.2
    assert all(hash_share(piece) < limit for piece in sides["validation"])


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_rows_are_the_text(text, tokenizer):
    section = TextSection(path=str(text), tokenizer=tokenizer, vocabulary=300, context=32, validation_share=0.2)
    data_source = TextSource(section)
    _, documents = find(section)
    limit = threshold(documents, 0.2, needed=4 * 32)
    for side in SIDES:
        told = "".join(piece for s, piece, _ in assign_sides(documents, limit) if s == side)
        rows = data_source.rows[side]
        assert rows.shape[1] == 32
        assert rows.dtype == np.uint16
        text_back = data_source.tokenizer.decode(rows.flatten().tolist(), skip_special_tokens=True)
        assert told.startswith(text_back.rstrip("�"))
        assert len(told) - len(text_back) < 32 * 8
        assert data_source.record[side]["bytes"] == len(told.encode())
    assert len(data_source.tokenizer) == (260 if tokenizer == "bytes" else 300)


def test_each_row_is_read_once_before_any_is_read_again(text):
    data_source = TextSource(TextSection(path=str(text), context=64))
    rows = len(data_source.rows["train"])
    phases = (Phase(source="text", steps=rows // 8, batch_size=3), Phase(source="text", steps=rows, batch_size=5))
    batches = Batches(DataSection(seed=4, phases=phases), data_source)
    read = torch.cat([batches[step]["input_ids"] for step in range(rows // 8 + rows // 5)])[: 2 * rows]
    first = {tuple(row.tolist()) for row in read[:rows]}
    assert first == {tuple(map(int, row)) for row in data_source.rows["train"]}
    if len(read) == 2 * rows:
        assert {tuple(row.tolist()) for row in read[rows:]} == first
    whole, parts = batches[7]["input_ids"], Batches(DataSection(seed=4, phases=phases), data_source, parts=3)
    cut = torch.cat([parts[7 * 3 + part]["input_ids"] for part in range(3)])
    assert sorted(map(tuple, cut.tolist())) == sorted(map(tuple, whole.tolist()))


def test_prepared_once_and_again_when_the_text_changes(text, tmp_path):
    section = TextSection(path=str(text))
    first = TextSource(section)
    folders = sorted((tmp_path / "cache" / "text").iterdir())
    stamp = (folders[0] / "train.npy").stat().st_mtime_ns
    assert TextSource(section).digest() == first.digest()
    assert (folders[0] / "train.npy").stat().st_mtime_ns == stamp
    text.write_text("".join(LINES[::-1]), encoding="utf-8")
    assert TextSource(section).digest() != first.digest()
    assert len(list((tmp_path / "cache" / "text").iterdir())) == 2


def test_folders_skip_what_is_not_text(tmp_path, text):
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_bytes(text.read_bytes())
    (folder / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder / ".hidden").write_text("secret " * 1000)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret too " * 1000)
    data_source = TextSource(TextSection(path=str(folder)))
    total = sum(data_source.record[side]["bytes"] for side in SIDES)
    assert total == len(text.read_bytes())


def test_what_runs_wrote_into_a_folder_is_none_of_its_text(tmp_path, text):
    folder = tmp_path / "folder"
    (folder / "history").mkdir(parents=True)
    (folder / "a.txt").write_bytes(text.read_bytes())
    (folder / "history" / "config.yaml").write_text("a file of somebody else\n")
    section = TextSection(path=str(folder), context=16)
    identity, documents = find(section)
    assert len(list(documents())) == 2
    before = TextSource(section).digest()
    own, earlier = folder / "runs" / "own", folder / "runs" / "earlier"
    for run in (own, earlier):
        (run / "tokenizer").mkdir(parents=True)
        (run / "tokenizer" / "vocab.json").write_text("{}" * 1000)
        (run / "metrics.jsonl").write_text("{}\n" * 1000)
    assert find(section, own)[0] != identity, "nothing says yet that the other is a run"
    for file in ("history.jsonl", "config.yaml"):
        (earlier / file).write_text("{}\n")
    assert find(section, own)[0] == identity
    assert TextSource(section, output=own).digest() == before
    assert len(list(find(TextSection(path=str(earlier)))[1]())) == 4, "a folder of a run that is itself named is read"


def test_a_run_into_the_folder_of_its_text_goes_on(tmp_path, text, monkeypatch):
    small = "model.changes={num_hidden_layers: 1, hidden_size: 16, intermediate_size: 0, num_attention_heads: 2}"
    common = ["--set", small, "--set", "evaluation.watch=false", "--set", "recipe.schedule_steps=4"]
    folder = tmp_path / "folder"
    folder.mkdir()
    text.rename(folder / "my.txt")
    monkeypatch.chdir(folder)
    ran = CliRunner().invoke(verbs, ["train", "--text", ".", "--steps", "2", *common])
    assert ran.exit_code == 0, ran.output
    longer = "data.phases=[{source: text, steps: 4, batch_size: 8}]"
    ran = CliRunner().invoke(verbs, ["train", "runs/folder/config.yaml", "--resume", "--set", longer])
    assert ran.exit_code == 0, ran.output
    assert "from step 2 of 4" in ran.output


def test_the_standard_library_is_the_text_of_those_who_name_none():
    _, documents = find(TextSection())
    size = sum(len(document) for document in documents())
    assert 2_000_000 < size < 20_000_000


def test_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"story": LINES}).save_to_disk(str(tmp_path / "saved"))
    section = TextSection(path=str(tmp_path / "saved"), column="story", context=16)
    assert TextSource(section).rows["train"].shape[1] == 16
    with pytest.raises(UserError, match=r"no column 'text'.*story"):
        TextSource(TextSection(path=str(tmp_path / "saved")))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "nowhere.txt"}, "There is no text at nowhere.txt"),
        ({"path": "x", "dataset": "y"}, "more than one of path"),
        ({"context": 1}, "context of at least 2"),
        ({"tokenizer": "bpe", "vocabulary": 100}, "at least the 260 bytes"),
        ({"context": 30000}, "too short"),
    ],
)
def test_refuses_with_a_sentence(text, fields, message):
    with pytest.raises(UserError, match=message):
        TextSource(TextSection(**({"path": str(text)} | fields)))


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8 text"):
        TextSource(TextSection(path=str(tmp_path / "b.bin")))


def test_an_output_is_the_folder_that_was_typed(text, tmp_path):
    """And no YAML: `#` would end it, and a number or a date would be none."""
    small = "model.changes={num_hidden_layers: 1, hidden_size: 16, intermediate_size: 0, num_attention_heads: 2}"
    for name in ("my #1", "2024-01-02", "🍋 x"):
        options = ["--steps", "1", "--output", str(tmp_path / name), "--set", "evaluation.watch=false", "--set", small]
        ran = CliRunner().invoke(verbs, ["train", "--text", str(text), *options])
        assert ran.exit_code == 0, ran.output
        assert (tmp_path / name / "model").is_dir()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("data:", "no phase with `source: text`"),
        ("data: [1]", "data must hold keys and values"),
        ("data: {text: 3, phases: [{source: text, steps: 1}]}", r"data\.text must hold keys and values, not 3"),
        ("data: {phases: [text]}", "phases"),
        ("data: {phases: {source: tasks, steps: 1}}", "no phase with `source: text`"),
    ],
)
def test_a_config_whose_data_are_odd_is_refused_with_a_flag_as_without(text, tmp_path, data, said):
    (tmp_path / "c.yaml").write_text(data + "\n")
    ran = CliRunner().invoke(verbs, ["train", str(tmp_path / "c.yaml"), "--text", str(text)])
    assert isinstance(ran.exception, UserError), ran.output
    assert re.search(said, str(ran.exception)), ran.exception


def test_rows_longer_than_the_model_reads_are_refused_by_the_key_that_sets_them(text, tmp_path):
    small = "model.changes={num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, max_position_embeddings: 40}"
    ran = CliRunner().invoke(verbs, ["train", "--text", str(text), "--output", str(tmp_path / "x"), "--set", small])
    assert isinstance(ran.exception, UserError), ran.output
    assert "128 tokens long, but the model reads 40: give a smaller data.text.context (--set" in str(ran.exception)
    assert not (tmp_path / "x" / "checkpoints").exists()


def test_an_empty_path_is_refused():
    for flag in ("--text", "--images"):
        ran = CliRunner().invoke(verbs, ["train", flag, ""])
        assert isinstance(ran.exception, UserError)
        assert f"{flag} is empty" in str(ran.exception)


def test_one_command_trains_on_a_text_and_the_model_opens(text, tmp_path):
    """What a newcomer does; the app loads a model by the same call and shows the same tokens."""
    options = ["--steps", "12", "--output", str(tmp_path / "mine"), "--set", "evaluation.every=6"]
    small = "model.changes={num_hidden_layers: 1, hidden_size: 32, intermediate_size: 48}"
    ran = CliRunner().invoke(verbs, ["train", "--text", str(text), *options, "--set", small])
    assert ran.exit_code == 0, ran.output
    assert f"dcinterp app {tmp_path / 'mine' / 'model'}" in ran.output.replace("\n", "")
    bridge = dcinterp.load(tmp_path / "mine" / "model")
    prediction = dcinterp.predict(bridge, "Line 7 of the text says", "4")
    assert len(prediction.tokens) >= len("Line 7 of the text says")
    records = [json.loads(line) for line in (tmp_path / "mine" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["validation_loss"] for record in records if "validation_loss" in record]
    assert len(losses) == 2
    assert losses[1] < losses[0] < 6.0
    assert records[-1]["bits_per_byte"] == pytest.approx(records[-1]["validation_loss"] / np.log(2), rel=0.02)


def test_a_budget_of_tokens_and_a_text_that_changed(text, tmp_path):
    tree = {
        "output": str(tmp_path / "run"),
        "model": {"changes": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}},
        "data": {
            "text": {"path": str(text), "context": 32},
            "phases": [{"source": "text", "tokens": 1000, "batch_size": 4}],
        },
        "save_every": 4,
    }
    train(build_config(tree))
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 8
    assert last["tokens"] == 8 * 4 * 32
    text.write_text("".join(LINES[::-1]), encoding="utf-8")
    with pytest.raises(UserError, match="have changed since it began"):
        train(build_config(tree), resume=True)


def test_data_sources_do_not_mix():
    for source, preset, message in [
        ("text", "tiny-dcvit", "does not read text"),
        ("images", "tiny-dcformer++", "does not read images"),
    ]:
        with pytest.raises(UserError, match=message):
            train(build_config({"model": {"preset": preset}, "data": {"phases": [{"source": source}]}}))
    with pytest.raises(UserError, match="tasks and text"):
        train(build_config({"data": {"phases": [{"source": "tasks"}, {"source": "text"}]}}))


def begins_with_a_space(pieces_of: list[str]) -> PreTrainedTokenizerFast:
    """As Llama 2 has it: a space is put before every text, and words begin with their spaces."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    alphabet = sorted({letter for piece in pieces_of for letter in piece} - {" "})
    made.train_from_iterator(
        pieces_of, trainers.BpeTrainer(vocab_size=400, initial_alphabet=["▁", *alphabet], special_tokens=["</s>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


def test_a_piece_that_goes_on_does_not_begin_with_a_space(text):
    words = begins_with_a_space(LINES)
    source = TextSource(TextSection(path=str(text), context=64, validation_share=0.02), words)
    ids = source.rows["train"].reshape(-1)
    stretches = np.split(ids, np.flatnonzero(ids == words.eos_token_id) + 1)
    said = ["".join(words.convert_ids_to_tokens(each)).replace("▁", " ") for each in stretches]
    whole = f" {text.read_text(encoding='utf-8')}"
    for each in said:
        assert each.removesuffix("</s>").strip() in whole
    assert "\n Line" not in "".join(said)


def test_a_text_that_packs_densely_has_as_much_held_out_as_a_row_takes(tmp_path):
    path = tmp_path / "dense.txt"
    path.write_text("".join(f"the same long sentence again and again, {n}\n" for n in range(9000)))
    section = TextSection(path=str(path), tokenizer="bpe", vocabulary=1000, context=512, validation_share=1e-6)
    assert len(TextSource(section).rows["validation"]) >= 1


def test_one_file_has_no_whole_file_to_hold_out(text):
    with pytest.raises(UserError, match="has fewer than two different ones; set it to pieces"):
        TextSource(TextSection(path=str(text), hold_out="files", context=32))


def test_a_file_that_was_written_over_is_read_anew(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("the cat sat\n" * 2000)
    section = TextSection(path=str(path), context=32)
    before, times = TextSource(section).digest(), path.stat()
    path.write_text("the dog sat\n" * 2000)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert TextSource(section).digest() != before


def test_whole_files_are_held_out(tmp_path):
    for number in range(40):
        lines = "".join(f"File {number} says {line * line % 89}.\n" for line in range(200))
        (tmp_path / f"{number}.txt").write_text(lines, encoding="utf-8")
    section = TextSection(path=str(tmp_path), pattern="*.txt", hold_out="files", validation_share=0.2, context=32)
    data_source = TextSource(section)
    files = {
        side: {int(n) for n in re.findall(r"File (\d+) ", data_source.tokenizer.decode(rows.flatten().tolist()))}
        for side, rows in data_source.rows.items()
    }
    assert not files["train"] & files["validation"]
    assert files["train"] | files["validation"] == set(range(40))
    assert 2 < len(files["validation"]) < 20


def test_the_source_of_packages_is_a_text_without_tests_and_fixed_by_its_digest():
    section = TextSection(packages=("einops",), context=64)
    record = TextSource(section).record
    assert record["train"]["bytes"] > 50_000
    names = [name for name, _ in python_sources(section.packages)]
    assert "einops/einops/einops.py" in names
    assert not any("tests" in name for name in names)
    assert TextSource(replace(section, digest=record["digest"])).record == record
    with pytest.raises(UserError, match=r"not the one of data\.text\.digest"):
        TextSource(replace(section, digest="0" * 32))


def test_the_standard_library_is_read_without_what_is_installed_beside_it():
    names = [name for name, _ in python_sources(("python",))]
    assert {"python/json/decoder.py", "python/ast.py"} <= set(names)
    assert not any(set(Path(name).parts) & {"site-packages", "test", "tests"} for name in names)
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"packages": ("no-such-package",)}, "'no-such-package' of data.text.packages is not installed"),
        ({"packages": ("",)}, "data.text.packages has an empty name"),
        ({"packages": ("einops",), "path": "somewhere"}, "more than one of path, dataset and packages"),
    ],
)
def test_packages_that_cannot_be_read_are_refused(given, sentence):
    with pytest.raises(UserError, match=sentence):
        find(TextSection(**given))


@pytest.mark.parametrize(
    ("words", "says"),
    [("猫 在 房子 里", r"% of the tokens of .* does not know"), ("Ruth has a car . " * 9 + "猫 ", "")],
)
def test_a_text_that_the_model_to_start_from_cannot_read(tmp_path, caplog, words, says):
    from dcinterp.train.data.data_source import open_data_source

    (tmp_path / "a.txt").write_text((words + "\n") * 400)
    section = DataSection(
        phases=(Phase(source="text", steps=1),), text=TextSection(path=str(tmp_path / "a.txt"), context=16)
    )
    config = TrainConfig(output=str(tmp_path / "run"), data=section)
    tokenizer = dcinterp.load("dcformer++").tokenizer
    if says:
        with pytest.raises(UserError, match=says):
            open_data_source(config, tmp_path / "run", tokenizer)
    else:
        open_data_source(config, tmp_path / "run", tokenizer)
        assert "words that the model to start from does not know" in caplog.text


def test_a_run_that_is_refused_for_its_text_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(verbs, ["train", "--text", "nope.txt"])
    assert done.exit_code == 1
    assert "There is no text at nope.txt" in str(done.exception) + done.output
    assert not list(tmp_path.iterdir())


def test_held_out_documents_of_a_text_that_changed_are_refused(text, tmp_path):
    """They would be rows that the model was trained on."""
    section = TextSection(path=str(text), context=32, validation_share=0.2)
    changes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = TrainConfig(
        output=str(tmp_path / "run"),
        data=DataSection(text=section, phases=(Phase(source="text", steps=2, batch_size=2),)),
    )
    train(replace(config, model=replace(config.model, changes=changes)))
    assert len(held_out_documents(tmp_path / "run", 4)) == 4
    assert unit_of(tmp_path / "run") == "rows of text"
    text.write_text("One more line.\n" + "".join(LINES), encoding="utf-8")
    with pytest.raises(UserError, match="has changed since, so what it was not trained on is not known"):
        held_out_documents(tmp_path / "run", 4)


def test_prepared_text_that_was_cut_short_is_named(text):
    section = TextSection(path=str(text), context=32, validation_share=0.2)
    TextSource(section)
    (rows,) = cache.cache_folder().glob("text/*/train.npy")
    rows.write_bytes(rows.read_bytes()[:200])
    with pytest.raises(UserError, match=f"data in {rows.parent} are damaged .*; delete that folder"):
        TextSource(section)


def test_special_tokens_that_a_text_spells_are_said(text, tmp_path, caplog):
    text.write_text("the <unk> of a <unk> company\n" * 300, encoding="utf-8")
    section = DataSection(text=TextSection(path=str(text), context=32, validation_share=0.2))
    open_data_source(TrainConfig(data=replace(section, phases=(Phase(source="text"),))), tmp_path / "run")
    assert "spells <unk>" in caplog.text
    assert "does not know" not in caplog.text


def test_ends_of_texts_are_counted_where_they_are_the_padding_too():
    """As of many tokenizers of the hub; rows of text are never filled up."""
    source = object.__new__(TextSource)
    source.tokenizer = SimpleNamespace(pad_token_id=7, eos_token_id=7)
    assert count_tokens({"input_ids": torch.tensor([[7, 1, 7, 2]])}, source) == 4


def short_run(tmp_path, **text):
    return TrainConfig(
        output=str(tmp_path / "run"),
        data=DataSection(phases=(Phase(source="text", steps=1, batch_size=2),), text=TextSection(context=16, **text)),
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "The text is empty"),
        (b"One short line.\n" * 60, "has one piece of 960, so that nothing would be left"),
        ("Zweiundzwanzig Zeilen.\n".encode("utf-16-le") * 200, "is not UTF-8 text, as it has zero bytes"),
    ],
)
def test_a_text_that_cannot_be_is_told_why(tmp_path, content, says):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=says):
        TextSource(short_run(tmp_path, path=str(tmp_path / "t.txt")).data.text)


def test_files_that_are_no_text_are_counted(tmp_path, text, caplog):
    folder = tmp_path / "many"
    folder.mkdir()
    text.rename(folder / "good.txt")
    for number in range(3):
        (folder / f"bad{number}.txt").write_bytes("Straßenbahnhaltestelle\n".encode("latin-1"))
    for _ in range(2):  # prepared, and found in the cache
        caplog.clear()
        TextSource(short_run(tmp_path, path=str(folder)).data.text)
        assert "3 of the 4 files" in caplog.text
        assert "such as bad0.txt, and are not read" in caplog.text


def test_a_full_disk_is_named_as_one_while_a_tokenizer_is_written(tmp_path):
    class Full(PreTrainedTokenizerFast):
        def save_pretrained(self, *args, **kwargs):
            raise Exception("No space left on device (os error 28)")

    tokenizer = Full(tokenizer_object=Tokenizer(models.BPE()))
    with pytest.raises(OSError, match="No space left") as found:
        write_tokenizer(tokenizer, tmp_path)
    assert found.value.errno == errno.ENOSPC


def test_files_of_a_saved_dataset_are_not_called_unread(tmp_path):
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "data.arrow").write_bytes(b"\xff\x00\xfe")
    assert _unread(TextSection(path=str(tmp_path))) is None


def test_a_short_text_behind_empty_lines_is_not_called_empty(tmp_path):
    (tmp_path / "t.txt").write_text("\n" * 5000 + "word\n")
    with pytest.raises(UserError, match="too short"):
        TextSource(TextSection(path=str(tmp_path / "t.txt"), context=4096))
