"""Opens a store by its URL: `ram:`, `file:DIR`, `sqlite:///PATH` (four slashes for an absolute path), `postgresql://HOST/DATABASE`."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import Any

from detent.core.durations import seconds
from detent.core.errors import ConfigError
from detent.ports import EventStore
from detent.ports.passwords import without_password

FORMS = {"ram": "ram:", "file": "file:DIR", "sqlite": "sqlite:///PATH", "postgresql": "postgresql://HOST/DATABASE"}
"""The schemes, each with the form of its URLs."""


def open_store(url: str, **options: Any) -> EventStore:
    """Return the store that `url` names, not opened yet; its class gets `options`.

    Raise `ConfigError` for an unknown URL or option.
    """
    options = {
        name: seconds(value, f"store {without_password(url)!r}: {name}") if name.endswith("_s") else value
        for name, value in options.items()
    }
    scheme, colon, rest = url.partition(":")
    if scheme == "postgres":
        scheme = "postgresql"  # as libpq has it
    if not colon or scheme not in FORMS:
        raise ConfigError(_unknown(url, scheme if colon else ""))
    if scheme == "ram":
        if rest not in ("", "//"):
            raise ConfigError(f"store URL {url!r}: a store in memory takes no path; write ram:")
        from detent.stores.ram import RamStore

        return RamStore(**checked(RamStore, url, options))
    if scheme == "file":
        from detent.stores.files.store import FileStore

        return FileStore(_directory(url, rest), **checked(FileStore, url, options))
    if scheme == "postgresql":
        return _postgres(url, rest, options)
    from detent.stores.sqlite.store import SqliteStore

    return SqliteStore(_database(url, rest), **checked(SqliteStore, url, options))


def _postgres(url: str, rest: str, options: dict[str, Any]) -> EventStore:
    try:
        from detent.stores.postgres.store import PostgresStore
    except ImportError as error:
        raise ConfigError(
            f"a postgresql:// store needs psycopg, which is not installed ({error}); run: pip install 'detent[postgres]'"
        ) from error
    if not rest.startswith("//"):
        raise ConfigError("a store URL of PostgreSQL begins with postgresql://, such as postgresql://HOST/DATABASE")
    return PostgresStore(url, **checked(PostgresStore, without_password(url), options))


def _directory(url: str, rest: str) -> Path:
    if rest.startswith("//") and not rest.startswith("///"):
        raise ConfigError(f"store URL {url!r} names a host; write file:DIR for a directory of this machine")
    path = rest[2:] if rest.startswith("///") else rest
    if not path:
        raise ConfigError(f"store URL {url!r} names no directory; write file:DIR, such as file:runs")
    return Path(path)


def _database(url: str, rest: str) -> Path:
    if not rest.startswith("///"):
        raise ConfigError(
            f"store URL {url!r}: write sqlite:///PATH, such as sqlite:///runs.db (relative) or sqlite:////var/lib/runs.db (absolute)"
        )
    if rest == "///:memory:":
        raise ConfigError(f"store URL {url!r}: a database in memory cannot be shared between connections; write ram: for a store in memory")
    if not rest[3:]:
        raise ConfigError(f"store URL {url!r} names no file; write sqlite:///PATH, such as sqlite:///runs.db")
    return Path(rest[3:])


def _unknown(url: str, scheme: str) -> str:
    forms, url = ", ".join(FORMS.values()), without_password(url)
    near = difflib.get_close_matches(scheme, FORMS, n=1) if scheme else []
    if near:
        return f"store URL {url!r} has the unknown scheme {scheme!r}; did you mean {FORMS[near[0]]}? Known: {forms}"
    if not scheme:
        return f"store URL {url!r} has no scheme; did you mean sqlite:///{url or 'runs.db'}? Known: {forms}"
    return f"store URL {url!r} has the unknown scheme {scheme!r}; known: {forms}"


def checked(store: type[Any], url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; raise `ConfigError` for an option that this store does not have."""
    known = [name for name, parameter in inspect.signature(store).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
            raise ConfigError(f"store {url!r} has no option {name!r}; {hint}")
    return options
