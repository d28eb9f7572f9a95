"""The reference of the training config, written from the config's own classes: `make config-reference`"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from dcinterp.model.presets import presets
from dcinterp.train.config.recipe import Phase, TrainConfig, recipe_of_preset
from dcinterp.train.data.puzzles import PUZZLES
from dcinterp.train.loop.metrics_file import accuracy_column

HEAD = """# Training config

Every key of a training config (`dcinterp train FILE.yaml`, `--set KEY=VALUE`), its kind and its default. This page is
written by `make config-reference`; a test compares it with the code.

Unknown keys are errors that name the nearest known one. What neither file nor flags say comes from the preset of the
model, where the paper states it (table at the end), and else from the defaults here. `config.yaml` in the output folder
holds every number of a run.
"""


def reference() -> str:
    """The page, as Markdown."""
    parts = [HEAD]
    for title, kind, prefix in _sections():
        about, keys = describe(kind)
        parts.append(f"## {title}\n\n{about}\n\n| key | kind | default | |\n|---|---|---|---|")
        hints = typing.get_type_hints(kind)
        for field in fields(kind):
            if not _is_section(hints[field.name]):
                name = f"`{prefix}{field.name}`"
                parts[-1] += f"\n| {name} | {_kind(hints[field.name])} | {_default(field)} | {keys[field.name]} |"
        parts[-1] += "\n"
    parts += [_puzzles(), _stated()]
    return "\n".join(parts)


def describe(kind: type) -> tuple[str, dict[str, str]]:
    """What a config class is, and what each of its keys means, from its docstring.

    A key is described by a line `name: words` (or `name, other: words`), continued by indented lines.
    """
    about: list[str] = []
    keys: dict[str, list[str]] = {}
    current: list[str] = []
    # Python 3.13 takes the indentation off by itself.
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        found = re.match(r"((?:\w+, )*\w+): (.*)", line)
        if found and set(names := found[1].split(", ")) <= {field.name for field in fields(kind)}:
            current = [found[2]]
            keys |= dict.fromkeys(names, current)
        elif current and line.startswith("    "):
            current.append(line.strip())
        elif line.strip():
            about.append(line.strip())
    return " ".join(about), {name: " ".join(words).replace("|", "\\|") for name, words in keys.items()}


def _sections() -> list[tuple[str, type, str]]:
    """(title, class, prefix of its keys) of everything that a config holds, in order."""
    found: list[tuple[str, type, str]] = [("Top level", TrainConfig, "")]

    def add(kind: type, prefix: str) -> None:
        hints = typing.get_type_hints(kind)
        for field in fields(kind):
            hint = hints[field.name]
            if is_dataclass(hint):
                found.append((f"`{prefix}{field.name}`", hint, f"{prefix}{field.name}."))  # type: ignore[arg-type]
                add(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]
            elif typing.get_args(hint)[:1] == (Phase,):
                found.append((f"`{prefix}{field.name}`, a list", Phase, ""))

    add(TrainConfig, "")
    return found


def _is_section(hint: Any) -> bool:
    return is_dataclass(hint) or is_dataclass((typing.get_args(hint) or (None,))[0])


def _kind(hint: Any) -> str:
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return f"list of {_kind(inside[0])}"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _kind(part) for part in inside)
    return names.get(hint, "keys and values")


def _default(field: Field[Any]) -> str:
    value = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None:
        return "`null`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" and value != {} else "empty"


def _puzzles() -> str:
    """The options of every puzzle, and what its runs measure."""
    parts = ["## Options of puzzles\n\nKeys of `data.puzzle.options`, and what a table has of each puzzle."]
    for name, kind in sorted(PUZZLES.items()):
        words = " ".join(inspect.cleandoc(kind.__doc__ or "").split()).removeprefix("The puzzle of this file. ")
        measured = ", ".join(f"`{accuracy_column(1, part)}`" for part in kind.PARTS)
        options: list[Field[Any]] = list(fields(kind))  # type: ignore[arg-type]
        names = "|".join(field.name for field in options)
        # "letters: size of the alphabet. blocks: in a document.": sentences, each behind the name of its option.
        about, *said = re.split(rf"(?:^|(?<=\. ))({names}): ", words)
        means = dict(zip(said[::2], (each.strip() for each in said[1::2]), strict=True))
        rows = [f"| `{each.name}` | {_default(each)} | {means.get(each.name, '')} |" for each in options]
        head = f"### `{name}`\n\n" + (f"{about.strip()}\n\n" if about.strip() else "")
        parts.append(f"{head}Measured: {measured}.\n\n" + "\n".join(["| option | default | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _stated() -> str:
    keys = list(dict.fromkeys(key for name in presets() for key in recipe_of_preset(name)))
    lines = [
        "## What presets bring\n",
        "Keys of `recipe` that the paper states (the tiny classifiers have a warmup of our own); every other preset "
        "has the defaults above.\n",
        f"| preset | {' | '.join(keys)} |",
        f"|---|{'---|' * len(keys)}",
    ]
    for name in presets():
        if stated := recipe_of_preset(name):
            lines.append(f"| `{name}` | {' | '.join(f'{stated[k]:g}' if k in stated else '' for k in keys)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
