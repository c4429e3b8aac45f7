"""Resolves references to environment variables, and keeps their values out of everything that is recorded.

The value of a reference is replaced by `***` in results, errors, progress and the output of a server, because a server may echo it.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, cast

import msgspec

from detent.core.codec import walk
from detent.core.errors import ConfigError
from detent.tools.mcp.settings import McpServer, OAuth

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_NAME = re.compile(r"key|token|secret|passw|auth|credential|cookie", re.IGNORECASE)
SECRET = ("client_secret", "private_key", "id_token")
"""The settings of `oauth` that are secret."""
SHORTEST = 4
"""Shorter values are not searched for, because they would be found everywhere."""


class Secrets:
    """The secret values of one connection."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}

    def add(self, value: str) -> None:
        """Hide `value` everywhere from now on."""
        if len(value) >= SHORTEST:
            self._values[value] = None
            self._values[json.dumps(value)[1:-1]] = None
            self._values[json.dumps(value, ensure_ascii=False)[1:-1]] = None

    def text(self, said: str) -> str:
        """Return `said` without the values."""
        for value in sorted(self._values, key=len, reverse=True):
            said = said.replace(value, "***")
        return said

    def data(self, value: Any) -> Any:
        """Return JSON data without the values, both in texts and in names of fields."""
        return self._named(walk(value, self.text)) if self._values else value

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.text(key): self._named(part) for key, part in cast("dict[str, Any]", value).items()}
        return [self._named(part) for part in cast("list[Any]", value)] if isinstance(value, list) else value


class Resolved:
    """A server's settings with every reference replaced by its value. Raise `ConfigError`, which names a variable that is not set."""

    def __init__(self, name: str, server: McpServer) -> None:
        self._name = name
        self.secrets = Secrets()
        self.args = [self._value(arg, f"args[{i}]") for i, arg in enumerate(server.args)]
        self.env = {key: self._value(value, f"env.{key}", secret=bool(_SECRET_NAME.search(key))) for key, value in server.env.items()}
        self.headers = {key: self._value(value, f"headers.{key}", secret=True) for key, value in server.headers.items()}
        self.url = self._value(server.url, "url")
        self.oauth = server.oauth and self._oauth(server.oauth)

    def _oauth(self, said: OAuth) -> OAuth:
        fields = msgspec.structs.asdict(said).items()
        texts = {key: self._value(value, f"oauth.{key}", secret=key in SECRET) for key, value in fields if isinstance(value, str)}
        return msgspec.structs.replace(said, **texts)

    def _value(self, said: str, key: str, *, secret: bool = False) -> str:
        def value_of(match: re.Match[str]) -> str:
            value = os.environ.get(match[1])
            if value is None:
                raise ConfigError(
                    f"MCP server {self._name!r}: {key} refers to the environment variable {match[1]}, which is not set; "
                    f"set it (export {match[1]}=...) and start again"
                )
            self.secrets.add(value)
            return value

        value = REFERENCE.sub(value_of, said)
        if secret:
            self.secrets.add(value)
        return value
