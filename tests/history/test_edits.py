"""What a fork may begin with instead: each kind of edit, what it changes and what it leaves, and what is refused before anything is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Budget, FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import BudgetRefused, ConfigError, UnknownName
from detent.engine import Engine
from detent.stores.ram import RamStore
from history.family import NAMES, Tools, events, finish, make_engine, parent_of, run_async
from laws.places import agent_of, engine_on

pytestmark = thinned


async def forked(engine: Engine, at: int, **edits: Any) -> str:
    """Fork with these edits, let the fork end, check that its replay is identical, and return its output."""
    made = await engine.fork("parent", at=at, edits=edits, resume=False)
    result = await finish(engine, made.run_id)
    replayed = await engine.replay(made.run_id)
    assert replayed.identical, replayed.divergence
    assert (await engine.load(made.run_id)).fork_edits.keys() == edits.keys()
    return result.output


async def places(engine: Engine) -> dict[str, int]:
    """Return the last record of each kind in the parent's log, by name."""
    return {type(record.event).__name__: record.envelope.seq for record in await engine.records("parent")}


def test_goal_and_variables_are_the_forks_own() -> None:
    """The planner sees the new goal, also as the beginning of its transcript; variables are merged; the goal's id stays."""

    async def main() -> None:
        async with make_engine("ram:", Tools()) as engine:
            parent = await parent_of(engine)
            output = await forked(engine, 10, goal="wash up", variables={"where": "here"})
            assert output == parent.output.replace("clean up", "wash up").replace("{'who': 'ann'}", "{'who': 'ann', 'where': 'here'}")
            made = await engine.fork("parent", at=10, edits={"goal": "wash up"}, resume=False)
            assert (made.state.goal, made.state.goal_id) == ("wash up", "parent")
            assert made.state.passes["main"].steps[0].text == "wash up"
            (head,) = [head for head in await engine.list_runs() if head.run_id == made.run_id]
            assert head.goal == "wash up"

    run_async(main)


