"""Opens a memory by its URL: `ram:`, `file:DIR`, `sqlite:///PATH` (four slashes for an absolute path), `postgresql://HOST/DATABASE`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detent.core.durations import seconds
from detent.core.errors import ConfigError
from detent.ports import Memory
from detent.ports.passwords import without_password

FORMS = {"ram": "ram:", "file": "file:DIR", "sqlite": "sqlite:///PATH", "postgresql": "postgresql://HOST/DATABASE"}
"""The schemes, each with the form of its URLs."""


def open_memory(url: str, *, postgres_memory: Callable[..., Memory], **options: Any) -> Memory:
    """Return the memory that `url` names; it opens itself on first use. Its class gets `options`. Raise `ConfigError` for an unknown URL or option.

    `postgres_memory` makes the one in PostgreSQL, whose connections belong to another room.
    """
    shown = without_password(url)
    options = {name: seconds(value, f"memory {shown!r}: {name}") if name.endswith("_s") else value for name, value in options.items()}
    scheme, colon, rest = url.partition(":")
    scheme = "postgresql" if scheme == "postgres" else scheme
    if not colon or scheme not in FORMS:
        near = difflib.get_close_matches(scheme, FORMS, n=1)
        hint = f"did you mean {FORMS[near[0]]}?" if near else f"known: {', '.join(FORMS.values())}"
        raise ConfigError(f"memory URL {shown!r} has no scheme that is known; {hint}")
    if scheme == "ram":
        if rest not in ("", "//"):
            raise ConfigError(f"memory URL {shown!r}: a memory in memory takes no path; write ram:")
        from detent.memories.ram import RamMemory

        return RamMemory(**checked(RamMemory, shown, options))
    if scheme == "file":
        from detent.memories.files.memory import FileMemory

        return FileMemory(_path(url, rest, alone=True), **checked(FileMemory, shown, options))
    if scheme == "postgresql":
        return postgres_memory(url, **options)
    from detent.memories.sqlite.memory import SqliteMemory

    return SqliteMemory(_path(url, rest, alone=False), **checked(SqliteMemory, shown, options))


def _path(url: str, rest: str, *, alone: bool) -> Path:
    """Return the path of a URL; `alone`: the path may follow the scheme without slashes."""
    form = "file:DIR, such as file:memory" if alone else "sqlite:///PATH, such as sqlite:///memory.db"
    if rest.startswith("///"):
        path = rest[2:] if alone else rest[3:]
    else:
        path = rest if alone and not rest.startswith("//") else ""
    if not path or path == ":memory:":
        raise ConfigError(f"memory URL {url!r} names no {'directory' if alone else 'file'} of this machine; write {form}")
    return Path(path)


def checked(memory: type[Any], url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; raise `ConfigError` for one that this memory does not have."""
    known = [name for name, parameter in inspect.signature(memory).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            raise ConfigError(f"memory {url!r} has no option {name!r}; {hint}")
    return options
