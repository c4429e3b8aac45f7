"""What a run and its children say to each other while both work: questions, messages, and a child that continues in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import virtual_time
from amounts import in_check
from detent import Agent, AskUser, Bounds, ChildBounds, Engine, FinalAnswer, Plan, Schedule, Subagent, ToolCall, tool
from detent.core import events as e
from detent.core.errors import ConfigError, NotAllowedNow
from detent.ports import RunQuery, Signal, posted_to
from detent.running.posting import message
from detent.stores.ram import RamStore
from detent.testing import FakeClock
from detent.workers.in_process import InProcessHost
from teams.crashing import Planning, check_tree, run_and_check, survives
from teams.family import call, records_of, wipe
from virtual_time import LoopClock

ASKER = Agent(name="asker", tools=["ask_parent"])
STEERS = ["spawn_agent", "join_agent", "cancel_agent", "message_agent", "agent_status"]
BOSS = Agent(name="boss", tools=STEERS, subagents={"asker": ASKER})


def child_of(view: Any) -> str:
    """Return the id of the child that the boss was told of first."""
    return next(item.content["child"] for item in view.results if item.ok and isinstance(item.content, dict) and "child" in item.content)


def told(view: Any) -> list[str]:
    """Return what a child was told by its parent."""
    return [item.text for item in view.transcript if item.kind == "note"]


def talk(view: Any) -> Any:
    """The child asks for a colour and answers with what it was told; the boss answers each question that it hears of."""
    if view.agent.name == "asker":
        return FinalAnswer(content=told(view)) if told(view) else call("ask_parent", question="which colour?")
    if not view.results:
        return call("agent_asker", goal="paint")
    last = view.results[-1].content
    if isinstance(last, dict) and last["status"] == "asks":
        return call("message_agent", child=last["child"], text=f"{last['question']} blue")
    if isinstance(last, dict) and last["status"] == "sent":
        return call("join_agent", child=last["child"])
    return FinalAnswer(content=last)


def engine_of(plan: Any, store: Any = None, **options: Any) -> Engine:
    """Return an engine whose planners plan so."""
    return Engine(planner=Planning(plan), store=store or RamStore(), approver="caller", **options)


async def events_in(engine: Engine, run_id: str, *kinds: type[Any]) -> list[Any]:
    """Return the events of these kinds in a run's log."""
    return [event for event in await records_of(engine, run_id) if isinstance(event, kinds)]


ANSWERED = ["Your parent says: which colour? blue"]


@in_check
def test_a_child_asks_its_parent_and_is_answered_once_whatever_dies() -> None:
    """The waiting call tells the parent; its words are the parent's and never the user's. Killed at any write, the answer comes once."""
    assert survives(BOSS, talk, few=12) == ANSWERED

    async def main() -> None:
        async with engine_of(talk) as engine:
            done = await run_and_check(engine, BOSS, "go")
            (child,) = done.state.children
            (got,) = await events_in(engine, child, e.MessageReceived, e.UserReplied)
            assert (got.rule, got.by, got.via, got.ask_id) == ("parent", done.run_id, "parent", "main.1.0")
            assert got.origin.run_id == done.run_id and got.call == "main.2.0"

    asyncio.run(main())


def test_a_question_waits_as_rows_and_workers_carry_the_answer() -> None:
    """Neither run needs the other's process."""

    async def main() -> None:
        store = RamStore()
        async with engine_of(talk, store, worker_host=InProcessHost()) as engine:
            await engine.run(BOSS, "go", run_id="run")
        async with engine_of(talk, store.sibling()) as first, engine_of(talk, store.sibling()) as second:
            await asyncio.gather(first.work(until_idle=True), second.work(until_idle=True))
            assert (await first.load("run")).output == ANSWERED
            await check_tree(first)

    virtual_time.run(main())


