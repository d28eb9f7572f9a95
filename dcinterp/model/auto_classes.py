"""The Auto classes of transformers find our models, in whichever order the two packages are imported.

`AutoConfig`, `AutoModel`, `AutoModelForCausalLM` and `AutoModelForImageClassification` look a model type up in tables
of names, and import the module of a name when it is asked for. `register_lazily` adds our names to these tables, with
a stand-in for the module that imports ours at the first look. So nothing of ours, and no torch, is imported before
somebody opens one of our models. If the tables do not exist yet, it waits for transformers to make them.

The names in the tables are those of transformers 5; the classes register themselves by its public functions as well
when they are imported (dcinterp.model.decoder and vit).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONFIGS, MODELS = "transformers.models.auto.configuration_auto", "transformers.models.auto.modeling_auto"

TYPES: dict[str, dict[str, str]] = {
    "dcmha": {
        "CONFIG_MAPPING": "DCFormerConfig",
        "MODEL_MAPPING": "DCFormerModel",
        "MODEL_FOR_CAUSAL_LM_MAPPING": "DCFormerForCausalLM",
    },
    "dcmha_vit": {
        "CONFIG_MAPPING": "DCViTConfig",
        "MODEL_MAPPING": "DCViTModel",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING": "DCViTForImageClassification",
    },
}
"""{model type: {table of transformers: class of ours}}; a test compares them with the classes."""

HOMES = {
    "DCFormerConfig": "dcinterp.model.config",
    "DCViTConfig": "dcinterp.model.config",
    "DCFormerModel": "dcinterp.model.decoder",
    "DCFormerForCausalLM": "dcinterp.model.decoder",
    "DCViTModel": "dcinterp.model.vit",
    "DCViTForImageClassification": "dcinterp.model.vit",
}


class _Classes(ModuleType):
    """Stands for the module of a model type in the tables; it imports a class of ours when it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(import_module(HOMES[name]), name)


def _fill(module: ModuleType) -> None:
    """Add our names to the tables of one of transformers' two modules."""
    for kind, names in TYPES.items():
        for table, name in names.items():
            lazy = getattr(module, table, None)
            if lazy is None or (table == "CONFIG_MAPPING") != (module.__name__ == CONFIGS):
                continue
            known = lazy._mapping if table == "CONFIG_MAPPING" else lazy._model_mapping
            known[kind] = name
            lazy._modules[kind] = _Classes(f"dcinterp.{kind}")
            if (reverse := getattr(lazy, "_reverse_config_mapping", None)) is not None:
                reverse[TYPES[kind]["CONFIG_MAPPING"]] = kind


class _AfterImport(MetaPathFinder):
    """Calls `_fill` with a module right after it was imported; nothing else is touched."""

    def __init__(self, *names: str) -> None:
        self.waiting = set(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        self.waiting.discard(name)  # the next line comes here again
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Filling(spec.loader, _fill)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        return spec


class _Filling(Loader):
    """Another loader, and something to do after it."""

    def __init__(self, inner: Loader, then: Callable[[ModuleType], None]) -> None:
        self.inner, self.then = inner, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        self.then(module)

    def __getattr__(self, name: str) -> Any:  # get_source, get_data, ...: who asks a loader asks the real one
        return getattr(self.inner, name)


def register_lazily() -> None:
    """Make the Auto classes know our models, now or as soon as transformers has them; safe to call again."""
    later = []
    for name in (CONFIGS, MODELS):
        if name in sys.modules:
            _fill(sys.modules[name])
        else:
            later.append(name)
    if later and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(*later))
