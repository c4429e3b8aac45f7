"""Forking at every record of a run: where no effect is open it works and can be replayed, where one is it is refused. DESIGN 8."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, sampled, thinned
from detent import FinalAnswer, Host, ToolCall, tool
from detent.core import events as e
from detent.core.budget import Usage
from detent.core.codec import read_record
from detent.core.errors import ConfigError, NotAllowedNow, RunContextMismatch, RunErased, RunNotFound, StoreBusy
from detent.core.fold import fold
from detent.core.state import Ask, Child, KernelState, RunState
from detent.running.branching import branch
from detent.running.snapshots import base_of, dump_snapshot
from detent.stores.ram import RamStore
from detent.testing.faults import Crash, CrashingStore, When
from history.family import NAMES, Tools, events, finish, make_engine, open_at, parent_of, run_async
from laws.places import KINDS, Place, agent_of, engine_on

pytestmark = [crossed, thinned]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_forked_at_every_record_and_comes_to_the_same_end(kind: str, tmp_path: Path) -> None:
    """The fork's state is the fold of its log, its replay identical, no effect happens again, and where one is open the call is named."""

    async def main() -> None:
        place, tools = Place(kind, tmp_path), Tools()
        async with make_engine(place.store(), tools) as engine:
            parent = await parent_of(engine)
            records, effects = await engine.records("parent"), tools.effects
            refused = open_at(records)
            assert len(records) > 40 and len(refused) >= 4
            for at in sampled(range(1, len(records) + 1), few=12):
                if at in refused:
                    with pytest.raises(NotAllowedNow, match=rf"at record {at}: call {refused[at]} \(") as raised:
                        await engine.fork("parent", at=at)
                    assert raised.value.reason_code == "effect_open"
                    continue
                child = (await engine.fork("parent", at=at, child_id=f"at-{at}", resume=False)).run_id
                assert (await engine.load(child)).status == "running"
                result = await finish(engine, child)
                assert (result.status, result.output) == ("completed", parent.output), f"forked at record {at}"
                assert tools.effects == effects, f"forked at record {at}"
                replayed = await engine.replay(child)
                assert replayed.identical, (at, replayed.divergence)
                lines = await engine.store.read(child)
                base = await base_of(engine.store, child, lines)
                assert fold(map(read_record, lines), base) == await engine.load(child) == result.state
                assert (await engine.verify(child)).ok
        await place.close()

    run_async(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_does_not_survive_what_it_goes_on_from(kind: str, tmp_path: Path) -> None:
    """In files its beginning is durable in a file of its own: a power failure took the parent's last records, and the fork could never be read."""

    async def main() -> None:
        place = Place(kind, tmp_path)
        async with make_engine(place.store(), Tools()) as engine:
            await engine.run(agent_of(*NAMES), "go", run_id="parent", turns=1)
            records = (await engine.load("parent")).seq
            await engine.fork("parent", child_id="child", resume=False)
            sealed = await engine.store.sealed("parent")
            assert sealed is not None and sealed[0] == records, "the last durable append of the parent is not the last one"
            assert (await engine.verify("parent")).ok and (await engine.verify("child")).ok
        await place.close()

    run_async(main)


def test_a_fork_of_a_fork_goes_on_from_both() -> None:
    """At every record of the first fork; its history is that of the grandparent, the parent and its own."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            parent = await parent_of(engine)
            early = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.GoalPushed))
            await engine.fork("parent", at=early, child_id="child", resume=False)
            await finish(engine, "child")
            records = await engine.records("child")
            refused = open_at(records)
            assert refused
            for at in sampled(range(1, len(records) + 1), few=12):
                if at in refused:
                    with pytest.raises(NotAllowedNow, match=refused[at]):
                        await engine.fork("child", at=at)
                    continue
                made = await engine.fork("child", at=at, child_id=f"grandchild-{at}", resume=False)
                assert made.state.ancestors == ("child", "parent")
                result = await finish(engine, made.run_id)
                assert result.output == parent.output
                assert (await engine.replay(made.run_id)).identical
            third = await engine.fork(f"grandchild-{len(records)}", child_id="third")
            assert third.state.ancestors == (f"grandchild-{len(records)}", "child", "parent")
            assert (third.output, (await engine.replay("third")).identical) == (parent.output, True)

    run_async(main)


def test_what_was_used_is_shown_and_not_charged() -> None:
    """Bounds are those of a new run, in the run and in its pass; the parent's use, and its parent's, stands beside."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            parent = await parent_of(engine, host=Host(tenant="acme"))
            at = max(r.envelope.seq for r in await engine.records(parent.run_id) if isinstance(r.event, e.TurnStarted)) - 1
            bounded = {"budget": {"max_iterations": 1, "max_tool_calls": 1}}
            child = await engine.fork(parent.run_id, child_id="child", edits=bounded)
            assert (child.status, child.usage.iterations, child.usage.tool_calls) == ("completed", 1, 0)
            assert child.state.inherited.iterations == 7 == parent.usage.iterations - 1
            assert child.state.inherited.tool_calls == parent.usage.tool_calls
            assert child.state.passes["main"].usage.iterations == 1 and child.state.passes["main"].iteration == 8
            assert child.state.budget.max_iterations == 1 and child.state.budget.max_failed_turns == parent.state.budget.max_failed_turns
            grandchild = await engine.fork("child", child_id="grandchild")
            assert grandchild.state.inherited.iterations == 7
            assert events(await engine.records("child"), e.Forked)[0].sequence == at
            spent = await engine.store.spent("acme", "2000-01-01")
            assert (spent.runs, spent.tool_calls) == (3, parent.usage.tool_calls)

    run_async(main)


def test_without_a_place_a_fork_is_before_the_last_turn_or_at_the_end() -> None:
    """Of a finished run: the last decision is made again. Of one that waits: what it waits for is asked again."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            waiting = await engine.run(agent_of(*NAMES), "clean up", run_id="waits")
            assert waiting.status == "waiting_for_user"
            child = await engine.fork("waits")
            assert child.status == "waiting_for_user" and list(child.state.asks) == list(waiting.state.asks)
            assert events(await engine.records(child.run_id), e.Forked)[0].sequence == waiting.state.seq
            assert (await engine.load("waits")) == waiting.state
            await finish(engine, "waits")
            last = await engine.fork("waits", resume=False)
            assert last.state.passes["main"].iteration == 7 and last.state.passes["main"].plan is not None

    run_async(main)


def test_what_was_asked_of_people_is_asked_again() -> None:
    """An approval and a question stay with the parent: the fork asks for its own, and answers to one are none to the other."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            await engine.run(agent_of(*NAMES), "clean up", run_id="parent", variables={"who": "ann"})
            asked = await engine.reply("parent", "blue")
            assert asked.status == "waiting_for_approval"
            bare = await engine.fork("parent", child_id="child", resume=False)
            assert (bare.status, bare.state.approvals, bare.state.asks) == ("running", {}, {})
            child = await engine.resume("child")
            assert list(child.state.approvals) == list(asked.state.approvals)
            await engine.deny("child", "main.5.0", by="bob", reason="no")
            assert (await engine.load("parent")).status == "waiting_for_approval"
            granted = await engine.approve("parent", "main.5.0", by="ann")
            assert granted.status == "completed" and tools.effects[-2:] == ["wipe x", "note a"]
            approved = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.ApprovalResolved))
            again = await engine.fork("parent", at=approved)
            assert again.status == "waiting_for_approval", "what people allowed the parent is not allowed to the fork"
            await engine.run(agent_of(*NAMES), "clean up", run_id="edited", variables={"who": "ann"})
            await engine.reply("edited", "blue")
            await engine.approve("edited", "main.5.0", by="ann", args={"name": "y"})
            edited = next(r.envelope.seq for r in await engine.records("edited") if isinstance(r.event, e.ApprovalEdited))
            other = await engine.fork("edited", at=edited)
            assert (other.status, [one.args for one in await engine.approvals(run_id=other.run_id)]) == (
                "waiting_for_approval",
                [{"name": "y"}],
            )

    run_async(main)


