"""Effects outside of a pass's planner: a cancellation ends them at once, whoever asked for them; and bounds of passes that outlive a crash."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest

import virtual_time
from detent import Agent, Budget, FinalAnswer, Plan, ToolCall, View, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import EffectFailed
from detent.core.fold import fold
from detent.core.state import KernelState, transition
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Branch, KernelHooks, ModelAnswer, Passed, StrategyRun
from detent.ports.heads import head_of
from detent.stores.ram import RamStore
from metering.providers import END, Planning, answer, engine, events_of, of


class Stuck:
    """A provider that never answers; says when it is asked, and how the request ended."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.given_up = False

    async def send(self, limit: int | None) -> ModelAnswer:
        """Take one request."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return answer()


async def never(view: View) -> Plan:
    raise AssertionError("nothing is planned after a cancellation")


async def answers(view: View) -> Any:
    return FinalAnswer(content="an answer")


async def cancelled(stuck: Stuck, **options: Any) -> Any:
    """Start a run, cancel it in the request, and check its log."""
    async with engine(Planning(never), **options) as made:
        strategy = "mine" if "strategies" in options else "direct"
        task = asyncio.create_task(made.run(Agent(name="a", strategy=strategy), "go", run_id="r"))
        await stuck.asked.wait()
        await made.cancel("r", by="ann", why="enough")
        result = await task
        assert stuck.given_up
        assert (result.status, result.reason, result.error) == ("stopped", "cancelled", "enough")
        again = await made.replay("r")
        assert again.identical, again.divergence
        return await events_of(made.store, "r")


def test_a_cancellation_interrupts_a_model_call_in_a_phase() -> None:
    """The call is on record as cancelled, no plan follows, and the log replays."""

    async def main() -> None:
        stuck = Stuck()

        async def critique(state: KernelState, context: KernelContext) -> KernelState:
            async def ask() -> str:
                models = context.run.world.models(context)
                assert models is not None
                return (await models.call("fake:one", stuck.send, purpose="ask")).value

            await context.effect(0, "critique", ask)
            return context.state

        events = await cancelled(stuck, kernel=make_kernel((critique, think, act)))
        (failed,) = of(events, e.ModelCallFailed)
        assert failed.kind == "cancelled" and of(events, e.EffectRecorded) == []

    virtual_time.run(main())


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_cancellation_interrupts_an_effect_of_a_strategy(stubborn: bool) -> None:
    """Also of one that catches all that it is told: it has no part in the end of the run."""

    async def main() -> None:
        stuck = Stuck()

        async def mine(run: StrategyRun) -> Any:
            with contextlib.suppress(Exception) if stubborn else contextlib.nullcontext():
                await run.effect("look", lambda: stuck.send(None))
            return await run.kernel("main")

        events = await cancelled(stuck, strategies={"mine": mine})
        assert of(events, e.EffectRecorded) == of(events, e.PassStarted) == []

    virtual_time.run(main())


def test_the_bound_that_ended_a_pass_is_known_after_a_crash_and_in_a_replay() -> None:
    """Wherever the log is cut, whoever resumes ends the run with the dimension, limit and use that the uninterrupted one had."""
    seen: list[Any] = []

    async def mine(run: StrategyRun) -> Passed:
        first = await run.kernel("first", limits=Budget(max_model_calls=2))
        seen.append(first.bound)
        await run.effect("after", _nothing)
        return first

    async def think_on(view: View) -> Any:
        assert view.models is not None
        for _ in range(2):
            await view.models.call("fake:one", _answered)
        return await view.models.call("fake:one", _answered) and END

    async def main() -> None:
        whole = RamStore()
        async with engine(Planning(think_on), store=whole, strategies={"mine": mine}) as made:
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")
            assert (result.reason, result.state.dimension, result.state.limit, result.state.used) == (
                "budget_exhausted",
                "model_calls",
                2,
                2,
            )
            assert (await made.replay("r")).identical
        lines = await whole.read("r")
        closed = next(n for n, record in enumerate(read_log("r", lines)) if isinstance(record.event, e.PassFinished))
        for cut in range(closed + 1, len(lines)):
            store = RamStore()
            await store.append("r", 0, lines[:cut], head=head_of(fold(read_log("r", lines[:cut]))))
            async with engine(Planning(never), store=store, strategies={"mine": mine}) as made:
                again = await made.resume("r")
                assert (again.reason, again.state.dimension, again.state.limit, again.state.used) == (
                    "budget_exhausted",
                    "model_calls",
                    2,
                    2,
                )
                assert (await made.replay("r")).identical
        assert len(seen) > 2 and {(bound.dimension, bound.limit, bound.used, bound.of) for bound in seen} == {("model_calls", 2, 2, "pass")}

    virtual_time.run(main())


async def _nothing() -> None:
    return None


async def _answered(limit: int | None) -> ModelAnswer:
    return answer(FinalAnswer(content="x"))


def test_what_is_left_of_a_budget_leaves_out_what_open_calls_have_reserved() -> None:
    """For a strategy as for a planner."""
    left: list[Any] = []

    async def mine(run: StrategyRun) -> Any:
        holding: Any = run

        async def look() -> None:
            left.append(holding.budget_remaining.max_total_tokens)

        task = asyncio.create_task(run.ask("one", "say"))
        while not open_calls:
            await asyncio.sleep(0)
        await look()
        go.set()
        return await task

    open_calls: list[int | None] = []
    go = asyncio.Event()

    async def main() -> None:
        async def send(limit: int | None) -> ModelAnswer:
            open_calls.append(limit)
            await go.wait()
            return answer()

        async def plan(view: View) -> Any:
            assert view.models is not None
            await view.models.call("fake:one", send, input_tokens=10, max_output_tokens=20)
            return END

        async with engine(Planning(plan), strategies={"mine": mine}) as made:
            await made.run(Agent(name="a", strategy="mine"), "go", run_id="r", budget=Budget(max_total_tokens=100))
        assert left == [70]

    virtual_time.run(main())


# What cannot be an effect -------------------------------------------------------------------------------------------------------


async def seven() -> Any:
    return 7


async def no_json() -> Any:
    return {"at": object()}


WRONG = {
    "effect": (lambda run: run.effect("inner", seven), r"the effect 'inner' was begun inside the effect 'outer'"),
    "reading": (lambda run: run.now(), r"the effect 'now' was begun inside the effect 'outer'"),
    "pass": (lambda run: run.ask("think", "?"), r"the pass 'think' was begun inside the effect 'outer'"),
    "not JSON": (lambda run: no_json(), r"effect 'outer' .*not JSON"),
}


@pytest.mark.parametrize(("make", "said"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("where", ["phase", "strategy"])
def test_what_cannot_be_an_effect_is_refused_when_it_is_made(where: str, make: Any, said: str) -> None:
    """The run ends with the reason in words, with nothing of the effect on record, and its log replays."""

    async def main() -> None:
        async def mine(run: StrategyRun) -> Any:
            return await run.effect("outer", lambda: make(run))

        async def phase(state: KernelState, context: KernelContext) -> KernelState:
            await context.effect(0, "outer", lambda: make(Inside(context)))
            return context.state

        class Inside:
            def __init__(self, context: KernelContext) -> None:
                self.context = context

            async def effect(self, label: str, make: Any) -> Any:
                return await self.context.effect(0, label, make)

            async def now(self) -> Any:
                return await self.effect("now", seven)

            async def ask(self, label: str, prompt: str) -> Any:
                return await passes[0].ask(label, prompt)

        passes: list[StrategyRun] = []

        async def around(run: StrategyRun) -> Any:
            passes.append(run)
            return await run.kernel("main")

        kernel = make_kernel((phase,)) if where == "phase" else make_kernel()
        async with engine(Planning(never), strategies={"mine": around if where == "phase" else mine}, kernel=kernel) as made:
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")
            assert result.reason == "kernel_error" and re.search(said, result.error or ""), result.error
            events = await events_of(made.store, "r")
            assert not [one for one in of(events, e.EffectRecorded) if one.phase != e.ASIDE] and len(of(events, e.PassStarted)) == (
                where == "phase"
            )
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


def test_effects_one_after_the_other_are_as_they_were() -> None:
    """Also where one of them failed and was caught: what comes after it is inside of none."""

    async def mine(run: StrategyRun) -> Any:
        with contextlib.suppress(EffectFailed):
            await run.effect("bad", broken)
        return [await run.effect("a", seven), await run.effect("b", seven)]

    async def broken() -> Any:
        return 1 / 0

    async def main() -> None:
        async with engine(Planning(never), strategies={"mine": mine}) as made:
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")
            assert result.output == [7, 7]

    virtual_time.run(main())


# What fails and is caught -------------------------------------------------------------------------------------------------------


class Flaky:
    """What fails the first time it is asked, and never again."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self.asked == 1:
            raise TimeoutError("no answer from sk-1234567")
        return "an answer"