@pytest.mark.parametrize("listed", [STEERS, ["join_agent"]])
def test_a_person_may_answer_for_the_parent(listed: list[str]) -> None:
    """As any question. A parent that cannot answer is not disturbed, and one that is busy joins what came of it."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            said = [item.text for item in view.transcript if item.kind == "user"][1:]
            return FinalAnswer(content=said) if said else AskUser(question="which colour?", to="parent")
        if not view.results:
            return call("agent_asker", goal="paint")
        last = view.results[-1]
        if isinstance(last.content, dict) and last.tool == "agent_asker":
            return AskUser(question="what shall I tell it?") if not told_user(view) else call("join_agent", child=last.content["child"])
        return FinalAnswer(content=last.content)

    def told_user(view: Any) -> bool:
        return sum(item.kind == "user" for item in view.transcript) > 1

    async def main() -> None:
        async with engine_of(plan) as engine:
            waits = await engine.run(Agent(name="boss", tools=listed, subagents={"asker": ASKER}), "go", run_id="run")
            (child,) = waits.state.children
            assert waits.status == ("waiting_for_user" if "message_agent" in listed else "waiting_for_subagent")
            await engine.reply(child, "red", by="ann")
            if "message_agent" in listed:
                await engine.reply("run", "nothing", by="ann")
            assert (await engine.load("run")).output == ["red"]
            await check_tree(engine)

    asyncio.run(main())


def test_a_message_is_seen_at_the_next_turn_also_by_a_child_that_has_not_begun() -> None:
    """Two children, one at a time: each is told something while the first works and the second queues."""
    go = asyncio.Event

    def plan(view: Any) -> Any:
        if view.agent.name != "boss":
            return call("wait") if not view.results else FinalAnswer(content=told(view))
        children = [item.content["child"] for item in view.results if item.tool == "spawn_agent"]
        if not children:
            return Plan(actions=tuple(call("spawn_agent", agent="worker", goal=f"{n}") for n in range(2)))
        sent = sum(item.tool == "message_agent" for item in view.results)
        if sent < 2:
            return call("message_agent", child=children[sent], text=f"to {sent}")
        if len(view.results) == 4:
            gate.set()
            return Plan(actions=tuple(call("join_agent", child=one) for one in children))
        return FinalAnswer(content=[item.content for item in view.results[-2:]])

    @tool(side_effect="read")
    async def wait() -> str:
        """Wait for the gate."""
        await gate.wait()
        return "went on"

    gate = go()
    worker = Agent(name="worker", tools=[wait])

    async def main() -> None:
        async with engine_of(plan, bounds=Bounds(children=ChildBounds(at_once=1))) as engine:
            done = await run_and_check(engine, Agent(name="boss", tools=STEERS, subagents={"worker": worker}), "go")
            assert done.output == [["Your parent says: to 0"], ["Your parent says: to 1"]]

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_child_continues_while_its_parent_works_and_join_agent_collects_it() -> None:
    """By the call, by the entry, and by `join_agent` itself; a replay needs no clock, and a child that is in time leaves no timer."""

    def plan(view: Any) -> Any:
        if view.agent.name == "sleeper":
            return call("sleep", seconds=float(view.goal)) if not view.results else FinalAnswer(content=f"slept {view.goal}")
        steps = [
            Plan(actions=(call("agent_quick", goal="100"), call("agent_sleeper", goal="1", auto_background=30))),
            call("agent_sleeper", goal="100", auto_background=30),
            call("join_agent", child=child(view, 2), auto_background=30),
            call("join_agent", child=child(view, 0)),
            call("join_agent", child=child(view, 2)),
        ]
        done = view.iteration - 1
        return steps[done] if done < len(steps) else FinalAnswer(content=[item.content for item in view.results])

    def child(view: Any, number: int) -> str:
        return view.results[number].content["child"] if len(view.results) > number else "nobody"

    @tool(side_effect="read")
    async def sleep(seconds: float) -> str:
        """Sleep."""
        await asyncio.sleep(seconds)
        return "slept"

    sleeper = Agent(name="sleeper", tools=[sleep])
    boss = Agent(name="boss", tools=["join_agent"], subagents={"sleeper": sleeper, "quick": Subagent(sleeper, auto_background="5s")})

    async def main() -> None:
        async with engine_of(plan, clock=LoopClock()) as engine:
            done = await run_and_check(engine, boss, "go")
            quick, slow, *later = done.output
            assert (quick["status"], slow) == ("running", "slept 1")
            assert [one if isinstance(one, str) else one["status"] for one in later] == ["running", "running", "slept 100", "slept 100"]
            assert done.state.timers == {} and {one.status for one in done.state.children.values()} == {"completed"}
            assert len(await events_in(engine, done.run_id, e.SubagentReleased)) == 3
            assert await events_in(engine, done.run_id, e.ScheduleFired) == []

    virtual_time.run(main())


def test_a_parent_that_waits_as_rows_is_woken_when_the_time_has_come() -> None:
    """With workers the timer makes it due, as any timer does."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            return AskUser(question="anything?")
        return FinalAnswer(content=view.results[0].content["status"]) if view.results else call("agent_asker", goal="x", auto_background=60)

    async def main() -> None:
        store = RamStore()
        async with engine_of(plan, store, worker_host=InProcessHost(), clock=LoopClock()) as engine:
            await engine.run(Agent(name="boss", tools=["join_agent"], subagents={"asker": ASKER}), "go", run_id="run")
        async with engine_of(plan, store.sibling(), clock=LoopClock()) as worker:
            await worker.work(until_idle=True)
            assert (await worker.load("run")).status == "waiting_for_subagent"
            await asyncio.sleep(61)
            await worker.work(until_idle=True)
            assert (await worker.load("run")).output == "running"
            await check_tree(worker)

    virtual_time.run(main())


