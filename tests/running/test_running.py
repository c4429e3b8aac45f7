"""The engine's verbs: run, step, resume, stream, attach, run_sync, concurrency, approvers. DESIGN 8, 9, 11; rows K1, K5, K8, R8, R19."""

from __future__ import annotations

import asyncio
import gc
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from core.logs import begun, calls, ended, failed, opened, turn
from detent import Agent, Budget, Engine, Host, Suspended, ToolContext, tool
from detent.clock import RandomIds
from detent.core import events as e
from detent.core.errors import ConfigError, DetentError, RunBusy, RunContextMismatch, RunNotFound, ToolsMissing, UnknownName
from detent.core.records import Record
from detent.ports import Chunk
from detent.running.admission import new_run_id, slug
from detent.running.control import Control
from detent.running.results import Result, result_of
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner
from detent.testing.clocks import FakeClock
from kernel.runs import END, Desk, Script, call, engine_for, look, run_async

# Run ids ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("   build___release---artifacts   ", "build-release-artifacts"),
        ("***", "goal"),
        ("", "goal"),
        ("Tidy the Logs", "tidy-the-logs"),
        ("a/b_c d-e", "a-b-c-d-e"),
        ("what's up?", "whats-up"),
        ("ünïcode only: 北京", "ncode-only"),
        ("-x-", "x"),
        ("a\tb\nc", "a-b-c"),
        ("x" * 60, "x" * 48),
        ("a" * 47 + " bcd", "a" * 47),
        ("1 + 1", "1-1"),
    ],
)
def test_a_slug_is_what_the_rule_says(text: str, expected: str) -> None:
    """R19: lower case, ASCII, runs of space - _ / as one dash, at most 48 characters, no dash at an end, never empty."""
    assert slug(text) == expected


def test_a_run_id_says_when_what_and_which() -> None:
    """R19 and the contract: YYYYMMDD-HHMMSS-<slug>-<6 random>, in UTC."""
    assert new_run_id("Tidy logs", datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC), "abc123") == "20260304-050607-tidy-logs-abc123"
    result = Engine(planner=Script([END])).run_sync(Agent(name="w"), "Tidy the logs!")
    assert re.fullmatch(r"\d{8}-\d{6}-tidy-the-logs-[a-z0-9]{6}", result.run_id)
    ids = RandomIds()
    tokens = {ids.token(6) for _ in range(2000)}
    assert len(tokens) == 2000 and all(re.fullmatch("[a-z0-9]{6}", t) for t in tokens)


# Run, step, resume ------------------------------------------------------------------------------------------------------------


def test_a_result_says_everything_about_a_run() -> None:
    """DESIGN 9 and 11."""

    async def main() -> None:
        engine = engine_for(Script([(call("look", n=1), call("slip", n=2)), END]), *Desk().all)
        result = await engine.run(
            Agent(name="w", tools=["look", "slip"]),
            "go",
            variables={"a": 1},
            seed_memory=["m"],
            attachments=["f"],
            output_schema={"type": "string"},
        )
        assert isinstance(result, Result) and (result.status, result.reason, result.output, result.partial, result.error) == (
            "completed",
            "final_answer",
            "the end",
            "",
            None,
        )
        assert (result.iterations, result.usage.tool_calls, result.usage.failures) == (2, 2, 1) and result.state == await engine.load(
            result.run_id
        )
        assert [(i.tool, i.ok) for i in result.tool_calls] == [("look", True), ("slip", False)]
        state = result.state
        assert (state.variables, state.seed_memory, state.attachments, state.output_schema) == (
            {"a": 1},
            ("m",),
            ("f",),
            {"type": "string"},
        )

    run_async(main)


def test_a_run_that_has_ended_leaves_nothing_to_the_garbage_collector() -> None:
    """What advanced it is gone with the last reference: many runs would else keep each other's logs in memory until a collection."""

    async def test() -> int:
        desk = Desk()
        async with engine_for(ScriptedPlanner([call("look"), END]), desk.look) as engine:
            for _ in range(5):
                await engine.run(Agent(name="a", tools=["look"]), "go")
            return len([one for one in gc.get_objects() if isinstance(one, Control) and id(one) not in before])

    gc.collect()
    others = [one for one in gc.get_objects() if isinstance(one, Control)]  # what other tests have left
    before = {id(one) for one in others}
    gc.disable()
    try:
        assert run_async(test) <= 1  # a timer of the watcher may have begun in the last one
    finally:
        gc.enable()


