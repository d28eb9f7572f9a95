"""Pages generated from the code: public names, analyses, the command line, hooks, and the notebooks."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat

from sitetools.notebooks import markdown as notebook_page
from sitetools.notebooks import notebooks

DOCS = Path(__file__).parents[1]
SIGNATURE_WIDTH = 88
SECTIONS = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises"}


def write(folder: Path) -> None:
    """Write all generated pages into `folder`, replacing what is there."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    pages = dict(generated())
    for path in notebooks():
        pages[f"notebook-{path.stem}.md"] = notebook_page(nbformat.read(path, 4), folder / "images", path.stem)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


def generated() -> Iterator[tuple[str, str]]:
    """(file, text) of every page made from code alone."""
    yield from api()
    yield "command-line.md", command_line()
    yield "hook-list.md", hook_list()
    yield from analyses()


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: sections become headed lists, lines of use become Python; equations stay as they are."""
    lines: list[str] = []
    section = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        head = re.fullmatch(r"(Args|Returns|Raises):", line)
        if head:
            section = True
            lines += ["", f"**{SECTIONS[head[1]]}**", ""]
        elif section and (entry := re.match(r" {4}(\S[^:]*): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        elif section and line.startswith("    "):
            lines.append(line.strip())
        else:
            section = section and not line.strip()
            lines.append(line)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    # An indented block, with the empty lines inside it.
    return re.sub(r"(?:^ {4}.*\n?(?:\n+(?= {4}))?)+", _fenced, text, flags=re.M)


def _fenced(block: re.Match[str]) -> str:
    """An indented block that calls this library is Python; any other is an equation, or a command."""
    if not re.search(r"\bdcinterp\.\w+(\.\w+)*\(|^ *import ", block[0], re.M):
        return block[0]
    return f"```python\n{textwrap.dedent(block[0]).strip()}\n```\n"


def signature(value: Any, name: str) -> str:
    """How to call it, as a code block; types are left to the text."""
    target = inspect.unwrap(value) if callable(value) else value
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return f"```python\n{name}\n```"
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty, default=_shown(p)) for p in parameters])
    line = f"{name}{bare}"
    if len(line) > SIGNATURE_WIDTH:
        inner = textwrap.fill(str(bare)[1:-1], SIGNATURE_WIDTH - 4, break_on_hyphens=False, break_long_words=False)
        line = f"{name}(\n{textwrap.indent(inner, '    ')}\n)"
    return f"```python\n{line}\n```"


class _Default:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _shown(parameter: inspect.Parameter) -> Any:
    """A default as one types it; a function by its name."""
    default = parameter.default
    return _Default(default.__name__) if inspect.isfunction(default) else default


def api() -> Iterator[tuple[str, str]]:
    """(file, text) of a page for each room, with the docstrings of its public names, and of their list."""
    rows = []
    for room, names in rooms().items():
        page = f"api-{room.replace('.', '-')}.md"
        title, package = _title(room), import_module(room)
        described = [_described(name, value) for name, value in sorted(names.items(), key=lambda pair: pair[0].lower())]
        yield page, "\n\n".join([f"# {title}", prose(package.__doc__), *described]) + "\n"
        listed = ", ".join(f"`{name.partition('.')[2]}`" for name in sorted(names, key=str.lower))
        rows.append(f"| [{title}]({page}) | {listed} |")
    order = "\n".join(re.findall(r"\((api-[^)]*)\.md\)", "\n".join(rows)))
    said = (
        "The names listed here keep their meaning; everything else may change. Generated from the docstrings, a page "
    )
    said += "for each room of the library; the search field of this site finds names and words in all of them."
    table = "\n".join(["| room | names |", "|---|---|", *rows])
    yield "api.md", f"# Public names\n\n{said}\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{order}\n```\n"


def rooms() -> dict[str, dict[str, Any]]:
    """{the package that a public name is at home in: {full name: what it is}}, of both packages."""
    import dcinterp
    import synthetic_tasks

    found: dict[str, dict[str, Any]] = {}
    for package in (dcinterp, synthetic_tasks):
        for name in package.__all__:
            if not name.startswith("__"):
                value = getattr(package, name)
                room = _room(package.__name__, value)
                found.setdefault(room, {})[f"{package.__name__}.{name}"] = value
    return dict(sorted(found.items()))


def _room(package: str, value: Any) -> str:
    """The folder of dcinterp that something is defined in, of analyses the inner one; the package itself elsewhere."""
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
    parts = home.split(".")
    if parts[0] != package or package != "dcinterp" or len(parts) < 2:
        return package
    return ".".join(parts[:3] if parts[1] == "analysis" and len(parts) > 3 else parts[:2])


def _title(room: str) -> str:
    name = room.replace("dcinterp.", "").replace(".", ": ").replace("_", " ")
    return name[:1].upper() + name[1:]


def _described(name: str, value: Any) -> str:
    if inspect.ismodule(value):
        parts = [prose(value.__doc__)]
    elif callable(value):
        parts = [signature(value, name), prose(value.__doc__)]
    else:
        parts = [f"{_kind(value)}."]
    return "\n\n".join([f"## {name}", *parts])


def _kind(value: Any) -> str:
    if hasattr(value, "__len__") and not isinstance(value, str):
        return f"{type(value).__name__} of {len(value)}"
    return f"`{value!r}`"


def analyses() -> Iterator[tuple[str, str]]:
    """A page for each registered analysis: the docstring of its module, its arguments and its result."""
    from dcinterp.results.registry import ANALYSES

    rows = []
    for entry in sorted(ANALYSES.values(), key=lambda each: each.title):
        function = inspect.unwrap(entry.function)
        module = import_module(function.__module__)
        made = function.__annotations__.get("return")
        result = getattr(module, getattr(made, "__name__", str(made)), None)
        command = f"dcinterp analyze {entry.name.replace('_', '-')} --help"
        guide = guides().get(entry.name)
        parts = [
            f"# {entry.title}",
            f"How to use it and read its results: [{guide.title}]({guide.link})." if guide else "",
            prose(module.__doc__),
            f"## {entry.name}",
            signature(entry.function, f"dcinterp.{entry.name}"),
            prose(function.__doc__),
            f"On the command line: `{command}`." if entry.takes_model else "",
            f"## The result: {result.__name__}\n\n{prose(result.__doc__)}" if result is not None else "",
            _home(result, module),
        ]
        page = f"analysis-{entry.name.replace('_', '-')}.md"
        yield page, "\n\n".join(filter(None, parts)) + "\n"
        needs = "a decoder of ours" if entry.needs_decoder else "any model"
        needs = "composed heads" if entry.needs_composition else needs
        rows.append(f"| [{entry.title}]({page}) | `{entry.name}` | {needs} | {entry.summary} |")
    table = "\n".join(["| analysis | name | needs | what it computes |", "|---|---|---|---|", *rows])
    order = "\n".join(re.findall(r"\((analysis-[^)]*)\.md\)", table))
    hidden = f"```{{toctree}}\n:hidden:\n\n{order}\n```"
    yield "analysis-index.md", f"# All analyses\n\n{table}\n\n{hidden}\n"


@dataclass(frozen=True)
class Guide:
    """The written page that explains an analysis: its file inside docs, and its title."""

    file: str
    title: str

    @property
    def link(self) -> str:
        """From a generated page."""
        return f"../{self.file}"


@cache
def guides() -> dict[str, Guide]:
    """The guide of every analysis, as its declaration says."""
    from dcinterp.results.registry import ANALYSES

    found = {}
    for name, entry in ANALYSES.items():
        if entry.guide:
            title = (DOCS / entry.guide).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
            found[name] = Guide(entry.guide, title)
    return found


def references(file: str) -> str:
    """The end of a guide on the site: links to the generated pages of the analyses that it explains."""
    names = [name for name, guide in guides().items() if guide.file == file]
    up = "../" * file.count("/")
    links = [f"[`{name}`]({up}generated/analysis-{name.replace('_', '-')}.md)" for name in names]
    return f"\n\n## Reference\n\nArguments, results and errors: {', '.join(links)}.\n" if links else ""


def _home(result: Any, module: Any) -> str:
    """The docstring of the result's module, where that is not the function's module."""
    home = import_module(result.__module__) if result is not None else module
    return prose(home.__doc__) if home is not module else ""


def command_line() -> str:
    """Every verb with its text, examples and options."""
    import typer

    from dcinterp.cli import verbs

    root = typer.main.get_command(verbs)
    parts = [
        "# Command line",
        "Exit codes: 0 success; 1 a check failed (`verify`, `replay`, `tasks solve`, `sweep`); 2 bad input, explained "
        "in one sentence; 70 a mistake of dcinterp itself; 130 stopped by Ctrl-C; 141 the reader of the output has "
        "gone (as with `| head`). `DCINTERP_DEBUG=1` shows the traceback behind a sentence. The analyses have "
        "[pages](analysis-index.md) of their own; `dcinterp analyze NAME --help` lists the options of one.",
    ]
    parts += [part for name in root.list_commands(typer.Context(root)) for part in _verb(root, (name,))]
    return "\n\n".join(parts) + "\n"


def _verb(group: Any, path: tuple[str, ...]) -> Iterator[str]:
    import typer

    command = group.get_command(typer.Context(group), path[-1])
    yield f"{'#' * (1 + len(path))} dcinterp {' '.join(path)}"
    if command.help:
        yield inspect.cleandoc(command.help)
    if hasattr(command, "list_commands"):
        if path != ("analyze",):
            for name in command.list_commands(typer.Context(command)):
                yield from _verb(command, (*path, name))
        return
    rows = []
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if option else parameter.name
        default = parameter.default if isinstance(parameter.default, int | float | str) else None
        shown = "" if default in (None, "", False) or not option else f" (default {default})"
        rows.append(f"| `{name}` | {(parameter.help or '').replace('|', chr(92) + '|')}{shown} |")
    if rows:
        yield "\n".join(["| argument | |", "|---|---|", *rows])


def hook_list() -> str:
    """All hooks of the shipped DCFormer."""
    from sitetools.tables import composition_table, standard_table

    return (
        "# All hooks\n\nThese are the hooks of the shipped model `dcformer++`, found by running it. "
        "`dcinterp hooks MODEL` prints those of any model. "
        f"[Hooks](../hooks.md) says what they are for.\n\n## Composition\n\n{composition_table()}\n\n"
        f"## Everything else\n\n{standard_table()}\n"
    )
