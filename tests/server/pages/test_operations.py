"""Operations over many runs in the inspector: the same as on the command line, with what is shown before, during and after."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, View
from detent.config.groups import Bounds
from detent.config.retention import Retention
from detent.core.events import CancelRequested
from detent.ports import RunQuery
from server.pages.visiting import EVIL, Gated, Visitor, visited, words

CLERK = Agent(name="clerk", actions=("ask_user",))


class Clerk(Gated):
    """Asks, fails or answers as the goal says; with a gate it first waits for it."""

    async def plan(self, view: View) -> Plan:
        await self.passed()
        if view.goal.startswith("ask"):
            return Plan(actions=(AskUser(question="Where?"),))
        if view.goal.startswith("fail"):
            raise RuntimeError("no ink")
        return Plan(actions=(FinalAnswer(content="done"),))


def office(tmp_path: Path) -> Engine:
    """An engine that has a directory for archives."""
    bounds = Bounds(retention=Retention(archive_to=str(tmp_path / "archive")))
    return Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[CLERK], planner=Clerk(), approver="caller", bounds=bounds)


async def runs_of(engine: Engine, *goals: str, tenant: str = "") -> Sequence[str]:
    """Return runs of these goals, as far as they come."""
    host = Host(tenant=tenant, principal="somebody")
    return [(await engine.run(CLERK, goal, host=host)).run_id for goal in goals]


async def prepared(visitor: Visitor, **fields: str) -> tuple[str, str]:
    """Have an operation prepared; return its id and what the page says."""
    page = await visitor.submit("/ui/operations", expect=200, **fields)
    found = re.search(r'action="/ui/operations/([^/"]+)/begin"', page)
    assert found, words(page)
    return found[1], words(page)


async def finished(visitor: Visitor, operation: str) -> str:
    """Begin an operation, and return what the page says at its end."""
    await visitor.submit(f"/ui/operations/{operation}/begin")
    return await until(visitor, operation, "finished")


async def until(visitor: Visitor, operation: str, said: str) -> str:
    """Return what the page says once it says this."""
    while said not in (page := words((await visitor.part(f"/ui/operations/{operation}")).text)):
        await asyncio.sleep(0.01)  # as the page's script does
    return page


def test_the_set_is_frozen_shown_with_ten_examples_and_then_each_run_gets_one_entry(tmp_path: Path) -> None:
    """Nothing is done before it is begun; what began later is left alone, and what ended meanwhile is skipped and listed."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        runs = await runs_of(engine, f"ask {EVIL}", *(f"ask {n}" for n in range(12)), "tell")
        ann = visitor("ann")
        operation, said = await prepared(ann, action="cancel", status="waiting", goal="ask", why=f"spring {EVIL}")
        assert "Cancel 13 runs" in said and "10 of 13 runs" in said and said.count("waits for an answer") == 10, said
        assert "status=waiting goal=ask" in said and "spring <script>" in said and "prepared by ann" in said and "not begun" in said
        assert (await engine.load(runs[0])).status == "waiting_for_user"
        (later,) = await runs_of(engine, "ask later")
        await engine.cancel(runs[3], by="bob")
        said = await finished(ann, operation)
        assert "12 done 1 skipped 0 failed 0 left" in said and f"{runs[3]} skipped it is stopped already ann" in said, said
        skipped = words(await ann.see(f"/ui/operations/{operation}?result=skipped"))
        assert runs[3] in skipped and runs[4] not in skipped
        assert [(await engine.load(one)).status for one in (runs[0], runs[-1], later)] == ["stopped", "completed", "waiting_for_user"]
        cancelled = [record.event for record in await engine.records(runs[0]) if isinstance(record.event, CancelRequested)]
        assert [(one.by, one.why) for one in cancelled] == [("ann", f"spring {EVIL}")]
        assert {one.by for one in await engine.operations.entries(operation)} == {"ann"}
        assert "data-again" not in (await ann.part(f"/ui/operations/{operation}")).text, "nothing is to be looked at again"
        assert "finished" in words(await ann.submit(f"/ui/operations/{operation}/begin")), "again: nothing is left"

    visited(office(tmp_path), body)


@pytest.mark.parametrize("action", ["reopen", "replay", "archive", "resume"])
def test_every_action_of_the_command_line_can_be_had_here(tmp_path: Path, action: str) -> None:
    """And what it does to a run is in the store afterwards."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        goal = {"reopen": "fail", "resume": "tell"}.get(action, "tell")
        if action == "resume":
            runs = [await engine.submit(CLERK, goal)]
        else:
            runs = await runs_of(engine, goal)
        hers = await runs_of(engine, goal, tenant="other")
        ann = visitor("ann")
        operation, said = await prepared(ann, action=action)
        assert f"{'Redrive' if action == 'reopen' else action.capitalize()} 1 run" in said
        said = await finished(ann, operation)
        assert "1 done 0 skipped 0 failed" in said, said
        if action == "archive":
            assert len(list((tmp_path / "archive").glob("*.jsonl.gz"))) == 1
            assert [one.run_id for one in await engine.list_runs(RunQuery())] == list(hers), "another tenant's stays"
        else:
            status = (await engine.load(runs[0])).status
            assert status == ("running" if action == "reopen" else "completed")
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db") as elsewhere:
            (known,) = await elsewhere.operations.list()
            assert (known.id, known.status, known.by) == (operation, "finished", "ann"), "the command line has the same"

    visited(office(tmp_path), body, works=False)


def test_an_operation_is_stopped_and_resumed_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """What is in progress ends first. The page says who stopped it, and does not call it stopped before."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        clerk: Any = engine.planner
        runs = [await engine.submit(CLERK, f"tell {n}") for n in range(11)]
        clerk.gate = asyncio.Event()
        ann = visitor("ann")
        operation, _ = await prepared(ann, action="resume")
        await ann.submit(f"/ui/operations/{operation}/begin")
        while clerk.waits < 8:
            await asyncio.sleep(0)
        assert "in progress 0 done" in words(await ann.see(f"/ui/operations/{operation}"))
        await ann.submit(f"/ui/operations/{operation}/begin", expect=409)
        assert "stopping 0 done" in words(await ann.submit(f"/ui/operations/{operation}/stop"))
        clerk.gate.set()
        said = await until(ann, operation, "stopped by ann")
        assert "8 done 0 skipped 0 failed 3 left" in said and "Resume" in said, said
        said = await finished(ann, operation)
        assert "11 done 0 skipped 0 failed 0 left" in said, said
        assert [(await engine.load(one)).status for one in runs] == ["completed"] * 11
        assert len(await engine.operations.entries(operation)) == 11

    visited(office(tmp_path), body, works=False)


