"""Fixtures for all tests: small models with composition that does something, and the shipped pair."""

from __future__ import annotations

import os
import time

# Before torch starts its threads: the tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing in the tests may look anything up.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

SHAPES_CHECKED = (
    *("contract/test_compose.py", "parity", "unit/bridge/test_hooks.py", "unit/checkpoints", "unit/mechanism"),
    "unit/model",
)
"""Where every call of the model is held against its annotated shapes. The same calls with the same shapes are made by
the thousand in the other tests, and a third of their time went into looking at them again."""


@pytest.fixture(autouse=True)
def shapes_checked(request: pytest.FixtureRequest) -> None:
    """Annotated shapes are checked in the tests of the model, and not in those of what is built on it."""
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    jaxtyping.config.update("jaxtyping_disable", not place.startswith(SHAPES_CHECKED))


def composing(model: DCFormerForCausalLM, seed: int = 0) -> DCFormerForCausalLM:
    """The model with dynamic weights large enough to matter: at initialisation they are close to zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".pre." in name or ".post." in name:
                parameter.normal_(std=0.15, generator=generator)
    return model


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dcinterp.train.data.tokenizer import save_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, 128)
    return folder


@pytest.fixture(scope="session")
def make_bridge(tokenizer_folder: Path) -> Callable[..., Any]:
    """Builds a bridge over a random tiny model of a preset, with the tokenizer of the tasks."""

    def make(preset: str = "tiny-dcformer++", **changes: Any) -> Any:
        from transformers import PreTrainedTokenizerFast

        from dcinterp.bridge import wrap

        tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
        fields = {"num_hidden_layers": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
        torch.manual_seed(0)
        model = DCFormerForCausalLM(DCFormerConfig.preset(preset, **(fields | changes)))
        return wrap(composing(model), tokenizer)

    return make


@pytest.fixture
def bridge(make_bridge: Callable[..., Any]) -> Any:
    return make_bridge()


@pytest.fixture
def twin(make_bridge: Callable[..., Any]) -> Any:
    return make_bridge("tiny-transformer++")


@pytest.fixture(scope="session")
def prompt() -> str:
    return "< Ruth has a violin. Carol has a beetle. Ronald has blueberries. >. Ronald has a kind of"


@pytest.fixture(scope="session")
def shipped() -> Any:
    import dcinterp

    return dcinterp.load("dcformer++")


@pytest.fixture(scope="session")
def scanned_once() -> Iterator[None]:
    """Every AppTest reads the metadata of all installed packages anew, which takes far longer than most pages."""
    from streamlit.components.v2 import manifest_scanner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """`until(condition, seconds=240)`: what `condition` gives, once it gives something."""

    def wait(condition: Callable[[], Any], seconds: float = 240) -> Any:
        end = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < end, "it took too long"
            time.sleep(0.1)
        return found

    return wait
