"""Rewrites the generated parts of the documentation from the code; `--check` only says what is out of date, and exits 1 if anything is.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. In tables whose last column is written by hand that column
is kept, row by row; a row that is new gets an empty one, which the tests refuse.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[\w. -]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)


# Tables -----------------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(old: str) -> dict[str, str]:
    """Return the last cell of each row of a table, by the first."""
    lines = [line for line in old.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[-1].replace("\\|", "|") for row in cells}


def kept(head: Sequence[str], rows: Iterable[Sequence[str]], old: str) -> str:
    """Return a table of `rows` with the last column, which is written by hand, taken from `old`."""
    known = written(old)
    return table(head, [[*row, known.get(row[0], "")] for row in rows])


def sentence(text: str | None, *, all_of_it: bool = False) -> str:
    """Return a docstring on one line: its first paragraph, or all of it."""
    whole = inspect.cleandoc(text or "")
    return " ".join((whole if all_of_it else whole.split("\n\n")[0]).split())


def value(given: Any) -> str:
    """Return a default as it is written in TOML, "" where there is none."""
    if given is None or given in ("", (), {}):
        return ""
    return f"`{str(given).lower() if isinstance(given, bool) else given}`"


def type_of(kind: Any) -> str:
    """Return the type of a key in words."""
    said = re.sub(r"\w+\.(?=\w)", "", str(kind).replace("<class '", "").replace("'>", ""))
    names = {"str": "text", "int": "number", "float": "number", "bool": "true, false", "tuple[str, ...]": "list of texts"}
    names |= {
        "str | list[dict[str, Any]]": "file name, or list of tables",
        "dict[str, str]": "table of texts",
        "dict[str, int]": "table of numbers",
        "str | dict[str, Any]": "file name, import path, or table",
        "str | list[dict[str, Any]] | dict[str, Any]": "file name, or list of tables, or table",
        "tuple[dict[str, Any], ...]": "list of tables",
        "tuple[dict[str, str], ...]": "list of tables",
    }
    said = said.removesuffix(" | None")
    if said.startswith("Literal["):
        return ", ".join(f"`{choice}`" for choice in get_args(kind) if choice)
    if said.startswith(("Optional[Literal[", "tuple[Literal[")):
        return ("list of " if said.startswith("tuple") else "") + ", ".join(f"`{choice}`" for choice in re.findall(r"'(\w+)'", said))
    return names.get(said, "table" if said.startswith(("dict", "Model")) else said)


# Parts ------------------------------------------------------------------------------------------------------------------------


def sections(module: Any, root: str) -> list[tuple[str, list[type]]]:
    """Return the classes of a module that derive from `root`, by the heading comment above them."""
    found: list[tuple[str, list[type]]] = [("", [])]
    for line in inspect.getsource(module).splitlines():
        if heading := re.match(r"# (.+?) -{10,}$", line):
            found.append((heading[1], []))
        elif named := re.match(rf"class (\w+)\({root}\b", line):
            found[-1][1].append(getattr(module, named[1]))
    return [(name, classes) for name, classes in found if classes]


def fields(kind: Any) -> str:
    """Return the names of a struct's fields."""
    return ", ".join(f"`{name}`" for name in kind.__struct_fields__)


def tag(kind: Any) -> str:
    """Return the name that a class has on the wire."""
    info: Any = msgspec.inspect.type_info(kind)
    return str(info.tag)


