"""The difference between arms image by image, with an interval over the held-out images.

    python experiments/digits_longer/by_image.py

reads the models of the runs (so the runs must be there, not only their table), adds a row for every model to
by_image.csv of this folder, and prints a table, which is also at the end of the experiment's page (more-by-image.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.evidence.intervals import mean_text
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable, print_measured, trained_models, with_all_arms
from dcinterp.model.vit import DCViTForImageClassification
from dcinterp.support.text import markdown_table
from dcinterp.train.control.experiment import FINAL, Experiment
from dcinterp.train.data.images import ImageSource, scale_pixels

HERE = Path(__file__).parent
TABLE, TEXT_FILE = "by_image.csv", "more-by-image.md"
RIGHT, WRONG = "r", "w"

TEXT = """## Image by image

The share of {seeds} seeds that tell each of the {images} held-out images right, of one arm minus that of another.
Brackets are 95 % intervals over images, which take them for independent, though one hand wrote several; those above are
over seeds. *more* and *fewer* are images that more, or fewer, seeds of the first arm tell right. No verdict is drawn.

    python experiments/digits_longer/by_image.py{options}

{table}
"""


def measure(experiment: Experiment, _arm: str, model: Path) -> list[dict[str, Any]]:
    """Which held-out images a model tells right, a letter for each."""
    images = experiment.run(FINAL, experiment.baseline, {}, experiment.seeds[0]).config.data.images
    assert images is not None
    source = ImageSource(images)
    trained = DCViTForImageClassification.from_pretrained(model).eval()
    with torch.inference_mode():
        told = trained(scale_pixels(source.pixels["validation"][:])).logits.argmax(-1)
    right = (told == source.labels["validation"]).tolist()
    return [{"images": "".join(RIGHT if each else WRONG for each in right)}]


def shares(rows: pd.DataFrame, arm: str) -> Float[Tensor, " image"]:
    """The share of seeds whose model of an arm tells each image right."""
    found = [[letter == RIGHT for letter in text] for text in rows.loc[rows["arm"] == arm, "images"]]
    return torch.tensor(found, dtype=torch.float64).mean(0)


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The table of the hypotheses' differences, as Markdown.

    options: of the command that makes it again.
    """
    rows, lines = with_all_arms(rows, experiment), []
    for each in experiment.hypotheses:
        (arm,), (baseline,) = each.arms, each.baselines
        apart = shares(rows, arm) - shares(rows, baseline)
        difference = mean_text(apart)
        more, fewer = (str(int(side.sum())) for side in (apart > 1e-9, apart < -1e-9))
        lines.append([f"{arm} minus {baseline}", difference, more, fewer])
    table = markdown_table(["arms", "difference [over images]", "more", "fewer"], lines)
    seeds, images = rows["seed"].nunique(), len(rows["images"].iloc[0])
    return TEXT.format(seeds=seeds, images=images, options=options, table=table)


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the table."""
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, measure, summary)


if __name__ == "__main__":
    run_script(main)
