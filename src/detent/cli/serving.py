"""The commands serve, which puts an engine behind a port, and tokens, which says who may call it."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, know_agents
from detent.cli.option_sets import Without
from detent.cli.output import clean
from detent.cli.values import duration
from detent.cli.working import Crew
from detent.config.state_directory import state_home
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import counted
from detent.running.people import me

if TYPE_CHECKING:
    from detent.server.callers import Tokens
    from detent.server.served import Served

INSTALL = "detent serve needs the extra `server`: pip install 'detent[server]'"
BACKLOG = 2048
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Action(StrEnum):
    """What to do with tokens."""

    ADD = "add"
    LIST = "list"
    REMOVE = "remove"


TokenFile = Annotated[
    Path | None,
    typer.Option("--tokens", metavar="FILE", help="The file with the tokens, hashed. Default: server-tokens.json of this user."),
]


def tokens_at(path: Path | None) -> Tokens:
    """Return the tokens of a file; raise `ConfigError` without the extra."""
    try:
        from detent.server.callers import Tokens
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    return Tokens(path or state_home() / "server-tokens.json")


def tokens(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="add, list or remove.", show_default=False)],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The token.", show_default=False)] = None,
    *,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="NAME", help="Who it is; the log names them. Default: NAME.")
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose runs it sees.")] = "",
    scope: Annotated[list[str] | None, typer.Option("--scope", metavar="NAME", help="A scope that its runs have. Repeatable.")] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="see, run, approve or operate. Repeatable. Default: see and run.")
    ] = None,
    expires: Annotated[
        datetime | None, typer.Option("--expires", metavar="TIME", help="When it ends, in UTC: 2026-12-31 or 2026-12-31T12:00:00.")
    ] = None,
    file: TokenFile = None,
    setup: Annotated[o.Setup, Without("workspace", "verbose", "store", "trust")],
) -> int:
    """Make, list or remove the tokens of `detent serve`.

    `add` prints the token once; the file keeps only its digest. A removed token is refused at once.
    """
    from datetime import UTC

    kept = tokens_at(file)
    from detent.cli.output import Output
    from detent.server.callers import Caller

    output = Output(json_wanted=setup.json_wanted)
    if action is Action.LIST:
        output.document([{"name": one.name, **_facts(one.caller)} for one in kept.list()])
        for one in kept.list():
            facts = " · ".join(f"{key} {clean(value)}" for key, value in _facts(one.caller).items() if value)
            output.show(f"{clean(one.name)}: {facts}")
        return 0
    if name is None:
        raise ConfigError(f"tokens {action.value}: name the token, as in `detent tokens {action.value} ci`")
    if action is Action.REMOVE:
        kept.remove(name)
        output.say(f"token {clean(name)} is removed from {kept.path}; it is refused from now on")
        return 0
    roles: Any = tuple(role or ("see", "run"))
    until = None if expires is None else expires.replace(tzinfo=UTC)
    token = kept.add(name, Caller(principal=principal or name, tenant=tenant, scopes=tuple(scope or ()), roles=roles, expires=until))
    output.document({"name": name, "token": token})
    output.show(token)
    output.say(f"kept hashed in {kept.path}; this is the only time that it is shown")
    return 0


def _facts(caller: Any) -> dict[str, str]:
    until = "" if caller.expires is None else f"{caller.expires:%Y-%m-%d %H:%M} UTC"
    return {
        "principal": caller.principal,
        "tenant": caller.tenant,
        "roles": ", ".join(caller.roles),
        "scopes": ", ".join(caller.scopes),
        "until": until,
    }


def serve(
    *,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="FILE", help="An agent to serve, beside those of detent.toml. Repeatable.")
    ] = None,
    listen: Annotated[str, typer.Option("--listen", metavar="ADDR:PORT", help="Where to listen.")] = "127.0.0.1:8740",
    file: TokenFile = None,
    name: Annotated[list[str] | None, typer.Option("--name", metavar="HOST", help="A name under which it is reached. Repeatable.")] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", metavar="URL", help="A web page's origin that may call it. Repeatable. Default: none.")
    ] = None,
    webhooks: Annotated[
        Path | None, typer.Option("--webhooks", metavar="FILE", help="A file that says who is told what happens to runs.")
    ] = None,
    works: Annotated[bool, typer.Option("--work/--no-work", help="Whether this process also advances runs, as a worker does.")] = True,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="DURATION", help="When stopped, give calls with side effects so long to finish. Default: 25."),
    ] = None,
    setup: o.Setup,
) -> int:
    """Serve the agents of this directory over HTTP: start runs, follow them, decide. A browser finds the inspector at the same address.

    Without a file of tokens it listens on loopback only, makes a token for this process, and prints the address with it once. `detent tokens add`
    makes lasting ones. Any number of servers and workers may share one store. /openapi.json describes the API.

    When stopped, it starts nothing more, lets calls with side effects finish (--drain), suspends its runs at a record, and ends its streams with a
    reason. After a restart they continue.
    """
    wanted = _Wanted(listen=listen, agents=agent or (), file=file, names=name or (), origins=origin or (), webhooks=webhooks, works=works)
    return _serve(setup, wanted, drain_s=None if drain is None else duration(drain, "--drain"))


def ui(
    *,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="FILE", help="An agent, beside those of detent.toml. Repeatable.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="The port on this machine; 0: any that is free.", min=0, max=65535)
    ] = 0,
    works: Annotated[bool, typer.Option("--work/--no-work", help="Whether it also advances runs, as a worker does.")] = True,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether it opens a browser.")] = True,
    setup: o.Setup,
) -> int:
    """Look at the runs of this store in a browser: what was done and why, what waits for you, and what if.

    It serves on this machine only, with a token of its own, until it is stopped. `detent serve` has the same pages for others, who sign in.
    """
    return _serve(setup, _Wanted(listen=f"127.0.0.1:{port}", agents=agent or (), works=works, alone=True, browser=browser))


class _Wanted(NamedTuple):
    """What to serve, where, and to whom. `alone`: to the person at this machine, with a token of its own, and also where there is no agent."""

    listen: str
    works: bool
    agents: Sequence[str] = ()
    file: Path | None = None
    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    webhooks: Path | None = None
    alone: bool = False
    browser: bool = False


def _serve(setup: o.Setup, wanted: _Wanted, *, drain_s: float | None = None) -> int:
    host, port = _address(wanted.listen)
    kept = tokens_at(wanted.file)
    try:
        from detent.server import Caller, ServerSettings, app
        from detent.server.callers import ROLES, only
        from detent.server.listening import Listener
        from detent.server.webhooks import webhooks_in
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    invocation, advance = engine_for(setup, drain_s)
    know_agents(invocation, wanted.agents, needed=not wanted.alone)
    authenticate: Any = kept
    token = ""
    if wanted.alone or not kept.list():
        if wanted.file is not None:
            raise ConfigError(f"{kept.path} has no tokens; make one: detent tokens add NAME --tokens {kept.path}")
        if host not in LOOPBACK:
            raise ConfigError(f"--listen {wanted.listen} is reached by others, and there is no token yet; make one: detent tokens add NAME")
        token = secrets.token_urlsafe(32)
        authenticate = only(token, Caller(principal=me(), roles=ROLES))
    hosts = (*ServerSettings().hosts, *wanted.names, *([host] if host not in ("0.0.0.0", "::") else []))
    settings = ServerSettings(
        hosts=tuple(dict.fromkeys(hosts)),
        origins=tuple(wanted.origins),
        grace_s=(drain_s or 25.0) + 5.0,
        secret=_secret(),
        webhooks=webhooks_in(wanted.webhooks) if wanted.webhooks is not None else (),
    )

    async def work(engine: Engine) -> None:
        made = app(engine, tokens=authenticate, settings=settings, works=wanted.works, work=advance(engine))
        server = Listener(made, settings)
        served: Served = made.state.served
        served.ended = server.stop
        invocation.stops.ends = served.stop
        for line in _lines(invocation, host, listening.getsockname()[1], token, wanted):
            invocation.output.say(line)
        if wanted.browser:
            address = doors.enter_context(_door(f"http://127.0.0.1:{listening.getsockname()[1]}/#token={token}"))
            threading.Thread(target=_open, args=(address, invocation), daemon=True).start()
        await server.on(listening)

    with (
        contextlib.closing(_bound(host, port, option="--port" if wanted.alone else "--listen")) as listening,
        contextlib.ExitStack() as doors,
    ):
        invocation.drive(work)
    return 0


@contextlib.contextmanager
def _door(address: str) -> Generator[str]:
    """Give the address of a file that leads to `address`. Everybody on the machine sees with which words a browser is started; this user reads the file."""
    place, name = tempfile.mkstemp(prefix="detent-", suffix=".html")
    try:
        with os.fdopen(place, "w", encoding="utf-8") as file:
            to = html.escape(address)
            file.write(
                f'<!doctype html><meta http-equiv="refresh" content="0; url={to}"><title>Detent</title><a href="{to}">Open Detent</a>'
            )
        yield Path(name).as_uri()
    finally:
        Path(name).unlink(missing_ok=True)


def _open(address: str, invocation: Invocation) -> None:
    """Open a browser. A browser in the terminal runs until it is closed, so this is a thread of its own."""
    if not webbrowser.open(address):
        invocation.output.say("  there is no browser here that can be opened: open the address above, on this machine or through a tunnel")


def _lines(invocation: Invocation, host: str, port: int, token: str, wanted: _Wanted) -> list[str]:
    shown, engine = f"[{host}]" if ":" in host else host, invocation.engine
    many = f", {counted(getattr(engine.worker_host, 'concurrency', 1), 'run')} at once" if wanted.works else ""
    lines = [f"serving {counted(len(engine.agents), 'agent')} from {engine.store.url} at http://{shown}:{port}{many}"]
    if token:
        lines.append(f"  open http://{shown}:{port}/#token={token}")
        lines.append("  the token ends with this process; `detent tokens add NAME` makes one that lasts")
    return lines


def engine_for(setup: o.Setup, drain_s: float | None) -> tuple[Invocation, Callable[[Engine], Callable[[Any], Any]]]:
    """Return what a serving command works with, and how its process advances runs: as a worker does."""
    invocation = Invocation(setup, changes=True, patient=True, drain_s=drain_s)
    invocation.creates = True

    def again(lent: dict[str, Any]) -> Invocation:
        return Invocation(setup, changes=True, patient=True, asks=False, lent=lent, drain_s=drain_s)

    def advance(engine: Engine) -> Callable[[Any], Any]:
        async def work(hub: Any) -> None:
            async with Crew(invocation, again, hub) as crew:
                await engine.work(hand_for=crew.hand)

        return work

    return invocation, advance


def _secret() -> str:
    """Return what seals links and what clients carry: `DETENT_SERVER_SECRET`, or else a secret of this user on this machine, made once."""
    if said := os.environ.get("DETENT_SERVER_SECRET"):
        return said
    path = state_home() / "server-secret"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_urlsafe(32))
        return path.read_text().strip()
    except OSError:  # nowhere to keep one: it ends with this process
        return ""


def _bound(host: str, port: int, *, option: str) -> socket.socket:
    """Return the socket that the server listens on; raise `ConfigError`, naming `option`, if it cannot have the address."""
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)  # from here on a connection waits for the server, and is not refused
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); stop what does, or give another {option}"
        ) from error
    return listening


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r}: write ADDRESS:PORT, as in 127.0.0.1:8740")
    return host.strip("[]"), int(port)
