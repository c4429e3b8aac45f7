"""Rewrites the generated parts of the documentation, llms.txt and the JSON Schemas from the code; `--check` only reports what is out of date, and
exits 1 if anything is.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. In tables whose last column is written by hand that column
is kept, row by row; a row that is new gets an empty one, which the tests refuse.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SCHEMAS = ROOT / "src" / "detent" / "config" / "schemas"
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
    if any(get_origin(one) is Annotated for one in get_args(kind)):
        return "duration"
    names = {"str": "text", "int": "number", "float": "number", "bool": "true, false", "tuple[str, ...]": "list of texts"}
    names |= {
        "Sequence[str]": "list of texts",
        "bool | tuple[str, ...]": "true, false, or list of texts",
        "str | list[dict[str, Any]]": "file name, or list of tables",
        "dict[str, str]": "table of texts",
        "str | dict[str, str]": "text, or table of texts",
        "dict[str, int]": "table of numbers",
        "str | dict[str, Any]": "file name, import path, or table",
        "dict[str, Any] | str": "text, or table",
        "str | list[dict[str, Any]] | dict[str, Any]": "file name, or list of tables, or table",
        "tuple[dict[str, Any], ...]": "list of tables",
        "str | EmbedderSettings": "text, or table",
        "str | TranscriberSettings": "text, or table",
        "Sequence[dict[str, str]]": "list of tables",
        "Sequence[dict[str, Any]]": "list of tables",
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
    from detent.config.engines import DEFAULTS, Config

    rows: list[Sequence[str]] = []
    for field in msgspec.structs.fields(Config):
        default = getattr(DEFAULTS, field.name)
        if field.name != "budget" and isinstance(default, msgspec.Struct):
            rows += _keys(type(default), default, f"{field.name}.")
        else:
            rows += [row for row in _keys(Config, DEFAULTS) if row[0] in (f"`{field.name}`", f"`[{field.name}]`")]
    return kept((*KEY, "see"), rows, old)


def agent_keys(old: str) -> str:
    """Every key of an agent file."""
    from detent.config.loading import AgentFile

    return kept((*KEY, "see"), _keys(AgentFile, AgentFile(name="")), old)


KEY = ("key", "type", "default", "meaning")
NOT_IN_FILES = {("AgentFile", "grants")}
"""Options of a program that its file must not have: the operator's file says them."""


def _keys(kind: Any, defaults: Any, prefix: str = "") -> list[Sequence[str]]:
    """Return a row for each field of a struct, without its last cell."""
    said = meanings(kind)
    return [
        ("`[budget]`", "table", "", said["budget"])
        if field.name == "budget"
        else (f"`{prefix}{field.name}`", type_of(field.type), value(getattr(defaults, field.name)), said[field.name])
        for field in msgspec.structs.fields(kind)
        if (kind.__name__, field.name) not in NOT_IN_FILES
    ]


