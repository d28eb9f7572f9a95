"""How a result was made, as plain data: enough to write the Python cell and the command line that make it again.

    result.call.python()         # a cell: load the model, call the analysis
    result.call.command()        # dcinterp analyze ...

A result that cannot be made again (its model was built in memory, its weights were edited, hooks were active) says so
in one sentence, as a comment, in place of the code.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import PurePath
from typing import Any

import numpy as np
from torch import Tensor

from dcinterp.results.stored import check_call
from dcinterp.support.errors import UserError, reason
from dcinterp.support.extensions import of_package
from dcinterp.support.text import shown

FORMER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "attribute_edges": {"method": "ig"},
    "attribute_edges_over": {"method": "ig"},
}
"""{analysis: {argument: its default in version 0.1}}, of the defaults that changed: code that is shown says them."""

EXAMPLE = "$example"
"""Key that marks a `synthetic_tasks.Example` in JSON."""


@dataclass(frozen=True)
class Call:
    """One run of an analysis.

    analysis: the name of the public function; home: the module it is in.
    model: what `dcinterp.load` was given, None for an analysis without a model or a model that was not loaded so;
    dtype, tokenizer: those `load` was asked for, if any; revision: the hub's commit; fingerprint: of the weights.
    arguments: all but the model and the progress callback, defaults included, as JSON data (see `plain`).
    shown: the arguments that differ from their defaults.
    obstacle: why the call cannot be repeated from this record; empty when it can.
    """

    analysis: str
    home: str
    model: str | None
    dtype: str | None
    revision: str | None
    fingerprint: str | None
    arguments: Mapping[str, Any]
    shown: tuple[str, ...]
    public: bool = True
    obstacle: str = ""
    tokenizer: str | None = None

    @property
    def reproducible(self) -> bool:
        """Whether `python` and `command` make the same result."""
        return not self.obstacle

    def python(self) -> str:
        """The Python cell that makes the same result, or one sentence, as a comment, that says why there is none."""
        if self.obstacle:
            return f"# {self.obstacle}"
        values = {name: self.arguments[name] for name in self.shown}
        lines = ["import dcinterp"]
        if self.dtype is not None:
            lines.append("import torch")
        if _has_examples(values):
            lines.append("from synthetic_tasks import Example, Fact")
        if not self.public:
            lines.append(f"from {self.home} import {self.analysis}")
        function = f"dcinterp.{self.analysis}" if self.public else self.analysis
        given = [f"{name}={source_text(value)}" for name, value in values.items()]
        if self.model is not None:
            options = f", dtype=torch.{self.dtype}" if self.dtype is not None else ""
            options += f", tokenizer={source_text(self.tokenizer)}" if self.tokenizer is not None else ""
            lines += ["", f"bridge = dcinterp.load({source_text(self.model)}{options})"]
            given.insert(0, "bridge")
        line = f"result = {function}({', '.join(given)})"
        if len(line) > 100:
            line = f"result = {function}(\n" + "".join(f"    {each},\n" for each in given) + ")"
        return "\n".join([*lines, *([] if self.model is not None else [""]), line])

    def command(self) -> str:
        """The command line that makes the same result, or one sentence, as a comment, that says why there is none."""
        if self.obstacle:
            return f"# {self.obstacle}"
        if not self.public and not of_package(self.analysis, self.home):
            return f"# {self.analysis} of {self.home} has no verb; the Python cell makes it."
        words = ["dcinterp", "analyze", self.analysis.replace("_", "-")]
        if self.model is not None:
            words.append(self.model)
        if self.dtype is not None:
            words += ["--dtype", self.dtype]
        if self.tokenizer is not None:
            words += ["--tokenizer", self.tokenizer]
        for name in self.shown:
            value, option = self.arguments[name], f"--{name.replace('_', '-')}"
            if isinstance(value, bool):
                words.append(option if value else f"--no-{option[2:]}")
            elif value is not None:
                text = option_text(value, name)
                # A value that begins with a dash would be taken for an option.
                words += [f"{option}={text}"] if text.startswith("-") else [option, text]
        return shlex.join(words)

    def record(self) -> dict[str, Any]:
        """The call as JSON data."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Call:
        """The call that `record` wrote; fields of later versions are left out.

        Raises:
            UserError: no call wrote this.
        """
        check_call(record)
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in record.items() if name in known}
        shown, arguments = list(given["shown"]), given["arguments"]
        for name, former in FORMER_DEFAULTS.get(given["analysis"], {}).items():
            if arguments.get(name) == former and name not in shown:
                shown.append(name)
        return cls(**(given | {"shown": tuple(shown)}))


