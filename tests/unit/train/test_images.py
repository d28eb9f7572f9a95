"""Images: split by their pixels, read in a seeded order, and learnt by a tiny DCViT."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

import dcinterp
from dcinterp.support.errors import UserError
from dcinterp.train.config.default_run import image_run
from dcinterp.train.config.recipe import DataSection, ImageSection, Phase, build_config
from dcinterp.train.data import cache
from dcinterp.train.data.batches import Batches
from dcinterp.train.data.images import ImageSource, _file, scale_pixels
from dcinterp.train.loop.run import train


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path_factory.getbasetemp() / "images"))


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(30):
            image.fromarray(random.integers(0, 255, (9, 7, 3), dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_the_digits_are_split_by_their_pixels():
    data_source = ImageSource(ImageSection())
    sides = {side: {image.tobytes() for image in pixels} for side, pixels in data_source.pixels.items()}
    assert not sides["train"] & sides["validation"]
    assert sum(len(pixels) for pixels in data_source.pixels.values()) == 1797
    assert 0.06 < len(data_source.pixels["validation"]) / 1797 < 0.14
    assert data_source.model_fields()["image_size"] == 8
    assert data_source.model_fields()["patch_size"] == 2
    assert data_source.model_fields()["id2label"][7] == "7"


def test_each_image_is_seen_once_before_any_is_seen_again():
    data_source = ImageSource(ImageSection())
    count = len(data_source.pixels["train"])
    phase = Phase(source="images", steps=count, batch_size=50)
    batches = Batches(DataSection(seed=1, phases=(phase,)), data_source)
    seen = torch.cat([batches[step]["pixel_values"] for step in range(-(-count // 50))])[:count]
    assert {image.numpy().tobytes() for image in seen} == {
        image.numpy().tobytes() for image in scale_pixels(np.asarray(data_source.pixels["train"]))
    }
    assert float(seen.min()) == -1
    assert float(seen.max()) == 1


def test_a_folder_of_classes(folder):
    data_source = ImageSource(ImageSection(path=str(folder), size=16, validation_share=0.3))
    assert data_source.pixels["train"].shape[1:] == (3, 16, 16)
    assert data_source.record["classes"] == ["cat", "dog"]
    assert set(data_source.labels["train"].tolist()) == {0, 1}


def test_a_pipe_and_a_bomb_are_named(folder):
    (folder / "cat" / "z.png").unlink(missing_ok=True)
    os.mkfifo(folder / "cat" / "z.png")
    with pytest.raises(UserError, match=r"z\.png is a device or a pipe"):
        ImageSource(ImageSection(path=str(folder), size=9))
    (folder / "cat" / "z.png").unlink()
    shape = (60_000).to_bytes(4, "big") * 2
    header = b"IHDR" + shape + bytes([8, 2, 0, 0, 0])
    bomb = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    for broken in (bomb, bomb[:20]):
        (folder / "cat" / "z.png").write_bytes(broken)
        with pytest.raises(UserError, match=r"z\.png cannot be read as an image"):
            ImageSource(ImageSection(path=str(folder), size=9))


def test_pictures_are_read_as_they_are_seen(tmp_path):
    image = pytest.importorskip("PIL.Image")
    ramp = np.linspace(0, 65535, 81).reshape(9, 9).astype(">u2")
    (tmp_path / "deep.pgm").write_bytes(b"P5 9 9 65535\n" + ramp.tobytes())
    assert set(_file(tmp_path / "deep.pgm", 9)[0].flat) == set((ramp / 257).round().astype(np.uint8).flat)
    clear = image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    assert (_file(tmp_path / "clear.png", 4) == 255).all()
    turned, exif = image.new("RGB", (4, 4)), image.Exif()
    turned.putpixel((0, 0), (255, 255, 255))
    exif[0x0112] = 3  # half a turn
    turned.save(tmp_path / "turned.png", exif=exif)
    assert _file(tmp_path / "turned.png", 4)[0].argmax() == 15


def test_what_is_hidden_is_no_class_and_16_bits_are_not_cut(folder):
    image = pytest.importorskip("PIL.Image")
    (folder / ".thumbs").mkdir()
    ramp = np.linspace(0, 65535, 81).reshape(9, 9).astype(np.uint16)
    image.fromarray(ramp).save(folder / ".thumbs" / "a.png")
    assert ImageSource(ImageSection(path=str(folder), validation_share=0.3)).record["classes"] == ["cat", "dog"]
    for number in range(30):
        image.fromarray(ramp // (1 + number)).save(folder / "cat" / f"{number}.png")
    pixels = np.asarray(ImageSource(ImageSection(path=str(folder), size=9, validation_share=0.3)).pixels["train"])
    grey = pixels[(pixels == pixels[:, :1]).all((1, 2, 3))]
    assert len(grey) > 5
    assert float((grey == 255).mean()) < 0.1


def test_a_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3), dtype=np.uint8)
    rows = {"image": list(pixels), "label": ["a", "b"] * 20}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    data_source = ImageSource(ImageSection(path=str(tmp_path / "saved"), size=8, validation_share=0.3))
    assert data_source.record["classes"] == ["a", "b"]
    assert data_source.pixels["train"].shape[1:] == (3, 8, 8)


def test_refuses_with_a_sentence(folder, tmp_path):
    with pytest.raises(UserError, match="There is no folder of images"):
        ImageSource(ImageSection(path="nowhere"))
    with pytest.raises(UserError, match="images of 0 classes"):
        ImageSource(ImageSection(path=str(folder / "cat")))
    (folder / "cat" / "broken.png").write_text("no image")
    with pytest.raises(UserError, match=r"broken.png cannot be read as an image"):
        ImageSource(ImageSection(path=str(folder)))


def test_a_tiny_dcvit_learns_the_digits(tmp_path):
    changes = ["model.changes={num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 4, intermediate_size: 64}"]
    changes += [f"output={tmp_path / 'digits'}", "evaluation.every=60", "recipe.learning_rate=4e-3"]
    changes += ["data.phases=[{source: images, steps: 120, batch_size: 32}]"]
    config = build_config(image_run(), changes)
    assert (config.recipe.beta2, config.recipe.weight_decay) == (0.9, 1e-4), "the paper's for classifiers"
    model = train(config)
    records = [json.loads(line) for line in (tmp_path / "digits" / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in records if "image_accuracy" in record]
    assert measured[-1]["image_accuracy"] > 0.5, "chance is 0.1"
    assert measured[-1]["tokens"] == 120 * 32
    assert dcinterp.read_model(model).config.id2label[3] == "3"


@pytest.mark.parametrize("size", [-1, 100_000])
def test_a_size_that_no_image_has_is_refused(folder, size):
    for path in ("", str(folder)):
        with pytest.raises(UserError, match=f"data.images.size is {size}; it must be 0 to 4,096 pixels"):
            ImageSource(ImageSection(path=path, size=size))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("image", "has a row without an image in 'image'"),
        ("numbers", "has other values than images in 'numbers'"),
        ("labels", "Labels in 'labels' of the dataset are lists"),
    ],
)
def test_rows_that_are_no_labelled_images_are_refused(tmp_path, column, said):
    datasets, image = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8))
    kinds = {"image": datasets.Image(), "numbers": datasets.Value("int64"), "label": datasets.Value("int64")}
    features = datasets.Features(kinds | {"labels": datasets.Sequence(datasets.Value("int64"))})
    rows = {"image": [picture, None], "numbers": [1, 2], "label": [0, 1], "labels": [[0], [1]]}
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "saved")
    section = ImageSection(path=str(tmp_path / "saved"))
    key = "label_column" if column == "labels" else "image_column"
    with pytest.raises(UserError, match=said):
        ImageSource(replace(section, **{key: column}))


def test_images_without_a_label_are_refused(tmp_path):
    datasets, image = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((8, 8, 3), shade, dtype=np.uint8)) for shade in range(4)]
    for label, kind in (
        ([0, 1, None, 0], datasets.Value("int64")),
        ([0, 1, -1, 0], datasets.ClassLabel(names=["a", "b"])),
    ):
        features = datasets.Features({"image": datasets.Image(), "label": kind})
        datasets.Dataset.from_dict({"image": pictures, "label": label}, features).save_to_disk(tmp_path / str(kind)[:5])
        with pytest.raises(UserError, match="have no label in 'label'"):
            ImageSource(ImageSection(path=str(tmp_path / str(kind)[:5])))


def test_a_classifier_has_as_many_outputs_as_the_images_have_classes(folder, tmp_path):
    changes = ["model.changes={num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, intermediate_size: 16}"]
    changes += [f"data.images={{path: {folder}, size: 8, validation_share: 0.3}}"]
    changes += [f"output={tmp_path / 'run'}", "data.phases=[{source: images, steps: 2, batch_size: 4}]"]
    saved = json.loads((train(build_config(image_run(), changes)) / "config.json").read_text())
    assert saved["id2label"] == {"0": "cat", "1": "dog"}
    assert saved["use_cache"] is True
    changes += [f"output={tmp_path / 'other'}", "model.changes.num_labels=1"]
    with pytest.raises(UserError, match="num_labels is 1, but the images are of 2 classes"):
        train(build_config(image_run(), changes))