def test_a_planner_sees_what_a_run_was_given() -> None:
    """Variables of the agent under those of the run; memory, attachments, schema, host."""

    async def main() -> None:
        planner = Script([END])
        agent = Agent(name="w", variables={"a": 1, "b": 1}, output_schema={"type": "object"})
        await engine_for(planner).run(
            agent, "go", host=Host(tenant="acme"), variables={"b": 2}, seed_memory=[{"t": 1}], attachments=[{"f": 1}]
        )
        (view,) = planner.views
        assert (view.goal, view.variables, view.memory, view.attachments, view.output_schema) == (
            "go",
            {"a": 1, "b": 2},
            ({"t": 1},),
            ({"f": 1},),
            {"type": "object"},
        )
        assert (view.host.tenant, view.agent.name, view.iteration, view.scope, [i.kind for i in view.transcript]) == (
            "acme",
            "w",
            1,
            "main",
            ["user"],
        )

    run_async(main)


def test_step_does_one_turn_and_the_steps_make_the_run() -> None:
    """K1: a step without a run id creates a run; the log replays."""

    async def main() -> None:
        planner, desk = Script([call("put", n=1), call("put", n=2), END]), Desk()
        engine = engine_for(planner, *desk.all)
        result = await engine.step(Agent(name="w", tools=["put"]), "go")
        seen = [(result.status, result.iterations, list(desk.ran))]
        for _ in range(3):
            result = await engine.step(run_id=result.run_id)
            seen.append((result.status, result.iterations, list(desk.ran)))
        assert [s[:2] for s in seen] == [("running", 1), ("running", 2), ("completed", 3), ("completed", 3)] and desk.ran == [
            ("put", 1),
            ("put", 2),
        ]
        assert (await look(engine, result, planner)).why == ("completed", "final_answer")
        with pytest.raises(ConfigError, match="step needs an agent and a goal, or the id of a run"):
            await engine.step()

    run_async(main)


def test_stepping_or_resuming_a_finished_run_returns_it_and_plans_nothing() -> None:
    """K5."""

    async def main() -> None:
        planner = Script([END])
        engine = engine_for(planner)
        first = await engine.run(Agent(name="w"), "go")
        records = len(await engine.records(first.run_id))
        for again in (await engine.resume(first.run_id), await engine.step(run_id=first.run_id)):
            assert (again.status, again.output) == ("completed", "the end")
        assert len(planner.views) == 1 and len(await engine.records(first.run_id)) == records

    run_async(main)


def test_a_run_is_taken_on_in_another_engine_where_it_stopped() -> None:
    """R8: finished tools are not run again; the usage goes on."""

    async def main() -> None:
        place, desk = RamStore(), Desk()
        first = engine_for(Script([call("put", n=1)]), *desk.all, store=place)
        begun = await first.step(Agent(name="w", tools=["put"]), "go")
        planner = Script([END])
        second = engine_for(planner, *desk.all, store=place)
        done = await look(second, await second.resume(begun.run_id), planner)
        assert done.why == ("completed", "final_answer") and desk.ran == [("put", 1)] and done.result.iterations == 2
        assert [i.content for i in planner.views[0].results] == ["put 1"] and len(done.all(e.RunResumed)) == 1

    run_async(main)


@pytest.mark.parametrize(
    "verb", ["resume", "step", "load", "replay", "verify", "cancel", "erase", "delete", "reopen", "records", "approvals"]
)
def test_an_unknown_run_is_named_by_every_verb(verb: str) -> None:
    """With where it was looked for and how to find what is there."""

    async def main() -> None:
        engine = engine_for(Script([]))
        method: Any = getattr(engine, verb)
        with pytest.raises(RunNotFound, match="no run 'nope' in ram:; `detent list` shows"):
            await (method(run_id="nope") if verb in ("step", "approvals") else method("nope"))

    run_async(main)


# Stream -----------------------------------------------------------------------------------------------------------------------


def test_a_stream_gives_every_record_in_order_and_the_result_last() -> None:
    """Records after their commit; chunks at once; both carry run, goal and iteration."""

    async def main() -> None:
        @tool(side_effect="read")
        async def work(context: ToolContext) -> str:
            """Report progress."""
            context.progress({"half": True})
            await asyncio.sleep(0)
            return "ok"

        engine = engine_for(Script([call("work"), END]), work)
        items = [item async for item in engine.stream(Agent(name="w", tools=["work"]), "go", run_id="r")]
        records = [i for i in items if isinstance(i, Record)]
        assert [r.envelope.seq for r in records] == list(range(1, len(records) + 1)) == [r.envelope.seq for r in await engine.records("r")]
        assert isinstance(items[-1], Result) and items[-1].status == "completed" and len([i for i in items if isinstance(i, Result)]) == 1
        begun, chunk = (i for i in items if isinstance(i, Chunk))
        assert (begun.kind, begun.content, begun.call_id) == ("tool", {"tool": "work", "args": {}, "attempt": 1}, "main.1.0")
        assert (chunk.kind, chunk.content, chunk.run_id, chunk.call_id, chunk.iteration, chunk.agent) == (
            "progress",
            {"half": True},
            "r",
            "main.1.0",
            1,
            "w",
        )

    run_async(main)