def test_the_result_of_a_call_is_replaced_wherever_it_is_seen() -> None:
    """A success becomes another, or a failure; a failure becomes a success; of the current turn and of earlier ones, and of a call not made yet."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            parent = await parent_of(engine)
            at = await places(engine)
            assert "seen 1" in parent.output and "no 3" not in parent.output and "handler_error" in parent.output
            end = at["PassFinished"] - 3
            assert await forked(engine, end, results={"main.1.0": "nothing"}) == parent.output.replace("seen 1", "nothing")
            assert await forked(engine, end, results={"main.1.0": {"error": "blind"}}) == parent.output.replace("seen 1", "handler_error")
            code = {"error": {"code": "gone", "message": "it went"}}
            assert await forked(engine, end, results={"main.1.0": code}) == parent.output.replace("seen 1", "gone")
            assert await forked(engine, end, results={"main.3.0": 3}) == parent.output.replace("handler_error", "3", 1)
            asked = events(await engine.records("parent"), e.ApprovalRequested)
            assert [one.call for one in asked] == ["main.5.0"]
            waiting = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.ApprovalRequested))
            made = await engine.fork("parent", at=waiting, edits={"results": {"main.5.0": "as if"}})
            assert made.output == parent.output.replace("x is gone", "as if"), "a call that has its outcome is not asked for"
            assert (await engine.replay(made.run_id)).identical

    run_async(main)


def test_what_fails_a_run_can_be_made_good_again() -> None:
    """A fatal result edited away, while its turn is open: the fork goes on."""

    async def main() -> None:
        from detent import FatalToolError

        @tool(side_effect="read")
        async def probe() -> str:
            """Fail for good."""
            raise FatalToolError("the disk is on fire")

        def plan(view: View) -> Any:
            return ToolCall(tool="probe") if view.iteration == 1 else FinalAnswer(content=f"found {view.results[0].content}")

        async with engine_on("ram:", plan, [probe]) as engine:
            parent = await engine.run(agent_of("probe"), "probe", run_id="parent")
            assert parent.reason == "fatal_tool_error"
            at = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.ToolFinished))
            assert (await engine.fork("parent", at=at)).reason == "fatal_tool_error"
            assert await forked(engine, at, results={"main.1.0": "all well"}) == "found all well"
            assert await forked(engine, parent.state.seq, results={"main.1.0": "all well"}) == "found all well", "also after its end"

    run_async(main)


def test_a_reply_is_given_or_replaced() -> None:
    """One that was given is another; one that the parent waits for is answered in the fork alone."""

    async def main() -> None:
        async with make_engine("ram:", Tools()) as engine:
            waits = await engine.run(agent_of(*NAMES), "clean up", run_id="parent", variables={"who": "ann"})
            (ask,) = waits.state.asks
            made = await engine.fork("parent", edits={"replies": {ask: "red"}}, resume=False)
            assert (made.state.asks, made.state.status) == ({}, "running")
            red = await finish(engine, made.run_id)
            assert "| red |" in red.output and (await engine.replay(made.run_id)).identical
            assert (await engine.load("parent")).status == "waiting_for_user"
            parent = await finish(engine, "parent")
            assert await forked(engine, parent.state.seq - 3, replies={ask: "green"}) == parent.output.replace("| blue |", "| green |")

    run_async(main)


def test_parts_of_the_agent_are_edited_by_their_names() -> None:
    """Who plans, what may be called, what is decided: the fork's turns go by what it was given, the parent's stay as they were."""

    async def main() -> None:
        seen: list[tuple[str, str, float, list[str]]] = []

        class Watching:
            async def plan(self, view: View) -> Plan:
                settings = view.agent.model_settings.get("temperature", 0.0)
                seen.append((view.agent.instructions, view.agent.small_model, settings, [spec.name for spec in view.tools]))
                if view.iteration < 3:
                    return Plan(actions=(ToolCall(tool="note", args={"text": str(view.iteration)}),))
                return Plan(actions=(FinalAnswer(content=str([item.content if item.ok else "refused" for item in view.results])),))

        tools = Tools()
        async with make_engine("ram:", tools, Watching()) as engine:
            await engine.run(Agent(name="worker", tools=["note"], instructions="be nice"), "go", run_id="parent")
            turns = [r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.TurnStarted)]
            seen.clear()
            edits = {"instructions": "be quick", "small_model": "x:y", "model_settings": {"temperature": 0.5}, "tools": ["look"]}
            made = await engine.fork("parent", at=turns[1] - 1, edits=edits)
            assert set(map(str, seen)) == {str(("be quick", "x:y", 0.5, ["look"]))}
            assert [item.error and item.error.code for item in made.tool_calls] == [None, "tool_not_found"]
            assert (await engine.replay(made.run_id)).identical
            strict = {"rules": [{"id": "no", "tool": "note", "decision": "deny", "reason": "not in a fork"}]}
            denied = await engine.fork("parent", at=turns[1] - 1, edits={"policy": strict}, effects="redo")
            assert denied.tool_calls[1].error is not None and denied.tool_calls[1].error.code == "policy_denied"
            (resumed,) = events(await engine.records(denied.run_id), e.RunResumed)
            assert (await engine.replay(denied.run_id)).identical, resumed
            assert (await engine.load("parent")).agent.instructions == "be nice"
            again = await engine.fork(denied.run_id, at=2, resume=False)
            assert again.state.agent.policy == strict, "a fork of a fork begins with the edited agent"

    run_async(main)


def test_a_strategy_and_a_kernel_are_edited() -> None:
    """The fork's passes were begun for other code on purpose, and no divergence is raised."""

    async def main() -> None:
        from detent.kernel.act import act
        from detent.kernel.kernel import make_kernel
        from detent.kernel.think import think

        async def twice(run: Any) -> Any:
            first = await run.kernel("main")
            return f"{first.output}, then {(await run.kernel('again', task='check it')).output}"

        def plan(view: View) -> Any:
            return FinalAnswer(content=f"answer to {view.task}")

        slow = make_kernel(phases=(think, act), name="slow", version=7)
        async with engine_on("ram:", plan, strategies={"twice": twice}, kernels={"slow": slow}) as engine:
            await engine.run(agent_of(), "go", run_id="parent")
            made = await engine.fork("parent", edits={"strategy": "twice"})
            assert made.output == "answer to go, then answer to check it"
            assert (await engine.replay(made.run_id)).identical
            other = await engine.fork("parent", at=3, edits={"kernel": "slow"})
            assert (other.output, (await engine.replay(other.run_id)).identical) == ("answer to go", True)

    run_async(main)


