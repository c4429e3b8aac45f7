"""What a strategy can do and what a crash cannot undo: passes, asks, parallel passes and recorded values, memoised by label and occurrence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import virtual_time
from amounts import crossed
from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Plan, ToolCall, Usage, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import Divergence, PassFailed, Suspended, UnknownName
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Branch, Passed, StrategyRun
from detent.stores.ram import RamStore
from detent.testing import FakeModel, says
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash, CrashingStore


class Answers:
    """A planner that answers each pass by its scope, counts what it was asked, and charges ten tokens a plan."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []

    async def plan(self, view: View) -> Plan:
        self.asked.append(view.scope)
        said = self.answers[view.scope]
        said = said(view) if callable(said) else said
        actions = said if isinstance(said, tuple) else (said if isinstance(said, ToolCall) else FinalAnswer(content=said),)
        return Plan(actions=actions, usage=Usage(input_tokens=10), model="m")


def engine_with(strategy: Any, planner: Any, *tools: Any, store: Any = None, **options: Any) -> Engine:
    return Engine(store=store or RamStore(), planner=planner, tools=tools, strategies={"mine": strategy}, approver="caller", **options)


def run(engine: Engine, *tools: str, **options: Any) -> Any:
    return virtual_time.run(engine.run(Agent(name="a", strategy="mine", tools=tools), "go", run_id="r", **options))


def events(engine: Engine, kind: type[Any]) -> list[Any]:
    return [r.event for r in virtual_time.run(engine.records("r")) if isinstance(r.event, kind)]


async def draft_and_mend(run: StrategyRun) -> Passed:
    """Draft, ask for a critique, mend."""
    draft = await run.kernel("draft")
    critique = await run.ask("critique", f"What is wrong with {draft.output!r}?")
    return await run.kernel("draft", task=f"{run.goal}: mind {critique}")


MENDED = {"draft": "one", "critique": "dull", "draft#2": "two"}


def test_passes_run_in_order_and_the_last_is_the_answer() -> None:
    """Scopes are labels with their occurrence; every ask is one model call and one iteration; tokens are those of the records."""
    planner = Answers(MENDED)
    engine = engine_with(draft_and_mend, planner)
    result = run(engine)
    assert (result.status, result.output, result.reason) == ("completed", "two", "final_answer")
    assert planner.asked == ["draft", "critique", "draft#2"] and result.usage.model_calls == 3
    assert (result.iterations, result.usage.input_tokens) == (3, 30)
    assert [(p.key, p.kernel) for p in events(engine, e.PassStarted)] == [("draft", "react"), ("critique", "ask"), ("draft#2", "react")]
    assert virtual_time.run(engine.replay("r")).identical


@pytest.mark.parametrize("how", ["ask", "small"])
def test_what_a_small_model_is_asked_counts_as_one_model_call(how: str) -> None:
    """The call is recorded when it is made; its plan does not count it again, so `max_model_calls` allows as many as it says."""

    async def twice(run: StrategyRun) -> Any:
        for label in ("a", "b"):
            said = await run.ask(label, "?") if how == "ask" else (await run.kernel(label, small=True)).output
        return said

    model = FakeModel([says("hi", input_tokens=100, output_tokens=10)] * 2)
    result = run(engine_with(twice, model), budget=Budget(max_model_calls=2))
    assert (result.status, result.usage.model_calls, len(model.prompts)) == ("completed", 2, 2), result.error


def test_an_ask_has_the_limits_that_it_is_given_and_one_turn() -> None:
    """A bound on what a judge may spend holds. It was left out, and nothing told so."""

    async def judged(run: StrategyRun) -> Any:
        return await run.ask("judge", "?", limits=Budget(max_model_calls=5, max_output_tokens=50))

    engine = engine_with(judged, FakeModel([says("hi")]))
    result = run(engine)
    assert result.state.passes["judge"].limits == Budget(max_iterations=1, max_model_calls=5, max_output_tokens=50)
    assert [call.reserved.output_tokens for call in events(engine, e.ModelCallStarted)] == [50]


@pytest.mark.parametrize("given", [{"tools": ("look",)}, {"question": AskUser(question="?")}, {"limit": Budget()}])
def test_an_ask_refuses_what_it_does_not_take(given: dict[str, Any]) -> None:
    """An option that nothing reads is a mistake, and its author is told the names that there are."""

    async def judged(run: StrategyRun) -> Any:
        return await run.ask("judge", "?", **given)

    model = FakeModel([says("hi")])
    result = run(engine_with(judged, model))
    assert result.status == "failed" and not model.prompts
    assert f"run.ask() has no argument '{next(iter(given))}'" in result.error and "limits" in result.error


