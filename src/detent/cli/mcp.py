"""The command for MCP servers: pin their declarations, log in, log out."""

from __future__ import annotations

import sys
import webbrowser
from enum import StrEnum
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, know_agents
from detent.cli.option_sets import Without
from detent.cli.output import clean
from detent.core.errors import ConfigError
from detent.engine import Engine


class Action(StrEnum):
    """What to do with a server."""

    PIN = "pin"
    LOGIN = "login"
    LOGOUT = "logout"
    SERVE = "serve"


def mcp(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="pin, login, logout or serve.", show_default=False)],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The server. Without one, pin covers all servers.", show_default=False)
    ] = None,
    agent: o.AgentFile = None,
    *,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the login address; do not open a browser.")] = False,
    setup: Annotated[o.Setup, Without("verbose")],
) -> int:
    """Pin the tool declarations of MCP servers, or log in to one; or be one.

    `pin` starts the servers, shows what has changed since the last time, and records each tool's description, schemas and hints. From then on,
    a tool that is new or declares anything else is not offered. `login` opens a browser and keeps the token for this user; `logout` removes it.

    `serve` is what an MCP host starts: each agent is a tool, over the standard streams. `--agent FILE` names one, else those of detent.toml.
    """
    if action is Action.SERVE:
        return _serve(setup, agent)
    invocation = Invocation(setup, agent=agent)
    invocation.add_agents_servers()
    if action is Action.PIN:
        return _pin(invocation, [name] if name is not None else invocation.engine.servers.names())
    if name is None:
        raise ConfigError(f"mcp {action.value}: name the server; known: {', '.join(invocation.engine.servers.names()) or 'none'}")
    return _log_in(invocation, name, browser=not no_browser) if action is Action.LOGIN else _log_out(invocation, name)


def _serve(setup: o.Setup, agent: str | None) -> int:
    from detent.cli.serving import INSTALL, engine_for
    from detent.running.people import me

    try:
        from detent.server import Caller, ServerSettings
        from detent.server.callers import ROLES, only
        from detent.server.mcp import serve_stdio
        from detent.server.served import Served
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    invocation, advance = engine_for(setup, None)
    know_agents(invocation, [agent] if agent is not None else [])
    caller = Caller(principal=me(), roles=ROLES)

    async def work(engine: Engine) -> None:
        await serve_stdio(Served(engine, authenticate=only("", caller), settings=ServerSettings(), work=advance(engine)), caller)

    invocation.drive(work)
    return 0


def _pin(invocation: Invocation, names: list[str]) -> int:
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

    pinned = invocation.drive(pin)
    invocation.output.document([{"server": name, "tools": count, "changes": changes} for name, (count, changes) in pinned.items()])
    for name, (count, changes) in pinned.items():
        told = "for the first time" if changes is None else "unchanged" if not changes else "with these changes:"
        invocation.output.show(f"{name}: {count} tools pinned, {told}")
        for line in changes or ():
            invocation.output.show(f"  {clean(line)}")
    return 0


def _log_in(invocation: Invocation, name: str, *, browser: bool) -> int:
    server = invocation.engine.servers.named(name)

    def visit(url: str) -> None:
        invocation.output.say(f"open this address to log in at {name} ({server.settings.where}):")
        invocation.output.say(url)
        if browser and sys.stderr.isatty():
            webbrowser.open(url)

    async def log_in(engine: Engine) -> str | None:
        from detent.tools.mcp.login import log_in as through

        kept = await through(name, server.settings, engine.servers.kept, visit=visit)
        return None if kept is None else str(kept)

    kept = invocation.drive(log_in)
    invocation.output.document({"server": name, "logged_in": kept is not None})
    invocation.output.show(f"logged in at {name}" if kept is not None else f"{name} needs no login")
    return 0


def _log_out(invocation: Invocation, name: str) -> int:
    from detent.tools.mcp.secrets import Resolved

    server = invocation.engine.servers.named(name)
    there = invocation.engine.servers.kept.forget(server.settings, Resolved(name, server.settings).url)
    invocation.output.document({"server": name, "was_logged_in": there})
    invocation.output.show(
        f"logged out of {name}; the server may still accept the token until it expires" if there else f"not logged in at {name}"
    )
    return 0
