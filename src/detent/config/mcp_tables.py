"""The tables `[mcp.NAME]` of `detent.toml` and of agent files, as `McpServer`s.

    [mcp.files]
    command = "npx"
    args = ["-y", "@modelcontextprotocol/server-filesystem", "."]
    env = { LOG_LEVEL = "info", API_KEY = { env = "FILES_KEY" } }

    [mcp.files.tools]
    read_text_file = {}
    write_file = { side_effect = "write", idempotent = true }

Paths are relative to the file. A program starts in the file's directory unless `cwd` is set. Every mistake is a `ConfigError` that names the file
and the key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from detent.config.tables import read_agent, take
from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError
from detent.ports.governing_files import governs
from detent.tools.mcp.settings import OPERATORS_KEYS, SERVER_NAME, McpServer, OAuth, ToolPins, checked_servers


class McpTable(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of `[mcp.NAME]`. `env` and `headers`: texts, with `${NAME}` or { env = "NAME" } for a variable of the environment."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, Any] = {}
    cwd: str | None = None
    url: str = ""
    headers: dict[str, Any] = {}
    tools: Any = None
    prefix: str | None = None
    start_timeout_s: Seconds[float] = usually(30.0)
    protocol: Literal["auto", "legacy"] = "auto"
    elicitation: Literal["decline", "defaults"] = "decline"
    trust_hints: bool = False
    roots: bool = False
    oauth: OAuth | None = None


def take_servers(said: Any, where: str, home: Path, *, operators: bool = False) -> dict[str, McpServer]:
    """Return the servers that the tables of a file in `home` describe. Raise `ConfigError`, beginning with `where`.

    Only the operator's file (`operators`) may have the keys `OPERATORS_KEYS`, and tables that extend a server of another file.
    """
    servers: dict[str, McpServer] = {}
    for name, table in _table(said, f"{where}: mcp").items():
        key = f"mcp.{name}."
        if not SERVER_NAME.fullmatch(name):
            raise ConfigError(f"{where}: {key[:-1]}: use 1 to 32 letters, digits, '_' and '-' for the name of a server")
        keys = _table(table, f"{where}: {key[:-1]}")
        for only in () if operators else OPERATORS_KEYS:
            if only in keys:
                raise ConfigError(
                    f"{where}: {key}{only}: only the operator may set this: write [mcp.{name}] {only} = {str(keys[only]).lower()} into "
                    "detent.toml of the state directory, or a file outside of the workspace that --config names"
                )
        taken = take(_without_oauth(keys), McpTable, where, key)
        oauth = keys.get("oauth")
        given: dict[str, Any] = {
            **msgspec.structs.asdict(taken),
            "env": _texts(taken.env, f"{where}: {key}env"),
            "headers": _texts(taken.headers, f"{where}: {key}headers"),
            "tools": _tools(taken.tools, where, f"{key}tools"),
            "cwd": str((home / Path(taken.cwd or ".").expanduser()).resolve()) if taken.command else taken.cwd,
            "oauth": None if oauth is None else take(_table(oauth, f"{where}: {key}oauth"), OAuth, where, f"{key}oauth."),
        }
        try:
            server = McpServer(**given)
            governs(*_run_by(server))
            servers[name] = server if operators else checked_servers({name: server})[name]
        except ConfigError as error:
            raise ConfigError(f"{where}: {key[:-1]}: {error}") from None
    return servers


def _run_by(server: McpServer) -> Iterator[Path]:
    """Yield the files in its directory that a program starts from, and the folders that Node.js programs load more from."""
    place = Path(server.cwd or ".")
    for word in filter(None, (server.command, *server.args)):
        with contextlib.suppress(OSError, ValueError):  # a word that cannot be a path
            if (place / word).is_file():
                yield place / word
    if server.command and Path(server.command).name in _NODE:
        yield from (place / "node_modules", place / ".npmrc")


_NODE = ("npx", "npm", "node", "pnpm", "yarn", "bun", "bunx")


def load_servers(path: str | Path) -> dict[str, McpServer]:
    """Return the servers of a `detent.toml` or an agent file, ignoring its other keys. Raise `ConfigError`."""
    file = Path(path)
    return take_servers(read_agent(file).get("mcp", {}), str(path), file.resolve().parent)


def _table(said: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: expected a table, found {type(said).__name__}; write [mcp.NAME] and its keys below")
    return cast("dict[str, Any]", said)


def _without_oauth(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key != "oauth"}


def _texts(said: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return a table of texts with every { env = "NAME" } replaced by a reference."""
    texts: dict[str, str] = {}
    for key, value in said.items():
        if isinstance(value, str):
            texts[key] = value
            continue
        reference = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if list(reference) != ["env"] or not isinstance(reference["env"], str):
            raise ConfigError(f'{where}.{key}: expected a text, such as "${{NAME}}", or {{ env = "NAME" }}')
        texts[key] = "${" + reference["env"] + "}"
    return texts


def _tools(said: Any, where: str, key: str) -> Any:
    """Return the allow-list unchanged, or the parsed table of pins. `McpServer` checks their values."""
    if said is None:
        return None
    if isinstance(said, list) and all(isinstance(name, str) for name in cast("list[Any]", said)):
        return tuple(cast("list[str]", said))
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: {key}: expected a list of names, or a table of tools")
    return {
        tool: take(_table(table, f"{where}: {key}.{tool}"), ToolPins, where, f"{key}.{tool}.")
        for tool, table in cast("dict[str, Any]", said).items()
    }
