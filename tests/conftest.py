"""Fixtures for all tests: small models with composition that does something, and the shipped pair."""

from __future__ import annotations

import gc
import os
import string
import sys
import time
import tomllib

# Before torch starts its threads: the tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing in the tests may look anything up.
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Torch and the library only where they are used: the process that deals out the tests reads this file too, before it
# starts those that run them, and runs none itself.
if TYPE_CHECKING:
    from dcinterp.model.decoder import DCFormerForCausalLM

ROOT = Path(__file__).parents[1]
MAIN = sys.modules["__main__"]

SHAPES_CHECKED = (
    *("contract/test_compose.py", "parity", "unit/bridge/test_hooks.py", "unit/checkpoints", "unit/mechanism"),
    "unit/model",
)
"""Where every call of the model is held against its annotated shapes. The same calls with the same shapes are made by
the thousand in the other tests, and a third of their time went into looking at them again."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Annotated shapes are checked in the tests of the model, and not in those of what is built on it.

    And the main module is this process's own again: an AppTest leaves the script of the app there, and processes that a
    test starts would run it first.

    No fixture does this: those of a module or a session would run before it, with what the test before had chosen.
    """
    import jaxtyping

    sys.modules["__main__"] = MAIN
    place = item.path.relative_to(Path(__file__).parent).as_posix()
    jaxtyping.config.update("jaxtyping_disable", not place.startswith(SHAPES_CHECKED))


def pytest_collection_finish() -> None:
    """What is imported by now stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


def composing(model: DCFormerForCausalLM, seed: int = 0) -> DCFormerForCausalLM:
    """The model with dynamic weights large enough to matter: at initialisation they are close to zero."""
    import torch

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
        import torch
        from transformers import PreTrainedTokenizerFast

        from dcinterp.bridge import wrap
        from dcinterp.model.config import DCFormerConfig
        from dcinterp.model.decoder import DCFormerForCausalLM

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


END = "<|endoftext|>"
SHAPES = ("gpt2", "llama", "neox")
"""Kinds of other people's models, by how their tokenizers are set up: GPT-2's unknown token is its beginning and end of
text, Llama's is a token of its own, and NeoX's byte-level BPE is put before a model that expects no beginning."""


def own_tokenizer(shape: str) -> Any:
    """A small tokenizer of that shape, trained on texts of the tasks: some of their words are one token, others not."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    import synthetic_tasks

    texts = [row.examples[0].prompt for row in synthetic_tasks.generate("task2", 60, seed=0, examples=1)]
    llama = shape == "llama"
    core = Tokenizer(models.BPE(unk_token="<unk>") if llama else models.BPE())
    if llama:
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
        special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        special = {"unk_token": END, "bos_token": END, "eos_token": END}
    names = list(dict.fromkeys(special.values())) + ["<|padding|>"] * (shape == "neox")
    letters = list(string.printable.strip()) if llama else pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=420, special_tokens=names, initial_alphabet=letters, show_progress=False)
    )
    if llama:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


@pytest.fixture(scope="session")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model of transformers with a tokenizer of a shape of `SHAPES`."""

    @cache
    def make(shape: str) -> Path:
        import torch
        import transformers as hf

        tokenizer, folder = own_tokenizer(shape), tmp_path_factory.mktemp("own") / shape
        sizes: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 1024}
        sizes |= {"hidden_size": 32, "intermediate_size": 48, "vocab_size": len(tokenizer), "bos_token_id": 0}
        kinds: dict[str, Any] = {
            "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, {}),
            "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, {"num_key_value_heads": 2, "bos_token_id": 1}),
            "neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, {}),
        }
        model, config, more = kinds[shape]
        torch.manual_seed(0)
        model(config(**(sizes | {"eos_token_id": tokenizer.eos_token_id} | more))).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def as_served() -> Iterator[None]:
    """An AppTest runs pages as the server does: with the app's settings, which AppTest does not read.

    With Streamlit's own it would rewrite the source of a page for magic, and look each of its calls up for statistics
    of use, in every run: a third of the time of most. And it reads the metadata of all installed packages anew each
    time, which takes far longer than most pages.
    """
    from streamlit import config
    from streamlit.components.v2 import manifest_scanner

    settings = tomllib.loads((ROOT / "app" / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    given = {f"{part}.{name}": settings[part][name] for part in ("runner", "browser") for name in settings[part]}
    before = {name: config.get_option(name) for name in given}
    for name, value in given.items():
        config.set_option(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield
    for name, value in before.items():
        config.set_option(name, value)


@pytest.fixture
def warm_python() -> Iterator[None]:
    """What the test starts as `python ...` is a fork of a process that has imported torch and the like already."""
    from warm_python import warm

    with warm():
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


@pytest.fixture(scope="session")
def write_experiment() -> Callable[..., Path]:
    """Write the folder of a small experiment whose runs have ended, and return it."""

    def write(folder: Path, accuracies: dict[str, list[float]]) -> Path:
        import pandas as pd
        import yaml

        folder.mkdir(parents=True)
        tree = {
            "title": "Which arm is better?",
            "config": {"data": {"puzzle": {"name": "recombination"}, "phases": [{"source": "puzzle", "steps": 2}]}},
            "arms": [{"name": arm, "model.changes.hidden_size": 16} for arm in accuracies],
            "tuning": {
                "keys": {"recipe.learning_rate": [0.001, 0.002]},
                "seeds": [100],
                "by": "accuracy 1 seen",
                "best": "highest",
            },
            "seeds": list(range(len(next(iter(accuracies.values()))))),
            "measures": {"accuracy 1 held-out": "accuracy on new pairs"},
        }
        first, *others = accuracies
        tree["hypotheses"] = [{"name": f"H{n}", "arm": arm, "baseline": first} for n, arm in enumerate(others, 1)]
        (folder / "experiment.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        rows = [
            {"stage": "final", "arm": arm, "name": f"final,{arm},learning_rate=0.001,seed={seed}", "status": "done"}
            | {"recipe.learning_rate": 0.001, "recipe.seed": seed, "accuracy 1 held-out": value}
            | {"parameters": 1000 + number, "flops": 1e9}
            for number, (arm, values) in enumerate(accuracies.items())
            for seed, value in enumerate(values)
        ]
        rows += [
            {"stage": "tuning", "arm": arm, "name": f"tuning,{arm},learning_rate={rate},seed=100", "status": "done"}
            | {"recipe.learning_rate": rate, "recipe.seed": 100, "accuracy 1 seen": -rate, "loss": rate}
            for arm in accuracies
            for rate in (0.001, 0.002)
        ]
        pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
        return folder

    return write
