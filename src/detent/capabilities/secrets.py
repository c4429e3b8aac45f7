"""Sources of secrets: the environment, files, a function, or several of these. A source returns a secret by name, for the host of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from detent.core.agent import Host
from detent.core.errors import ConfigError
from detent.ports import SecretSource
from detent.ports.options import checked_options


class EnvironmentSecrets:
    """Secrets in this process's environment. `variables` maps the name of a secret to the name of a variable."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def names(self) -> Sequence[str]:
        """Return the names of the secrets."""
        return tuple(self._variables)

    def get(self, name: str, host: Host) -> str | None:
        """Return the variable's value, or None if it is not set."""
        return os.environ.get(self._variables.get(name, ""))


class FileSecrets:
    """Secrets in files, read again each time. `paths` maps the name of a secret to its file. One line break at the end is removed."""

    def __init__(self, paths: Mapping[str, str | Path]) -> None:
        self._paths = {name: Path(path).expanduser() for name, path in paths.items()}

    def names(self) -> Sequence[str]:
        """Return the names of the secrets."""
        return tuple(self._paths)

    def files(self) -> Sequence[str]:
        """Return the paths of the secrets."""
        return tuple(str(path.absolute()) for path in self._paths.values())

    def get(self, name: str, host: Host) -> str | None:
        """Return the content of the file, or None if it cannot be read."""
        try:
            return self._paths[name].read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (KeyError, OSError, UnicodeDecodeError):
            return None


class FunctionSecrets:
    """Secrets from a function: `function(name, host)` returns the value or None. Each tenant can have its own values."""

    @checked_options
    def __init__(self, function: Callable[[str, Host], str | None], *, names: Sequence[str]) -> None:
        self._function, self._names = function, tuple(names)

    def names(self) -> Sequence[str]:
        """Return the names of the secrets."""
        return self._names

    def get(self, name: str, host: Host) -> str | None:
        """Return the value from the function."""
        return self._function(name, host) if name in self._names else None


class SecretSources:
    """Several sources as one. The first source that has the name is used."""

    def __init__(self, *sources: SecretSource) -> None:
        self._sources = sources

    def names(self) -> Sequence[str]:
        """Return the names of all sources, without duplicates."""
        return tuple(dict.fromkeys(name for source in self._sources for name in source.names()))

    def files(self) -> Sequence[str]:
        """Return the paths of the secrets in files."""
        return tuple(path for source in self._sources for path in getattr(source, "files", tuple)())

    def get(self, name: str, host: Host) -> str | None:
        """Return the value from the first source that has the name."""
        return next((source.get(name, host) for source in self._sources if name in source.names()), None)


def read_secrets(table: Mapping[str, str]) -> SecretSource | None:
    """Return the source for a table: name -> "env:VARIABLE" or "file:PATH". None for an empty table. Raise `ConfigError`."""
    variables: dict[str, str] = {}
    paths: dict[str, str | Path] = {}
    for name, said in table.items():
        kind, _, rest = said.partition(":")
        if kind not in ("env", "file") or not rest:
            raise ConfigError(f'secrets.{name}: write "env:VARIABLE" or "file:PATH"; do not put the value itself into a configuration file')
        (variables if kind == "env" else paths)[name] = rest
    return SecretSources(EnvironmentSecrets(variables), FileSecrets(paths)) if table else None