def test_agent_status_says_how_far_children_are() -> None:
    """Of one or of all; what it returns is untrusted, because children wrote a part of it."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            return Plan(actions=(call("ask_parent", question="which colour?"),), text="I am painting")
        steps = [call("agent_asker", goal="paint"), call("agent_status"), call("agent_status", child="nobody")]
        done = len(view.results)
        return (
            steps[done]
            if done < len(steps)
            else FinalAnswer(content=[one.content if one.ok else one.error.code for one in view.results[1:]])
        )

    async def main() -> None:
        async with engine_of(plan) as engine:
            done = await run_and_check(engine, BOSS, "go")
            (status,), unknown = done.output
            assert (status["status"], status["turns"], status["last_words"]) == ("waiting_for_user", 1, "I am painting")
            assert (status["asks"], unknown) == ("which colour?", "unknown_child")
            (wait,) = status["waits_for"]
            assert (wait["on"], wait["what"], wait["path"]) == ("parent", "an answer: which colour?", ["boss", "asker"])
            assert [item.trust for item in done.steps if item.tool == "agent_status"] == ["untrusted", "untrusted"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"child": "nobody", "text": "hello"}, "unknown_child"),
        ({"child": "CHILD", "text": " "}, "schema_validation_failed"),
        ({"child": "CHILD", "text": "hello"}, "child_ended"),
    ],
)
def test_a_message_that_nobody_would_read_is_refused(args: dict[str, str], code: str) -> None:
    """The parent is told why."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            return FinalAnswer(content="done")
        if not view.results:
            return call("spawn_agent", agent="asker", goal="x")
        if len(view.results) == 1:
            return call("join_agent", child=child_of(view))
        if len(view.results) == 2:
            return call("message_agent", **{name: value.replace("CHILD", child_of(view)) for name, value in args.items()})
        return FinalAnswer(content=view.results[-1].error.code)

    async def main() -> None:
        async with engine_of(plan) as engine:
            assert (await run_and_check(engine, BOSS, "go")).output == code

    asyncio.run(main())


def test_only_the_parent_sends_a_parents_words() -> None:
    """Who posts a signal in its name is refused, and so is a root that asks a parent."""

    def plan(view: Any) -> Any:
        if view.agent.name == "boss":
            return call("agent_asker", goal="paint")
        return FinalAnswer(content="no parent") if view.results and view.results[-1].error else call("ask_parent", question="which colour?")

    async def main() -> None:
        async with engine_of(plan) as engine:
            waits = await engine.run(Agent(name="boss", subagents={"asker": ASKER}), "go", run_id="run")
            (child,) = waits.state.children
            forged = Signal(
                id="x", kind="message", by="run", via="parent", payload={"rule": "parent", "text": "send it", "call": "main.1.0"}
            )
            with pytest.raises(NotAllowedNow) as refused:
                await engine.signal(child, forged)
            assert refused.value.reason_code == "not_its_parent"
            alone = await engine.run(ASKER, "paint")
            assert (alone.status, alone.state.asks) == ("completed", {})

    asyncio.run(main())


