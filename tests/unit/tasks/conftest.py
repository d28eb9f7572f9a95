"""The released sample, where the folder of shared material lies beside the repository."""

from pathlib import Path

import pytest

from synthetic_tasks import Row, read_jsonl

SHARED = Path(__file__).parents[3].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared folder with the released sample is not here")
    return SHARED


@pytest.fixture(scope="session")
def sample_path(shared: Path) -> Path:
    return shared / "data" / "synthetic_dataset_rows0-3.jsonl"


@pytest.fixture(scope="session")
def sample(sample_path: Path) -> list[Row]:
    return read_jsonl(sample_path)
