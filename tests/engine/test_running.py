"""The engine's verbs: run, step, resume, stream, attach, run_sync, concurrency, approvers. DESIGN 8, 9, 11; rows K1, K5, K8, R8, R19."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Host, Suspended, ToolContext, tool
from detent.clock import RandomIds, new_run_id, slug
from detent.core import events as e
from detent.core.errors import ConfigError, DetentError, RunBusy, RunContextMismatch, RunNotFound, ToolsMissing, UnknownName
from detent.core.records import Record
from detent.ports import Chunk
from detent.results import Result
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from kernel.runs import END, Desk, Script, call, engine_for, look, run_async

# Run ids ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("   build___release---artifacts   ", "build-release-artifacts"), ("***", "goal"), ("", "goal"), ("Tidy the Logs", "tidy-the-logs"), ("a/b_c d-e", "a-b-c-d-e"),
        ("what's up?", "whats-up"), ("ünïcode only: 北京", "ncode-only"), ("-x-", "x"), ("a\tb\nc", "a-b-c"), ("x" * 60, "x" * 48), ("a" * 47 + " bcd", "a" * 47), ("1 + 1", "1-1"),
    ],
)  # fmt: skip
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


# Attach -----------------------------------------------------------------------------------------------------------------------


def test_running_with_the_id_of_a_run_takes_it_on() -> None:
    """DESIGN 8: same agent, goal and host."""

    async def main() -> None:
        planner, desk = Script([call("put", n=1), END]), Desk()
        engine = engine_for(planner, *desk.all)
        agent, host = Agent(name="w", tools=["put"]), Host(tenant="acme", workspace="w", principal="ann")
        await engine.run(agent, "go", run_id="r", host=host, turns=1)
        done = await engine.run(agent, "go", run_id="r", host=host)
        again = await engine.run(agent, "go", run_id="r", host=host)
        assert (done.status, again.output, desk.ran, done.run_id) == ("completed", "the end", [("put", 1)], "r")

    run_async(main)


@pytest.mark.parametrize(
    ("change", "field", "received"),
    [
        ({"agent": Agent(name="other")}, "agent", "other"),
        ({"goal": "elsewhere"}, "goal", "elsewhere"),
        ({"host": Host(workspace="w", principal="ann")}, "host.tenant", ""),
        ({"host": Host(tenant="acme", principal="ann")}, "host.workspace", ""),
        ({"host": Host(tenant="acme", workspace="w", principal="bob")}, "host.principal", "bob"),
    ],
)
def test_running_with_the_id_of_another_run_is_an_error_that_says_what_differs(change: dict[str, Any], field: str, received: str) -> None:
    """K8: a list of {field, expected, received}; nothing is recorded."""

    async def main() -> None:
        engine = engine_for(Script([END]))
        given: dict[str, Any] = {"agent": Agent(name="w"), "goal": "go", "host": Host(tenant="acme", workspace="w", principal="ann")}
        await engine.run(**given, run_id="r")
        records = len(await engine.records("r"))
        with pytest.raises(RunContextMismatch, match=re.escape(field)) as caught:
            await engine.run(**{**given, **change}, run_id="r")
        (mismatch,) = caught.value.mismatches
        assert set(mismatch) == {"field", "expected", "received"} and (mismatch["field"], mismatch["received"]) == (field, received)
        assert len(await engine.records("r")) == records

    run_async(main)


# Tools ------------------------------------------------------------------------------------------------------------------------


def test_an_agent_that_lists_an_unknown_tool_does_not_start() -> None:
    """The nearest name is given; nothing is recorded."""

    async def main() -> None:
        engine = engine_for(Script([END]), *Desk().all)
        with pytest.raises(UnknownName, match="unknown tool 'lok'; did you mean 'look'"):
            await engine.run(Agent(name="w", tools=["lok"]), "go")
        assert await engine.list_runs() == []

    run_async(main)


def test_a_run_is_not_resumed_without_its_tools() -> None:
    """`ToolsMissing(names)`; with them it goes on."""

    async def main() -> None:
        place, desk = RamStore(), Desk()
        begun = await engine_for(Script([call("put", n=1)]), *desk.all, store=place).step(
            Agent(name="w", tools=["put", "look", "slip"]), "go"
        )
        bare = engine_for(Script([END]), desk.look, store=place)
        for verb in (bare.resume, bare.replay):
            with pytest.raises(ToolsMissing, match="put, slip") as caught:
                await verb(begun.run_id)
            assert caught.value.names == ["put", "slip"]
        assert (await engine_for(Script([END]), *desk.all, store=place).resume(begun.run_id)).status == "completed"

    run_async(main)


def test_tools_that_an_agent_brings_are_registered_once() -> None:
    """The same object again is a no-op, another under its name an error."""

    async def main() -> None:
        one, other = Desk(), Desk()
        engine = engine_for(Script([END] * 3))
        for _ in range(2):
            await engine.run(Agent(name="w", tools=[one.look]), "go")
        with pytest.raises(ConfigError, match="look"):
            await engine.run(Agent(name="w", tools=[other.look]), "go")

    run_async(main)


def test_a_resume_says_what_changed_in_the_code() -> None:
    """`RunResumed.changed` names a tool whose schema is another, a policy, a kernel; nothing when all is the same."""

    async def main() -> None:
        from detent.kernel.kernel import make_kernel
        from kernel.runs import Allow

        place, desk = RamStore(), Desk()

        @tool(name="look", side_effect="read")
        async def other_look(n: int = 0, more: str = "") -> int:
            """Look differently."""
            return n

        begun = await engine_for(Script([call("look", n=1)]), *desk.all, store=place).step(Agent(name="w", tools=["look", "put"]), "go")
        await engine_for(Script([call("look", n=2)]), *desk.all, store=place).step(run_id=begun.run_id)
        others = {"policy": Allow(), "kernel": make_kernel(version=2)}
        engine = engine_for(Script([END]), other_look, desk.put, store=place, **others)
        result = await engine.resume(begun.run_id)
        changed = [r.event.changed for r in await engine.records(result.run_id) if isinstance(r.event, e.RunResumed)]
        assert changed == [(), ("kernel", "policy", "tool:look")]

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
        (chunk,) = [i for i in items if isinstance(i, Chunk)]
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

        await asyncio.wait_for(watch(), 10)
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


# Concurrency and claims -------------------------------------------------------------------------------------------------------


def test_two_engines_never_advance_one_run_at_once() -> None:
    """The loser says who holds it, and does nothing; so does the same engine."""

    async def main() -> None:
        place = RamStore()
        begun, gate, ran = asyncio.Event(), asyncio.Event(), []

        @tool(side_effect="write", timeout_s=None)
        async def work() -> str:
            """Work until let go."""
            ran.append(1)
            begun.set()
            await gate.wait()
            return "ok"

        first = engine_for(Script([call("work"), END]), work, store=place)
        second = engine_for(Script([END]), work, store=place.sibling())
        running = asyncio.create_task(first.run(Agent(name="w", tools=["work"]), "go", run_id="r"))
        await begun.wait()
        for other in (second, first):
            with pytest.raises(RunBusy, match="is being advanced by"):
                await other.resume("r")
        gate.set()
        assert (await running).status == "completed" and ran == [1]
        assert (await second.resume("r")).status == "completed"

    run_async(main)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_an_engine_advances_no_more_runs_at_once_than_it_was_told(limit: int) -> None:
    """`max_concurrent_runs`; all end, and so many do run at once."""

    async def main() -> None:
        now, most, full = 0, 0, asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def work() -> str:
            """Meet the others."""
            nonlocal now, most
            now += 1
            most = max(most, now)
            if now == limit:
                full.set()
            await full.wait()
            await asyncio.sleep(0)
            now -= 1
            return "ok"

        engine = engine_for(Script([call("work"), END]), work, max_concurrent_runs=limit)
        results = await asyncio.gather(*(engine.run(Agent(name="w", tools=["work"]), f"go {n}") for n in range(6)))
        assert most == limit and {r.status for r in results} == {"completed"} and len({r.run_id for r in results}) == 6

    run_async(main)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_lets_nothing_run_is_refused(limit: int) -> None:
    """An explicit 0 is not "no limit"."""
    with pytest.raises(ConfigError, match=f"max_concurrent_runs is {limit}"):
        Engine(max_concurrent_runs=limit)


def test_concurrent_runs_share_nothing() -> None:
    """Lesson L21: 20 runs of one agent, each with its own state and answer."""

    async def main() -> None:
        desk = Desk()
        script = [
            lambda view: call("look", n=int(view.goal)),
            lambda view: FinalAnswer(content=[view.goal, view.results[-1].content, view.scratchpad]),
        ]
        engine = engine_for(Script(script), *desk.all)
        results = await asyncio.gather(*(engine.run(Agent(name="w", tools=["look"]), str(n)) for n in range(20)))
        assert [r.output for r in results] == [[str(n), {"n": n}, {}] for n in range(20)] and sorted(desk.ran) == [
            ("look", n) for n in range(20)
        ]

    run_async(main)


# Approvers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("answer", [True, False])
def test_an_approver_of_the_program_answers_at_once(answer: bool, is_async: bool) -> None:
    """A function of the request, sync or async; the run does not come back waiting."""

    async def main() -> None:
        asked: list[Any] = []

        def approver(request: Any) -> bool:
            asked.append((request.tool, request.args))
            return answer

        async def later(request: Any) -> bool:
            await asyncio.sleep(0)
            return approver(request)

        desk = Desk()
        planner = Script([call("wipe", n=1), call("wipe", n=2), END])
        engine = engine_for(planner, *desk.all, approver=later if is_async else approver)
        done = await look(engine, await engine.run(Agent(name="w", tools=["wipe"]), "go"), planner)
        assert done.why == ("completed", "final_answer") and asked == [("wipe", {"n": 1}), ("wipe", {"n": 2})]
        assert desk.ran == ([("wipe", 1), ("wipe", 2)] if answer else []) and done.codes == ["" if answer else "approval_rejected"] * 2

    run_async(main)


def test_an_approver_that_fails_leaves_the_run_waiting() -> None:
    """Its error comes out; nothing was executed; somebody else can answer."""

    async def main() -> None:
        def approver(request: Any) -> bool:
            raise ZeroDivisionError("no")

        desk = Desk()
        engine = engine_for(Script([call("wipe", n=1), END]), *desk.all, approver=approver)
        with pytest.raises(ZeroDivisionError):
            await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id="r")
        assert (await engine.load("r")).status == "waiting_for_approval" and desk.ran == []

    run_async(main)


# Sync and suspension ----------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
sys.path[:0] = {paths!r}
from detent import Agent, Engine, Suspended, tool
from kernel.runs import END, Script, call

@tool(side_effect="write", timeout_s=None)
async def put(n: int) -> str:
    with open({effects!r}, "a") as f:
        f.write(str(n))
    return "ok"

@tool(side_effect="read", timeout_s=None)
async def hang() -> str:
    print("hanging", flush=True)
    await asyncio.Event().wait()
    return ""

engine = Engine(store={url!r}, planner=Script([call("put", n=1), call("hang"), END]), tools=[put, hang])
try:
    engine.run_sync(Agent(name="w", tools=["put", "hang"]), "go", run_id="r")
except Suspended as error:
    print("suspended", error.run_id, error.why, flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_ctrl_c_and_sigterm_suspend_a_run_that_can_be_resumed(tmp_path: Path, number: int, name: str) -> None:
    """DESIGN 4: the claim is released, nothing finished; `Suspended` is raised; another process goes on and repeats nothing."""
    effects, url = tmp_path / "effects", f"sqlite:///{tmp_path / 'runs.db'}"
    root = Path(__file__).resolve().parents[2]
    program = CHILD.format(paths=[str(root / "src"), str(root / "tests")], effects=str(effects), url=url)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "hanging\n"
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (5, f"suspended r {name}\n", "")

    async def main() -> None:
        @tool(side_effect="write")
        async def put(n: int) -> str:
            """Put."""
            effects.write_text(effects.read_text() + str(n))
            return "ok"

        @tool(side_effect="read")
        async def hang() -> str:
            """Do not hang any more."""
            return "free"

        async with Engine(store=url, planner=Script([END]), tools=[put, hang]) as engine:
            assert (await engine.load("r")).status == "running"
            result = await engine.resume("r")
            assert (result.status, result.tool_calls[0].content, effects.read_text()) == ("completed", "ok", "1")
            assert (await engine.replay("r")).identical

    run_async(main)


def test_closing_an_engine_suspends_its_runs() -> None:
    """Nothing is finished; `run` raises; the next engine goes on."""

    async def main() -> None:
        place, begun = RamStore(), asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def hang() -> str:
            """Hang once."""
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return "free"

        engine = engine_for(Script([call("hang"), END]), hang, store=place)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["hang"]), "go", run_id="r"))
        await begun.wait()
        await engine.close()
        with pytest.raises(Suspended, match="the engine is closing"):
            await running
        after = engine_for(Script([END]), hang, store=place)
        assert (await after.load("r")).status == "running" and (await after.resume("r")).status == "completed"

    run_async(main)


def test_run_sync_works_from_a_thread_and_leaves_signals_as_they_were() -> None:
    """Also where no signal handler can be set."""
    import threading

    before = signal.getsignal(signal.SIGINT)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(Engine(planner=Script([END])).run_sync(Agent(name="w"), "go")))
    thread.start()
    thread.join(20)
    results.append(Engine(planner=Script([END])).run_sync(Agent(name="w"), "go"))
    assert [r.status for r in results] == ["completed"] * 2 and signal.getsignal(signal.SIGINT) is before


def test_an_engine_can_be_used_again_after_run_sync() -> None:
    """Each call has an event loop of its own."""
    engine = Engine(planner=Script([END]))
    assert [engine.run_sync(Agent(name="w"), "go").status for _ in range(2)] == ["completed"] * 2


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
    with pytest.raises(TypeError):
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
