"""Writes the reference of the Python API: every public class and function, with its types, fields and errors, from the source.

Griffe reads the source and nothing is imported. What is public is what `__all__` of a door has (`PAGES`), and without one every name that does not
begin with `_`. A name that several doors have stands on the page of the first, and the others link to it.
"""

from __future__ import annotations

import ast
import builtins
import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGES: dict[str, tuple[str, ...]] = {
    "detent": ("detent",),
    "detent.extend": ("detent.extend",),
    "detent.tools": ("detent.tools", "detent.tools.mcp", "detent.tools.web.fetch", "detent.tools.workspace.skills"),
    "detent.planners": (
        "detent.planners",
        "detent.planners.model",
        "detent.planners.fallback",
        "detent.planners.verifiers",
        "detent.planners.raw_text.planner",
        "detent.planners.raw_text.generation",
        "detent.planners.raw_text.generators",
    ),
    "detent.policies": ("detent.policies", "detent.policies.provenance"),
    "detent.stores": ("detent.stores",),
    "detent.workers": ("detent.workers", "detent.workers.in_process"),
    "detent.observers": ("detent.observers", "detent.observers.otel"),
    "detent.server": ("detent.server", "detent.server.callers"),
    "detent.evals": ("detent.evals", "detent.evals.plugin", "detent.evals.inspect_bridge"),
    "detent.capabilities": ("detent.capabilities",),
    "detent.embedders": ("detent.embedders",),
    "detent.config": ("detent.config.loading", "detent.config.groups", "detent.config.schema_lines"),
    "detent.metering": ("detent.metering.pricing",),
    "detent.clock": ("detent.clock",),
    "detent.testing": ("detent.testing", "detent.testing.clocks", "detent.testing.faults"),
    "detent.testing.conformance": tuple(
        f"detent.testing.conformance.{name}"
        for name in ["approver", "basics", "capabilities", "observer", "planner", "policy", "scheduler", "store", "tool", "worker_host"]
    ),
}
"""The pages of the reference, and the modules that each has: the doors that the documentation imports from."""

ABOUT = re.compile(
    r"(?:(?<=[.;]\s)|^)(?P<names>`\w+`(?:, `\w+`)*):\s(?P<said>.+?)(?=[.;]\s`\w+`(?:, `\w+`)*:\s|\.\s+Raises|\n\n|\Z)[.;]?[ \n]?",
    re.DOTALL | re.MULTILINE,
)
"""What a docstring says of parameters: "`turns`: at most so many turns now; with 0 it is only started."."""
WIDTH = 84
"""Signatures are broken over lines so that they are not wider: a page shows so much without scrolling."""


class Api(NamedTuple):
    """The pages of the reference and their titles, by file."""

    pages: dict[str, str]
    titles: dict[str, str]


class Public(NamedTuple):
    """A public name: where it can be imported from, and the page that it stands on."""

    door: str
    page: str
    target: griffe.Object


