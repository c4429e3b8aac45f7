"""Who answers a run is told what became of the answer: it counts, it does not and why, or nobody has decided yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.actions import AskUser
from detent.core.errors import NotAllowedNow
from detent.ports import EventStore, Signal, View
from detent.running import answering
from detent.running.advancing import Advancing
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner

CALL = "main.1.0"
STORES = ("ram", "file", "sqlite")
CLERK = Agent(name="clerk", tools=["wipe"])


class Bound:
    """Stores at one place, and what ran."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        self.kind, self.path, self.first, self.ran = kind, tmp_path, RamStore(), list[str]()

    def store(self) -> EventStore:
        """Return another holder of claims on the same runs."""
        if self.kind == "ram":
            return self.first.sibling()
        return open_store(f"sqlite:///{self.path}/runs.db" if self.kind == "sqlite" else f"file:{self.path}/runs")

    def engine(self, *, planner: Any = None) -> Engine:
        """Return an engine with a store of its own."""

        @tool(side_effect="destructive")
        async def wipe(what: str) -> str:
            """Wipe it."""
            self.ran.append(what)
            return "wiped"

        return Engine(store=self.store(), planner=planner or Wiping(), tools=[wipe], approver="caller")


class Wiping:
    """Wipes, then answers."""

    async def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        return Plan(actions=(FinalAnswer(content="done"),) if view.results else (ToolCall(tool="wipe", args={"what": "x"}),))


class Paying:
    """Pays, then answers."""

    async def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        return Plan(actions=(FinalAnswer(content="done"),) if view.results else (ToolCall(tool="pay"),))


class Asking:
    """Asks, then says what was replied."""

    async def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        said = [item.text for item in view.transcript if item.kind == "user"][1:]
        return Plan(actions=(FinalAnswer(content=said[0]) if said else AskUser(question="which?"),))


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Bound:
    """Stores at one place."""
    return Bound(request.param, tmp_path)


async def told(answer: Awaitable[Any]) -> str:
    """Return what somebody is told: how it was taken, or the code with which it was refused."""
    try:
        result = await answer
    except NotAllowedNow as refused:
        return refused.reason_code
    return result.answered.outcome


async def refused(engine: Engine, run_id: str = "r") -> list[tuple[str, str, str]]:
    """Return kind, person and code of each answer that the log refuses."""
    return [(r.event.kind, r.event.by, r.event.code) for r in await engine.records(run_id) if isinstance(r.event, e.AnswerRefused)]


def test_of_an_approval_and_a_denial_at_the_same_moment_one_counts_and_the_other_is_told_so(place: Bound) -> None:
    """Both were told yes: the denied call ran, and the log did not know who denied it."""

    async def main() -> None:
        async with place.engine() as first, place.engine() as second:
            await first.run(CLERK, "wipe", run_id="r")
            said = await asyncio.gather(told(first.approve("r", CALL, by="ann")), told(second.deny("r", CALL, by="bob")))
            assert min(said) == "accepted" and len(set(said)) == 2, said
            assert said[1] in ("accepted", "approval_not_pending", "approval_already_decided")
            approved = said[0] == "accepted"
            assert place.ran == (["x"] if approved else [])
            decided = [(r.event.by, r.event.decision) for r in await first.records("r") if isinstance(r.event, e.ApprovalResolved)]
            assert decided == ([("ann", "approved")] if approved else [("bob", "denied")])
            assert await first.store.signals(["r"]) == {} and (await first.replay("r")).identical

    asyncio.run(main())


class LastMoment(RamStore):
    """A store in which somebody says something when a claim is about to be released, and leaves it to the holder."""

    says: Any = None

    async def release(self, run_id: str) -> None:
        """See `EventStore.release`."""
        if self.says is not None:
            says, self.says = self.says, None
            await self.post(run_id, await says())
        await super().release(run_id)


