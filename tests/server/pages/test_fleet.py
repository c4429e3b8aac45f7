"""The fleet's page: what it shows to whom, and what pausing, resuming and redriving do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Plan
from detent.core.events import RunReopened
from detent.core.records import Record
from detent.metering.tenants import TenantBudget
from detent.workers.in_process import InProcessHost
from server.pages.visiting import EVIL, Visitor, visited, words

CLERK = Agent(name="clerk")


class Clerk:
    """Answers, unless it is broken: then it cannot even begin."""

    broken = ""

    def begin_run(self, run_id: str) -> None:
        if self.broken:
            raise RuntimeError(self.broken)

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(FinalAnswer(content="done"),))


def office(tmp_path: Path) -> Engine:
    """An engine whose worker gives up a run at its first failed attempt."""
    budgets = {"": TenantBudget(max_runs=40), "acme": TenantBudget(window="month", max_cost_usd=7.5), "*": TenantBudget(max_runs=9)}
    return Engine(
        store=f"sqlite:///{tmp_path}/runs.db",
        agents=[CLERK],
        planner=Clerk(),
        worker_host=InProcessHost(max_attempts=1),
        tenant_budgets=budgets,
    )


async def given_up(engine: Engine, why: str) -> str:
    """Return a run that the server's worker gave up."""
    engine.planner.broken = why  # type: ignore[union-attr]
    run_id = await engine.submit(CLERK, f"file it {EVIL}")
    await rested(engine, run_id)
    engine.planner.broken = ""  # type: ignore[union-attr]
    return run_id


async def rested(engine: Engine, run_id: str) -> str:
    """Return the status of a run once it has ended or waits."""
    async for item in engine.follow(run_id):
        if not isinstance(item, Record):
            return item.status
    raise AssertionError(run_id)


def test_a_dead_letter_is_shown_with_its_reason_and_redriven(tmp_path: Path) -> None:
    """The log says who opened it again, a worker completes it, and it is no dead letter any more."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        run_id = await given_up(engine, f"no ink {EVIL}")
        ann = visitor("ann")
        said = words(await ann.see("/ui/fleet"))
        assert "no ink <script>" in said and "file it <script>" in said and "Redrive" in said
        assert "given up nothing" in words(await ann.submit("/ui/fleet/redrive", run=run_id))
        assert await rested(engine, run_id) == "completed"
        (opened,) = [record.event for record in await engine.records(run_id) if isinstance(record.event, RunReopened)]
        assert opened.by == "ann"
        assert sum(isinstance(record.event, RunReopened) for record in await engine.records(run_id)) == 1, "a completed run stays so"

    visited(office(tmp_path), body)


def test_the_operator_sees_workers_budgets_and_holds_and_pauses_what_should_rest(tmp_path: Path) -> None:
    """A hold is in the store when the page shows it, and gone when it does not."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann = visitor("ann")
        said = words(await ann.see("/ui/fleet"))
        assert "Queue 0" in said and "Workers" in said and "Nothing is held" in said
        assert "acme a month cost usd 0 of 7.5" in said and "Every other tenant a day runs 9 each" in said
        said = words(await ann.submit("/ui/fleet/pause", of="agent", name="clerk", why=f"an incident {EVIL}"))
        assert "agent clerk ann an incident <script>" in said
        assert [(one.what, one.by) for one in await engine.holds()] == [("agent:clerk", "ann")]
        assert "cannot be paused" in words(await ann.submit("/ui/fleet/pause", of="star", name="sun", expect=422))
        assert "cannot be paused" in words(await ann.submit("/ui/fleet/pause", of="agent", name=" ", expect=422))
        assert "Nothing is held" in words(await ann.submit("/ui/fleet/resume", what="agent:clerk"))
        assert await engine.holds() == ()
        part = await ann.part("/ui/fleet")
        assert "<html" not in part.text and "Queue" in part.text

    visited(office(tmp_path), body)


def test_who_may_not_operate_changes_nothing_and_sees_no_other_tenant(tmp_path: Path) -> None:
    """Bob may only see; Eve operates another tenant, and what concerns all tenants is not hers."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        run_id = await given_up(engine, "no ink")
        await engine.pause("tenant:acme", by="ann", why="acme owes us")
        await engine.pause("agent:clerk", by="ann", why="acme owes us")
        bob, eve = visitor("bob"), visitor("eve")
        for who in (bob, eve):
            said = words(await who.see("/ui/fleet"))
            assert "acme" not in said and "Queue" not in said and "agent clerk the operator" in said, said
            await who.submit("/ui/fleet/pause", of="agent", name="other", expect=403)
            await who.submit("/ui/fleet/resume", what="agent:clerk", expect=403)
            assert "Queue" not in (await who.part("/ui/fleet")).text
        assert "Redrive" not in words(await bob.see("/ui/fleet"))
        assert run_id not in await eve.see("/ui/fleet") and "runs 0 of 9" in words(await eve.see("/ui/fleet"))
        await bob.submit("/ui/fleet/redrive", run=run_id, expect=403)
        await eve.submit("/ui/fleet/redrive", run=run_id, expect=404)
        assert (await bob.post("/ui/fleet/redrive", data={"run": run_id})).status_code == 403
        assert (await visitor("ann").post("/ui/fleet/redrive", data={"run": run_id})).status_code == 403, "without the code of its form"
        assert (await engine.load(run_id)).status == "waiting_for_operator"
        assert sorted(one.what for one in await engine.holds()) == ["agent:clerk", "tenant:acme"]

    visited(office(tmp_path), body)