class Reference:
    """The public names of the package, and how each is written down."""

    def __init__(self) -> None:
        self.package = griffe.load("detent", search_paths=[ROOT / "src"], resolve_aliases=True)
        self.names: dict[str, Public] = {}
        for page, doors in PAGES.items():
            for door in doors:
                for name, target in self.public(door):
                    self.names.setdefault(target.path, Public(f"{door}.{name}", page, target))
        self.errors = {name for name, found in self.package["core.errors"].members.items() if isinstance(found, griffe.Class)}

    def at(self, path: str) -> griffe.Object:
        """Return what stands under a path, where it is defined."""
        found = self.package if path == "detent" else self.package[path.removeprefix("detent.")]
        return found.final_target if isinstance(found, griffe.Alias) else found

    def public(self, door: str) -> Iterator[tuple[str, griffe.Object]]:
        """Yield the public names of a module in the order of its source, or of the alphabet where it only collects them."""
        module = self.at(door)
        named = [str(name).strip("'\"") for name in module.exports or ()]
        own = [name for name, member in module.members.items() if not name.startswith("_") and not member.is_alias and not member.is_module]
        for name in sorted(dict.fromkeys(named), key=str.lower) if named else own:
            found = module.members.get(name)
            target = found.final_target if isinstance(found, griffe.Alias) else found
            if target is not None and (named or target.is_class or target.is_function or name.isupper()):
                yield name, target

    # Pages ------------------------------------------------------------------------------------------------------------------------

    def page(self, page: str) -> str:
        """Return one page of the reference."""
        parts = [f"# {page}\n"]
        for door in PAGES[page]:
            about = text_of(self.at(door).docstring)
            entries = list(self.public(door))
            parts += [f"## {door} {{ #{door} }}\n"] if len(PAGES[page]) > 1 else []
            parts += [about, "", self.listing(page, door, entries)]
            for name, target in entries:
                if self.names[target.path].door == f"{door}.{name}":
                    parts.append(self.entry(page, target, f"{door}.{name}"))
        return "\n".join(parts)

    def listing(self, page: str, door: str, entries: list[tuple[str, griffe.Object]]) -> str:
        """Return the table of the names of a door."""
        return table(("name", "what it is"), [(self.link(page, target, name), first_sentence(target)) for name, target in entries])

    def link(self, page: str, target: griffe.Object, name: str) -> str:
        """Return a link to where a public name is described."""
        public = self.names[target.path]
        return f"[`{name}`]({'' if public.page == page else f'{public.page}.md'}#{public.door})"

    def entry(self, page: str, target: griffe.Object, path: str) -> str:
        """Return the section of a class, function or value."""
        head = f"### {path.rpartition('.')[2]} {{ #{path} }}\n"
        if isinstance(target, griffe.Class):
            return "\n".join([head, *self.of_class(page, target, path)])
        if isinstance(target, griffe.Function):
            return "\n".join([head, *self.of_function(page, target, target.name)])
        if isinstance(target, griffe.Attribute):
            shown = f"{target.name}{f': {target.annotation}' if target.annotation else ''} = {target.value}"
            return "\n".join([head, fence(shown), text_of(target.docstring), ""])
        return "\n".join([head, text_of(target.docstring), ""])

    def of_class(self, page: str, target: griffe.Class, path: str) -> Iterator[str]:
        """Yield the parts of a class: how it is made, what it says, its fields, its methods."""
        bases = [str(base) for base in target.bases]
        constructor = target.members.get("__init__")
        if isinstance(constructor, griffe.Function):
            yield fence(signature(constructor, path))
            yield from self.told(page, target.docstring or constructor.docstring, constructor)
        else:
            yield fence(f"class {path}({', '.join(bases)})" if bases else f"class {path}")
            yield text_of(target.docstring)
        yield from self.errors_of(page, target, *([constructor] if isinstance(constructor, griffe.Function) else []))
        fields = [
            field for field in self.fields(target) if field.name not in target.parameters or not isinstance(constructor, griffe.Function)
        ]
        if fields:
            rows = [(f"`{f.name}`", self.typed(page, f.annotation), value(f), one_line(text_of(f.docstring))) for f in fields]
            told = any(row[-1] for row in rows)
            yield "\n" + table(("field", "type", "default", "meaning")[: 4 if told else 3], [row if told else row[:3] for row in rows])
        methods = list(self.methods(target))
        if path.rpartition(".")[2].endswith("Contract"):
            yield "\n" + table(("check", "what it promises"), [(f"`{name}`", first_sentence(method)) for name, method in methods])
            return
        for name, method in methods:
            yield f"\n#### {target.name}.{name} {{ #{path}.{name} }}\n"
            yield from self.of_function(page, method, name)

    def of_function(self, page: str, target: griffe.Function, name: str) -> Iterator[str]:
        """Yield the parts of a function: its signatures, what it says, its errors."""
        for one in target.overloads or [target]:
            yield fence(signature(one, name))
        yield from self.told(page, target.docstring, target)
        yield from self.errors_of(page, target)

    def told(self, page: str, docstring: griffe.Docstring | None, target: griffe.Function) -> Iterator[str]:
        """Yield a docstring; what it says of single parameters, after "`name`:", becomes a table of the parameters."""
        parameters = {p.name: p for p in target.parameters if p.name not in ("self", "cls", "runtime")}
        meanings: dict[str, str] = {}

        def taken(match: re.Match[str]) -> str:
            names = re.findall(r"`(\w+)`", match["names"])
            if not set(names) <= set(parameters):
                return match[0]
            said = one_line(match["said"]).rstrip(";.")
            meanings.update(dict.fromkeys(names, f"{said[:1].upper()}{said[1:]}."))
            return ""

        text = text_of(docstring)
        left = ABOUT.sub(taken, text)
        yield re.sub(r"\n{3,}", "\n\n", left).strip() + "\n"
        if len(meanings) > 1 or (meanings and len(parameters) > 3):
            rows = [
                (f"`{name}`", self.typed(page, p.annotation), default(p.default), meanings.get(name, "")) for name, p in parameters.items()
            ]
            yield "\n" + table(("parameter", "type", "default", "meaning"), rows)
        elif meanings:
            yield "\n".join(f"`{name}`: {said}" for name, said in meanings.items()) + "\n"

    def fields(self, target: griffe.Class) -> list[griffe.Attribute]:
        """Return the public fields of a class, those of its bases first."""
        found = {name: member for owner in [*reversed(target.mro()), target] for name, member in owner.members.items()}
        fields = [member for name, member in found.items() if isinstance(member, griffe.Attribute) and not name.startswith("_")]
        return [field for field in fields if field.annotation or "property" in field.labels]

    def methods(self, target: griffe.Class) -> Iterator[tuple[str, griffe.Function]]:
        """Yield the public methods of a class; a door that opens to a function is that function."""
        for name, member in target.members.items():
            if name.startswith("_"):
                continue
            if isinstance(member, griffe.Function):
                yield name, member
            elif opened := re.fullmatch(r"opens\(([\w.]+)\)", str(getattr(member, "value", None))):
                first, _, rest = opened[1].partition(".")
                room = self.at(f"{target.module.resolve(first)}.{rest}".rstrip("."))
                if isinstance(room, griffe.Function):
                    yield name, room

    # Types and errors -------------------------------------------------------------------------------------------------------------

    def typed(self, page: str, annotation: str | griffe.Expr | None) -> str:
        """Return a type, in which each public class is a link."""
        if annotation is None:
            return ""
        parts: list[str] = []
        for part in annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else [annotation]:
            public = self.names.get(self.path_of(part)) if isinstance(part, griffe.ExprName) else None
            said = html.escape(part.name if isinstance(part, griffe.ExprName) else str(part), quote=False).replace("|", "&#124;")
            away = "" if public is None or public.page == page else f"{public.page}.html"
            parts.append(f'<a href="{away}#{public.door}">{said}</a>' if public else said)
        return f'<code class="type">{"".join(parts)}</code>'

    def path_of(self, name: griffe.ExprName) -> str:
        """Return where a name in a type is defined."""
        try:
            return self.at(name.canonical_path).path
        except (KeyError, griffe.GriffeError):
            return name.canonical_path

    def errors_of(self, page: str, *targets: griffe.Object) -> Iterator[str]:
        """Yield the line of errors that a function raises: those that its docstring names, and those of its own `raise` statements."""
        raised: dict[str, None] = {}
        for target in targets:
            for name in re.findall(r"`(\w+)`", target.docstring.value if target.docstring else ""):
                if name in self.errors or is_exception(name):
                    raised[name] = None
            if isinstance(target, griffe.Function):
                for name in own_raises(target):
                    if name in self.errors or is_exception(name):
                        raised[name] = None
        if raised:
            yield f"\n**Errors:** {', '.join(self.error(page, name) for name in sorted(raised))}\n"

    def error(self, page: str, name: str) -> str:
        """Return the name of an error, as a link to its description."""
        public = self.names.get(f"detent.core.errors.{name}")
        if public is not None:
            return self.link(page, public.target, name)
        return f"[`{name}`](../errors.md#errors)" if name in self.errors else f"`{name}`"


