"""Models in the app: which there are, what loading one takes, and loading within bounds."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from dcinterp.bridge.protocol import stages_of
from dcinterp.checkpoints.names import ADAPTER, COMPOSITION, GGUF, OWN
from dcinterp.cli.app import MODELS_VARIABLE, TOKENIZER_MARK
from dcinterp.support.digest import json_digest
from dcinterp.support.errors import UserError
from dcinterp.support.memory import free_bytes
from dcinterp.support.paths import path_of
from dcinterp.train.data.cache import file_version
from workbench import links
from workbench.markdown import escape, sentence

LOADED_AT_MOST = 4
FOLDERS_LISTED_AT_MOST = 200
FOLDERS_DEEP = 3
FITS_THE_SIDEBAR = 26
"""Letters."""
ENDINGS = ("safetensors", "gguf", "bin", "json")
"""Of the files that make a model: its weights, config and tokenizer."""
WITHOUT_ASKING = 2_000_000_000
"""Bytes of weights up to which a link opens a model of this machine; a larger one is opened by a click."""
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1}


def choose_model() -> str:
    """The model selector of the sidebar; its value is part of every link."""
    requested = links.asked_for("model")
    refused = ""
    if requested and requested not in known() and is_here(requested):
        refused = too_large(requested)
        if not refused:
            remember(requested)
    name = links.choose(
        "Model",
        known(),
        key="model",
        format=short,
        help="The shipped models, and those that you opened on the page Models.",
    )
    if requested and requested not in known():
        st.session_state["_wanted"] = requested
        links.address().wrong[-1] += (
            refused or " If it is your own model or one from the hub, open it on the page Models."
        )
    return name


def parts(name: str) -> tuple[str, str | None]:
    """(what `dcinterp.load` opens, the folder of another tokenizer or None) of a model's name."""
    source, mark, tokenizer = name.partition(TOKENIZER_MARK)
    return source, tokenizer if mark else None


def is_here(name: str) -> bool:
    """Whether a name that a link asks for stands for files on this machine, so that no network is needed."""
    from dcinterp.checkpoints import names
    from dcinterp.checkpoints.hub import cached_snapshot
    from dcinterp.checkpoints.tokenizer_files import has_tokenizer

    source = parts(name)[0].removeprefix(names.OWN)
    if source.startswith(names.PLANTED) or source in names.shipped_models():
        return True
    try:
        return names.is_here(source) or (
            looks_like_hub_id(source) and (there := cached_snapshot(source)) is not None and has_tokenizer(there)
        )
    except (ValueError, OSError):  # a folder with several models, or a name that is no path
        return False


def too_large(name: str) -> str:
    """What to say of a model that a link asks for and that takes too much memory to open it unasked; "" otherwise."""
    from dcinterp.checkpoints.names import PLANTED

    if name.startswith(PLANTED):
        return ""  # these are bounded
    try:
        size = estimate(name).weights_bytes
    except (ValueError, OSError):
        return ""  # opening it says what is wrong
    if size <= WITHOUT_ASKING:
        return ""
    return f" It takes {readable(size, 'B')} of memory: open it on the page Models if you want to."


def short(name: str) -> str:
    """A name that fits the sidebar: of a long path its last two parts."""
    source, tokenizer = parts(name)
    names = Path(source).parts
    label = source if len(source) <= FITS_THE_SIDEBAR or len(names) < 3 else str(Path("…", *names[-2:]))
    return label if tokenizer is None else f"{label} + tokenizer {Path(tokenizer).name}"


def known() -> list[str]:
    """Names that `dcinterp.load` takes: those given at the start, opened in this session, and shipped."""
    from dcinterp.checkpoints.names import shipped_models

    given = [name for name in os.environ.get(MODELS_VARIABLE, "").split("\n") if name]
    return list(dict.fromkeys([*given, *shipped_models(), *st.session_state.get("_opened", [])]))


def partner(name: str) -> str | None:
    """The shipped model that was trained with a shipped one, and differs in composing its heads; None without one."""
    kinds = ("dcformer++", "transformer++")
    swapped = next((name.replace(old, new, 1) for old, new in (kinds, kinds[::-1]) if name.startswith(old)), None)
    return swapped if swapped in known() else None


def remember(name: str) -> None:
    """Add a model to the ones of this session."""
    opened = st.session_state.setdefault("_opened", [])
    if name not in opened:
        opened.append(name)