@pytest.mark.parametrize(
    ("edits", "error", "said"),
    [
        ({"modle": "x"}, UnknownName, "did you mean 'model'"),
        ({"name": "other"}, UnknownName, "part of a run"),
        ({"goal": "  "}, ConfigError, "empty"),
        ({"goal": 3}, ConfigError, "give text"),
        ({"variables": [1]}, ConfigError, "give an object"),
        ({"variables": {"x": object()}}, ConfigError, "JSON"),
        ({"budget": {"max_iteration": 3}}, UnknownName, "did you mean 'max_iterations'"),
        ({"budget": {"max_iterations": "many"}}, ConfigError, "budget"),
        ({"budget": {"max_iterations": 0}}, BudgetRefused, "above 0"),
        ({"budget": {"max_iterations": 5000}}, BudgetRefused, "ceiling"),
        ({"budget": {"max_calls_of": {"nots": 3}}}, UnknownName, "did you mean 'note'"),
        ({"budget": Budget(max_calls_of={"nots": 3})}, UnknownName, "did you mean 'note'"),
        ({"model": 3}, ConfigError, "does not fit"),
        ({"on_deny": "shout"}, ConfigError, "does not fit"),
        ({"tools": ["nothing"]}, UnknownName, "unknown tool 'nothing'"),
        ({"strategy": "nothing"}, UnknownName, "strategy"),
        ({"kernel": "nothing"}, UnknownName, "kernel"),
        ({"guards": ["nothing"]}, ConfigError, "nothing"),
        ({"results": {"main.9.0": 1}}, ConfigError, r"no call 'main\.9\.0' up to record 20"),
        ({"results": {"main.5.0": 1}}, ConfigError, r"no call 'main\.5\.0' up to record 20"),
        ({"results": {"main.2.0": 1}}, ConfigError, r"no call 'main\.2\.0' up to record 20"),  # no call, a sub-goal
        ({"replies": {"main.4": "red"}}, ConfigError, r"no question 'main\.4' up to record 20"),
    ],
)
def test_edits_that_do_not_fit_are_refused_before_anything_is_recorded(edits: dict[str, Any], error: type[Exception], said: str) -> None:
    """The message says what is wrong with which edit, and there is no new run."""

    async def main() -> None:
        async with make_engine("ram:", Tools()) as engine:
            await parent_of(engine)
            with pytest.raises(error, match=said):
                await engine.fork("parent", at=20, edits=edits)
            assert len(await engine.list_runs()) == 1

    run_async(main)


def test_a_budget_is_given_as_one_or_as_data() -> None:
    """Bounds that are not named stay the parent's."""

    async def main() -> None:
        async with make_engine("ram:", Tools()) as engine:
            parent = await parent_of(engine, budget=Budget(max_tool_calls=40))
            for budget in (Budget(max_iterations=2), {"max_iterations": 2}):
                made = await engine.fork("parent", at=2, edits={"budget": budget})
                assert (made.status, made.reason, made.iterations) == ("stopped", "max_iterations", 2)
                assert (made.state.budget.max_tool_calls, parent.state.budget.max_iterations) == (40, 50)

    run_async(main)


def test_sensitive_values_stay_what_they_were() -> None:
    """Placeholders of the shared history mean the same in the fork, what is edited is redacted too, and both work after the parent is gone."""

    async def main() -> None:
        sent: list[str] = []

        @tool(side_effect="write", sensitive=["text"])
        async def send(text: str) -> str:
            """Send a text."""
            sent.append(text)
            return "sent"

        def plan(view: View) -> Any:
            said = [item.text for item in view.transcript if item.kind == "user"]
            word = said[0].rpartition(" ")[2]
            return ToolCall(tool="send", args={"text": word}) if view.iteration < 3 else FinalAnswer(content="done")

        store = RamStore()
        async with engine_on(store, plan, [send], redact=[r"pin-\d+"]) as engine:
            await engine.run(agent_of("send"), "send pin-1234", run_id="parent")
            assert sent == ["pin-1234"] * 2
            turns = [r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.TurnStarted)]
            one = await engine.fork("parent", at=turns[1] - 1, child_id="one", effects="redo", resume=False)
            two = await engine.fork("parent", at=turns[1] - 1, child_id="two", effects="redo", edits={"goal": "send pin-99"}, resume=False)
            for child in (one, two):
                assert b"pin-" not in b"".join(await store.read(child.run_id))
            assert "pin-" not in two.state.goal
            await engine.delete("parent")
            for child in (one, two):
                assert (await engine.resume(child.run_id)).status == "completed"
                assert (await engine.replay(child.run_id)).identical
            assert sent == ["pin-1234"] * 3 + ["pin-99"]

    run_async(main)


def test_a_value_that_is_edited_in_keeps_its_placeholder_and_stays_out_of_the_id() -> None:
    """The same value has the same placeholder in parent and fork; the id that is made from the goal does not hold it."""

    async def main() -> None:
        store = RamStore()
        async with engine_on(store, lambda view: FinalAnswer(content="done"), redact=[r"pin-\d+"]) as engine:
            parent = await engine.run(agent_of(), "send pin-1234", run_id="parent")
            same = await engine.fork("parent", at=1, edits={"goal": "send pin-1234"}, resume=False)
            assert same.state.goal == parent.state.goal != "send pin-1234"
            assert "1234" not in same.run_id
            other = await engine.fork("parent", at=1, edits={"variables": {"pin": "pin-1234"}}, resume=False)
            assert other.state.variables["pin"] in parent.state.goal

    run_async(main)