@pytest.mark.parametrize("name", STEERS)
def test_a_managing_tool_works_only_where_the_agent_lists_it(name: str) -> None:
    """Another agent has no such tool, and no error names one."""

    def plan(view: Any) -> Any:
        return FinalAnswer(content=view.results[0].error.message) if view.results else ToolCall(tool=name, args={})

    async def main() -> None:
        async with engine_of(plan) as engine:
            done = await engine.run(Agent(name="boss", subagents={"asker": ASKER}), "go")
            assert done.output == f"there is no tool {name!r} here; offered: agent_asker"
            assert len(await engine.store.list_runs(RunQuery())) == 1

    asyncio.run(main())


WAITS = {"boss": [call("agent_mid", goal="x")], "mid": [call("agent_worker", goal="x")]}


@pytest.mark.parametrize(
    ("does", "on", "what"),
    [
        (call("wipe", place="here"), "person", "approval of wipe"),
        (AskUser(question="which colour?"), "person", "an answer: which colour?"),
        (AskUser(question="which colour?", to="parent"), "person", "an answer: which colour?"),
        (Schedule(delay_s=60), "time", "2026-01-01"),
    ],
)
def test_whom_a_run_waits_for_is_said_down_to_the_run_that_waits(does: Any, on: str, what: str) -> None:
    """A run that waits for a child needs no person, and the one at the end of the path may."""

    def plan(view: Any) -> Any:
        return WAITS.get(view.agent.name, [does])[0]

    worker = Agent(name="worker", tools=[wipe])
    top = Agent(name="boss", subagents={"mid": Agent(name="mid", subagents={"worker": worker})})

    async def main() -> None:
        async with engine_of(plan, clock=FakeClock()) as engine:
            waiting = await engine.run(top, "go", run_id="run")
            (wait,) = await engine.waits("run")
            assert waiting.status == "waiting_for_subagent" and wait.path == ("boss", "mid", "worker") and wait.run_id != "run"
            assert (wait.on, wait.what.startswith(what)) == (on, True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Agent(name="boss", subagents={"status": ASKER}), "'agent_status', which reports on children"),
        (lambda: Agent(name="boss", subagents={"asker": Subagent(ASKER, auto_background=5)}), "add 'join_agent' to tools"),
        (lambda: Subagent(ASKER, auto_background="soon"), "auto_background is 'soon'"),
        (lambda: Subagent(ASKER, auto_background=0), "above 0"),
        (lambda: Subagent(ASKER, on_parent_end="kill"), "on_parent_end is 'kill'"),  # type: ignore[arg-type]
    ],
)
def test_an_entry_that_cannot_work_is_refused_where_it_is_written(made: Any, why: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError, match=why):
        made()