@pytest.mark.parametrize("ended", [False, True])
def test_who_releases_a_claim_looks_into_the_inbox_once_more(ended: bool) -> None:
    """What came behind the last look waited for the next command or worker, and its sender was told that somebody has the run.

    An approval counts, and the run goes on; one that comes for a run which has `ended` is refused on the record.
    """

    async def main() -> None:
        @tool(side_effect="destructive")
        async def wipe(what: str) -> str:
            """Wipe it."""
            return "wiped"

        async def approves() -> Signal:
            digest = "none" if ended else (await engine.approvals(run_id="r"))[0].digest
            return Signal(id="s", kind="approval", by="ann", payload={"call": CALL, "decision": "approved", "digest": digest})

        store, done = LastMoment(), FinalAnswer(content="done")
        store.says = approves
        planner = ScriptedPlanner([done] if ended else [ToolCall(tool="wipe", args={"what": "x"}), done])
        async with Engine(store=store, planner=planner, tools=[wipe], approver="caller") as engine:
            result = await engine.run(CLERK, "wipe", run_id="r")
            assert result.status == "completed" and await store.signals(["r"]) == {}
            assert await refused(engine) == ([("approval", "ann", "approval_not_pending")] if ended else [])
            assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_the_order_of_the_store_decides_and_every_other_answer_is_on_record(place: Bound) -> None:
    """Posted past the checks of who sends: a denial, an approval and a second denial; the first counts, also for who comes later."""

    async def main() -> None:
        async with place.engine() as engine:
            await engine.run(CLERK, "wipe", run_id="r")
            (asked,) = await engine.approvals(run_id="r")
            for name, decision in (("ann", "denied"), ("bob", "approved"), ("cid", "denied")):
                payload = {"call": CALL, "decision": decision, "digest": asked.digest}
                await engine.store.post("r", Signal(id=name, kind="approval", by=name, payload=payload))
            result = await engine.resume("r")
            assert result.status == "completed" and place.ran == []
            assert await refused(engine) == [("approval", name, "approval_not_pending") for name in ("bob", "cid")]
            why = next(r.event.reason for r in await engine.records("r") if isinstance(r.event, e.AnswerRefused))
            assert "denied by ann" in why
            assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_of_two_replies_and_of_two_who_settle_a_call_the_first_counts_and_the_other_is_on_record(place: Bound) -> None:
    """What the second said would be the user's words, or run a payment again that was made."""
    ran: list[str] = []

    @tool(side_effect="write")
    async def pay() -> str:
        """Pay, and lose the answer."""
        ran.append("paid")
        raise RuntimeError("the line is dead")

    async def main() -> None:
        async with place.engine(planner=Asking()) as engine:
            await engine.run(Agent(name="asks"), "ask", run_id="r")
            for name, said in (("ann", "this"), ("bob", "that")):
                await engine.store.post("r", Signal(id=name, kind="reply", by=name, payload={"ask_id": "main.1", "reply": said}))
            assert (await engine.resume("r")).output == "this" and await refused(engine) == [("reply", "bob", "not_asked")]
            assert (await engine.replay("r")).identical
        async with Engine(store=place.store(), planner=Paying(), tools=[pay]) as engine:
            assert (await engine.run(Agent(name="payer", tools=["pay"]), "pay", run_id="s")).status == "waiting_for_reconciliation"
            for name, more in (("ann", {"outcome": "happened", "result": "yes"}), ("bob", {"outcome": "not_happened"})):
                await engine.store.post("s", Signal(id=name, kind="reconcile", by=name, payload={"call": CALL, **more}))
            assert (await engine.resume("s")).output == "done" and ran == ["paid"]
            assert await refused(engine, "s") == [("reconcile", "bob", "not_in_doubt")] and (await engine.replay("s")).identical

    asyncio.run(main())


def test_an_approval_does_not_overtake_a_cancellation_that_was_posted_before(place: Bound) -> None:
    """The call does not run, the approval is refused, a second cancellation, too; in the other order the approval counts and nothing runs."""

    async def main() -> None:
        async with place.engine() as engine:
            for run_id, order in (("r", "cac"), ("s", "ac")):
                await engine.run(CLERK, "wipe", run_id=run_id)
                (asked,) = await engine.approvals(run_id=run_id)
                for n, kind in enumerate(order):
                    approval = {"call": CALL, "decision": "approved", "digest": asked.digest}
                    by, what, said = ("bob", "approval", approval) if kind == "a" else (f"ann{n}", "cancel", {})
                    await engine.store.post(run_id, Signal(id=f"{n}", kind=what, by=by, payload=said))  # type: ignore[arg-type]
                result = await engine.resume(run_id)
                assert (result.status, result.reason, place.ran) == ("stopped", "cancelled", [])
                assert (await engine.replay(run_id)).identical
            assert await refused(engine) == [("approval", "bob", "run_cancelled"), ("cancel", "ann2", "already_cancelled")]
            assert await refused(engine, "s") == []

    asyncio.run(main())


@pytest.mark.parametrize("turns", [None, 5])
def test_an_answer_that_came_as_the_run_ended_is_refused_on_its_log(place: Bound, turns: int | None) -> None:
    """It came after the last look into the inbox and before the end was recorded: nobody would ever have decided on it.

    A caller that wants some turns only does not look again after it has released the claim.
    """

    async def main() -> None:
        async with place.engine(planner=Asking()) as engine, place.engine() as other:
            append = engine.store.append

            async def late(run_id: str, seq: int, records: Any, **options: Any) -> None:
                if any(b'"run_finished"' in line for line in records):
                    await other.store.post(run_id, Signal(id="late", kind="reply", by="ann", payload={"ask_id": "main.1", "reply": "x"}))
                await append(run_id, seq, records, **options)

            engine.store.append = late  # type: ignore[method-assign]
            await engine.run(Agent(name="asks"), "ask", run_id="r")
            await engine.reply("r", "this", by="bob", resume=False)
            assert (await engine.run(Agent(name="asks"), "ask", run_id="r", turns=turns)).output == "this"
            assert await refused(engine) == [("reply", "ann", "not_asked")] and await engine.store.signals(["r"]) == {}
            assert (await engine.replay("r")).identical and (await engine.verify("r")).ok

    asyncio.run(main())


