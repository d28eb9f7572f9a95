"""What a type checker sees of `import dcinterp`: dcinterp/__init__.pyi, made from the same table as the names.

UPDATE_DOCS=1 pytest tests/unit/test_public_types.py rewrites it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dcinterp
from dcinterp.results.catalogue import homes

STUB = Path(dcinterp.__file__).with_suffix(".pyi")

PROGRAM = """
import dcinterp

bridge = dcinterp.load("dcformer++")
scores = dcinterp.attribute_heads(bridge, "a prompt", "target", steps=8)
reveal_type(scores)
reveal_type(scores.scores)
dcinterp.attribute_heads(bridge, "a prompt", "target", stepz=8)
"""


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


def test_a_type_checker_sees_our_signatures(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    check = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--config-file=", "program.py"]
    environment = os.environ | {"MYPYPATH": str(STUB.parents[1]), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    said = subprocess.run(check, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert "HeadAttribution" in said, said
    assert "Tensor" in said, said
    assert 'Unexpected keyword argument "stepz"' in said, said