def made() -> set[str]:
    """Return the names of everything that is called in the package: an event that is not among them, nothing records yet."""
    names: set[str] = set()
    for path in (ROOT / "src" / "detent").rglob("*.py"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
        names.update(ast.unparse(f).split(".")[-1] for f in calls if isinstance(f, (ast.Name, ast.Attribute)))
    return names


def events(_: str) -> str:
    """Every event, in the groups of the source."""
    from detent.core import events as module

    recorded = made()

    def source(kind: type) -> str:
        if kind.__name__ not in recorded:
            return "later"
        return "outside" if kind in module.INPUTS else "kernel"

    parts: list[str] = []
    for name, classes in sections(module, "Event"):
        rows = [(f"`{c.__name__}`", f"`{tag(c)}`", source(c), fields(c), sentence(c.__doc__, all_of_it=True)) for c in classes]
        parts.append(f"### {name}\n\n{table(('event', '`type`', 'from', 'fields', 'meaning'), rows)}")
    return "\n" + "\n".join(parts) + "\n"


def actions(_: str) -> str:
    """Every action."""
    from detent.core import actions as module

    own = [
        (c, ", ".join(f"`{f}`" for f in c.__struct_fields__ if f != "reason")) for _, classes in sections(module, "Action") for c in classes
    ]
    return table(("action", "`type`", "fields", "meaning"), [(f"`{c.__name__}`", f"`{tag(c)}`", f, sentence(c.__doc__)) for c, f in own])


def errors(old: str) -> str:
    """Every error, in the order of the tree, with its code and the exit code of the command line."""
    from detent.cli.output import code_of_error
    from detent.core import errors as module

    meaning = dict(re.findall(r"[├└]── (\w+) +(.+)", module.__doc__ or ""))
    meaning |= {"DetentError": "the root of all errors", "StoreError": "a store cannot do what it is asked"}
    rows: list[Sequence[str]] = []
    for name in re.findall(r"^[│ ├└─]*(\w+)", (module.__doc__ or "").split("\n\n")[1], re.MULTILINE):
        kind: Any = getattr(module, name)
        code = code_of_error(kind.__new__(kind))
        says = meaning.get(name, "") or sentence(kind.__doc__)
        rows.append((f"`{name}`", f"`{kind.code}`", "yes" if kind.retryable else "no", str(code), says))
    return kept(("error", "`code`", "retryable", "exit", "meaning", "what to do"), rows, old)


def reasons(old: str) -> str:
    """Every reason for which a run ends."""
    from detent.core.settle import REASONS

    return kept(("reason", "status", "meaning"), [(f"`{reason}`", status) for reason, status in REASONS.items()], old)


def commands(_: str) -> str:
    """Every command with its arguments and options, in the groups of `detent --help`."""
    import typer

    from detent.cli.main import GROUPS, make_app

    app: Any = typer.main.get_command(make_app())
    parts = [f"### Everywhere\n\n{table(('option', 'meaning'), [_option(p) for p in app.params])}"]
    for group, names in GROUPS.items():
        parts.append(f"### {group}\n")
        parts += [_command(app.commands[name], name) for name in names]
    return "\n" + "\n".join(parts) + "\n"


def _command(command: Any, name: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    rows = [(f"`{_named(p)}`", p.help or "") for p in arguments] + [_option(p) for p in command.params if p not in arguments]
    usage = " ".join(["detent", name, "[OPTIONS]", *(_named(p) if p.required else f"[{_named(p).strip('[]')}]" for p in arguments)])
    return f"#### detent {name}\n\n{command.help}\n\n```text\n{usage}\n```\n\n{table(('argument, option', 'meaning'), rows)}"


def _named(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(option: Any) -> tuple[str, str]:
    names = ", ".join(f"`{name}{f' {option.metavar}' if option.metavar and name.startswith('--') else ''}`" for name in option.opts)
    default = option.default
    said = f" Default: {default}." if isinstance(default, int) and not isinstance(default, bool) and default and not option.count else ""
    return names, f"{option.help}{said}"


def config_keys(old: str) -> str:
    """Every key of `detent.toml` outside `[budget]`."""
    from detent.config.agents import DEFAULTS, Config

    rows: list[Sequence[str]] = []
    for field in msgspec.structs.fields(Config):
        default = getattr(DEFAULTS, field.name)
        if field.name == "budget":
            rows.append(("`[budget]`", "table", ""))
        elif isinstance(default, msgspec.Struct):
            inner = msgspec.structs.fields(type(default))
            rows += [(f"`{field.name}.{f.name}`", type_of(f.type), value(getattr(default, f.name))) for f in inner]
        else:
            rows.append((f"`{field.name}`", type_of(field.type), value(default)))
    return kept(("key", "type", "default", "meaning"), rows, old)


def agent_keys(old: str) -> str:
    """Every key of an agent file."""
    from detent.config.loading import AgentFile

    blank = AgentFile()
    rows = [
        ("`[budget]`", "table", "") if f.name == "budget" else (f"`{f.name}`", type_of(f.type), value(getattr(blank, f.name)))
        for f in msgspec.structs.fields(AgentFile)
    ]
    return kept(("key", "type", "default", "meaning"), rows, old)


def bounds(old: str) -> str:
    """Every bound of a budget."""
    from detent.core.budget import DEFAULT, Budget

    return kept(("bound", "default", "meaning"), [(f"`{f}`", value(getattr(DEFAULT, f)) or "none") for f in Budget.__struct_fields__], old)


def environment(_: str) -> str:
    """Every environment variable that stands for a key of `detent.toml`."""
    from detent.config.environment import ENVIRONMENT

    return table(("variable", "stands for"), [(f"`{name}`", f"`{'.'.join(key)}`") for name, key in ENVIRONMENT.items()])


def tool_options(old: str) -> str:
    """Every option of `@tool`."""
    from detent.tools.functions.options import Options

    def default(field: Any) -> str:
        return "" if field.default in ((), None) and field.name != "timeout_s" else f"`{field.default!r}`"

    rows = [(f"`{f.name}`", default(f)) for f in msgspec.structs.fields(Options)]
    return kept(("option", "default", "meaning"), rows, old)


def workspace_tools(_: str) -> str:
    """The workspace tools."""
    from detent.tools.workspace.tools import workspace_tools as make

    with tempfile.TemporaryDirectory() as root:
        specs = [t.spec for t in make(root)]
    rows = [(f"`{s.name}`", s.side_effect, "yes" if s.idempotent or s.read_only else "no", sentence(s.description)) for s in specs]
    return table(("tool", "side effect", "repeatable", "what it does"), rows)


def store_methods(_: str) -> str:
    """The methods of an `EventStore`."""
    from detent.ports import EventStore

    rows: list[Sequence[str]] = []
    for name, method in vars(EventStore).items():
        if name.startswith("_") or not callable(method):
            continue
        asked = ", ".join(p for p in inspect.signature(method).parameters if p != "self")
        rows.append((f"`{name}({asked})`", sentence(method.__doc__, all_of_it=True)))
    return table(("method", "promise"), rows)


PARTS: dict[str, Callable[[str], str]] = {
    "events": events,
    "actions": actions,
    "errors": errors,
    "reasons": reasons,
    "commands": commands,
    "detent.toml": config_keys,
    "agent file": agent_keys,
    "bounds": bounds,
    "environment": environment,
    "tool options": tool_options,
    "workspace tools": workspace_tools,
    "store methods": store_methods,
}


# Pages ------------------------------------------------------------------------------------------------------------------------


def renewed(text: str) -> str:
    """Return a page with its generated parts made anew; raise `KeyError` for a part that is not known."""
    return PART.sub(lambda m: f"{m['begin']}\n{PARTS[m['name']](m['body']).strip()}\n\n{m['end']}", text)


def main(arguments: Sequence[str]) -> int:
    """Rewrite what is out of date, or with `--check` only name it."""
    check = "--check" in arguments
    stale = 0
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = renewed(text)
        if new != text:
            stale += 1
            print(f"{page.relative_to(ROOT)}: {'out of date; run scripts/docs.py' if check else 'rewritten'}")
            if not check:
                page.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