def test_what_cannot_be_forked_is_refused_and_leaves_nothing() -> None:
    """A record that is not there, an unknown run, another tenant, an erased run, an id that is taken."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            parent = await parent_of(engine, host=Host(tenant="acme", principal="ann"))
            for at in (0, -1, parent.state.seq + 1, True, 3.0, "3"):
                with pytest.raises(ConfigError, match=rf"has {parent.state.seq} records.*not at"):
                    await engine.fork(parent.run_id, at=at)  # type: ignore[arg-type]
            with pytest.raises(RunNotFound):
                await engine.fork("nowhere")
            with pytest.raises(RunNotFound):
                await engine.fork("parent", host=Host(tenant="other"))
            with pytest.raises(RunContextMismatch, match=r"host\.principal"):
                await engine.fork("parent", host=Host(tenant="acme", principal="bob"))
            with pytest.raises(NotAllowedNow, match="already"):
                await engine.fork(parent.run_id, child_id="parent", host=Host(tenant="acme", principal="ann"))
            with pytest.raises(ConfigError, match="choose one of dry_run"):
                await engine.fork(parent.run_id, effects="twice")  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="run id"):
                await engine.fork(parent.run_id, child_id="no/slash")
            assert len(await engine.list_runs()) == 1
            child = await engine.fork("parent", child_id="child", host=Host(tenant="acme", principal="ann"))
            assert child.state.host.tenant == "acme"
            (head,) = [head for head in await engine.list_runs(tenant="acme") if head.run_id == "child@acme"]
            assert (head.parent, head.goal_id, head.agent, head.status) == (parent.run_id, parent.run_id, "worker", "completed")
            with pytest.raises(RunNotFound):
                await engine.load("child", host=Host(tenant="other"))
            await engine.erase(parent.run_id)
            with pytest.raises(RunErased, match="'parent@acme' was erased"):
                await engine.fork(parent.run_id, child_id="late")
            with pytest.raises(RunErased, match="'child@acme' continues from run 'parent@acme', which was erased"):
                await engine.load(child.run_id)
            with pytest.raises(RunErased):
                await engine.fork(child.run_id)

    run_async(main)


def test_a_call_in_doubt_keeps_a_run_from_being_forked_until_it_is_settled() -> None:
    """At its start, while it is in doubt, and after the end of a run that left it so; after its settlement it is a boundary."""

    async def main() -> None:
        @tool(side_effect="write")
        async def send(to: str) -> str:
            """Leave everybody in the dark."""
            raise OSError("the line went dead")

        def plan(view: object) -> object:
            return ToolCall(tool="send", args={"to": "a"}) if getattr(view, "iteration", 0) == 1 else FinalAnswer(content="sent")

        async with engine_on("ram:", plan, [send]) as engine:
            result = await engine.run(agent_of("send"), "send it", run_id="parent")
            assert result.status == "waiting_for_reconciliation"
            for at in (None, result.state.seq, result.state.seq - 1):
                with pytest.raises(NotAllowedNow, match=r"call main\.1\.0 \(send\) is in doubt"):
                    await engine.fork("parent", at=at)
            await engine.cancel("parent")
            with pytest.raises(NotAllowedNow, match="is in doubt"):
                await engine.fork("parent", at=(await engine.load("parent")).seq)
            assert (await engine.fork("parent", at=3)).status == "completed"
            assert (await engine.reconcile("parent", "main.1.0", happened=True, result="ok")).status == "stopped"
            settled = await engine.fork("parent", at=(await engine.load("parent")).seq)
            assert (settled.status, settled.output) == ("completed", "sent")
            assert settled.state.passes["main"].results[0].content == "ok"

    run_async(main)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_fork_that_dies_at_any_write_is_resumed_like_any_run(at: int, when: When) -> None:
    """Between `Forked` and the first turn, and at each later write: either there is no fork, or it comes to the same end, with no effect."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        async with make_engine(place.store(), tools) as engine:
            parent = await parent_of(engine)
        early = next(r.envelope.seq for r in await place.records("parent") if isinstance(r.event, e.GoalPushed))
        effects = tools.effects
        async with make_engine(CrashingStore(place.store(), at=at, when=when, operations=("append",)), tools) as engine:
            with pytest.raises(Crash):
                await finish(engine, (await engine.fork("parent", at=early, child_id="child")).run_id)
        await place.close()
        async with make_engine(place.store(), tools) as engine:
            if at == 1 and when == "before":
                assert await engine.store.head("child") is None
                return
            result = await finish(engine, "child")
            assert (result.output, tools.effects) == (parent.output, effects)
            assert (await engine.replay("child")).identical
        await place.close()

    run_async(main)


