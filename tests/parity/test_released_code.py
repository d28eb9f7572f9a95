"""Recorded outputs of the released code, reproduced by `dcinterp.load` of its checkpoints.

The small recordings in tests/fixtures/released go with every clone; its README says how they were made. Where the
folder of shared material lies beside the repository, larger ones are compared as well.
"""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import dcinterp
from dcinterp.bridge import TransformerBridge
from dcinterp.checkpoints.load import read_model

WEIGHTS = "model.safetensors"
NAMES = ("dcformer_lg", "dcformer_mgate", "dcpythia_lg")
COMMITTED = Path(__file__).parents[1] / "fixtures" / "released"
SHARED = Path(__file__).parents[2].parent / "shared" / "oracle"

# No check that the committed ones are there: a clone that lost them must fail, not pass with nothing compared.
RECORDED = {name: COMMITTED / name for name in NAMES}
if SHARED.is_dir():
    RECORDED |= {f"shared-{name}": SHARED / name for name in NAMES}
DECODED = {name: folder for name, folder in RECORDED.items() if "dcformer" in name}


def opened(folder: Path) -> tuple[dict[str, Tensor], TransformerBridge]:
    """What the released code answered, and its checkpoint as we read it, in the precision of the recording."""
    return load_file(folder / "expected.safetensors"), dcinterp.load(folder, dtype=torch.float32)


@pytest.mark.parametrize("folder", RECORDED.values(), ids=RECORDED)
def test_logits(folder: Path) -> None:
    expected, bridge = opened(folder)
    with torch.no_grad():
        torch.testing.assert_close(bridge(expected["input_ids"]), expected["logits"], atol=1e-4, rtol=0)
        raw = bridge.original_model(expected["input_ids"]).logits
    torch.testing.assert_close(raw, expected["logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("folder", RECORDED.values(), ids=RECORDED)
def test_both_stages_of_every_layer(folder: Path) -> None:
    expected, bridge = opened(folder)
    ids = expected["input_ids"]
    with torch.no_grad():
        _, cache = bridge.run_with_cache(
            ids, names_filter=lambda n: n.endswith((".hook_in", ".hook_out")) and ".attn.p" in n
        )
    length = ids.shape[1]
    ahead = torch.arange(length)[:, None] - torch.arange(length)
    windows = [bridge.model_config.window(layer) for layer in range(4)]
    assert any(window is None for window in windows)
    assert any(window is not None and window < length for window in windows), "no window is narrow enough to matter"
    for layer, window in enumerate(windows):
        # What the released code records of masked pairs before the softmax depends on how it pads its caches.
        seen = (ahead >= 0) & (ahead < (window or length))
        for stage in ("pre", "post"):
            for end in ("in", "out"):
                theirs = expected[f"{layer}.{stage}_proj.{end}"][..., :length]
                ours = cache[f"blocks.{layer}.attn.{stage}.hook_{end}"]
                # Scores reach 25 here, and float32 and float64 runs of one model differ by 2e-4 there.
                scale = max(1.0, theirs[..., seen].abs().max().item())
                torch.testing.assert_close(ours[..., seen], theirs[..., seen], atol=1e-4 * scale, rtol=0)


@pytest.mark.parametrize("folder", DECODED.values(), ids=DECODED)
def test_cached_decoding(folder: Path) -> None:
    expected, bridge = opened(folder)
    model = bridge.original_model
    with torch.no_grad():
        cache = model(expected["input_ids"], use_cache=True).past_key_values
        for step, token in enumerate(expected["decode_ids"].T):
            output = model(token[:, None], past_key_values=cache, use_cache=True)
            torch.testing.assert_close(output.logits[:, -1], expected["decode_logits"][:, step], atol=1e-4, rtol=0)


@pytest.mark.parametrize("part", ["dd", "qkw"])
@pytest.mark.parametrize("name", NAMES)
def test_the_recording_depends_on_composition(name: str, part: str, tmp_path: Path) -> None:
    # Otherwise the tests above would hold for a model that composes wrongly, or not at all.
    expected, tensors = load_file(COMMITTED / name / "expected.safetensors"), load_file(COMMITTED / name / WEIGHTS)
    off = {key: tensor * 0 if key.endswith(f"dyn_w_proj.{part}") else tensor for key, tensor in tensors.items()}
    save_file(off, tmp_path / WEIGHTS)
    shutil.copy(COMMITTED / name / "config.json", tmp_path)
    with torch.no_grad():
        logits = read_model(tmp_path, dtype=torch.float32)(expected["input_ids"]).logits
    assert (logits - expected["logits"]).abs().max() > expected["logits"].std()