@crossed
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_crash_at_any_write_repeats_no_pass(at: int, when: Any) -> None:
    """The function starts from the top; what has ended returns at once, and what is on record is not asked for again."""

    async def main() -> None:
        inner = RamStore()
        store = CrashingStore(inner, at=at, when=when, operations=("append",))
        with contextlib.suppress(Crash):
            await engine_with(draft_and_mend, Answers(MENDED), store=store).run(Agent(name="a", strategy="mine"), "go", run_id="r")
        before = [r.envelope.scope for r in read_log("r", await inner.read("r")) if isinstance(r.event, e.Planned)]
        planner = Answers(MENDED)
        engine = engine_with(draft_and_mend, planner, store=inner)
        await inner.release("r")
        result = await (engine.resume("r") if await inner.read("r") else engine.run(Agent(name="a", strategy="mine"), "go", run_id="r"))
        assert (result.status, result.output) == ("completed", "two")
        assert before + planner.asked == ["draft", "critique", "draft#2"]
        assert (await engine.replay("r")).identical

    virtual_time.run(main())


def test_parallel_passes_share_what_is_left_and_come_back_in_order() -> None:
    """Each gets an equal share of the bounds, decides from its own scope, and the log replays however they interleaved."""

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look, slowly for small numbers."""
        for _ in range(10 - n):
            await asyncio.sleep(0)
        return n

    async def wide(run: StrategyRun) -> Any:
        done = await run.parallel(*(Branch(label=f"b{n}", task=f"look at {n}") for n in (1, 2, 3)))
        return [p.output for p in done]

    def step(n: int) -> Callable[[View], Any]:
        return lambda view: f"saw {n}" if view.results else ToolCall(tool="look", args={"n": n})

    engine = engine_with(wide, Answers({f"b{n}": step(n) for n in (1, 2, 3)}), look)
    result = run(engine, "look", budget=Budget(max_iterations=30))
    assert (result.status, result.output) == ("completed", ["saw 1", "saw 2", "saw 3"])
    assert [p.limits.max_iterations for p in events(engine, e.PassStarted)] == [10, 10, 10]
    assert result.usage.tool_calls == 3 and result.iterations == 6
    replayed = virtual_time.run(engine.replay("r"))
    assert replayed.identical, replayed.divergence


@pytest.mark.parametrize("left", range(1, 8))
def test_parallel_passes_have_no_more_together_than_is_left(left: int) -> None:
    """Also if less than one call is left for each, and the planners tell what they used only afterwards: the last passes get none."""

    class Calls:
        async def plan(self, view: View) -> Plan:
            await asyncio.sleep(0)
            return Plan(actions=(FinalAnswer(content=view.scope),), usage=Usage(model_calls=1))

    async def wide(run: StrategyRun) -> Any:
        return [p.output or p.reason for p in await run.parallel(*(Branch(label=f"b{n}") for n in range(3)))]

    engine = engine_with(wide, Calls())
    result = run(engine, budget=Budget(max_model_calls=left))
    assert result.output == [f"b{n}" if n < left else "budget_exhausted" for n in range(3)]
    assert result.usage.model_calls == min(left, 3)
    assert virtual_time.run(engine.replay("r")).identical


def test_parallel_passes_wait_only_when_none_can_move() -> None:
    """One asks for approval, the other goes on to its end; then the run waits, and goes on where it was."""

    @tool(side_effect="destructive")
    async def wipe() -> str:
        """Wipe."""
        return "wiped"

    async def wide(run: StrategyRun) -> Any:
        return [p.output for p in await run.parallel(Branch(label="risky"), Branch(label="safe"))]

    answers = {"risky": lambda view: "done" if view.results else ToolCall(tool="wipe"), "safe": "fine"}
    engine = engine_with(wide, Answers(answers), wipe)
    result = run(engine, "wipe")
    assert result.status == "waiting_for_approval" and result.state.passes["safe"].status == "done"
    result = virtual_time.run(engine.approve("r", "risky.1.0", by="ann"))
    assert (result.status, result.output) == ("completed", ["done", "fine"])
    replayed = virtual_time.run(engine.replay("r"))
    assert replayed.identical, replayed.divergence


def test_another_input_under_the_same_key_is_a_divergence_with_the_ways_out() -> None:
    """Nothing is recorded, and the code that the run was started with takes it on."""
    store = RamStore()

    async def changed(run: StrategyRun) -> Passed:
        return await run.kernel("draft", task="something else")

    virtual_time.run(engine_with(draft_and_mend, Answers(MENDED), store=store).step(Agent(name="a", strategy="mine"), "go", run_id="r"))
    length = len(virtual_time.run(store.read("r")))
    with pytest.raises(Divergence, match=r"check-upgrade.*fork"):
        virtual_time.run(engine_with(changed, Answers(MENDED), store=store).resume("r"))
    assert len(virtual_time.run(store.read("r"))) == length
    assert virtual_time.run(engine_with(draft_and_mend, Answers(MENDED), store=store).resume("r")).output == "two"


def test_code_that_leaves_a_pass_out_is_a_divergence() -> None:
    """It ends before a pass that is on the log: nothing is made of the others."""
    store = RamStore()

    async def shorter(run: StrategyRun) -> Passed:
        return await run.kernel("draft")

    virtual_time.run(
        engine_with(draft_and_mend, Answers(MENDED), store=store).run(Agent(name="a", strategy="mine"), "go", run_id="r", turns=2)
    )
    with pytest.raises(Divergence, match=r"pass 'critique', this code gives the end of the strategy.*check-upgrade"):
        virtual_time.run(engine_with(shorter, Answers({}), store=store).resume("r"))


def test_a_pass_that_is_open_does_not_go_on_beside_code_that_leaves_another_out() -> None:
    """One of two passes side by side is dropped: the other is not asked for anything, and nothing is recorded."""
    store, planner = RamStore(), Answers({"a": "one"})

    async def both(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(Branch(label="a"), Branch(label="b"))]

    async def one(run: StrategyRun) -> Passed:
        return await run.kernel("a")

    asking = Answers({"a": (AskUser(question="well?"),), "b": (AskUser(question="well?"),)})
    waiting = virtual_time.run(engine_with(both, asking, store=store).run(Agent(name="a", strategy="mine"), "go", run_id="r"))
    length = len(virtual_time.run(store.read("r")))
    with pytest.raises(Divergence, match=r"pass 'b', this code gives pass 'a': the strategy does not ask for that pass"):
        virtual_time.run(engine_with(one, planner, store=store).reply("r", "yes", ask_id="a.1"))
    assert waiting.status == "waiting_for_user" and planner.asked == [] and len(virtual_time.run(store.read("r"))) == length


@pytest.mark.parametrize("other", ["label", "input"])
def test_a_run_is_cancelled_whatever_has_become_of_its_strategy(other: str) -> None:
    """What ends it uses none of the code: no pass is begun for it, and the log comes out again with the code that it began with."""
    store = RamStore()

    async def changed(run: StrategyRun) -> Passed:
        return await run.kernel("draft", task="something else") if other == "input" else await run.kernel("sketch")

    begun = engine_with(draft_and_mend, Answers({"draft": (AskUser(question="well?"),)}), store=store)
    virtual_time.run(begun.run(Agent(name="a", strategy="mine"), "go", run_id="r"))
    ended = virtual_time.run(engine_with(changed, Answers({}), store=store).cancel("r", by="ann", why="enough"))
    assert (ended.status, ended.reason, ended.error) == ("stopped", "cancelled", "enough") and list(ended.state.passes) == ["draft"]
    assert virtual_time.run(begun.replay("r")).identical


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_run_that_was_cancelled_amid_its_work_and_opened_again_replays(side_by_side: bool) -> None:
    """The work after it was opened again says nothing about when the cancellation came."""

    async def mine(run: StrategyRun) -> Any:
        await run.kernel("first")
        return [p.output for p in await run.parallel(Branch(label="a"), Branch(label="b"))] if side_by_side else await run.kernel("a")

    class Slow(Answers):
        """Answers at once when it is asked again."""

        async def plan(self, view: View) -> Plan:
            if view.scope == "a" and "a" not in self.asked:
                self.asked.append("a")
                await engine.cancel("r", by="ann")
                await asyncio.Event().wait()
            return await super().plan(view)

    async def main() -> None:
        stopped = await engine.run(Agent(name="a", strategy="mine"), "go", run_id="r")
        assert (stopped.status, stopped.reason) == ("stopped", "cancelled")
        again = await engine.reopen("r", by="ann")
        assert again.status == "completed"
        replayed = await engine.replay("r")
        assert replayed.identical, replayed.divergence

    engine = engine_with(mine, Slow({"first": "1", "a": "2", "b": "3"}), bounds=Bounds(grace_s=0.01))
    virtual_time.run(main())


def test_a_run_that_is_opened_again_goes_on_where_its_strategy_was() -> None:
    """A pass that had failed, and that the strategy had dealt with, stays failed; the one that had ended with the run continues."""

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    opened = False

    def draft(view: View) -> Any:
        return "v1" if opened else ToolCall(tool="nothing")

    looking = {"generate": draft, "improve": lambda view: "v2" if opened else ToolCall(tool="look", args={"n": view.iteration})}
    planner = Answers({**looking, "critique": "SATISFIED"})
    engine = Engine(planner=planner, tools=[look])
    agent = Agent(name="a", strategy="reflexion", strategy_options={"turns": 5}, tools=["look"])
    result = virtual_time.run(engine.run(agent, "go", run_id="r", budget=Budget(max_model_calls=5)))
    assert (result.reason, list(result.state.passes)) == ("budget_exhausted", ["generate", "improve"])
    opened = True
    result = virtual_time.run(engine.reopen("r", budget=Budget(max_model_calls=50)))
    assert (result.status, result.output) == ("completed", "v2"), result.error
    assert virtual_time.run(engine.replay("r")).identical


def test_a_fork_may_lead_another_way() -> None:
    """An edited result sends its strategy elsewhere than the log that it was branched from."""

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        return "left"

    async def turning(run: StrategyRun) -> Any:
        first = await run.kernel("first")
        return (await run.kernel(str(first.results[0].content))).output

    planner = Answers({"first": lambda view: "seen" if view.results else ToolCall(tool="look"), "left": "went left", "right": "went right"})
    engine = engine_with(turning, planner, look)
    assert run(engine, "look").output == "went left"
    begun = next(
        r.envelope.seq for r in virtual_time.run(engine.records("r")) if isinstance(r.event, e.PassStarted) and r.event.key == "left"
    )
    made = virtual_time.run(engine.fork("r", at=begun, edits={"results": {"first.1.0": "right"}}))
    assert made.output == "went right" and virtual_time.run(engine.replay(made.run_id)).identical


def test_values_that_differ_each_time_are_recorded_once() -> None:
    """now, random, effect and sleep; a sleep is a wait in any process."""
    clock, seen = FakeClock(), []

    async def timed(run: StrategyRun) -> Any:
        seen.append((await run.now(), await run.random(), await run.effect("made", made)))
        await run.sleep(3600)
        return "slept"

    async def made() -> Any:
        return {"n": len(seen)}

    engine = engine_with(timed, Answers({}), clock=clock)
    assert run(engine).status == "waiting_for_schedule"
    clock.advance(3600)
    result = virtual_time.run(engine.resume("r"))
    assert (result.status, result.output) == ("completed", "slept") and len(set(map(repr, seen))) == 1 and len(seen) == 2
    assert virtual_time.run(engine.replay("r")).identical


def test_a_pass_that_fails_is_the_strategys_to_handle_and_the_runs_bounds_are_not() -> None:
    """A failed ask can be caught; an exhausted bound of the run ends it, whatever the strategy does."""

    async def stubborn(run: StrategyRun) -> Any:
        with pytest.raises(PassFailed) as failed:
            await run.ask("first", "say")
        assert failed.value.passed.reason == "max_iterations"
        while True:
            with contextlib.suppress(Exception):  # what a bad strategy would do
                await run.kernel("more")

    answers = {"first": ToolCall(tool="nowhere"), **{f"more{s}": "x" for s in ("", *(f"#{n}" for n in range(2, 99)))}}
    result = run(engine_with(stubborn, Answers(answers)), budget=Budget(max_iterations=5))
    assert (result.status, result.reason, result.iterations) == ("stopped", "max_iterations", 5)


def test_what_a_strategy_raises_ends_the_run_and_says_so() -> None:
    """As kernel_error, with the message; an uncaught failed pass with the pass's own reason."""

    async def broken(run: StrategyRun) -> Any:
        raise KeyError("no such step")

    async def trusting(run: StrategyRun) -> Any:
        return await run.ask("first", "say")

    result = run(engine_with(broken, Answers({})))
    assert (result.status, result.reason) == ("failed", "kernel_error") and "no such step" in result.error
    result = run(engine_with(trusting, Answers({"first": ToolCall(tool="nowhere")})))
    assert (result.status, result.reason) == ("stopped", "max_iterations")


