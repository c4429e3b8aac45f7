"""Law 2: nothing that is not read-only runs before its intent is durable; nothing runs that did not parse and validate as one offered call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed
from detent import Engine, FinalAnswer, Plan, Tool, ToolCall, ToolContext, View, tool
from detent.core import events as e
from detent.core.actions import AskUser, Schedule
from detent.core.codec import read_log, read_record
from detent.core.errors import Conflict, StoreFull, Suspended
from detent.testing import ScriptedPlanner
from detent.testing.faults import Crash, CrashingStore
from detent.tools import Happened
from laws.checks import check_laws
from laws.places import KINDS, Place, agent_of, engine_on

pytestmark = crossed


class Durably(CrashingStore):
    """Knows which records were asked to survive power loss."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.durable = 0

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
        """A durable append makes everything before it durable."""
        await super().append(run_id, expected_seq, records, **options)
        if options["durable"]:
            self.durable = expected_seq + len(records)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("effect", ["write", "idempotent", "destructive", "priced"])
def test_the_intent_is_durable_before_the_tool_runs(kind: str, effect: str, tmp_path: Path) -> None:
    """A tool that looks at the store through a connection of its own finds its call, arguments, key and permission there, each attempt anew."""
    place = Place(kind, tmp_path)
    seen: list[list[Any]] = []
    store = Durably(place.store())

    async def act(n: int, context: ToolContext) -> str:
        """Look at the log."""
        records = list(read_log("run", await place.lines("run")))
        assert store.durable == len(records), "and it survives power loss"
        seen.append([records[-1].event, context.idempotency_key, context.attempt])
        if effect == "idempotent" and context.attempt == 1:
            raise OSError("once more")
        return "done"

    def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else (ToolCall(tool="act", args={"n": 1}), ToolCall(tool="act", args={"n": 2}))

    options: dict[str, Any] = {"side_effect": "write" if effect == "idempotent" else "read" if effect == "priced" else effect}
    options |= (
        {"idempotent": True, "retries": 1}
        if effect == "idempotent"
        else {"cost_usd": 0.5, "concurrency_safe": False}
        if effect == "priced"
        else {}
    )

    async def main() -> None:
        async with engine_on(store, plan, [tool(act, **options)], approver=lambda _: True) as engine:
            result = await engine.run(agent_of("act"), "act", run_id="run")
            while result.status == "waiting_for_approval":
                result = await engine.resume("run")
        records = await place.records("run")
        decided = {r.event.call for r in records if isinstance(r.event, e.PolicyDecided)}
        assert [s[0].call for s in seen] == (
            ["main.1.0", "main.1.0", "main.1.1", "main.1.1"] if effect == "idempotent" else ["main.1.0", "main.1.1"]
        )
        for started, key, attempt in seen:
            assert isinstance(started, e.ToolStarted)
            assert (started.key, started.attempt) == (key, attempt)
            assert started.call in decided
        assert len({s[1] for s in seen}) == 2, "the key is the same over attempts, and another for each call"
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("error", [StoreFull("no room"), Conflict("run", 5, 6)], ids=["full", "conflict"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_whose_intent_cannot_be_recorded_does_not_run(kind: str, error: Exception, tmp_path: Path) -> None:
    """With a full disk, or after another writer, the worker stops before the effect and the run is as it was."""
    place = Place(kind, tmp_path)
    ran: list[str] = []

    @tool(side_effect="write")
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "acted"

    def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else ToolCall(tool="act")

    async def main() -> None:
        class Refuses(CrashingStore):
            async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
                """Refuse intents."""
                if any(b'"tool_started"' in line for line in records):
                    raise error
                await super().append(run_id, expected_seq, records, **options)

        with pytest.raises(Suspended if isinstance(error, StoreFull) else Conflict):
            await engine_on(Refuses(place.store()), plan, [act]).run(agent_of(act), "act", run_id="run")
        assert ran == []
        await place.close()
        async with engine_on(place.store(), plan, [act]) as engine:
            assert (await engine.resume("run")).output == "done"
            assert (await engine.replay("run")).identical
        assert ran == ["act"]
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


BAD: list[tuple[Any, str]] = [
    ({"n": "one"}, "schema_validation_failed"),
    ({}, "schema_validation_failed"),
    ({"n": 1, "m": 2}, "schema_validation_failed"),
    ("{", "schema_validation_failed"),
    ("[1]", "schema_validation_failed"),
    ([1], "schema_validation_failed"),
    (None, "schema_validation_failed"),
    (7, "schema_validation_failed"),
    ("", "schema_validation_failed"),
    ({"n": 3}, "semantic_validation_failed"),
    ({"n": 4}, "sanitize_failed"),
]


@pytest.mark.parametrize("side_effect", ["read", "write", "destructive"])
def test_nothing_runs_that_did_not_validate_as_one_offered_call(side_effect: Any, tmp_path: Path) -> None:
    """Wrong arguments, unparsable text, unknown and unlisted tools never start: they become coded observations, and nobody is asked to approve them."""
    ran: list[Any] = []

    def refuse(args: dict[str, Any]) -> dict[str, Any]:
        if args.get("n") == 4:
            raise ValueError("not four")
        return args

    def odd(args: dict[str, Any]) -> str | bool:
        return "not three" if args["n"] == 3 else True

    @tool(side_effect=side_effect, sanitize=refuse, validate=odd)
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        return n

    @tool(side_effect=side_effect)
    async def unlisted() -> int:
        """Not for this agent."""
        ran.append("unlisted")
        return 0

    async def main() -> None:
        place = Place("ram", tmp_path)
        wanted = [*(ToolCall(tool="act", args=args) for args, _ in BAD), ToolCall(tool="unlisted"), ToolCall(tool="nowhere")]
        planner = ScriptedPlanner([tuple(wanted), FinalAnswer(content="done")])
        tools: list[Tool[..., Any]] = [act, unlisted]
        async with engine_on(place.store(), planner, tools) as engine:
            result = await engine.run(agent_of("act"), "act", run_id="run")
            assert result.status == "completed"
            codes = [item.error.code for item in result.tool_calls if item.error]
            assert codes == [*(code for _, code in BAD), "tool_not_found", "tool_not_found"]
            assert (await engine.replay("run")).identical
        assert ran == []
        records = await place.records("run")
        assert not [r for r in records if isinstance(r.event, e.ToolStarted | e.PolicyDecided | e.ApprovalRequested)]
        check_laws(await place.lines("run"))

    asyncio.run(main())


def test_what_runs_is_what_was_validated_and_decided_on(tmp_path: Path) -> None:
    """Arguments are frozen: a tool, a guard or a planner that changes what it was given changes nothing."""
    given: dict[str, Any] = {"box": {"n": 1}}
    seen: list[Any] = []

    @tool(side_effect="write", retries=1)
    async def act(box: dict[str, int]) -> str:
        """Change the arguments."""
        from detent.core.errors import NotExecuted

        seen.append(dict(box))
        box["n"] = 99
        if len(seen) == 1:
            raise NotExecuted("once more")
        return "done"

    def plan(view: View) -> Any:
        for item in view.results:
            item.args["box"]["n"] = 50
        return FinalAnswer(content="done") if view.results else ToolCall(tool="act", args=given)

    async def main() -> None:
        place = Place("ram", tmp_path)
        async with engine_on(place.store(), plan, [act]) as engine:
            result = await engine.run(agent_of(act), "act", run_id="run")
            assert seen == [{"n": 1}, {"n": 1}]
            assert result.tool_calls[0].args == {"box": {"n": 1}}
        check_laws(await place.lines("run"))

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_is_durable_before_anything_else_happens(kind: str, tmp_path: Path) -> None:
    """The next call of the batch, even if it only reads, and the planner find the outcome of the effect in the store."""
    place = Place(kind, tmp_path)
    store = Durably(place.store())
    seen: list[str] = []

    async def look_at(who: str) -> None:
        records = list(read_log("run", await place.lines("run")))
        done = [r.envelope.seq for r in records if isinstance(r.event, e.ToolFinished) and r.event.call == "main.1.0"]
        assert done, f"the outcome is not in the store when the {who} begins"
        assert store.durable >= done[0], f"the outcome may be lost when the {who} begins"
        seen.append(who)

    @tool(side_effect="write")
    async def act() -> str:
        """Act."""
        return "acted"

    @tool(side_effect="read")
    async def look() -> str:
        """Look at the log."""
        await look_at("next call")
        return "seen"

    class Looks:
        async def plan(self, view: View) -> Plan:
            """Look at the log."""
            if view.iteration == 1:
                return Plan(actions=(ToolCall(tool="act"), ToolCall(tool="look")))
            await look_at("planner")
            return Plan(actions=(FinalAnswer(content="done"),))

    async def main() -> None:
        async with engine_on(store, Looks(), [act, look]) as engine:
            result = await engine.run(agent_of(act, look), "act", run_id="run")
            assert result.status == "completed", result.error
        assert seen == ["next call", "planner"]
        await place.close()

    asyncio.run(main())


LEAVES = (e.ApprovalRequested, e.UserAsked, e.ScheduleSet, e.RunWaiting, e.RunFinished, e.ToolInDoubt, e.ToolReconciled)
"""Records of what leaves the kernel, or settles what did: none may be lost with the power once anybody can know of it."""


class Leaving(Durably):
    """Keeps what it was given of `LEAVES`: each as its kind, and whether that commit was durable."""

    def __init__(self, inner: Any, left: list[tuple[str, bool]]) -> None:
        super().__init__(inner)
        self.left = left

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
        """Note it once it is done."""
        await super().append(run_id, expected_seq, records, **options)
        for event in (read_record(line).event for line in records):
            if isinstance(event, LEAVES) and getattr(event, "source", "") != "person":  # whose word the inbox keeps as long as the log
                self.left.append((type(event).__name__, options["durable"]))


def test_what_leaves_the_kernel_is_durable_with_the_first_commit_that_holds_it(tmp_path: Path) -> None:
    """Requests, questions (a planner's and a meta-tool's), timers, waits, the answer and settlements are in no ordinary commit."""
    place, left, alive = Place("ram", tmp_path), list[tuple[str, bool]](), [False, False]

    @tool(side_effect="destructive")
    async def remove() -> str:
        """Remove."""
        return "removed"

    def deadly(name: str, **options: Any) -> Tool[..., Any]:
        async def act() -> str:
            """Take the process with it the first time."""
            if not alive.pop():
                raise Crash
            return "acted"

        return tool(act, name=name, side_effect="write", **options)

    tools = [remove, deadly("lost"), deadly("told", reconcile=lambda _: Happened("it happened"))]
    asked = [ToolCall(tool="ask_user", args={"question": "Why?"}), AskUser(question="Who?"), Schedule(delay_s=0)]
    plans = [*(ToolCall(tool=t.name) for t in tools), *asked, FinalAnswer(content="done")]

    async def other() -> Engine:
        await place.close()
        return engine_on(Leaving(place.store(), left), lambda view: plans[view.iteration - 1], tools)

    async def main() -> None:
        engine = await other()
        await engine.run(agent_of(*tools, "ask_user"), "leave", run_id="run")
        with pytest.raises(Crash):
            await engine.approve("run", "main.1.0", by="Ann")
        engine = await other()
        assert (await engine.resume("run")).status == "waiting_for_reconciliation"
        with pytest.raises(Crash):
            await engine.reconcile("run", "main.2.0", happened=True, result="yes")
        engine = await other()
        assert (await engine.resume("run")).status == "waiting_for_user"
        await engine.reply("run", "because")
        assert (await engine.reply("run", "Ann")).status == "waiting_for_schedule"
        assert (await engine.resume("run")).output == "done"
        assert {kind for kind, _ in left} == {event.__name__ for event in LEAVES}
        assert [kind for kind, durable in left if not durable] == []
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())
