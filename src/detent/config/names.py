"""Named parts of an engine besides its tools: kernels, strategies, and the parts of plug-in packages.

A name is looked up first among the registered parts and then among the entry points of its group (`detent.kernels`, `detent.strategies`, ...), so an
installed package needs no change here. Engines share nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from detent.config.imports import in_import_root, load_object
from detent.core.errors import ConfigError, UnknownName
from detent.kernel.act import act
from detent.kernel.kernel import Kernel, make_kernel
from detent.kernel.think import think
from detent.ports import (
    Capabilities,
    Clock,
    EventStore,
    Ids,
    Memory,
    MetaTool,
    Observer,
    Planner,
    Policy,
    Scheduler,
    SecretSource,
    WorkerHost,
)
from detent.ports.options import FUNCTIONS, check_function, shown, takes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Names(Generic[T]):
    """Parts of one `kind` by name, in registration order."""  # rows S0-15, 16.1

    def __init__(
        self,
        kind: str,
        known: Mapping[str, T] | None = None,
        *,
        built_in: Mapping[str, T] | None = None,
        others: Callable[[], Mapping[str, T]] | None = None,
    ) -> None:
        """`kind` is one word, as in messages; its entry points are in the group `detent.<kind>s`. `others` are made when a name is first looked up.

        `known` replaces what is `built_in`, and is checked.
        """
        self.kind, self._others = kind, others
        self._known: dict[str, T] = {**(built_in or {}), **(known or {})}
        for name, value in (known or {}).items():
            check_kind(kind, f"the {kind} {name!r}", value)

    def register(self, name: str, value: T) -> None:
        """Add `value`. Adding the same one again changes nothing. Raise `ConfigError` if another value has the name, or if the name is empty."""
        if not name.strip():
            raise ConfigError(f"a {self.kind} needs a name")
        check_kind(self.kind, f"the {self.kind} {name!r}", value)
        if self._all().setdefault(name, value) is not value:
            raise ConfigError(f"a {self.kind} named {name!r} already exists in this engine; give it another name, or use replace")

    def replace(self, name: str, value: T) -> None:
        """Replace the value with that name. Raise `UnknownName` if there is none."""
        self.get(name)
        check_kind(self.kind, f"the {self.kind} {name!r}", value)
        self._known[name] = value

    def get(self, name: str) -> T:
        """Return the value with this name. Raise `UnknownName`, which suggests the nearest name, or `ConfigError` if its plug-in cannot be loaded."""
        if name not in self._all():
            plugin = entry_points(self.kind).get(name)
            if plugin is None:
                raise UnknownName(self.kind, name, self.names())
            self._known[name] = loaded(plugin, self.kind)
        return self._known[name]

    def names(self) -> list[str]:
        """Return all names: the registered ones, then those of plug-ins."""
        return list(dict.fromkeys((*self._all(), *entry_points(self.kind))))

    def __contains__(self, name: object) -> bool:
        return name in self._all() or name in entry_points(self.kind)

    def _all(self) -> dict[str, T]:
        if self._others is not None:
            others, self._others = self._others, None
            self._known = {**others(), **self._known}
        return self._known


def entry_points(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of the group `detent.<kind>s` by name. Packages in an import root do not count."""
    from importlib import metadata  # slow to import, and runs without plug-ins do not need it

    group = f"detent.{kind[:-1]}ies" if kind.endswith("y") else f"detent.{kind}s"
    points = metadata.entry_points(group=group)
    return {point.name: point for point in points if point.dist is None or not in_import_root(point.dist.locate_file(""))}


def plugged(kind: str, name: str) -> Any:
    """Return the part of a plug-in package with this name, or None. Raise `ConfigError` if it cannot be loaded."""
    point = entry_points(kind).get(name)
    return None if point is None else loaded(point, kind)


def loaded(point: EntryPoint, kind: str) -> Any:
    """Return the object of an entry point. Raise `ConfigError`, which names the package, if it cannot be imported."""
    package = point.dist.name if point.dist is not None else point.value
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # foreign code: importing a plug-in may raise anything, and even SystemExit
        raise ConfigError(f"the {kind} {point.name!r} of package {package!r} cannot be loaded: {type(error).__name__}: {error}") from error
    check_kind(kind, f"the {kind} {point.name!r} of package {package!r}", value)
    return value


SEAMS: dict[str, Any] = {
    "observer": Observer,
    "store": EventStore,
    "memory": Memory,
    "planner": Planner,
    "policy": Policy,
    "secrets": SecretSource,
    "capabilities": Capabilities,
    "clock": Clock,
    "ids": Ids,
    "scheduler": Scheduler,
    "worker_host": WorkerHost,
}
"""The seam whose methods each part of an engine must have."""