def test_leaving_a_stream_does_not_stop_the_run() -> None:
    """It goes on until it ends."""

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Script([call("put", n=1), call("put", n=2), END]), *desk.all)
        async for item in engine.stream(Agent(name="w", tools=["put"]), "go", run_id="r"):
            if isinstance(item, Record):
                break
        ended = asyncio.Event()

        async def watch() -> None:
            while (await engine.load("r")).status == "running":
                await asyncio.sleep(0.001)
            ended.set()

        await asyncio.wait_for(watch(), 60)
        assert ended.is_set() and desk.ran == [("put", 1), ("put", 2)]

    run_async(main)


def test_an_error_of_a_run_comes_out_of_its_stream() -> None:
    """Not swallowed."""

    async def main() -> None:
        engine = engine_for(Script([END]))
        with pytest.raises(ConfigError, match="the goal is empty"):
            async for _ in engine.stream(Agent(name="w"), " "):
                pass

    run_async(main)


# Observers --------------------------------------------------------------------------------------------------------------------


def test_a_failing_observer_fails_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """K9: the others go on being told; engine-wide and run-level ones alike."""

    class Broken:
        def on_record(self, record: Record, state: Any) -> None:
            raise ValueError("observer")

        def on_chunk(self, chunk: Chunk) -> None:
            raise ValueError("observer")

    class Fine:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_record(self, record: Record, state: Any) -> None:
            self.seen.append(record.envelope.seq)

        def on_chunk(self, chunk: Chunk) -> None: ...

    async def main() -> None:
        fine, local = Fine(), Fine()
        engine = engine_for(Script([call("look", n=1), END]), *Desk().all, observers=(Broken(), fine))
        result = await engine.run(Agent(name="w", tools=["look"]), "go", observers=(Broken(), local))
        assert result.status == "completed" and fine.seen == local.seen == list(range(1, result.state.seq + 1))

    run_async(main)
    assert len([r for r in caplog.records if r.name.startswith("detent")]) == 2, "one report a failing observer"


def test_what_is_no_observer_is_refused() -> None:
    """When the engine is made, not when something happens."""
    with pytest.raises(ConfigError, match="which has no on_record"):
        Engine(observers=(object(),))  # type: ignore[arg-type]


def test_every_error_of_the_engine_is_one_of_ours() -> None:
    """A program can catch them all, and tell them apart by code."""
    kinds = (ConfigError, RunNotFound, RunBusy, RunContextMismatch, ToolsMissing, UnknownName, Suspended)
    assert all(issubclass(k, DetentError) for k in kinds) and len({k.code for k in kinds}) == len(kinds)
    assert [k.retryable for k in (RunBusy, Suspended, RunNotFound)] == [True, True, False]


def test_a_clock_and_ids_make_two_runs_the_same_byte_for_byte() -> None:
    """K11: injected; the logs are equal."""

    async def lines() -> list[bytes]:
        engine = engine_for(
            Script([(call("look", n=1), call("slip", n=2)), call("put", n=3), END]), *Desk().all, clock=FakeClock(tick_s=0.25)
        )
        result = await engine.run(Agent(name="w", tools=["look", "put", "slip"]), "go", budget=Budget(max_iterations=9))
        return await engine.store.read(result.run_id)

    async def main() -> None:
        assert await lines() == await lines()

    run_async(main)


def test_nothing_in_a_view_is_the_runs_own() -> None:
    """DESIGN 7: views get fresh plain data; a planner that changes what it was given changes nothing."""

    def vandal(view: Any) -> Any:
        view.attachments[0]["name"] = "changed"
        view.memory[0]["t"] = "changed"
        view.output_schema["type"] = "changed"
        view.variables["a"] = "changed"
        return END

    async def main() -> None:
        engine = engine_for(Script([vandal]))
        given: dict[str, Any] = {
            "attachments": [{"name": "a"}],
            "seed_memory": [{"t": 1}],
            "output_schema": {"type": "string"},
            "variables": {"a": 1},
        }
        state = (await engine.run(Agent(name="w"), "go", **given)).state
        assert (list(state.attachments), list(state.seed_memory), state.output_schema, state.variables) == tuple(given.values())
        assert state == await engine.load(state.run_id)

    run_async(main)


def test_the_tool_calls_of_a_result_are_those_that_got_an_observation_without_meta_tools() -> None:
    """DESIGN 11: executed and refused ones, in index order."""
    log = turn(opened()).add(calls(0, 1, 2, 3), begun("main.1.2"), ended("main.1.2"))
    log.add(e.MetaToolAnswered(call="main.1.1", tool="look", content="known"), failed("main.1.0", "policy_denied"))
    assert [i.call_id for i in result_of(log.state).tool_calls] == ["main.1.0", "main.1.2"]
