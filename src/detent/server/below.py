"""What the runs below one ask of people: approvals and questions of its sub-agents, at any depth, and the answers to them.

Rule: an answer goes to the run that asked, and counts there as from anywhere else. The run at the top records nothing of it, so a mark beside that run
keeps the stretch that the answer began.
"""

from __future__ import annotations

import contextlib

import msgspec

from detent.core.agent import Host
from detent.core.errors import DetentError, RunNotFound
from detent.core.state import RunState
from detent.ports import EventStore
from detent.ports.delegation import has_parent
from detent.running.results import approvals_of
from detent.server.operations import Call
from detent.server.problems import Refused
from detent.server.served import BELOW, Served

_MARK = "stretch-"
_ABOUT = {"approval": "call", "reply": "ask_id"}
"""What an answer is about, in its payload."""
Asking = tuple[RunState, ...]
"""Runs below one, each with the approvals and questions that wait for people."""


async def asking_below(served: Served, run_id: str, host: Host) -> Asking:
    """Return the runs below one that ask people something. What somebody has answered, and is not decided yet, is left out."""
    engine, found = served.engine, list[RunState]()
    open_: dict[str, set[str]] = {}
    for one in await engine.waits(run_id, host=host):
        if one.on == "person" and one.run_id != run_id:
            open_.setdefault(one.run_id, set()).add(one.about)
    posted = await engine.store.signals(list(open_))
    for child, about in open_.items():
        about -= {one.payload.get(_ABOUT[one.kind]) for one in posted.get(child, ()) if one.kind in _ABOUT}
        with contextlib.suppress(DetentError):  # it was erased meanwhile
            state = (await engine.load(child, host=host)).state
            approvals = {name: one for name, one in state.approvals.items() if name in about}
            asks = {name: one for name, one in state.asks.items() if name in about}
            if approvals or asks:
                found.append(msgspec.structs.replace(state, approvals=approvals, asks=asks))
    return tuple(sorted(found, key=lambda one: (str(one.updated_at), one.run_id)))  # who asked first stays the first


async def waits_for(served: Served, state: RunState, host: Host) -> str:
    """Say what a run waits for; if that is its children, what these wait for, each with the agents from the top to it."""
    if calls := [f"{one.tool} ({one.reason})" for one in approvals_of(state)]:
        return f"approval of {', '.join(calls)}"
    if asks := [ask.question for ask in state.asks.values()]:
        return "; ".join(asks)
    waits = await served.engine.waits(state.run_id, host=host) if state.status == BELOW else ()
    return "; ".join(f"{one.what} ({' / '.join(one.path)})" for one in waits) or state.status.replace("_", " ")


async def below(call: Call, root: RunState, run_id: str) -> str:
    """Return the id of a run that asks: the root, or one below it. Raise `Refused` for any other one."""
    if run_id == root.run_id:
        return run_id
    with contextlib.suppress(RunNotFound):
        state = (await call.served.engine.load(run_id, host=call.caller.host)).state
        if has_parent(state) and state.delegated is not None and state.delegated.root == root.run_id:
            return state.run_id
    raise Refused(409, "another_run", f"{run_id[:80]!r} is neither this run nor one below it; answer it where it was asked")


async def begun_at(store: EventStore, run_id: str) -> dict[str, int]:
    """Return the stretches of a run that answers to runs below began: by their names, behind which record of the run each begins."""
    found = [key.removeprefix(_MARK).rpartition("~") for key in await store.list_blobs(run_id) if key.startswith(_MARK)]
    return {name: int(begin) for name, _, begin in found}


async def keep(store: EventStore, run_id: str, name: str, begin: int) -> None:
    """Keep such a stretch."""
    await store.put_blob(run_id, f"{_MARK}{name}~{begin}", b"")