@pytest.mark.parametrize("goes_on", ["return", "effect", "pass", "parallel", "sleep", "switch"])
def test_the_failure_of_an_effect_that_a_strategy_catches_is_on_record_whatever_it_does_next(goes_on: str) -> None:
    """The same way is taken after a restart and in a replay, and what failed is not asked for again; secrets in the words are hidden."""
    flaky, ways = Flaky(), []

    async def mine(run: StrategyRun) -> Any:
        try:
            way = await run.effect("ask", flaky)
        except EffectFailed as error:
            way = f"caught {error}"
        match goes_on:
            case "effect":
                await run.effect("next", seven)
            case "pass":
                await run.kernel("main")
            case "parallel":
                await run.parallel(Branch(label="main"))
            case "sleep":
                await run.sleep(0)
            case "switch":
                await run.switch("another")
            case _:
                pass
        ways.append(way)
        return way

    async def main() -> None:
        store, planner = RamStore(), Planning(answers)
        async with engine(planner, store=store, strategies={"mine": mine}) as made:
            agent = Agent(name="a", strategy="mine", redact=[r"sk-\d+"])
            result = await made.run(agent, "go", run_id="r")
            while result.status == "waiting_for_schedule":
                result = await made.resume("r")
            assert result.output.startswith("caught TimeoutError: no answer from <secret:") and flaky.asked == 1
            assert [one.label for one in of(await events_of(store, "r"), e.EffectRecorded)][:2] == ["traceback", "ask"]
            again = await made.replay("r")
            assert again.identical, again.divergence
        assert len(set(ways)) == 1

    virtual_time.run(main())


