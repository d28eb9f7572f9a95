"""The hub of models, asked only when a person named one of its models, and never for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from dcinterp.checkpoints.read import OURS, read_config_file, require_own_kind
from dcinterp.checkpoints.tensor_files import NO_WEIGHTS, indexed_files
from dcinterp.checkpoints.tokenizer_files import PATTERNS, has_tokenizer
from dcinterp.support.errors import UserError

WEIGHTS = (".safetensors", ".bin")
"""How the names of files with weights end, the ones that are preferred first."""

_ASKED: ContextVar[bool] = ContextVar("whether a person typed what is looked for", default=True)


@contextmanager
def not_typed() -> Iterator[None]:
    """While the block runs, the hub is asked for nothing: a file or a link, and no person, names the models."""
    before = _ASKED.set(False)
    try:
        yield
    finally:
        _ASKED.reset(before)


HUB_SECONDS = 10.0
"""How long the hub has to answer at all."""


def cached_snapshot(name: str, revision: str | None = None) -> Path | None:
    """The folder of a hub id in the cache of the hub's client, if its config.json and all its weights are there.

    revision: branch, tag or commit; main when None.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    folder = Path(found).parent if isinstance(found, str) else None
    return folder if folder is not None and any(_whole(folder, ending) for ending in WEIGHTS) else None


def _whole(folder: Path, ending: str) -> bool:
    """Whether the folder holds weights with that ending, and every file of them that its index names."""
    parts = {file for file in folder.glob(f"*{ending}") if file.name not in NO_WEIGHTS}
    for index in folder.glob(f"*{ending}.index.json"):
        try:
            parts |= {folder / file for file in indexed_files(index)}
        except UserError:
            return False
    return bool(parts) and all(part.is_file() for part in parts)


def download(name: str, *, own: bool = False) -> Path | None:
    """The folder of a hub model that our decoder opens, fetched; None for others: transformers gets them.

    own: whether our decoder was asked for, and not only opens what nobody else does.
    """
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    from dcinterp.checkpoints.layouts import opens_by_default

    reach_hub()
    folder = Path(hf_hub_download(name, "config.json")).parent
    kind = read_config_file(folder).get("model_type")
    if own:
        require_own_kind(kind, name)
    if not (kind in OURS or opens_by_default(kind) or own):
        return None
    files = HfApi().list_repo_files(name)
    safe = any(file.endswith(WEIGHTS[0]) for file in files)
    weights = f"*{WEIGHTS[0] if safe else WEIGHTS[1]}"
    # Some repositories have all weights a second time, in the layout of another program.
    patterns = ["*.json", weights, *PATTERNS.split()]
    return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["consolidated*", "original/*"]))


def with_tokenizer(name: str, folder: Path) -> Path:
    """The cached folder of a hub id, with its tokenizer fetched where it had only weights; as it is, if that fails."""
    from huggingface_hub import snapshot_download

    if has_tokenizer(folder):
        return folder
    try:
        reach_hub()
        found = Path(snapshot_download(name, revision=folder.name, allow_patterns=PATTERNS.split()))
    except (OSError, ValueError):  # the model can be looked at by token ids
        return folder
    return found if has_tokenizer(found) and any(_whole(found, ending) for ending in WEIGHTS) else folder


def reach_hub() -> None:
    """One quick question before the hub's client asks for minutes: is there a hub at all, and may it be asked?

    Raises:
        OSError: it does not answer within `HUB_SECONDS`, HF_HUB_OFFLINE is set, or no person typed the name.
    """
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if not _ASKED.get():
        raise OSError("a file names it, and nobody typed it, so it is not asked; get the model with `dcinterp load`.")
    if constants.HF_HUB_OFFLINE:
        raise OfflineModeIsEnabled
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_SECONDS).close()
    except HTTPError:
        pass  # it answered
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(f"it cannot be reached ({getattr(reason, 'strerror', None) or reason}).") from error


def hub_reason(error: Exception) -> str:
    """Why the hub's client gave nothing, in a clause that ends with the way out."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.errors import RepositoryNotFoundError as NoRepository

    if isinstance(error, GatedRepoError):
        return "its owner gives it on request only; ask on its page, then log in with `hf auth login`."
    if isinstance(error, NoRepository):
        return "it has no model of that name that you may read; check the spelling, or log in with `hf auth login`."
    if isinstance(error, OfflineModeIsEnabled):
        return "it is not in the local cache, and HF_HUB_OFFLINE forbids to ask the network."
    if isinstance(error, LocalEntryNotFoundError):
        return "it is not in the local cache, and the network does not answer."
    if isinstance(error, EntryNotFoundError):
        return "what it has under that name is without a config.json, so it is no model."
    return str(error).splitlines()[0] if str(error) else type(error).__name__