def test_who_answers_a_run_that_another_process_advances_hears_what_it_decided(place: Bound) -> None:
    """The run is held elsewhere when both replies come; who sent the first takes it on as soon as nobody holds it, and hears that it counts."""

    async def main() -> None:
        async with place.engine(planner=Asking()) as engine, place.engine() as person:
            await engine.run(Agent(name="asks"), "ask", run_id="r")
            await engine.store.claim("r")
            ask = next(iter((await engine.load("r")).asks))
            sending = asyncio.create_task(told(person.reply("r", "x", by="ann")))
            while not (there := (await engine.store.signals(["r"])).get("r")):
                await asyncio.sleep(0)
            await engine.store.post("r", Signal(id="bob", kind="reply", by="bob", payload={"ask_id": ask, "reply": "y"}))
            await engine.store.release("r")
            assert await sending == "accepted" and len(there) == 1
            assert await refused(engine) == [("reply", "bob", "not_asked")]

    asyncio.run(main())


def test_who_answers_a_run_that_nobody_decides_on_is_told_that(place: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that has the claim does not look: it is posted, and that is all that is known. An answer from inside of the run waits for nothing."""
    monkeypatch.setattr(answering, "HEARD_S", 0.05)

    async def main() -> None:
        async with place.engine() as engine, place.engine() as person:
            await engine.run(CLERK, "wipe", run_id="r")
            await engine.store.claim("r")
            assert await told(person.approve("r", CALL, by="ann")) == "posted"
            assert await told(person.deny("r", CALL, by="bob")) == "approval_already_decided"
            assert (await person.cancel("r", by="cid")).answered.outcome == "posted"  # type: ignore[union-attr]
            await engine.store.release("r")
            assert (await engine.resume("r")).reason == "cancelled" and place.ran == []

    asyncio.run(main())


def test_an_answer_beyond_those_that_are_recorded_is_not_left_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run records so many refusals; who sends one more hears that it does not count."""
    monkeypatch.setattr("detent.running.inbox.MOST_REFUSED", 1)

    async def main() -> None:
        place = Bound("ram", Path())
        async with place.engine() as engine:
            await engine.run(CLERK, "wipe", run_id="r")
            ids = ("a", "b")
            for name in ids:
                await engine.store.post("r", Signal(id=name, kind="approval", by=name, payload={"call": "main.9.9", "decision": "denied"}))
            await engine.resume("r")
            known = [await answering.decision(engine.store, "r", name) for name in ids]
            assert known[0] is not None and known[0].code == "approval_unknown" and known[1] is None
            late = Signal(
                id="b",
                kind="approval",
                by="b",
                payload={"call": CALL, "decision": "denied", "digest": (await engine.approvals())[0].digest},
            )
            with pytest.raises(NotAllowedNow) as caught:
                await engine.signal("r", late)
            assert caught.value.reason_code == "not_recorded"

    asyncio.run(main())


def test_a_flooded_inbox_refuses_answers_and_never_a_cancellation(place: Bound) -> None:
    """Who sends is told; the run can be ended all the same."""

    async def main() -> None:
        async with place.engine() as engine:
            await engine.run(CLERK, "wipe", run_id="r")
            for n in range(100):
                await engine.store.post("r", Signal(id=f"{n}", kind="reply", by="eve", payload={}))
            assert await told(engine.approve("r", CALL, by="ann")) == "inbox_full"
            assert (await engine.cancel("r", by="ann")).reason == "cancelled"

    asyncio.run(main())


class Slow(RamStore):
    """A store that takes its time over a value that is to be hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """See `EventStore.put_blob`."""
        self.entered.set()
        await self.go.wait()
        await super().put_blob(run_id, key, data)


def test_no_pass_decides_on_an_answer_before_one_that_came_earlier() -> None:
    """The first holds a value that is hidden first, which takes time; another pass looks meanwhile. It must not take up the second."""

    async def main() -> None:
        place, store = Bound("ram", Path()), Slow()
        place.first = store
        place.store = lambda: store  # type: ignore[method-assign]
        async with place.engine() as engine:
            await engine.run(CLERK, "wipe", run_id="r")
            (asked,) = await engine.approvals(run_id="r")
            parts = msgspec.structs.replace(engine.runtime.parts, redact=("sk-[0-9]+",))
            async with Advancing(parts, "r", engine.runtime.planners.of) as advancing:
                run = await advancing._run(advancing.journal(await engine.load("r")))
                looks: list[asyncio.Task[bool]] = []
                for by, decision in (("ann", "denied"), ("bob", "approved")):
                    payload = {"call": CALL, "decision": decision, "digest": asked.digest, "reason": "sk-123" if by == "ann" else ""}
                    await store.post("r", Signal(id=by, kind="approval", by=by, payload=payload))
                    looks.append(asyncio.create_task(run.world.absorb(run, fresh=True)))
                    await store.entered.wait()
                    await asyncio.sleep(0)
                assert not looks[1].done()
                store.go.set()
                await asyncio.gather(*looks)
                assert [(one.kind, one.by) for one in run.state.interventions] == [("denied", "ann"), ("answer_refused", "bob")]

    asyncio.run(main())