def is_exception(name: str) -> bool:
    """Return whether Python has an error of this name."""
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, Exception)


def own_raises(target: griffe.Function) -> Iterator[str]:
    """Yield the errors of the `raise` statements of a function."""
    try:
        tree = ast.parse(inspect.cleandoc("\n" + target.source))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(called, ast.Name):
                yield called.id


# Text -------------------------------------------------------------------------------------------------------------------------


def signature(target: griffe.Function, name: str) -> str:
    """Return the signature of a function as it is called: without `self`, a parameter a line where it is long."""
    parts: list[str] = []
    kinds = griffe.ParameterKind
    parameters = list(target.parameters)
    if parameters and parameters[0].name in ("self", "cls", "runtime") and (target.is_function):
        parameters = parameters[1:]
    keyword_only = False
    for parameter in parameters:
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(parameter.kind or kinds.positional_or_keyword, "")
        if parameter.kind is kinds.keyword_only and not keyword_only:
            keyword_only = True
            parts.append("*")
        keyword_only = keyword_only or star == "*"
        said = f"{star}{parameter.name}" + (f": {parameter.annotation}" if parameter.annotation else "")
        if parameter.default is not None and not star:
            said += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
        parts.append(said)
    kind = "class" if target.name == "__init__" else "async def" if "async" in target.labels else "def"
    back = f" -> {target.returns}" if target.returns and kind != "class" else ""
    short = f"{kind} {name}({', '.join(parts)}){back}"
    return short if len(short) <= WIDTH else f"{kind} {name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){back}"


def value(field: griffe.Attribute) -> str:
    """Return the default of a field."""
    return default(None if "property" in field.labels else field.value)


def default(given: str | griffe.Expr | None) -> str:
    """Return a default as the cell of a table, "" where there is none or it is long."""
    said = "" if given is None else str(given)
    return f"`{said}`".replace("|", "\\|") if said and len(said) <= 40 else ""


def text_of(docstring: griffe.Docstring | None) -> str:
    """Return a docstring as Markdown, in which nothing is taken for HTML."""
    parts = re.split(r"(`[^`]*`)", inspect.cleandoc(docstring.value) if docstring else "")
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def one_line(text: str) -> str:
    """Return a text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def first_sentence(target: griffe.Object) -> str:
    """Return the first sentence of a docstring."""
    said = one_line(text_of(target.docstring).split("\n\n")[0])
    return re.split(r"(?<=[.:]) (?=[A-Z`])", said, maxsplit=1)[0].rstrip(":")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ("---",) * len(head), *rows])


def fence(code: str) -> str:
    """Return a block of code."""
    return f"```python\n{code}\n```\n"


def reference(folder: str) -> Api:
    """Return the pages of the reference, for a folder of the site."""
    made = Reference()
    return Api({f"{folder}/{page}.md": made.page(page) for page in PAGES}, {f"{folder}/{page}.md": page for page in PAGES})
