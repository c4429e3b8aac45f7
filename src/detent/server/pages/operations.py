"""One action over many runs: choose them, look at what was chosen, and have it done; the progress and the outcome for each run.

It is the operation of `engine.operations`, which the command line also shows, stops and resumes. The set of runs is frozen when it is prepared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from starlette.responses import Response

from detent.core.agent import Host
from detent.core.errors import ConfigError, Suspended, UnknownName
from detent.history.acting import APPLIES, Action
from detent.history.operations import Entry, Operation
from detent.history.selecting import STATUSES, query_of
from detent.server.pages.run import number_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

log = logging.getLogger("detent.server")
ENTRIES = 100
"""So many entries are shown at once."""
KEYS = ("status", "agent", "goal", "since", "until", "version")
"""What the form asks for; the tenant is the visitor's."""
SAYS: dict[Action, str] = {
    "cancel": "ends runs that are not over",
    "resume": "continues runs that wait or were interrupted, in this process",
    "reopen": "opens failed, stopped and given-up runs again, for workers",
    "replay": "executes the logs again with the installed code; no model and no tool is called",
    "archive": "writes finished runs to files and removes them from the store",
}


def _reader(visit: Visit) -> Host | None:
    """Return as whom the visitor sees operations: who operates the whole store also sees those of the command line."""
    return None if visit.of_all else visit.caller.host


def _archive_to(visit: Visit) -> str:
    """Return the directory for archives, if the visitor may have runs archived and the engine has one."""
    return visit.served.engine.runtime.retention.archive_to or "" if visit.of_all else ""


def _actions(visit: Visit) -> Sequence[str]:
    if "operate" not in visit.caller.roles:
        return ()
    return [one for one in get_args(Action) if one != "archive" or _archive_to(visit)]


async def operations_page(visit: Visit, *, nothing: str = "") -> Response:
    """Show the form and the operations, newest first. `nothing` states that nothing matched."""
    found = await visit.served.engine.operations.list(host=_reader(visit))
    return visit.page(
        "operations.html",
        found=found,
        actions=_actions(visit),
        says=SAYS,
        statuses=STATUSES,
        applies=APPLIES,
        agents=sorted(visit.served.engine.agents),
        given={**visit.asked},
        nothing=nothing,
    )


async def prepare(visit: Visit) -> Response:
    """Freeze the set of runs; nothing is done to them yet."""
    form = await visit.form()
    action: Any = form.get("action", "")
    if action not in _actions(visit):
        raise Refused(
            422, "no_such_action", f"{action[:40]!r} is not an action that you can have done here; choose {', '.join(_actions(visit))}"
        )
    where = [f"{key}={form[key].strip()}" for key in KEYS if form.get(key, "").strip()]
    query, only = query_of(where, option="the filter")
    query = msgspec.structs.replace(query, tenant=visit.caller.tenant)
    operation = await visit.served.engine.operations.prepare(
        action,
        query,
        only=only,
        by=visit.caller.principal,
        why=form.get("why", ""),
        where=" ".join(where) or "every run",
        to=_archive_to(visit) if action == "archive" else None,
        host=None if action == "archive" else visit.caller.host,
    )
    if not operation.runs:
        await visit.served.engine.operations.remove(operation.id, host=_reader(visit))
        return await operations_page(visit, nothing=f"No run to {action} matches {operation.where}.")
    return visit.go(f"/ui/operations/{operation.id}")


async def operation_page(visit: Visit) -> Response:
    """Show an operation: what it would do, how far it is, and the outcome for each run."""
    operation = await _found(visit)
    entries = await visit.served.engine.operations.entries(operation.id, host=_reader(visit))
    wanted = visit.asked.get("result", "")
    shown = [one for one in entries if wanted in ("", one.result)]
    first = number_of(visit, "from", 0)
    part = visit.request.headers.get("hx-request") == "true"
    return visit.page(
        "operation_now.html" if part else "operation.html",
        operation=operation,
        entries=_shown(shown, first),
        several=len(shown),
        first=first,
        ENTRIES=ENTRIES,
        wanted=wanted,
        begun=bool(entries),
        busy=visit.served.does(_name(operation.id)),
        says=SAYS,
        may="operate" in visit.caller.roles and (operation.action != "archive" or visit.of_all),
        mine=visit.caller.tenant,
        refreshed=part,
    )


def _shown(entries: Sequence[Entry], first: int) -> Sequence[Entry]:
    """Return the entries of a page, the latest first."""
    return entries[::-1][first : first + ENTRIES]


async def begin(visit: Visit) -> Response:
    """Do it, beside the requests; also what was stopped, or left by a process that died."""
    await visit.form()
    operation, told = await _found(visit), asyncio.Event()
    work = visit.served.begin(_advanced(visit, operation.id, told), name=_name(operation.id))
    has_begun = asyncio.ensure_future(told.wait())
    await asyncio.wait({work, has_begun}, return_when=asyncio.FIRST_COMPLETED)
    has_begun.cancel()
    if work.done():
        work.result()  # raises what kept it from beginning
    return visit.go(f"/ui/operations/{operation.id}")


async def _advanced(visit: Visit, operation_id: str, told: asyncio.Event) -> None:
    """Advance an operation until it is finished or stopped; a server that stops leaves it, after the runs in progress, to whoever resumes it."""
    operations, host = visit.served.engine.operations, _reader(visit)
    work = asyncio.ensure_future(operations.advance(operation_id, by=visit.caller.principal, told=lambda now: told.set(), host=host))
    stopping = asyncio.ensure_future(visit.served.stopping.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await operations.stop(operation_id, by="the server", host=host)
        await work
    except Suspended:
        log.info("operation %s is left as it is: the server stops", operation_id)
    finally:
        stopping.cancel()
        work.cancel()


async def stop(visit: Visit) -> Response:
    """Stop an operation after the runs that are in progress."""
    await visit.form()
    operation = await _found(visit)
    await visit.served.engine.operations.stop(operation.id, by=visit.caller.principal, host=_reader(visit))
    return visit.go(f"/ui/operations/{operation.id}")


async def remove(visit: Visit) -> Response:
    """Remove an operation with its entries; the runs stay as they are."""
    await visit.form()
    await visit.served.engine.operations.remove((await _found(visit)).id, host=_reader(visit))
    return visit.go("/ui/operations")


async def _found(visit: Visit) -> Operation:
    try:
        return await visit.served.engine.operations.get(visit.path["id"], host=_reader(visit))
    except (ConfigError, UnknownName) as error:
        raise Refused(404, "not_found", f"there is no operation {visit.path['id'][:40]!r} that you may see") from error


def _name(operation_id: str) -> str:
    return f"operation {operation_id}"


PAGES = (
    Page(path="/ui/operations", handle=operations_page),
    Page(path="/ui/operations", handle=prepare, role="operate", method="POST"),
    Page(path="/ui/operations/{id}", handle=operation_page),
    Page(path="/ui/operations/{id}/begin", handle=begin, role="operate", method="POST"),
    Page(path="/ui/operations/{id}/stop", handle=stop, role="operate", method="POST"),
    Page(path="/ui/operations/{id}/remove", handle=remove, role="operate", method="POST"),
)