def test_nothing_that_is_charged_or_asked_of_somebody_is_inherited() -> None:
    """Whatever the parent's state holds of it at that record, the fork's begins without; what was used stands beside."""
    used = Usage(iterations=3, tool_calls=2, cost_usd=0.5)
    parent = RunState(
        run_id="parent",
        status="stopped",
        usage=used,
        inherited=used,
        calls_of={"note": 2},
        running_ms=60_000.0,
        reserved={"main": used},
        cancel="ann",
        dead_letter="too often",
        reason="budget_exhausted",
        dimension="tool_calls",
        limit=2.0,
        used=2.0,
        partial="nearly",
        error="no more",
        seq=9,
        approvals={"main.3.0": e.ApprovalRequested(call="main.3.0", tool="note", digest="d")},
        asks={"main.3": Ask(ask_id="main.3", question="which?", scope="main")},
        timers={"main.3": datetime(2026, 3, 1, tzinfo=UTC)},
        children={"c": Child(child="c", agent="worker", goal="help")},
        passes={"main": KernelState(scope="main", usage=used, metered=True, wrapping_up=True)},
    )
    forked = e.Forked(parent="parent", sequence=9, digest="d", edits={}, effects="redo")
    assert branch(parent, forked, "child") == RunState(
        run_id="child",
        ancestors=("parent",),
        inherited=used.plus(used),
        fork_effects="redo",
        openings=1,
        passes={"main": KernelState(scope="main")},
        children={"c": Child(child="c", agent="worker", goal="help", status="not_inherited")},
    )


