"""What an engine knows by name beside its tools: kernels, strategies, and whatever a plug-in package brings.

A name is looked up among what was registered first and then among the entry points of its group (`detent.kernels`, `detent.strategies`, ...),
so that a package that is installed needs no change here. Nothing is shared between engines.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from detent.config.imports import in_import_root, load_object
from detent.core.errors import ConfigError, UnknownName
from detent.kernel.act import act
from detent.kernel.kernel import Kernel, make_kernel
from detent.kernel.think import think
from detent.ports import Capabilities, Clock, EventStore, Ids, MetaTool, Observer, Planner, Policy, Scheduler, SecretSource, WorkerHost
from detent.ports.options import FUNCTIONS, check_function, shown, takes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Names(Generic[T]):
    """Things of one `kind` by name, in the order of registration (rows S0-15, 16.1)."""

    def __init__(self, kind: str, known: Mapping[str, T] | None = None) -> None:
        """`kind` is one word, as in messages; its entry points are in the group `detent.<kind>s`."""
        self.kind = kind
        self._known: dict[str, T] = dict(known or {})
        for name, value in self._known.items():
            check_kind(kind, f"the {kind} {name!r}", value)

    def register(self, name: str, value: T) -> None:
        """Add `value`; the same one again changes nothing. Raise `ConfigError` for another under a name that exists, or an empty name."""
        if not name.strip():
            raise ConfigError(f"a {self.kind} needs a name")
        check_kind(self.kind, f"the {self.kind} {name!r}", value)
        if self._known.setdefault(name, value) is not value:
            raise ConfigError(f"a {self.kind} named {name!r} already exists in this engine; give it another name, or use replace")

    def replace(self, name: str, value: T) -> None:
        """Put `value` in the place of the one of that name; raise `UnknownName` when there is none."""
        self.get(name)
        check_kind(self.kind, f"the {self.kind} {name!r}", value)
        self._known[name] = value

    def get(self, name: str) -> T:
        """Return what has this name; raise `UnknownName`, which names the nearest one, or `ConfigError` for a plug-in that cannot be loaded."""
        if name not in self._known:
            plugin = entry_points(self.kind).get(name)
            if plugin is None:
                raise UnknownName(self.kind, name, self.names())
            self._known[name] = loaded(plugin, self.kind)
        return self._known[name]

    def names(self) -> list[str]:
        """Return all names: those that were registered, then those of plug-ins."""
        return list(dict.fromkeys((*self._known, *entry_points(self.kind))))

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in entry_points(self.kind)


def entry_points(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of the group `detent.<kind>s` by name; an import root installs nothing."""
    from importlib import metadata  # loads a good deal that a run without plug-ins never needs

    group = f"detent.{kind[:-1]}ies" if kind.endswith("y") else f"detent.{kind}s"
    points = metadata.entry_points(group=group)
    return {point.name: point for point in points if point.dist is None or not in_import_root(point.dist.locate_file(""))}


def plugged(kind: str, name: str) -> Any:
    """Return what a plug-in package offers under this name, None where none does; raise `ConfigError` when it cannot be loaded."""
    point = entry_points(kind).get(name)
    return None if point is None else loaded(point, kind)


def loaded(point: EntryPoint, kind: str) -> Any:
    """Return what an entry point names; raise `ConfigError` naming the package when it cannot be imported."""
    package = point.dist.name if point.dist is not None else point.value
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # foreign code: a plug-in may raise anything while it is imported, and end the process too
        raise ConfigError(f"the {kind} {point.name!r} of package {package!r} cannot be loaded: {type(error).__name__}: {error}") from error
    check_kind(kind, f"the {kind} {point.name!r} of package {package!r}", value)
    return value


SEAMS: dict[str, Any] = {
    "observer": Observer,
    "store": EventStore,
    "planner": Planner,
    "policy": Policy,
    "secrets": SecretSource,
    "capabilities": Capabilities,
    "clock": Clock,
    "ids": Ids,
    "scheduler": Scheduler,
    "worker_host": WorkerHost,
}
"""What an engine is given as this must have the methods of."""