TOKEN_ARGUMENTS = ("target", "foil", "answer")
"""Arguments that are a word or a token id: on the command line an id is written #12, so that 2017 stays a word."""


def option_text(value: Any, name: str) -> str:
    """A plain argument as the text that the command line takes for it (see dcinterp.results.options)."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _misread(value, name) else value
    if name in TOKEN_ARGUMENTS and isinstance(value, int):
        return f"#{value}"
    return json.dumps(value, ensure_ascii=False)


QUOTED = ('"[', '"{', '"#', '"\\"')
"""How a text begins on the command line that is written as JSON, because as it is it would be read as data."""


def _misread(text: str, name: str) -> bool:
    if text.startswith(QUOTED) or (name in TOKEN_ARGUMENTS and text[:1] == "#" and text[1:].isdigit()):
        return True
    return text[:1] in ("[", "{")


def plain(value: Any) -> Any:
    """An argument as JSON data: numbers, texts, paths, token ids, lists of these, examples of the tasks.

    Raises:
        TypeError: it is something else, a function say.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "released_text") and hasattr(value, "facts"):
        names = ("task_id", "source", "asked", "predicate", "unit", "answer", "prompt")
        record = {name: getattr(value, name) for name in names}
        return {EXAMPLE: record | {"facts": [list(f) for f in value.facts], "accepted": list(value.accepted)}}
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence | set | frozenset | range):
        return [plain(each) for each in value]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def from_plain(value: Any) -> Any:
    """The argument that `plain` turned into JSON data (lists stay lists)."""
    if isinstance(value, list | tuple):
        return [from_plain(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) != {EXAMPLE}:
        return {key: from_plain(each) for key, each in value.items()}
    try:
        return _example(value[EXAMPLE])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"This is not a valid example of the tasks ({reason(error)}); write it as `dcinterp analyze` prints it."
        ) from error


def _example(given: Any) -> Any:
    from synthetic_tasks import Example, Fact

    record = dict(given)
    facts = tuple(Fact(*pair) for pair in record.pop("facts"))
    example = Example(facts=facts, accepted=tuple(record.pop("accepted")), **record)
    words = [each for fact in facts for each in fact] + [*example.accepted]
    words += [getattr(example, name) for name in ("task_id", "asked", "predicate", "unit", "answer", "prompt")]
    wrong = [each for each in words if not isinstance(each, str)]
    if wrong:
        raise TypeError(f"{shown(wrong[0])} stands where a text does")
    if type(example.source) is not int or not 0 <= example.source < max(1, len(facts)):
        raise TypeError(f"source is {shown(example.source)}, and there are {len(facts)} facts")
    return example


def source_text(value: Any) -> str:
    """A plain argument as Python source."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(source_text(each) for each in value)}]"
    if isinstance(value, Mapping) and set(value) != {EXAMPLE}:
        return "{" + ", ".join(f"{key!r}: {source_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    # JSON writes texts as Python reads them, in double quotes.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(from_plain(value))


def _has_examples(value: Any) -> bool:
    if isinstance(value, Mapping):
        return EXAMPLE in value or any(map(_has_examples, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_examples, value))


def same(value: Any, default: Any) -> bool:
    """Whether a plain argument is its parameter's default."""
    try:
        return bool(type(value) is type(plain(default)) and value == plain(default))
    except TypeError:
        return False
