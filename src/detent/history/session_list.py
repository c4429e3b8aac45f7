"""Which sessions a store has. A session is listed from the listing entries of its runs: the run of message 3 of session S is `S.3`."""

from __future__ import annotations

from datetime import datetime

import msgspec

from detent.core.agent import Host
from detent.core.codec import read_record
from detent.core.errors import DetentError
from detent.core.events import RunStarted
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.history.looking import list_runs
from detent.ports import RunQuery
from detent.running.conversing import news_in, session_of_run
from detent.running.runtime import Runtime

PAGE = 500
"""How many listing entries are read at a time."""


class SessionHead(msgspec.Struct, frozen=True, kw_only=True):
    """A session as listed. `agent` and `last` are those of its last run; `messages` counts its runs, `goal` is its first message.

    `status` is as `Session.status` has it: `active`, `running`, `completed` (it was ended) or `error`. `last_status` is the status of the last run.
    """

    id: str
    agent: str
    tenant: str
    status: str
    last_status: str
    messages: int
    goal: str
    last: str
    cost_usd: float
    created_at: datetime
    updated_at: datetime


async def sessions(runtime: Runtime, *, host: Host | None = None, starts_with: str = "", limit: int | None = None) -> list[SessionHead]:
    """Return the sessions, the one with the newest message first. `starts_with`: only those whose id begins so."""
    found: dict[str, list[RunHead]] = {}
    query = RunQuery(limit=PAGE, starts_with=(starts_with,) if starts_with else ())
    while True:
        page = await list_runs(runtime, query, host=host)
        for head in page:
            if name := session_of_run(head.run_id):
                found.setdefault(name, []).append(head)
        if len(page) < PAGE:
            break
        query = msgspec.structs.replace(query, after=page[-1].run_id)
    listed: list[SessionHead] = []
    for name, heads in found.items():
        if limit is not None and len(listed) >= limit:
            break
        if await _is_session(runtime, heads[0].run_id):
            heads.sort(key=_number)
            listed.append(_listed(name, heads, ended=await _ended(runtime, heads[-1])))
    return listed


def _number(head: RunHead) -> int:
    return int(head.run_id.partition("@")[0].rpartition(".")[2])


def _listed(name: str, heads: list[RunHead], *, ended: bool) -> SessionHead:
    first, last = heads[0], heads[-1]
    return SessionHead(
        id=name,
        agent=last.agent,
        tenant=last.tenant,
        status="completed" if ended else {"running": "running", "failed": "error"}.get(last.status, "active"),
        last_status=last.status,
        messages=len(heads),
        goal=first.goal,
        last=last.run_id,
        cost_usd=sum(head.cost_usd for head in heads),
        created_at=first.created_at,
        updated_at=last.updated_at,
    )


async def _ended(runtime: Runtime, last: RunHead) -> bool:
    """Whether a session was ended after its last run."""
    try:
        return last.status in TERMINAL and news_in(await runtime.store.read(last.run_id)).ended
    except (DetentError, ValueError):  # damaged, or removed meanwhile
        return False


async def _is_session(runtime: Runtime, run_id: str) -> bool:
    """Whether the run was started as a message, and was not only given an id that looks like one."""
    try:
        (line,) = await runtime.store.read(run_id, limit=1)
        started = read_record(line).event
    except (DetentError, ValueError):  # damaged, or removed meanwhile
        return False
    return started is None or (isinstance(started, RunStarted) and started.session is not None)
