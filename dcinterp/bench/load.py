"""Loading a released checkpoint: seconds, and peak memory against the size of its tensors.

    python -m dcinterp.bench.load                              # a random bfloat16 checkpoint of 2.8B parameters
    python -m dcinterp.bench.load --preset dcformer++-405m
    python -m dcinterp.bench.load --folder DCFormer-2.8B       # one that you have

Loading runs in a process of its own; its peak is what Linux reports as the highest resident memory, less what the
process held before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from dcinterp.checkpoints.layouts import dcformer, dcpythia
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

_CHILD = """
import json, sys, time
from pathlib import Path
from dcinterp.checkpoints.load import read_model
from dcinterp.model.vit import DCViTForImageClassification

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

before, start = memory("VmRSS"), time.perf_counter()
model = read_model(Path(sys.argv[1]))
seconds = time.perf_counter() - start
tensors = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps([seconds, memory("VmHWM") - before, tensors]))
"""


@dataclass(frozen=True)
class LoadMeasurement:
    """Seconds to load, highest resident memory while loading, and bytes of the model's tensors."""

    seconds: float
    peak: int
    tensors: int

    def __str__(self) -> str:
        return (
            f"{self.tensors / 1e9:.2f} GB of tensors in {self.seconds:.1f} s, peak memory {self.peak / 1e9:.2f} GB "
            f"({self.peak / self.tensors:.2f} times the tensors)"
        )


def write_random(name: str, folder: Path, *, progress: Progress = silent) -> None:
    """Write a random bfloat16 checkpoint of the preset `name` in its released layout, one shard a layer.

    Raises:
        UserError: the preset has no released layout.
    """
    config = DCFormerConfig.preset(name, num_hidden_layers=1)
    layers = DCFormerConfig.preset(name).num_hidden_layers
    if not name.lower().startswith(("dcformer++", "dcpythia")):
        raise UserError(f"Preset {name} has no released layout; choose a dcformer++ or dcpythia one.")
    layout = dcpythia if name.lower().startswith("dcpythia") else dcformer
    with torch.device("meta"):
        shapes = {key: tensor.shape for key, tensor in build_model(config).state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    homes: dict[str, str] = {}
    # All layers alike: what they hold does not matter here, and random numbers are slow to draw.
    ours = {key: torch.randn(shape, dtype=torch.bfloat16) / 50 for key, shape in shapes.items()}
    theirs = {key: tensor.contiguous() for key, tensor in layout.to_theirs(ours, config)}
    for layer in range(layers):
        shard = {
            key.replace("layers.0.", f"layers.{layer}."): tensor
            for key, tensor in theirs.items()
            if layer == 0 or key.startswith("layers.")
        }
        file = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        save_file(shard, folder / file)
        homes |= dict.fromkeys(shard, file)
        progress(layer + 1, layers, "writing")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    fields = layout.write_config(config) | {"n_layer": layers}
    (folder / "config.json").write_text(json.dumps(fields))


def measure_load(folder: Path) -> LoadMeasurement:
    """Load `folder` in a new process and report what it took.

    Raises:
        UserError: there is no model in the folder, or loading it fails.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"Loading {folder} failed: it has no config.json; give the folder of a model.")
    command = [sys.executable, "-c", _CHILD, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"it ended with code {ran.returncode}; is there enough memory?"]
        raise UserError(f"Loading {folder} failed: {said[-1]}")
    return LoadMeasurement(*json.loads(ran.stdout))


def main(arguments: list[str] | None = None) -> None:
    """The command line of this benchmark."""
    parser = argparse.ArgumentParser(prog="python -m dcinterp.bench.load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", default="dcformer++-2.8b", help="shape of the random checkpoint")
    parser.add_argument("--folder", type=Path, help="measure this checkpoint instead")
    chosen = parser.parse_args(arguments)
    if chosen.folder is not None:
        sys.stdout.write(f"{chosen.folder}: {measure_load(chosen.folder)}\n")
        return
    with TemporaryDirectory() as folder:
        write_random(chosen.preset, Path(folder))
        sys.stdout.write(f"{chosen.preset}: {measure_load(Path(folder))}\n")


if __name__ == "__main__":
    main()