def test_the_failure_of_an_effect_that_a_phase_catches_is_on_record() -> None:
    """The phase goes the same way in a replay."""
    flaky = Flaky()

    async def careful(state: KernelState, context: KernelContext) -> KernelState:
        try:
            said = await context.effect(0, "ask", flaky)
        except EffectFailed as error:
            said = str(error)
        return transition(context.state, scratchpad={**context.state.scratchpad, "said": said})

    async def main() -> None:
        planner = Planning(answers)
        async with engine(planner, kernel=make_kernel((careful, think, act))) as made:
            result = await made.run(Agent(name="a"), "go", run_id="r")
            assert result.state.passes["main"].scratchpad["said"] == "TimeoutError: no answer from sk-1234567" and flaky.asked == 1
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


@pytest.mark.parametrize("where", ["phase", "strategy"])
def test_an_effect_whose_failure_nobody_catches_ends_the_run_and_is_asked_for_again_when_that_is_reopened(where: str) -> None:
    """As `kernel_error`, with what it raised; the record of it stands in nobody's way."""
    flaky = Flaky()

    async def phase(state: KernelState, context: KernelContext) -> KernelState:
        await context.effect(0, "ask", flaky)
        return context.state

    async def mine(run: StrategyRun) -> Any:
        return await run.effect("ask", flaky)

    async def main() -> None:
        planner = Planning(answers)
        options: dict[str, Any] = {"kernel": make_kernel((phase, think, act))} if where == "phase" else {"strategies": {"reactive": mine}}
        async with engine(planner, **options) as made:
            result = await made.run(Agent(name="a"), "go", run_id="r")
            assert (result.reason, result.error) == ("kernel_error", "TimeoutError: no answer from sk-1234567")
            assert (await made.replay("r")).identical
            assert (await made.reopen("r", by="ann")).output == "an answer" and flaky.asked >= 2
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


