"""Loads the object of an import path: "module:attribute" or "./file.py:attribute". Errors name the place where the path was written.

A module comes from an installed package or an import root. A file is loaded by its path, only from its source: compiled files next to it may come
from anybody.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from detent.config.tables import nearest
from detent.core.errors import ConfigError
from detent.ports.governing_files import governs


def absolute_import(path: str, home: Path) -> str:
    """Return an import path that is valid from every directory: "./file.py:attribute" becomes absolute, "module:attribute" stays."""
    module, _, attribute = path.rpartition(":")
    return f"{(home / module).resolve()}:{attribute}" if module.endswith(".py") else path


def add_import_roots(roots: Iterable[str]) -> None:
    """Import modules from these directories too, after all installed packages, so none of them shadows an installed module.

    Call this only just before an import. Raise `ConfigError` if a path is not a directory.
    """
    for root in roots:
        place = Path(root).expanduser().resolve()
        if not place.is_dir():
            raise ConfigError(f"import_roots: {root!r} is not a directory; name an existing one, or remove it")
        governs(place)
        if str(place) not in sys.path:
            _roots.append(str(place))
            sys.path.append(str(place))


def in_import_root(place: object) -> bool:
    """Whether modules in `place` come from an import root. Packages there do not count as installed."""
    return str(place) in _roots


_roots: list[str] = []


def load_object(path: str, where: str) -> Any:
    """Return the object that "module:attribute" or "/dir/file.py:attribute" names. Raise `ConfigError`, beginning with `where`."""
    name, _, attribute = path.rpartition(":")
    if not name or not attribute:
        raise ConfigError(f"{where}: {path!r} is not an import path; write 'module:attribute' or './file.py:attribute'")
    try:
        module = _module_of_file(Path(name), where) if name.endswith(".py") else importlib.import_module(name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{where}: {path!r}: {error}; install it, write './file.py:{attribute}', or name the directory that holds it in import_roots of detent.toml"
        ) from error
    except Exception as error:  # foreign code: importing a module may raise anything
        raise ConfigError(f"{where}: {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise ConfigError(f"{where}: {path!r}: there is no {part!r} in {name}; {nearest(part, names)}")
        found = getattr(found, part)
    return found


class _FromSource(SourceFileLoader):
    """Compiles the source each time. It neither reads nor writes compiled files."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _module_of_file(path: Path, where: str) -> ModuleType:
    """Import a file once per process, under its own module name."""
    path = path.resolve()
    name = f"detent_file_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(
            f"{where}: there is no file {str(path)!r}; {nearest(path.name, (file.name for file in path.parent.glob('*.py')))}"
        )
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_tool(path: str, where: str) -> Any:
    """Return the tool that an import path names. Raise `ConfigError` if it is not a tool."""
    found = load_object(path, where)
    if all(hasattr(found, part) for part in ("spec", "check", "run", "settle")) and not isinstance(found, type):
        return found
    what = f"the function {found.__name__!r}" if hasattr(found, "__code__") else f"a {type(found).__name__}"
    raise ConfigError(f"{where}: {path!r} is {what}, not a tool; decorate it with @tool(side_effect=...)")


def load_skills(places: Sequence[str], where: str) -> Any:
    """Return the tool `activate_skill` for the skills in these folders. Raise `ConfigError`."""
    from detent.tools.workspace.skills import skill_tool

    try:
        return skill_tool(*places)
    except ConfigError as error:
        raise ConfigError(f"{where}: skills: {error}") from None


def load_part(path: str, where: str) -> Any:
    """Return the object that an import path names. A class is called without arguments."""
    found = load_object(path, where)
    return found() if isinstance(found, type) else found
