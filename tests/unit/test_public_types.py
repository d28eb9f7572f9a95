"""What a type checker sees of `import dcinterp`: dcinterp/__init__.pyi, made from the same table as the names.

UPDATE_DOCS=1 pytest tests/unit/test_public_types.py rewrites it. That a type checker sees our signatures there is held
by user_program.py beside this file, which mypy checks with the packages.
"""

from __future__ import annotations

import os
from pathlib import Path

import dcinterp
from dcinterp.results.catalogue import homes

STUB = Path(dcinterp.__file__).with_suffix(".pyi")


def stub() -> str:
    lines = [f"from {home} import {name} as {name}" for name, home in sorted((dcinterp._LIBRARY | homes()).items())]
    lines.insert(0, "from dcinterp import figures as figures")
    head = "# Made by tests/unit/test_public_types.py: the public names, as a type checker reads them."
    return "\n".join([head, *lines, "", "__version__: str", ""])


def test_the_stub_names_what_is_public() -> None:
    if os.environ.get("UPDATE_DOCS"):
        STUB.write_text(stub(), encoding="utf-8")
    assert STUB.read_text(encoding="utf-8") == stub(), f"run UPDATE_DOCS=1 pytest {__file__}"
    assert (STUB.parent / "py.typed").is_file()