@pytest.mark.parametrize("again", ["reopen", "fork"])
@pytest.mark.parametrize("raises", ["itself", "another"])
def test_a_failure_that_ended_a_run_is_recorded_at_once_and_made_again_when_the_run_is_opened_again(raises: str, again: str) -> None:
    """A crash does not repeat it; whoever reopens or forks the failed run asks for it again, whatever the strategy raised because of it."""
    flaky = Flaky()

    async def mine(run: StrategyRun) -> Any:
        try:
            return await run.effect("ask", flaky)
        except EffectFailed as error:
            raise (error if raises == "itself" else ValueError("no answer")) from None

    async def main() -> None:
        async with engine(Planning(never), strategies={"mine": mine}) as made:
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")
            assert result.reason == "kernel_error" and flaky.asked == 1
            log = await made.records("r")
            assert [type(record.event) for record in log[-2:]] == [e.EffectRecorded, e.RunFinished]
            assert (await made.replay("r")).identical
            if again == "reopen":
                assert (await made.reopen("r", by="ann")).output == "an answer"
            else:
                assert (await made.fork("r", at=len(log), child_id="f")).output == "an answer"
            assert flaky.asked == 2
            assert (await made.replay("r" if again == "reopen" else "f")).identical

    virtual_time.run(main())


@pytest.mark.parametrize("again", ["reopen", "fork"])
def test_a_failure_that_was_caught_stays_recorded_when_the_run_ended_for_another_reason(again: str) -> None:
    """A run that is given a larger budget takes the way that it took, and asks for nothing again."""
    flaky = Flaky()

    async def mine(run: StrategyRun) -> Any:
        with contextlib.suppress(EffectFailed):
            return await run.effect("ask", flaky)
        first, second = await run.kernel("first"), await run.kernel("second")
        return [first.output, second.output]

    async def main() -> None:
        async with engine(Planning(answers), strategies={"mine": mine}) as made:
            budget, larger = Budget(max_iterations=1), Budget(max_iterations=5)
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r", budget=budget)
            assert result.reason in ("max_iterations", "budget_exhausted"), result
            if again == "reopen":
                result = await made.reopen("r", by="ann", budget=larger)
            else:
                at = len(await made.records("r"))
                result = await made.fork("r", at=at, edits={"budget": {"max_iterations": 5}}, child_id="f")
            assert result.output == ["an answer", "an answer"] and flaky.asked == 1
            assert (await made.replay(result.run_id)).identical

    virtual_time.run(main())


# Passes side by side, and phases behind a cancellation ---------------------------------------------------------------------------


def test_hooks_of_passes_side_by_side_replay_in_whatever_order_they_answered() -> None:
    """Who is asked first may answer last: each pass finds its own answers."""
    asked: list[str] = []

    async def slower_first(state: KernelState) -> None:
        asked.append(state.scope)
        for _ in range(20 - 4 * len(asked)):
            await asyncio.sleep(0)

    async def wide(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(*(Branch(label=f"b{n}") for n in range(4)))]

    async def main() -> None:
        hooks = KernelHooks(before={"think": slower_first})
        async with engine(Planning(answers), strategies={"wide": wide}, hooks=hooks) as made:
            result = await made.run(Agent(name="a", strategy="wide"), "go", run_id="r")
            assert result.output == ["an answer"] * 4
            log = await made.records("r")
            decided = [record.envelope.scope for record in log if isinstance(record.event, e.EffectRecorded)]
            assert decided == list(reversed(asked)) == ["b3", "b2", "b1", "b0"]
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