def meanings(kind: type) -> dict[str, str]:
    """Return what the line below each field of a class says, or of the class that it derives from; "" where there is none."""
    said = dict.fromkeys(kind.__struct_fields__, "")
    for owner in reversed(kind.__mro__):
        if owner.__module__ in ("builtins", "msgspec") or not issubclass(owner, msgspec.Struct):
            continue
        body: list[Any] = ast.parse(inspect.cleandoc("\n" + inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
        for line, below in pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                said[ast.unparse(line.target)] = sentence(str(below.value.value))
    return said


def bounds(old: str) -> str:
    """Every bound of a budget."""
    from detent.core.budget import DEFAULT, Budget

    said = meanings(Budget)
    rows = [(f"`{name}`", value(getattr(DEFAULT, name)) or "none", said[name]) for name in Budget.__struct_fields__]
    return kept(("bound", "default", "meaning", "see"), rows, old)


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


def dialects(_old: str) -> str:
    """The ways to write a call that are read, from the texts that the tests read."""
    known = runpy.run_path(str(ROOT / "tests" / "planners" / "text" / "dialects.py"))["DIALECTS"]
    shown = [one.text.replace("\n", "↵").replace("```", "'''") for one in known]
    rows = [(one.name, f"`{text}`", "is made" if one.marked else "is corrected") for one, text in zip(known, shown, strict=True)]
    return table(("dialect", "a call, where it is the whole text", "from a model with native calls"), rows)


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
    "dialects": dialects,
}


# Schemas ----------------------------------------------------------------------------------------------------------------------


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each file that people write, by the name of the schema's file."""
    from detent.config.engines import DEFAULTS, Config
    from detent.config.loading import AgentFile
    from detent.planners.rules.files import FORMS

    made = {"agent.json": of_struct(AgentFile), "detent.json": of_struct(Config, DEFAULTS), "rules.json": of_rules(FORMS)}
    titles = {
        "agent.json": "An agent of Detent (agent.toml)",
        "detent.json": "Detent (detent.toml)",
        "rules.json": "Rules of a Detent agent",
    }
    return {name: {"$schema": "http://json-schema.org/draft-07/schema#", "title": titles[name], **made[name]} for name in made}


def finer(kind: type, name: str) -> Any:
    """Return what a key may hold, where its reader accepts less, or another form, than the type of the field says; else None."""
    from detent.config import loading, mcp_tables
    from detent.config.engines import DEFAULTS, Config, MemoryConfig, StoreConfig, WorkspaceConfig
    from detent.config.remembering import MemoryUse
    from detent.core import budget
    from detent.expressions.grants import Grant
    from detent.planners.model.control_tools import ACTIONS
    from detent.planners.rules.files import FORMS
    from detent.planners.settings import ModelSettings
    from detent.policies import documents
    from detent.ports import ContextProfile
    from detent.tools.mcp.settings import OPERATORS_KEYS, ToolPins

    text: dict[str, Any] = {"type": "string"}

    def listed(items: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": items}

    def tables(inner: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": inner}

    def either(*options: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": list(options)}

    def texts() -> dict[str, Any]:
        return tables(either(text, {"type": "object", "properties": {"env": text}, "required": ["env"], "additionalProperties": False}))

    def servers_of_agents() -> dict[str, Any]:
        table = of_struct(mcp_tables.McpTable)
        return tables({**table, "properties": {key: said for key, said in table["properties"].items() if key not in OPERATORS_KEYS}})

    def policy() -> dict[str, Any]:
        return either(text, listed(_policy_rule(of_struct(documents.Rule))), of_struct(documents.PolicyDocument))

    def deliverable() -> dict[str, Any]:
        sides = {"file": text, "section": text}
        return {"type": "object", "properties": sides, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}

    known: dict[tuple[type, str], Callable[[], dict[str, Any]]] = {
        (loading.AgentFile, "subagents"): lambda: either(listed(text), tables(either(text, {"type": "object"}))),
        (Config, "agents"): lambda: either(text, tables(either(text, {**of_struct(loading.AgentFile), "required": []}))),
        (loading.AgentFile, "actions"): lambda: listed({"enum": list(ACTIONS)}),
        (loading.AgentFile, "model_settings"): lambda: of_struct(ModelSettings),
        (loading.AgentFile, "profile"): lambda: of_struct(ContextProfile),
        (loading.AgentFile, "memory"): lambda: of_struct(MemoryUse),
        (Config, "memory"): lambda: either(text, of_struct(MemoryConfig, DEFAULTS.memory)),
        (loading.AgentFile, "rules"): lambda: either(text, of_rules(FORMS)),
        (loading.AgentFile, "policy"): policy,
        (loading.AgentFile, "deliverables"): lambda: listed(deliverable()),
        (loading.AgentFile, "mcp"): servers_of_agents,
        (Config, "store"): lambda: either(text, of_struct(StoreConfig, DEFAULTS.store)),
        (Config, "workspace"): lambda: either(text, of_struct(WorkspaceConfig, DEFAULTS.workspace)),
        (Config, "policy"): policy,
        (Config, "grants"): lambda: listed(of_struct(Grant)),
        (Config, "mcp"): lambda: tables(of_struct(mcp_tables.McpTable)),
        (mcp_tables.McpTable, "env"): texts,
        (mcp_tables.McpTable, "headers"): texts,
        (mcp_tables.McpTable, "tools"): lambda: either(listed(text), tables(of_struct(ToolPins))),
        (documents.PolicyDocument, "rules"): lambda: listed(_policy_rule(of_struct(documents.Rule))),
        (budget.Budget, "max_calls_of"): lambda: tables({"type": "integer"}),
    }
    return known[kind, name]() if (kind, name) in known else None


def _policy_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a policy rule as it is written: one tool may stand alone, and `expires` may be a text such as "12h"."""
    own = rule["properties"]
    expires = {"anyOf": [{"type": "number"}, {"type": "string"}]}
    return {**rule, "properties": {**own, "tool": {"anyOf": [{"type": "string"}, own["tool"]]}, "expires": expires}}


def of_struct(kind: Any, defaults: Any = None) -> dict[str, Any]:
    """Return the schema of a table that holds the fields of a struct and no other."""
    said = meanings(kind)
    properties: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if (kind.__name__, field.name) in NOT_IN_FILES:
            continue
        default = field.default if defaults is None else getattr(defaults, field.name)
        inner = default if isinstance(default, msgspec.Struct) and defaults is not None else None
        own: dict[str, Any] = finer(kind, field.name) or (of_type(field.type) if inner is None else of_struct(type(inner), inner))
        if said[field.name]:
            own = {"description": said[field.name], **own}
        if isinstance(default, str | int | float) and default != "":
            own["default"] = default
        properties[field.name] = own
    required = [field.name for field in msgspec.structs.fields(kind) if field.required]
    whole: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**whole, "required": required} if required else whole


def of_type(kind: Any) -> dict[str, Any]:
    """Return the schema of what can be written for a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return of_type(inner[0])
    if origin in (Union, UnionType):
        options = [of_type(option) for option in inner if option is not NoneType]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": of_type(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(inner[1])}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return of_struct(kind)
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[kind]} if kind in names else {}


def of_rules(forms: Any) -> dict[str, Any]:
    """Return the schema of a rule file: a list of rules, with `values` and `default` beside them."""
    text: dict[str, Any] = {"type": "string"}
    count = {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1}]}
    then = {"enum": ["continue", "stop"]}
    retry = {"type": "object", "properties": {"retry": {"type": "integer", "minimum": 1}, "then": then}, "required": ["retry"]}
    taken = {name: _action(form) for name, form in forms.items()}
    one = {"oneOf": [{"required": [name]} for name in forms]}
    base = {"name": {**text, "pattern": r"^[A-Za-z][\w-]*$"}, "repeat": count, "why": {}}
    options = {
        **base,
        "when": {"type": ["string", "boolean"]},
        "for_each": text,
        "batch": count,
        "as": text,
        "on_error": {"anyOf": [{"enum": ["continue", "stop", "retry"]}, {**retry, "additionalProperties": False}]},
    }
    rule = {"type": "object", "properties": {**options, **taken}, "required": ["name"], "additionalProperties": False, **one}
    default = {"type": "object", "properties": {**base, **taken}, "additionalProperties": False, **one}
    alone = {"values": {"type": "object", "additionalProperties": text}, "default": default}
    others = [{"type": "object", "properties": {k: v}, "required": [k], "additionalProperties": False} for k, v in alone.items()]
    return {"type": "array", "minItems": 1, "items": {"anyOf": [rule, *others]}}


def _action(form: Any) -> dict[str, Any]:
    """Return the schema of an action of a rule: a map of its fields, and what else may stand for one of them."""
    if form.whole:
        return {}
    fields = {
        "type": "object",
        "properties": {name: {} for name in form.fields},
        "required": list(form.needs),
        "additionalProperties": False,
    }
    return {"anyOf": [fields, {"not": {"type": "object"}}]} if form.bare else fields


# Pages ------------------------------------------------------------------------------------------------------------------------


def renewed(text: str) -> str:
    """Return a page with its generated parts made anew; raise `KeyError` for a part that is not known."""
    return PART.sub(lambda m: f"{m['begin']}\n{PARTS[m['name']](m['body']).strip()}\n\n{m['end']}", text)


def main(arguments: Sequence[str]) -> int:
    """Rewrite what is out of date, or with `--check` only name it."""
    check = "--check" in arguments
    stale = 0
    files = {page: renewed(page.read_text(encoding="utf-8")) for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
    files |= {SCHEMAS / name: as_json(schema) for name, schema in schemas().items()}
    files[ROOT / "llms.txt"] = runpy.run_path(str(ROOT / "scripts" / "llms.py"))["text"]()
    for file, new in files.items():
        if not file.exists() or new != file.read_text(encoding="utf-8"):
            stale += 1
            print(f"{file.relative_to(ROOT)}: {'out of date; run scripts/docs.py' if check else 'rewritten'}")
            if not check:
                file.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


def as_json(schema: Any) -> str:
    """Return a schema as its file has it."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
