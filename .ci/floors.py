"""The lowest versions that pyproject.toml allows, one a line, as pip takes them; `make floors` tests them."""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def floors() -> list[str]:
    """`name==version` of every dependency of the library, of its readers of other people's models, and of its tests."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["gguf"], *extras["peft"], *extras["digits"]]
    found = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in wanted]
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    sys.stdout.write("\n".join(floors()) + "\n")