@pytest.mark.parametrize("behind", ["phase", "hook"])
def test_nothing_behind_a_cancelled_act_goes_on_from_calls_that_were_not_begun(behind: str) -> None:
    """A replay could not tell why they were not: no later phase and no hook makes a record before the cancellation has one."""
    begun, later = asyncio.Event(), list[str]()

    @tool(side_effect="read")
    async def slow() -> str:
        """Take a while."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @tool(side_effect="write")
    async def then() -> str:
        """Come after it."""
        raise AssertionError("the run is cancelled")

    async def both(view: View) -> Any:
        return Plan(actions=(ToolCall(tool="slow"), ToolCall(tool="then")))

    async def count(state: KernelState, context: KernelContext) -> KernelState:
        later.append("phase")
        return transition(context.state, scratchpad={"turns": "1"})

    options: dict[str, Any] = {"kernel": make_kernel((think, act, count))}
    if behind == "hook":
        options = {"hooks": KernelHooks(after={"act": lambda state: later.append("hook")})}

    async def main() -> None:
        async with engine(Planning(both), slow, then, bounds=Bounds(grace_s=0.01), **options) as made:
            task = asyncio.create_task(made.run(Agent(name="a", tools=["slow", "then"]), "go", run_id="r"))
            await begun.wait()
            await made.cancel("r", by="ann")
            assert (await task).reason == "cancelled" and later == []
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


async def wide(run: StrategyRun) -> Any:
    """Run three passes side by side, and one behind them."""
    passes = await run.parallel(*(Branch(label=f"b{n}") for n in range(3)))
    last = await run.kernel("last")
    return [passed.output for passed in (*passes, last)]


class Held(RamStore):
    """A store whose appends wait while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.entered, self.go_on, self.cut = False, asyncio.Event(), asyncio.Event(), False

    async def append(self, *args: Any, **options: Any) -> Any:
        if self.held:
            self.entered.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cut = True
                raise
        return await super().append(*args, **options)


def test_a_cancellation_interrupts_the_passes_that_wait_and_no_commit_of_a_pass_beside_them() -> None:
    """What is being written is written; the run ends as cancelled, and its log replays."""

    async def main() -> None:
        store, stuck, given_up = Held(), asyncio.Event(), asyncio.Event()

        async def uneven(view: View) -> Any:
            if view.scope == "b1":
                await stuck.wait()
                store.held = True  # the answer of b1 is what is being written
                return FinalAnswer(content="an answer")
            stuck.set()
            try:
                return await asyncio.Event().wait()
            finally:
                given_up.set()

        async with engine(Planning(uneven), store=store, strategies={"wide": wide}) as made:
            task = asyncio.create_task(made.run(Agent(name="a", strategy="wide"), "go", run_id="r"))
            await store.entered.wait()
            cancelling = asyncio.create_task(made.cancel("r", by="ann", why="enough"))
            await given_up.wait()
            store.held = False
            store.go_on.set()
            result = await task
            await cancelling
            assert (result.status, result.reason, store.cut) == ("stopped", "cancelled", False)
            again = await made.replay("r")
            assert again.identical, again.divergence

    virtual_time.run(main())


def test_a_log_that_ends_amid_passes_side_by_side_replays_to_its_end() -> None:
    """Wherever its last record is: a pass that was left open there makes nothing that the log does not have."""

    async def uneven(view: View) -> Any:
        for _ in range({"b0": 9, "b1": 1, "b2": 5}.get(view.scope, 0)):
            await asyncio.sleep(0)
        return FinalAnswer(content=view.scope)

    async def main() -> None:
        whole = RamStore()
        async with engine(Planning(uneven), store=whole, strategies={"wide": wide}) as made:
            assert (await made.run(Agent(name="a", strategy="wide"), "go", run_id="r")).output == ["b0", "b1", "b2", "last"]
        lines = await whole.read("r")
        for cut in range(2, len(lines) + 1):
            store = RamStore()
            await store.append("r", 0, lines[:cut], head=head_of(fold(read_log("r", lines[:cut]))))
            async with engine(Planning(never), store=store, strategies={"wide": wide}) as made:
                again = await made.replay("r")
                assert again.identical, (cut, again.divergence)

    virtual_time.run(main())


def test_an_effect_may_run_another_agent() -> None:
    """That run is one of its own: nothing of it is inside of the effect, which holds what came of it."""

    async def main() -> None:
        async def mine(run: StrategyRun) -> Any:
            async def inner() -> Any:
                return (await made.run(Agent(name="i", strategy="direct"), "go", run_id="inner")).output

            return await run.effect("another", inner)

        async with engine(Planning(answers), strategies={"mine": mine}) as made:
            assert (await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")).output == "an answer"
            for run_id in ("inner", "r"):
                assert (await made.replay(run_id)).identical

    virtual_time.run(main())