def test_a_server_that_stops_leaves_an_operation_to_the_next_one(tmp_path: Path) -> None:
    """No run in progress is called done, and the next server does what is left, once for each run."""
    clerk, known = Clerk(), dict[str, Any]()

    async def first(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        engine.planner = clerk
        known["runs"] = [await engine.submit(CLERK, f"tell {n}") for n in range(10)]
        clerk.gate = asyncio.Event()
        ann = visitor("ann")
        known["operation"], _ = await prepared(ann, action="resume")
        await ann.submit(f"/ui/operations/{known['operation']}/begin")
        while clerk.waits < 8:
            await asyncio.sleep(0)

    async def second(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann = visitor("ann")
        said = words(await ann.see(f"/ui/operations/{known['operation']}"))
        assert "0 done 0 skipped 0 failed 10 left" in said and "Resume" in said, said
        assert "10 done 0 skipped 0 failed" in await finished(ann, known["operation"])
        assert [(await engine.load(one)).status for one in known["runs"]] == ["completed"] * 10

    visited(office(tmp_path), first, works=False)
    visited(office(tmp_path), second, works=False)


def test_a_filter_that_fits_nothing_or_makes_no_sense_prepares_nothing(tmp_path: Path) -> None:
    """The page says what was wrong."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        await runs_of(engine, "tell")
        ann = visitor("ann")
        assert "No run to cancel matches every run" in words(await ann.submit("/ui/operations", action="cancel"))
        for said, fields in (
            ("not a time", {"action": "replay", "since": EVIL}),
            ("not a run status", {"action": "replay", "status": EVIL}),
            ("does not apply", {"action": "cancel", "status": "completed"}),
            ("not an action", {"action": EVIL}),
        ):
            assert said in words(await ann.submit("/ui/operations", expect=422, **fields))
        assert await engine.operations.list() == []
        await ann.see("/ui/operations/nothing", status=404)

    visited(office(tmp_path), body)


def test_who_may_not_operate_can_do_none_of_it_and_a_tenant_reaches_its_own_runs_only(tmp_path: Path) -> None:
    """Bob sees the operation; Eve does not find it, and no filter of hers finds a run of others. Archives are the operator's."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        (mine,) = await runs_of(engine, "ask mine")
        (hers,) = await runs_of(engine, "ask hers", tenant="other")
        ann, bob, eve = visitor("ann"), visitor("bob"), visitor("eve")
        operation, said = await prepared(ann, action="cancel")
        assert "Cancel 1 run" in said and hers not in said
        said = words(await bob.see(f"/ui/operations/{operation}"))
        assert "not begun" in said and "Discard" not in said
        assert "needs the role operate" in words(await bob.see("/ui/operations"))
        for path in ("", f"/{operation}/begin", f"/{operation}/stop", f"/{operation}/remove"):
            await bob.submit(f"/ui/operations{path}", expect=403, action="cancel")
            assert (await ann.post(f"/ui/operations{path}", data={"action": "cancel"})).status_code == 403, "without the code of its form"
        for path in ("begin", "stop", "remove"):
            await eve.submit(f"/ui/operations/{operation}/{path}", expect=404)
        await eve.see(f"/ui/operations/{operation}", status=404)
        assert operation not in await eve.see("/ui/operations") and "archive" not in words(await eve.see("/ui/operations"))
        await eve.submit("/ui/operations", expect=422, action="archive")
        theirs, said = await prepared(eve, action="cancel", goal="ask")
        assert "Cancel 1 run" in said and "hers" in said and "mine" not in said
        await finished(eve, theirs)
        assert [(await engine.load(one)).status for one in (mine, hers)] == ["waiting_for_user", "stopped"]
        await ann.submit(f"/ui/operations/{operation}/remove")
        assert [one.id for one in await engine.operations.list()] == [theirs]

    visited(office(tmp_path), body)


def test_what_the_command_line_began_is_found_here_and_who_works_on_it_is_told(tmp_path: Path) -> None:
    """The operator sees operations that were prepared without a tenant; while another process has one, beginning it is refused."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        await runs_of(engine, "ask")
        operation = (await engine.operations.prepare("cancel", by="cli", where="status=waiting")).id
        ann = visitor("ann")
        assert operation in await ann.see("/ui/operations") and operation not in await visitor("eve").see("/ui/operations")
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db") as elsewhere:
            await elsewhere.store.claim(f"_detent.operation-{operation}")
            assert f"operation {operation}" in words(await ann.submit(f"/ui/operations/{operation}/begin", expect=409))
            await elsewhere.store.release(f"_detent.operation-{operation}")
        assert "1 done" in await finished(ann, operation)

    visited(office(tmp_path), body)