def check_parts(*, approver: Any, ceiling: Any, **parts: Any) -> None:
    """Raise `ConfigError` for a part of an engine that cannot be one; None is left out."""
    for name, value in parts.items():
        if value is None:
            continue
        seam = SEAMS[name]
        if isinstance(value, type):
            raise ConfigError(f"{name} is the class {value.__name__}; give an object of it: {value.__name__}(...)")
        members = cast("dict[str, Any]", vars(cast("type[Any]", seam)))
        methods = [method for method, made in members.items() if not method.startswith("_") and inspect.isfunction(made)]
        missing = [method for method in methods if isinstance(value, dict) or not callable(getattr(value, method, None))]
        missing += [data for data in inspect.get_annotations(seam) if not hasattr(cast("Any", value), data)]
        if missing:
            needs = ", ".join(_signature(seam, name, short=len(methods) > 3) for name in missing[:3])
            raise ConfigError(
                f"{name} is {value!r}, which has no {needs}; detent.extend.{seam.__name__} says what one must have. Give one that has, or "
                "leave it out"
            )
        for method in methods if name in ("planner", "policy") else ():
            wanted = _signature(seam, method, short=False)
            if taken := takes(getattr(value, method), len(inspect.signature(getattr(seam, method)).parameters) - 1):
                raise ConfigError(
                    f"{name} is {value!r}, whose {method} takes {taken}; expected {wanted}, see detent.extend.{seam.__name__}"
                )
    if not (approver is None or approver == "caller" or callable(approver)):
        raise ConfigError(f'approver is {approver!r}; give a function of an Approval, or "caller" for a program that calls `approve`')
    if type(ceiling) is not int or ceiling < 1:
        raise ConfigError(f"ceiling is {ceiling!r}; give a whole number of iterations above 0")


def _signature(seam: Any, name: str, *, short: bool) -> str:
    """Return a member of a seam as it is declared."""
    made: Any = getattr(seam, name, None)
    if made is None:
        return name
    said = str(inspect.signature(made)).replace("'", "").replace("self, ", "").replace("(self)", "()")
    return f"{name}()" if short else f"{name}{said}"


def check_kind(kind: str, what: str, value: Any) -> None:
    """Raise `ConfigError` for a value that cannot be of its kind, and say what was expected: a function of so many arguments, a kernel, a store."""
    if kind == "store" and not callable(value):
        raise ConfigError(f"{what} is a {type(value).__name__}; expected a function or class that makes a store")
    if kind == "kernel" and (isinstance(value, type) or not hasattr(value, "phases")):
        raise ConfigError(f"{what} is {shown(value)} and has no phases; expected a kernel, made with make_kernel(phases=...)")
    if kind == "kernel":
        check_kernel(what, value)
    if kind in FUNCTIONS:
        check_function(kind, what, value)


def check_kernel(what: str, kernel: Kernel) -> None:
    """Raise `ConfigError` for a kernel with a phase, guard or meta-tool that cannot be one."""
    for phase in kernel.phases:
        check_function("phase", f"{what}: a phase", phase)
    for guard in kernel.guards:
        check_function("guard", f"{what}: a guard", guard)
    for tool in cast("tuple[Any, ...]", kernel.meta_tools):
        if not isinstance(tool, MetaTool):
            raise ConfigError(f"{what}: a meta-tool is {shown(tool)}; expected a MetaTool(spec=..., handler=...)")


def load_named(kind: str, path: str, where: str) -> Any:
    """Return the part of this kind that an import path names; raise `ConfigError` where there is none, or it cannot be of this kind."""
    found = load_object(path, where)
    check_kind(kind, f"{where}: {path!r}", found)
    return found


THINK_AND_ACT = {"think": think, "act": act}


def load_phases(said: Sequence[str], where: str) -> Kernel:
    """Return the kernel of these phases: `think`, `act`, and import paths of others. Its name is their list. Raise `ConfigError`."""
    for name in said:
        if ":" not in name and name not in THINK_AND_ACT:
            raise ConfigError(f"{where}: phases: {name!r} is not a phase; write think, act, or './file.py:function'")
    phases = [load_named("phase", name, f"{where}: phases") if ":" in name else THINK_AND_ACT[name] for name in said]
    return make_kernel(tuple(phases), name=" ".join(said))


class Imported(str):
    """An import path that a file gives in place of a name, and the `part` that it names."""

    __slots__ = ("part",)

    def __new__(cls, path: str, part: Any) -> Imported:
        """Return `path`, which is the name of the part from now on."""
        made = super().__new__(cls, path)
        made.part = part
        return made