def test_a_call_in_doubt_is_found_in_a_snapshot_too() -> None:
    """The last snapshot knows of it, and no record after that."""

    async def main() -> None:
        @tool(side_effect="write")
        async def send(to: str) -> str:
            """Leave everybody in the dark."""
            raise OSError("the line went dead")

        async with engine_on("ram:", lambda view: ToolCall(tool="send", args={"to": "a"}), [send]) as engine:
            result = await engine.run(agent_of("send"), "send it", run_id="parent")
            assert result.status == "waiting_for_reconciliation"
            await engine.store.put_snapshot("parent", result.state.seq, dump_snapshot(result.state))
            with pytest.raises(NotAllowedNow, match=r"call main\.1\.0 \(send\) is in doubt"):
                await engine.fork("parent")

    run_async(main)


def test_a_parent_that_is_removed_while_it_is_forked_leaves_no_fork() -> None:
    """The removal did not see the fork and gave it nothing: there is none, and it is said that the parent is gone."""

    class Removing(RamStore):
        async def append(self, run_id: str, *words: Any, **options: Any) -> None:
            await super().append(run_id, *words, **options)
            if run_id == "child":
                await self.delete("parent")

    async def main() -> None:
        async with make_engine(Removing(), Tools()) as engine:
            await parent_of(engine)
            with pytest.raises(RunNotFound, match="'parent'"):
                await engine.fork("parent", child_id="child", resume=False)
            assert await engine.list_runs() == []

    run_async(main)


def test_a_fork_that_was_made_is_said_to_be_made_although_its_claim_cannot_be_given_up_yet() -> None:
    """The store goes on trying; an error here would have people make another fork."""

    class Full(RamStore):
        full = False

        async def release(self, run_id: str) -> None:
            if self.full:
                raise StoreBusy("locked")
            await super().release(run_id)

    async def main() -> None:
        async with make_engine(store := Full(), Tools()) as engine:
            await parent_of(engine)
            store.full = True
            assert (await engine.fork("parent", child_id="child", resume=False)).run_id == "child"

    run_async(main)


def test_a_fork_of_a_run_that_failed_too_often_may_fail_as_often_again() -> None:
    """Consecutive failures are the parent's; from where it ended the fork goes on."""

    async def main() -> None:
        def plan(view: Any) -> Any:
            return ToolCall(tool="fail", args={"n": 1}) if view.iteration in (1, 2, 3, 4, 5) else FinalAnswer(content="at last")

        async with make_engine("ram:", Tools(), plan) as engine:
            parent = await engine.run(agent_of("fail"), "try", run_id="parent")
            assert parent.reason == "failure_threshold"
            child = await engine.fork("parent", at=parent.state.seq)
            assert (child.status, child.output, child.usage.iterations) == ("completed", "at last", 3)
            assert (await engine.replay(child.run_id)).identical

    run_async(main)
