"""Images to classify: a folder, a data set, or the handwritten digits that come with scikit-learn.

Pixels are bytes until a batch is made, and then numbers from -1 to 1. Which images are held out is decided by a hash
of their pixels, so that two copies of an image are always on the same side. Images are shown as they are, without
augmentation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dcinterp.support.errors import UserError
from dcinterp.support.json_files import require_plain_file
from dcinterp.support.paths import hidden, path_of
from dcinterp.train.config.recipe import ImageSection
from dcinterp.train.data.batches import Draw, shuffle_index
from dcinterp.train.data.cache import find_or_make, fingerprint_files, require_whole

SIDES = ("train", "validation")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm")
DEFAULT_SIZE, LARGEST_SIZE = 32, 4096
FORMAT = 1
"""Raise it when the same images would give other rows."""

Labelled = Callable[[], Iterable[tuple[np.ndarray, int]]]


class ImageSource:
    """Images and their classes. Each is seen once before any is seen again, in an order that the seed gives."""

    tokenizer: PreTrainedTokenizerFast | None = None

    def __init__(self, section: ImageSection) -> None:
        folder = prepare(section)
        self.record: dict[str, Any] = json.loads((folder / "images.json").read_text(encoding="utf-8"))
        self.pixels = {side: np.load(folder / f"{side}.npy", mmap_mode="r") for side in SIDES}
        self.labels = {side: torch.from_numpy(np.load(folder / f"{side}-labels.npy")) for side in SIDES}

    def model_fields(self) -> dict[str, Any]:
        channels, size, _ = self.pixels["train"].shape[1:]
        names = self.record["classes"]
        return {
            "image_size": size,
            "num_channels": channels,
            "patch_size": 16 if size >= 64 else max(1, size // (4 if size <= 16 else 8)),
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
        }

    def batch(self, draw: Draw, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        count = len(self.pixels["train"])
        places = []
        for position in range(draw.drawn + part, draw.drawn + draw.phase.batch_size, parts):
            epoch, index = divmod(position, count)
            places.append(shuffle_index(index, count, f"{draw.seed}:{epoch}"))
        return {"pixel_values": scale_pixels(self.pixels["train"][places]), "labels": self.labels["train"][places]}

    def digest(self) -> str:
        return str(self.record["digest"])


def scale_pixels(pixels: np.ndarray) -> Float[Tensor, "batch channel height width"]:
    """Bytes as numbers from -1 to 1."""
    return torch.from_numpy(pixels.astype(np.float32)) / 127.5 - 1


def prepare(section: ImageSection) -> Path:
    """The folder with the pixels, from the cache where they were prepared before.

    Raises:
        UserError: there are no such images, or something is missing to read them.
    """
    identity, classes, images = find(section)
    made_from = {"format": FORMAT, "images": identity, "section": asdict(section)}
    folder = find_or_make("images", made_from, lambda folder: build(images, classes, section, folder))
    require_whole(folder, "images.json", [f"{side}{of}.npy" for side in SIDES for of in ("", "-labels")])
    return folder


def find(section: ImageSection) -> tuple[Any, list[str], Labelled]:
    """What identifies the images, the names of their classes, and a function that reads them."""
    if not 0 <= section.size <= LARGEST_SIZE:
        raise UserError(f"data.images.size is {section.size}; it must be 0 to {LARGEST_SIZE:,} pixels.")
    if section.path and section.dataset:
        raise UserError("data.images has both a path and a dataset; give one of them.")
    if section.dataset:
        from dcinterp.train.data.hub import load_named

        return _of_dataset(load_named(section.dataset, "data.images"), section)
    if not section.path:
        return "digits", [str(digit) for digit in range(10)], lambda: _digits(section.size)
    path = path_of(section.path)
    if not path.is_dir():
        raise UserError(f"There is no folder of images at {path}; give one with a subfolder per class.")
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        from dcinterp.train.data.hub import load_saved

        return _of_dataset(load_saved(path), section)
    files = [p for p in sorted(path.glob("*/*")) if p.suffix.lower() in SUFFIXES and not hidden(p, path)]
    classes = sorted({p.parent.name for p in files})
    if len(classes) < 2:
        raise UserError(f"{path} holds images of {len(classes)} classes; give a folder with a subfolder per class.")
    numbers = {name: number for number, name in enumerate(classes)}
    size = section.size or DEFAULT_SIZE
    return fingerprint_files(files, path), classes, lambda: ((_file(p, size), numbers[p.parent.name]) for p in files)


def build(images: Labelled, classes: list[str], section: ImageSection, folder: Path) -> None:
    """Write pixels [image, channel, height, width], classes and a record of both into `folder`.

    Raises:
        UserError: one of the two sides has no image.
    """
    sides: dict[str, list[tuple[np.ndarray, int]]] = {side: [] for side in SIDES}
    for pixels, label in images():
        number = int.from_bytes(hashlib.blake2b(pixels.tobytes(), digest_size=8).digest(), "big") / 2**64
        sides["validation" if number < section.validation_share else "train"].append((pixels, label))
    digest = hashlib.blake2b(digest_size=16)
    for side, found in sides.items():
        if not found:
            raise UserError(f"No image is in the {side} part; change data.images.validation_share or give more images.")
        pixels, labels = np.stack([image for image, _ in found]), np.array([label for _, label in found])
        np.save(folder / f"{side}.npy", pixels)
        np.save(folder / f"{side}-labels.npy", labels)
        digest.update(pixels.tobytes() + labels.tobytes())
    record = {"classes": classes, "digest": digest.hexdigest()} | {side: len(found) for side, found in sides.items()}
    (folder / "images.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def _digits(size: int) -> Iterator[tuple[np.ndarray, int]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError("The digits come with scikit-learn; install it with: pip install scikit-learn") from error
    digits = load_digits()
    for image, label in zip(digits.images, digits.target, strict=True):
        pixels = (image / 16 * 255).round().astype(np.uint8)
        yield (pixels[None] if not size else _resized(pixels, size)), int(label)


def _resized(pixels: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((size, size)))[None]


def _file(path: Path, size: int) -> np.ndarray:
    from PIL import Image

    require_plain_file(path)
    try:
        with Image.open(path) as image:
            return _colours(image, size)
    except MemoryError:
        raise
    except Exception as error:  # of as many classes as there are kinds of images; a bomb has its own
        raise UserError(f"{path} cannot be read as an image; convert it, or take it out of the folder.") from error


def _colours(image: Any, size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
    image = ImageOps.exif_transpose(image)
    # 16 bits of grey, of which RGB takes the highest 8 and not the lowest; PNM files have them as whole numbers.
    if deep:
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    if image.has_transparency_data:  # what shines through is white, as on paper, and not what the file hides
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return np.asarray(image.convert("RGB").resize((size, size))).transpose(2, 0, 1)


def _image(value: Any, section: ImageSection) -> Any:
    from PIL import Image

    if not isinstance(value, Image.Image):
        what = "a row without an image" if value is None else "other values than images"
        raise UserError(
            f"The dataset has {what} in {section.image_column!r}; leave it out, or change data.images.image_column."
        )
    return value


def _of_dataset(dataset: Any, section: ImageSection) -> tuple[Any, list[str], Labelled]:
    for column in (section.image_column, section.label_column):
        if column not in dataset.column_names:
            raise UserError(f"The dataset has no column {column!r}; its columns are {', '.join(dataset.column_names)}.")
    feature = dataset.features[section.label_column]
    labels = dataset[section.label_column]
    if any(isinstance(label, list | dict) for label in labels):
        raise UserError(
            f"Labels in {section.label_column!r} of the dataset are lists; give a column with one for each."
        )
    found = set(labels)
    if None in found or (hasattr(feature, "names") and min(found, default=0) < 0):
        raise UserError(f"Images of the dataset have no label in {section.label_column!r}; leave these out first.")
    values = sorted(found)
    names = list(getattr(feature, "names", None) or map(str, values))
    numbers = {value: number if not hasattr(feature, "names") else value for number, value in enumerate(values)}
    size = section.size or DEFAULT_SIZE
    return (
        dataset._fingerprint,
        names,
        lambda: (
            (_colours(_image(row[section.image_column], section), size), numbers[row[section.label_column]])
            for row in dataset
        ),
    )
