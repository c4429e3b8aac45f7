"""The command for MCP servers: pin their declarations, log in, log out."""

from __future__ import annotations

import sys
import webbrowser
from enum import StrEnum
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.option_sets import Without
from detent.cli.output import clean
from detent.cli.session import Session
from detent.core.errors import ConfigError
from detent.engine import Engine


class Action(StrEnum):
    """What to do with a server."""

    PIN = "pin"
    LOGIN = "login"
    LOGOUT = "logout"


def mcp(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="pin, login or logout.", show_default=False)],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The server. Without one, pin covers all servers.", show_default=False)
    ] = None,
    agent: o.AgentFile = None,
    *,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the login address; do not open a browser.")] = False,
    setup: Annotated[o.Setup, Without("store", "verbose")],
) -> int:
    """Pin the tool declarations of MCP servers, or log in to one.

    `pin` starts the servers, shows what has changed since the last time, and records each tool's description, schemas and hints. From then on,
    a tool that is new or declares anything else is not offered. `login` opens a browser and keeps the token for this user; `logout` removes it.
    """
    session = Session(setup, agent=agent)
    session.add_agents_servers()
    if action is Action.PIN:
        return _pin(session, [name] if name is not None else session.engine.servers.names())
    if name is None:
        raise ConfigError(f"mcp {action.value}: name the server; known: {', '.join(session.engine.servers.names()) or 'none'}")
    return _log_in(session, name, browser=not no_browser) if action is Action.LOGIN else _log_out(session, name)


def _pin(session: Session, names: list[str]) -> int:
    from detent.tools.mcp.declarations import changes_of

    if not names:
        raise ConfigError("no MCP server is configured; write [mcp.NAME] into detent.toml or an agent file")

    async def pin(engine: Engine) -> dict[str, tuple[int, list[str] | None]]:
        found: dict[str, tuple[int, list[str] | None]] = {}
        try:
            for name in names:
                before, now = await engine.servers.pin(name)
                found[name] = (len(now.tools), None if before is None else changes_of(before, now))
        finally:
            await engine.servers.close()
        return found

    pinned = session.drive(pin)
    session.output.document([{"server": name, "tools": count, "changes": changes} for name, (count, changes) in pinned.items()])
    for name, (count, changes) in pinned.items():
        told = "for the first time" if changes is None else "unchanged" if not changes else "with these changes:"
        session.output.show(f"{name}: {count} tools pinned, {told}")
        for line in changes or ():
            session.output.show(f"  {clean(line)}")
    return 0


def _log_in(session: Session, name: str, *, browser: bool) -> int:
    server = session.engine.servers.named(name)

    def visit(url: str) -> None:
        session.output.say(f"open this address to log in at {name} ({server.settings.where}):")
        session.output.say(url)
        if browser and sys.stderr.isatty():
            webbrowser.open(url)

    async def log_in(engine: Engine) -> str | None:
        from detent.tools.mcp.login import log_in as through

        kept = await through(name, server.settings, engine.servers.kept, visit=visit)
        return None if kept is None else str(kept)

    kept = session.drive(log_in)
    session.output.document({"server": name, "logged_in": kept is not None})
    session.output.show(f"logged in at {name}" if kept is not None else f"{name} needs no login")
    return 0


def _log_out(session: Session, name: str) -> int:
    from detent.tools.mcp.secrets import Resolved

    server = session.engine.servers.named(name)
    there = session.engine.servers.kept.forget(server.settings, Resolved(name, server.settings).url)
    session.output.document({"server": name, "was_logged_in": there})
    session.output.show(
        f"logged out of {name}; the server may still accept the token until it expires" if there else f"not logged in at {name}"
    )
    return 0
