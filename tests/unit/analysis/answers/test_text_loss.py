"""The loss on files: cross entropy on the same rows, told apart by what stands before a token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import dcinterp
from dcinterp.analysis.answers.text_loss import _rows, token_bytes
from dcinterp.figures.base.rows import rows
from dcinterp.mechanism.token_kinds import KINDS, kinds_of
from dcinterp.support.errors import UserError
from dcinterp.train.data.files_by_hash import documents_by_hash, is_packages
from dcinterp.train.data.text import hash_share
from dcinterp.train.data.tokenizer import bpe_tokenizer, byte_tokenizer

SENTENCES = ["Ruth has a violin. John has a pear.", "Karen has a dog. Who has the dog? Karen", "There are tea, meat."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "text"
    (place / "below").mkdir(parents=True)
    for number, sentence in enumerate([*SENTENCES, SENTENCES[0]]):
        (place / "below" / f"{number}.txt").write_text(sentence * 3)
    (place / "picture.txt").write_bytes(b"\xff\xfe\x00")
    (place / "empty.txt").write_text("\n")
    return place


def test_a_token_has_the_kind_of_what_stands_before_it_in_its_row():
    words = dict(enumerate(["f", "(", ")", " x", ")]", "1"]))
    row = [0, 1, 3, 2, 0, 1, 3, 4, 3, 5, 5]
    names = [KINDS[kind] for kind in kinds_of(torch.tensor([row, row]), words)[1].tolist()]
    assert names[:4] == ["other", "other", "other", "bracket"]
    assert names[4] == "seen name", "f, behind another token than before"
    assert names[5:7] == ["repeated", "repeated"]
    assert names[7:] == ["bracket", "seen name", "other", "other"], "a number is no name"


def test_the_loss_is_cross_entropy_on_the_same_rows(shipped, folder):
    found = dcinterp.text_loss(shipped, str(folder), files=10)
    assert len(found.files) == 3, "what repeats another file is left out"
    sums, count = 0.0, 0
    for name in found.files:
        ids = shipped.tokenizer((folder / name).read_text(), add_special_tokens=False)["input_ids"]
        row = torch.tensor([[shipped.tokenizer.eos_token_id, *ids]])
        sums += float(torch.nn.functional.cross_entropy(shipped(row)[0, :-1].detach(), row[0, 1:], reduction="sum"))
        count += len(ids)
    assert int(found.tokens.sum()) == count
    assert float(found.loss[0]) == pytest.approx(sums / count, rel=1e-5)
    assert found.table().iloc[0]["nats"] == pytest.approx(sums / count, rel=1e-5)


def test_long_files_are_cut_into_rows_of_the_context(make_bridge, tmp_path):
    bridge = make_bridge(max_position_embeddings=16)
    (tmp_path / "a.txt").write_text(" ".join(SENTENCES) * 20)
    found = dcinterp.text_loss(bridge, str(tmp_path / "a.txt"), tokens=40)
    assert int(found.tokens.sum()) == 41 - 3, "the first token of each of three rows is not scored"


def test_two_models_are_compared_on_the_same_tokens(shipped, folder):
    found = dcinterp.text_loss(shipped, str(folder), other="transformer++", files=10)
    nats = found.table().pivot(index="kind", columns="model", values="nats")
    expected = nats["dcformer++"] - nats["transformer++"]
    assert nats["difference"].tolist() == pytest.approx(expected.tolist())
    assert (found.table()["low"] < found.table()["high"]).all()
    same = dcinterp.text_loss(shipped, str(folder), other="dcformer++", files=10).table().query("model == 'difference'")
    assert same[["nats", "low", "high"]].abs().to_numpy().max() < 1e-9
    assert (found.table().query("model != 'difference'")["low"] >= 0).all(), "no loss is below zero"
    drawn = rows(dcinterp.figures.plot(found))["kind of token, how many"]
    assert drawn[: len(drawn) // 2].tolist() == drawn[len(drawn) // 2 :].tolist(), "both stand in the same rows"
    assert drawn[0].startswith("all, ")
    assert "minus" in found.sentences()[-1]
    assert "95% interval over files" in found.sentences()[-1]
    assert "99.5% interval over files" in replace(found, level=0.995).sentences()[-1], "which is not 100%"
    one = dcinterp.text_loss(shipped, str(folder / "below" / "0.txt"), other="transformer++")
    assert one.sentences()[0].endswith("tokens of 1 file.")
    assert one.sentences()[-1].endswith("nats a token, of one file, so without an interval.")


def test_the_interval_covers_the_ratio_over_files():
    """Files of very different lengths: the interval is of sum over sum, not of the mean of means."""
    from dcinterp.analysis.answers.text_loss import _interval

    random, inside = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        count = torch.rand(30, generator=random).double() * 900 + 100
        rate = 3 + torch.randn(30, generator=random).double() - count / 500
        found = _interval(rate * count, count, 0.95)
        # Of uniform lengths: E[count rate] / E[count].
        length = torch.linspace(100, 1000, 100_001).double()
        truth = float(((3 - length / 500) * length).mean() / length.mean())
        inside += found["low"] <= truth <= found["high"]
    assert 0.91 <= inside / 200 <= 0.99


def test_files_are_drawn_by_the_hash_that_holds_them_out(folder):
    drawn = documents_by_hash(str(folder), 1.0, 10)
    shares = [hash_share(said) for _, said in drawn]
    assert shares == sorted(shares)
    assert documents_by_hash(str(folder), shares[1], 10) == drawn[:1]
    assert documents_by_hash(str(folder), 1.0, 2) == drawn[:2]
    assert is_packages("python, numpy")
    assert not is_packages(str(folder))


def test_what_cannot_be_read_is_refused(shipped, own_model, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for text, said in [(str(tmp_path / "none"), "There is no file"), (str(tmp_path / "empty"), "UTF-8 text")]:
        with pytest.raises(UserError, match=said):
            dcinterp.text_loss(shipped, text)
    with pytest.raises(UserError, match="raise share"):
        dcinterp.text_loss(shipped, str(folder), share=1e-9)
    with pytest.raises(UserError, match="other tokens"):
        dcinterp.text_loss(shipped, str(folder), other=str(own_model("gpt2")))


def test_a_text_of_unknown_words_is_said_to_be_one(shipped, tmp_path):
    (tmp_path / "a.py").write_text("import json\nprint(json.dumps({}))\n")
    first, second = dcinterp.text_loss(shipped, str(tmp_path)).warnings()
    assert "lacks" in first
    assert second.startswith("One file says little")


@pytest.mark.parametrize("text", ["The cat sees the dog. ", "Кот видит собаку. ", "猫在房子里看见狗。", "a🍋é\n\t "])
def test_tokens_have_the_bytes_that_they_stand_for(text):
    """A byte is a byte, also where a row cuts a character; tokens of several share the bytes of the text."""
    text *= 30
    single = byte_tokenizer(64)(text, add_special_tokens=False, return_offsets_mapping=True)
    assert token_bytes(text, single["offset_mapping"]) == [1.0] * len(text.encode())
    learnt = bpe_tokenizer([text], 300, 64)(text, add_special_tokens=False, return_offsets_mapping=True)
    sizes = token_bytes(text, learnt["offset_mapping"])
    assert len(sizes) == len(learnt["input_ids"]) < len(text.encode())
    assert sum(sizes) == pytest.approx(len(text.encode()))


def test_bits_a_byte_of_a_byte_model_are_those_of_its_tokens():
    bridge = SimpleNamespace(tokenizer=byte_tokenizer(16))
    rows, size, _ = _rows(bridge, "Кот видит собаку. " * 9, 99, 16)
    assert size == sum(row[:, 1:].numel() for row in rows)


def test_two_models_of_one_name_are_told_apart(shipped, folder):
    bridge = dcinterp.load("dcformer++")
    with torch.no_grad():
        next(bridge.original_model.parameters()).mul_(0.5)
    found = dcinterp.text_loss(bridge, str(folder), other="dcformer++")
    assert found.models == ("dcformer++ (1)", "dcformer++ (2)")
    assert len(found.table().query("kind == 'all'")) == 3
    assert f"{float(found.loss[0]):.3f} nats" in found.sentences()[0]
    assert f"{float(found.loss[1]):.3f} nats" in found.sentences()[1]
    both = dcinterp.compare_head_diversity(bridge, other="dcformer++")
    assert both.models == ("dcformer++ (1)", "dcformer++ (2)")


def test_rows_fit_the_shorter_of_two_contexts(make_bridge, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("Ruth has a violin. " * 12)
    bridge, short = make_bridge(), make_bridge(max_position_embeddings=16)
    monkeypatch.setattr("dcinterp.checkpoints.load.load", lambda name, **_: short)
    found = dcinterp.text_loss(bridge, str(tmp_path), other="short", files=1)
    assert float(found.tokens.sum()) > 16
    assert found.loss.isfinite().all()


def test_the_token_that_opens_a_file_is_no_unknown_word(own_model, tmp_path):
    """GPT-2's unknown token is its beginning and end of text, too."""
    (tmp_path / "a.txt").write_text("Ruth has a violin.")
    bridge = dcinterp.load(own_model("gpt2"))
    assert bridge.tokenizer.unk_token_id == bridge.tokenizer.eos_token_id
    assert dcinterp.text_loss(bridge, str(tmp_path), files=1).unknown == 0