def check_parts(*, approver: Any, ceiling: Any, **parts: Any) -> None:
    """Raise `ConfigError` for an object that cannot be this part of an engine. None is skipped."""
    for name, value in parts.items():
        if value is None:
            continue
        seam = SEAMS[name]
        if isinstance(value, type):
            raise ConfigError(f"{name} is the class {value.__name__}; give an object of it: {value.__name__}(...)")
        methods, fields = _members(seam)
        missing = [method for method in methods if isinstance(value, dict) or not callable(getattr(value, method, None))]
        missing += [data for data in fields if not hasattr(cast("Any", value), data)]
        if missing:
            needs = ", ".join(_signature(seam, name, short=len(methods) > 3) for name in missing[:3])
            raise ConfigError(
                f"{name} is {value!r}, which has no {needs}; see detent.extend.{seam.__name__} for what it needs. Pass an object that has it, or "
                "leave it out"
            )
        for method in methods if name in ("planner", "policy") else ():
            count = getattr(seam, method).__code__.co_argcount - 1  # of plain parameters; `inspect.signature` takes long
            if taken := takes(getattr(cast("Any", value), method), count):
                wanted = _signature(seam, method, short=False)
                raise ConfigError(
                    f"{name} is {value!r}, whose {method} takes {taken}; expected {wanted}, see detent.extend.{seam.__name__}"
                )
    if not (approver is None or approver == "caller" or callable(approver)):
        raise ConfigError(f'approver is {approver!r}; give a function that takes an Approval, or "caller" if your program calls `approve`')
    if type(ceiling) is not int or ceiling < 1:
        raise ConfigError(f"ceiling is {ceiling!r}; give a whole number of iterations above 0")


@cache
def _members(seam: Any) -> tuple[list[str], list[str]]:
    """Return the names of a seam's methods and of its data."""
    members: dict[str, Any] = cast("Any", vars(seam))
    methods = [name for name, made in members.items() if not name.startswith("_") and inspect.isfunction(made)]
    return methods, list(inspect.get_annotations(seam))


def _signature(seam: Any, name: str, *, short: bool) -> str:
    """Return a member of a seam as declared."""
    made: Any = getattr(seam, name, None)
    if made is None:
        return name
    said = str(inspect.signature(made)).replace("'", "").replace("self, ", "").replace("(self)", "()")
    return f"{name}()" if short else f"{name}{said}"


def check_kind(kind: str, what: str, value: Any) -> None:
    """Raise `ConfigError` for a value of the wrong kind. It names what was expected: a function with its number of arguments, a kernel, a store."""
    if kind in ("store", "memory") and not callable(value):
        raise ConfigError(f"{what} is a {type(value).__name__}; expected a function or class that creates a {kind}")
    if kind == "compactor" and (isinstance(value, type) or not all(hasattr(value, part) for part in ("name", "due", "compact"))):
        raise ConfigError(
            f"{what} is {shown(value)}; expected an object with name, due(measured) and compact(dropped, ask=), see detent.extend.Compactor"
        )
    if kind == "kernel" and (isinstance(value, type) or not hasattr(value, "phases")):
        raise ConfigError(f"{what} is {shown(value)} and has no phases; expected a kernel, made with make_kernel(phases=...)")
    if kind == "kernel":
        check_kernel(what, cast("Kernel", value))
    if kind in FUNCTIONS:
        check_function(kind, what, value)


def check_kernel(what: str, kernel: Kernel) -> None:
    """Raise `ConfigError` for a kernel with an invalid phase, guard or meta-tool."""
    for phase in kernel.phases:
        check_function("phase", f"{what}: a phase", phase)
    for guard in kernel.guards:
        check_function("guard", f"{what}: a guard", guard)
    for tool in cast("tuple[Any, ...]", kernel.meta_tools):
        if not isinstance(tool, MetaTool):
            raise ConfigError(f"{what}: a meta-tool is {shown(tool)}; expected a MetaTool(spec=..., handler=...)")


def load_named(kind: str, path: str, where: str) -> Any:
    """Return the part of this kind that an import path names. Raise `ConfigError` if it does not exist or is of another kind."""
    found = load_object(path, where)
    check_kind(kind, f"{where}: {path!r}", found)
    return found


THINK_AND_ACT = {"think": think, "act": act}


def load_phases(said: Sequence[str], where: str) -> Kernel:
    """Return a kernel with these phases: `think`, `act`, and import paths of others. Its name is the list of phases. Raise `ConfigError`."""
    for name in said:
        if ":" not in name and name not in THINK_AND_ACT:
            raise ConfigError(f"{where}: phases: {name!r} is not a phase; write think, act, or './file.py:function'")
    phases = [load_named("phase", name, f"{where}: phases") if ":" in name else THINK_AND_ACT[name] for name in said]
    return make_kernel(tuple(phases), name=" ".join(said))


class Imported(str):
    """An import path that a file gives instead of a name, and the imported `part`."""

    __slots__ = ("part",)

    def __new__(cls, path: str, part: Any) -> Imported:
        """Return `path`, which is now the name of the part."""
        made = super().__new__(cls, path)
        made.part = part
        return made
