"""How help is written: plain text, so that it can be piped, searched and copied. Examples keep their lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WIDEST = 100
"""Columns of text that one still likes to read, however wide the terminal is."""

NAMES_AT_MOST = 26
"""Columns of the names of options; the text of a longer name begins on the next line."""

VALUES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X", "list[str]": "TEXT"}
"""What stands for a value, by the type as typer prints it."""


class Verb(TyperCommand):
    """A command whose help is the plain page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx))


class Group(TyperGroup):
    """A group of commands, in alphabetical order and without hidden ones, whose help is the plain page."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(name for name in super().list_commands(ctx) if not self.commands[name].hidden)

    def summary(self, ctx: Any, name: str) -> str:
        """What the list of commands says of one: its first sentence."""
        return _summary(self.get_command(ctx, name))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(page(self, ctx))


class Verbs(typer.Typer):
    """A typer application whose groups and commands write the plain page."""

    def __init__(self, *, cls: Any = Group, **settings: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, *, cls: Any = Verb, **settings: Any) -> Any:
        return super().command(name, cls=cls, **settings)


def page(command: Any, ctx: Any) -> str:
    """The help of a command or a group."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    arguments = [p for p in command.get_params(ctx) if p.param_type_name == "argument"]
    options = [p for p in command.get_params(ctx) if p.param_type_name == "option" and not p.hidden]
    group = hasattr(command, "list_commands")
    words = ["[OPTIONS]", *(_argument(p) if p.required else f"[{_argument(p)}]" for p in arguments)]
    usage = " ".join([ctx.command_path, *words, *(["COMMAND"] if group else [])])
    parts = [f"{_bold('Usage:')} {usage}", *_paragraphs(command.help or "", width)]
    if group:
        rows = [(name, command.summary(ctx, name)) for name in command.list_commands(ctx)]
        parts.append(_section("Commands", rows, width))
    if arguments:
        parts.append(_section("Arguments", [(_argument(p), _text(p, ctx)) for p in arguments], width))
    parts.append(_section("Options", [(_option(p, ctx), _text(p, ctx)) for p in options], width))
    if command.epilog:
        parts.append(textwrap.fill(command.epilog, width))
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """The paragraphs of a help text: wrapped, but for the indented ones, which stay as they are, together."""
    for indented, block in blocks(text):
        if indented:
            yield block
        elif re.fullmatch(r"\w+:", block):
            yield _bold(block)
        else:
            yield textwrap.fill(" ".join(block.split()), width, break_on_hyphens=False, break_long_words=False)


def blocks(text: str) -> list[tuple[bool, str]]:
    """(whether it is indented, text) of every paragraph; neighbours that are indented come as one, without a gap."""
    found: list[tuple[bool, str]] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        indented = block.startswith("    ")
        if indented and found and found[-1][0]:
            found[-1] = (True, f"{found[-1][1]}\n{block.rstrip()}")
        elif block.strip():
            found.append((indented, block.rstrip()))
    return found


def examples(text: str) -> list[str]:
    """The command lines of a help text, each on one line."""
    joined = "\n".join(block for indented, block in blocks(text) if indented)
    return [line.strip() for line in re.sub(r"\\\n\s*", "", joined).splitlines()]


def example(words: Sequence[str], width: int = 76) -> str:
    """A command line as an indented example, broken before options with a backslash where it is too long."""
    lines, indent = ["    " + words[0]], " " * 8
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > width - 2 and word.startswith("--"):
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _summary(command: Any) -> str:
    """One sentence of a command, for the list of the group's commands."""
    text = " ".join((command.short_help or command.help or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?!]) ", text)[0]


def _argument(parameter: Any) -> str:
    return (parameter.metavar or parameter.name).upper() + ("..." if parameter.nargs == -1 else "")


def _option(parameter: Any, ctx: Any) -> str:
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or _value(parameter.display_type_rich(ctx) or '')}"


def _value(kind: str) -> str:
    kind = kind.strip("<>")
    return VALUES.get(kind, kind if "|" in kind else kind.upper())


def _text(parameter: Any, ctx: Any) -> str:
    """What a parameter means, its default, and whether it must be given."""
    extra = []
    default = parameter.get_default(ctx, call=False)
    if getattr(parameter, "secondary_opts", ()):
        extra.append(f"default: {parameter.opts[0] if default else parameter.secondary_opts[0]}")
    elif isinstance(parameter.show_default, str):
        extra.append(f"default: {parameter.show_default}")
    elif parameter.show_default and default is not False and default not in (None, "", (), []):
        extra.append(f"default: {getattr(default, 'value', default)}")
    if getattr(parameter, "min", None) is not None:
        extra.append(f"at least {parameter.min}")
    if parameter.required:
        extra.append("required")
    text = (parameter.help or "").strip()
    return f"{text}  [{'; '.join(extra)}]" if extra else text


def _section(title: str, rows: Sequence[tuple[str, str]], width: int) -> str:
    column = min(max((len(name) for name, _ in rows), default=0), NAMES_AT_MOST) + 4
    lines = [_bold(f"{title}:")]
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(width - column, 20), break_on_hyphens=False, break_long_words=False) or [""]
        first = f"  {name}".ljust(column)
        if len(first) > column or len(name) + 2 == column:  # else no space would stand between
            lines.append(first)
            first = " " * column
        lines += [(first + wrapped[0]).rstrip(), *(" " * column + line for line in wrapped[1:])]
    return "\n".join(lines)


def _bold(text: str) -> str:
    return typer.style(text, bold=True) if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text