def test_a_custom_kernel_is_registered_beside_react_and_runs_by_name() -> None:
    """S0-15 and S0-17: additive, listed, typed error for an unknown name; one model call and done."""
    planner = Answers({"main": "at once"})
    engine = Engine(planner=planner, kernels={"one-shot": make_kernel(phases=(think,), name="one-shot")})
    assert engine.kernels.names() == ["react", "one-shot"]
    result = virtual_time.run(engine.run(Agent(name="a", kernel="one-shot"), "go", run_id="r"))
    assert (result.output, result.usage.model_calls, result.state.passes["main"].kernel_type) == ("at once", 1, "one-shot")
    with pytest.raises(UnknownName, match="did you mean 'one-shot'"):
        virtual_time.run(engine.run(Agent(name="a", kernel="oneshot"), "go"))
    with pytest.raises(UnknownName, match="unknown strategy"):
        virtual_time.run(engine.run(Agent(name="a", strategy="reflexive"), "go"))


def test_two_runs_of_a_strategy_at_once_share_nothing() -> None:
    """Labels and occurrences count in each run apart (L21)."""

    async def main() -> None:
        engine = engine_with(draft_and_mend, Answers(MENDED))
        both = await asyncio.gather(*(engine.run(Agent(name="a", strategy="mine"), "go", run_id=f"r{n}") for n in (1, 2)))
        assert [r.output for r in both] == ["two", "two"] and [len(r.state.passes) for r in both] == [3, 3]

    virtual_time.run(main())


