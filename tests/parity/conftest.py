"""Recorded numbers of the released code, where the folder of shared material lies beside the repository."""

from pathlib import Path

import pytest

ORACLE = Path(__file__).parents[2].parent / "shared" / "oracle"


@pytest.fixture
def oracle() -> Path:
    if not ORACLE.is_dir():
        pytest.skip("the folder of recorded numbers is not here")
    return ORACLE