def choose_now(name: str) -> None:
    """Open a model and choose it, as a callback."""
    remember(name)
    st.session_state.model = name


def forget(name: str) -> None:
    """Take a model that was opened in this session off the list."""
    st.session_state["_opened"] = [other for other in st.session_state.get("_opened", []) if other != name]


def model(name: str) -> Any:
    """A bridge, shared by all sessions; use it under `lock(name)`. Raises UserError when it cannot be loaded."""
    return _load(name, stamp(name))


@st.cache_resource(max_entries=LOADED_AT_MOST, show_spinner="Loading the model ...")
def _load(name: str, stamp: int) -> Any:
    import dcinterp

    source, tokenizer = parts(name)
    return dcinterp.load(source, tokenizer=tokenizer)


def stamp(name: str) -> int:
    """A number that changes when the files of a local folder do, so that a model in training is shown as it is.

    Times may be kept where a file is exchanged: every file counts by itself, with its size. So do those of the folder
    of a tokenizer of its own, and of the model that an adapter or a composition belongs to.
    """
    found = []
    places = [path_of(each.removeprefix(OWN)) for each in parts(name) if each]
    for place in (*places, *(base for each in places if (base := _base(each)) is not None)):
        files = [file for ending in ENDINGS for file in place.glob(f"*.{ending}")] if place.is_dir() else [place]
        found += [(str(file), *file_version(file)) for file in files if file.is_file()]
    return int(json_digest(sorted(found), 8), 16) if found else 0


def _base(place: Path) -> Path | None:
    """The folder of the model that an adapter or a composition belongs to; None for others, or if it is not here."""
    from dcinterp.checkpoints.adapters import base_of
    from dcinterp.checkpoints.names import is_adapter, is_composition

    try:
        return base_of(place, COMPOSITION if is_composition(place) else ADAPTER) if is_adapter(place) else None
    except (UserError, OSError):  # loading it says what is wrong
        return None


@st.cache_resource
def lock(name: str) -> threading.RLock:
    """Hooks of two sessions on one bridge would mix: every run holds its model's lock."""
    return threading.RLock()


def require(name: str) -> Any:
    """The model; where it cannot be loaded, one sentence that says why, and the end of the page."""
    try:
        return model(name)
    except (ValueError, OSError, ImportError, TypeError) as problem:
        reason = sentence(problem)
        st.error(
            f"{escape(name)} does not load: {reason} Choose another model in the sidebar.", icon=":material/error:"
        )
        links.end_page()


def composed(name: str) -> bool:
    """Whether the model composes its heads after the softmax."""
    return "post" in stages_of(require(name))


def folders(root: Path) -> list[str]:
    """Folders of models and adapters, and GGUF files, at or below `root`, three levels deep, newest first."""
    found: list[tuple[float, str]] = []
    below = [(root, 0)]
    while below:
        folder, depth = below.pop()
        try:  # a folder may be closed to us, or gone since it was listed
            entries = list(os.scandir(folder))
            names = {entry.name for entry in entries}
            if names & {"config.json", ADAPTER, COMPOSITION} and any(each.endswith(".safetensors") for each in names):
                found.append((folder.stat().st_mtime, str(folder)))
            found += [
                (each.stat().st_mtime, each.path) for each in entries if each.name.endswith(GGUF) and each.is_file()
            ]
            if depth < FOLDERS_DEEP:
                below += [(Path(each.path), depth + 1) for each in entries if each.is_dir()]
        except OSError:
            continue
    newest = sorted(found, key=lambda each: -each[0])
    return [path for _, path in newest[:FOLDERS_LISTED_AT_MOST]]


def estimate(name: str) -> Any:
    """The `dcinterp.describe` of a model on this machine, unloaded, or what the hub says of one that is only there.

    Raises:
        UserError: there is no such model, its folder is damaged, or its size is not known before it is downloaded.
    """
    import dcinterp
    from dcinterp.checkpoints.names import PLANTED, refuse_missing_folder

    asked = parts(name.strip())[0]
    name = asked.removeprefix(OWN)
    if not name:
        raise dcinterp.UserError("Type the path of a model or a hub id.")
    if name.startswith(PLANTED):
        return dcinterp.describe(model(asked))
    if not path_of(name).exists():
        refuse_missing_folder(name)
    return _on_hub(name) if needs_hub(name) else dcinterp.describe(asked)