def test_a_result_says_what_a_kernel_run_came_to() -> None:
    """S0-16: output, steps, total tokens, tools used, iterations."""

    @tool(side_effect="read")
    async def look() -> int:
        """Look."""
        return 7

    async def once(run: StrategyRun) -> Passed:
        return await run.kernel("main")

    planner = Answers({"main": lambda view: "seven" if view.results else ToolCall(tool="look")})
    result = run(engine_with(once, planner, look), "look")
    assert (result.output, result.iterations, result.total_tokens, result.tools_used) == ("seven", 2, 20, {"look"})
    assert [step.kind for step in result.steps] == ["user", "model", "tool", "model"]


@pytest.mark.parametrize("how", ["cancel", "suspend"])
def test_parallel_passes_are_cancelled_and_suspended_together(how: str) -> None:
    """Cancel ends the run with the effects in doubt; a suspension leaves it resumable with nothing finished."""

    async def main() -> None:
        started: list[int] = []
        all_in, gate = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write", idempotent=True)
        async def work(n: int) -> int:
            """Work until the gate opens."""
            started.append(n)
            if len(started) == 2:
                all_in.set()
            await gate.wait()
            return n

        async def wide(run: StrategyRun) -> Any:
            return [p.output for p in await run.parallel(Branch(label="a"), Branch(label="b"))]

        def step(n: int) -> Callable[[View], Any]:
            return lambda view: n if view.results else ToolCall(tool="work", args={"n": n})

        engine = engine_with(wide, Answers({"a": step(1), "b": step(2)}), work, bounds=Bounds(grace_s=0.01))
        task = asyncio.create_task(engine.run(Agent(name="x", strategy="mine", tools=["work"]), "go", run_id="r"))
        await all_in.wait()
        if how == "cancel":
            await engine.cancel("r", by="ann")
            result = await task
            assert (result.status, result.reason) == ("stopped", "cancelled")
        else:
            engine.suspend("stop")
            with pytest.raises(Suspended):
                await task
            gate.set()
            result = await engine.resume("r")
            assert (result.status, result.output) == ("completed", [1, 2]) and sorted(started) == [1, 1, 2, 2]
        replayed = await engine.replay("r")
        assert replayed.identical, replayed.divergence

    virtual_time.run(main())


@pytest.mark.parametrize("bound", [{"max_tool_calls": 2}, {"max_calls_of": {"peek": 2}}])
def test_calls_of_parallel_passes_count_for_each_other_while_they_run(bound: dict[str, Any]) -> None:
    """Calls that only read stand in the log as begun where passes run side by side: a bound of the run is not passed, and replay agrees."""

    @tool(side_effect="read")
    async def peek(n: int) -> int:
        """Look; the first takes longest."""
        for _ in range(30 - 10 * n):
            await asyncio.sleep(0)
        return n

    async def wide(run: StrategyRun) -> list[Any]:
        return [passed.output for passed in await run.parallel(*(Branch(label=f"b{n}") for n in (0, 1, 2)))]

    def plan(n: int) -> Callable[[View], Any]:
        return lambda view: "seen" if view.results else ToolCall(tool="peek", args={"n": n})

    engine = engine_with(wide, Answers({f"b{n}": plan(n) for n in (0, 1, 2)}), peek)
    result = run(engine, "peek", budget=Budget(**bound))
    assert result.reason == "budget_exhausted" and result.usage.tool_calls == 2
    assert len(events(engine, e.ToolStarted)) == 2
    assert virtual_time.run(engine.replay("r")).identical