@pytest.mark.parametrize(("said", "ends"), [(None, "wait"), ("leave", "leave")])
def test_the_entry_has_the_defaults_of_calls(said: str | None, ends: str) -> None:
    """For agents and for names of agents; what a call says itself counts first."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            return FinalAnswer(content="done")
        args = {"goal": "x", **({"on_parent_end": said} if said else {})}
        calls = [call("agent_one", **args), call("spawn_agent", agent="asker", **args)]
        return FinalAnswer(content="done") if view.results else Plan(actions=tuple(calls))

    entries = {"one": Subagent(ASKER, on_parent_end="wait"), "asker": Subagent("asker", on_parent_end="wait")}

    async def main() -> None:
        async with engine_of(plan, agents=[ASKER]) as engine:
            done = await run_and_check(engine, Agent(name="boss", tools=STEERS, subagents=entries), "go")
            assert [one.spawned.on_parent_end for one in done.state.children.values()] == [ends, ends]

    asyncio.run(main())


def test_a_fork_talks_to_its_own_children_only() -> None:
    """A child that was open belongs to the run above: it takes no message of the fork, which starts its own when it joins it."""

    def plan(view: Any) -> Any:
        refused = [item.error.code for item in view.results if item.error is not None]
        if view.agent.name == "boss" and refused:
            rest = [item for item in view.results if item.tool != "message_agent" or item.ok]
            if len(rest) == 1:
                return call("join_agent", child=rest[0].content["child"])
            last = rest[-1].content
            if isinstance(last, dict):
                return call("message_agent" if last["status"] == "asks" else "join_agent", child=last["child"], **TEXT[last["status"]])
            return FinalAnswer(content=[*refused, *last])
        return talk(view)

    TEXT = {"asks": {"text": "red"}, "sent": {}}  # noqa: N806 - of the fork

    async def main() -> None:
        async with engine_of(plan) as engine:
            done = await run_and_check(engine, BOSS, "go")
            (child,) = done.state.children
            events = await records_of(engine, done.run_id)
            at = next(number for number, event in enumerate(events, 1) if isinstance(event, e.SubagentReleased))
            before = (await engine.load(child)).seq
            fork = await engine.fork(done.run_id, at=at, effects="redo")
            assert fork.output == ["not_inherited", "Your parent says: red"] and (await engine.load(child)).seq == before
            assert (await engine.replay(fork.run_id)).identical

    asyncio.run(main())


def test_a_fork_of_a_child_has_no_parent_to_ask() -> None:
    """It asks again and is told; the run above hears nothing of it."""

    def plan(view: Any) -> Any:
        if view.agent.name == "asker":
            return FinalAnswer(content=told(view)) if told(view) else AskUser(question="which colour?", to="parent")
        return AskUser(question="what shall I say?") if view.results else call("agent_asker", goal="paint")

    async def main() -> None:
        async with engine_of(plan) as engine:
            waits = await engine.run(BOSS, "go", run_id="run")
            (child,) = waits.state.children
            fork = await engine.fork(child, effects="redo")
            assert fork.output == ["This run has no parent to ask."]
            assert (await engine.load("run")).seq == waits.state.seq and await engine.store.signals(["run"]) == {}
            assert (await engine.replay(fork.run_id)).identical

    asyncio.run(main())


def test_the_next_message_of_a_session_answers_a_question_that_no_parent_can() -> None:
    """As it answers any question of the run or of a child of it, at any depth."""

    def plan(view: Any) -> Any:
        if view.agent.name == "boss":
            return FinalAnswer(content=view.results[0].content) if view.results else call("agent_asker", goal="paint")
        said = [item.text for item in view.transcript if item.kind == "user"][1:]
        return FinalAnswer(content=said[0]) if said else call("ask_parent", question="which colour?")

    async def main() -> None:
        async with engine_of(plan) as engine:
            session = engine.session(Agent(name="boss", subagents={"asker": ASKER}))
            assert (await session.send("paint the door")).status == "waiting_for_subagent"
            assert (await session.send("red")).output == "red"

    asyncio.run(main())


def test_a_message_that_is_posted_again_is_the_same_message() -> None:
    """As by a store that was restored from a backup: the call says which message it is."""

    def plan(view: Any) -> Any:
        return AskUser(question="and now?") if view.agent.name == "asker" and told(view) else talk(view)

    async def main() -> None:
        async with engine_of(plan) as engine:
            waits = await engine.run(BOSS, "go", run_id="run")
            (child,) = waits.state.children
            (sent,) = await events_in(engine, "run", e.SubagentMessaged)
            before = (await engine.load(child)).seq
            await engine.store.post(child, msgspec.structs.replace(posted_to(child, message("run", sent)), id="again"))
            await engine.resume(child)
            assert (waits.status, len(await events_in(engine, child, e.MessageReceived))) == ("waiting_for_subagent", 1)
            assert (await engine.load(child)).seq == before and await engine.store.signals([child]) == {}

    asyncio.run(main())