def lacks_tokenizer(name: str) -> bool:
    """Whether a model's folder on this machine has no tokenizer (a GGUF file has its own)."""
    from dcinterp.checkpoints.names import gguf_file, is_adapter
    from dcinterp.checkpoints.tokenizer_files import has_tokenizer

    folder = path_of(name.removeprefix(OWN))
    return folder.is_dir() and not has_tokenizer(folder) and not is_adapter(folder) and gguf_file(folder) is None


def tokenizer_problem(name: str, tokenizer: str) -> str:
    """What is wrong with another tokenizer that a person wants for a model, before it is opened; "" if nothing is."""
    from dcinterp.checkpoints.names import PLANTED
    from dcinterp.checkpoints.tokenizer_files import read_tokenizer

    if not tokenizer:
        return ""
    if name.startswith(PLANTED):
        return "A planted model has its own words; leave the tokenizer out."
    try:
        read_tokenizer(tokenizer)
    except ValueError as problem:
        return str(problem).splitlines()[0]
    return ""


def needs_hub(name: str) -> bool:
    """Whether only the hub can say what a name stands for, so that it is asked when a person wants that."""
    from dcinterp.checkpoints.hub import cached_snapshot
    from dcinterp.checkpoints.names import PLANTED

    source = parts(name.strip())[0].removeprefix(OWN)
    try:
        if not source or source.startswith(PLANTED) or path_of(source).exists():
            return False
    except UserError:  # nothing can have such a path, and the hub has no such name
        return False
    return looks_like_hub_id(source) and cached_snapshot(source) is None


def is_folder(text: str) -> bool:
    """Whether a typed text is the path of a folder."""
    try:
        return bool(text) and path_of(text).is_dir()
    except UserError:
        return False


def looks_like_hub_id(name: str) -> bool:
    """Whether a name may be one of the hub's: OWNER/NAME, or NAME alone as in gpt2."""
    from dcinterp.checkpoints.names import is_path, shipped_models

    return not is_path(name) and name not in shipped_models()


@dataclass(frozen=True)
class HubSize:
    """What the hub says of a model that is not on this machine."""

    name: str
    family: str
    parameters: int
    weights_bytes: int

    @property
    def loading_bytes(self) -> int:
        return self.weights_bytes

    def sentences(self) -> list[str]:
        known = f"parameters: {self.parameters:,}; {readable(self.weights_bytes, 'B')} to download and keep in memory"
        unknown = "parameters: the hub does not say how many, so the size is known only after the download"
        return [f"{self.name}: {self.family}, on the hub", known if self.parameters else unknown]


def _on_hub(name: str) -> HubSize:
    found = _ask_hub(name)
    if isinstance(found, str):
        from dcinterp.support.errors import UserError

        raise UserError(f"There is no folder {name}, and the hub did not describe a model of that name: {found}")
    return found


@st.cache_data(max_entries=32, ttl=60, show_spinner=False)
def _ask_hub(name: str) -> HubSize | str:
    """Ask the hub, with its own client, for the sizes of one model; a sentence where it does not give them.

    Kept for a minute, so that the page does not wait for a silent network at every click.
    """
    from huggingface_hub import HfApi

    from dcinterp.checkpoints.hub import hub_reason, reach_hub

    try:
        reach_hub()
        info = HfApi().model_info(name, timeout=10)
    except Exception as error:  # the hub's client raises many kinds, all of which mean the same here
        return hub_reason(error)
    counts = dict(info.safetensors.parameters) if info.safetensors else {}
    size = sum(count * BYTES.get(kind, 4) for kind, count in counts.items())
    return HubSize(name, str((info.config or {}).get("model_type", "unknown")), sum(counts.values()), size)


def fits(loading_bytes: int) -> bool:
    """Whether loading leaves a fifth of the free memory for running the model."""
    return loading_bytes < 0.8 * (free_bytes() or all_bytes() or math.inf)


def memory_sentence() -> str:
    """How much memory there is, as far as the system says."""
    if free := free_bytes():
        return f" {readable(free, 'B')} of memory are free."
    return f" {readable(count, 'B')} of memory are in this machine." if (count := all_bytes()) else ""


def all_bytes() -> int:
    """Memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def readable(count: float, unit: str = "") -> str:
    """12345678 as 12.3 M (of `unit`)."""
    from dcinterp.support import text as quantities

    return quantities.readable(count, [f"{letter}{unit}" for letter in "kMG"], unit)
