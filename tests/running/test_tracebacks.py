"""What the user's own code raises is kept with the run, with its traceback, for people only. DESIGN: errors; "Your own traceback"."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from detent import Abstain, Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.errors import PlannerFailed
from detent.core.state import KernelState, RunState
from detent.extend import KernelHooks, MetaTool, StrategyRun, ToolSpec, Verdict, View, act, make_kernel, strategy, think
from detent.running.tracebacks import LONGEST, MOST, traceback_behind, tracebacks
from detent.stores.ram import RamStore
from kernel.runs import run_async

PLAIN = Agent(name="a", tools=["look"])
END = Plan(actions=(FinalAnswer(content="the end"),))


def boom(*_: Any, **__: Any) -> Any:
    """The user's own code, with a line of its own."""
    return {}["nothing here"]


async def boom_later(*_: Any, **__: Any) -> Any:
    return boom()


class Planned:
    """Plans a call of `look`, then ends; keeps every view, as JSON, to see what a planner is told."""

    def __init__(self, first: Any = None, tool: str = "look") -> None:
        self.first, self.tool = first, tool
        self.seen: list[str] = []

    async def plan(self, view: View) -> Plan:
        self.seen.append(repr([getattr(view, name) for name in view.__struct_fields__ if name != "models"]))
        if self.first is not None:
            return self.first()
        return Plan(actions=(ToolCall(tool=self.tool, args={}),)) if view.iteration == 1 else END


class Denies:
    """A policy that cannot decide."""

    version = "mine"

    def decide(self, call: Any, state: RunState) -> Verdict:
        return boom()

    def may_ask(self, tool: ToolSpec) -> bool:
        return False


@tool(side_effect="read")
def look() -> str:
    """Looks."""
    return "seen"


@tool(name="look", side_effect="read")
def broken() -> str:
    """Looks, and fails."""
    return boom()


@tool(name="look", side_effect="read", after=boom)
def broken_after() -> str:
    """Looks, and fails when it is done."""
    return "seen"


@strategy()
async def broken_strategy(run: StrategyRun) -> str:
    return boom()


@strategy()
async def broken_effect(run: StrategyRun) -> str:
    return await run.effect("reading", boom_later)


async def broken_phase(state: KernelState, context: Any) -> KernelState:
    return boom()


PEEK = MetaTool(spec=ToolSpec(name="peek", side_effect="read", description="Peeks."), handler=boom_later)

Setting = Callable[[], tuple[Agent, Planned, dict[str, Any]]]
WHO: dict[str, Setting] = {
    "the planner": lambda: (PLAIN, Planned(first=boom), {}),
    "the tool 'look', call main.1.0": lambda: (PLAIN, Planned(), {"tools": [broken]}),
    "the after hook of the tool 'look', call main.1.0": lambda: (PLAIN, Planned(), {"tools": [broken_after]}),
    "the strategy 'mine'": lambda: (Agent(name="a", strategy="mine"), Planned(), {"strategies": {"mine": broken_strategy}}),
    "the effect 'reading'": lambda: (Agent(name="a", strategy="mine"), Planned(), {"strategies": {"mine": broken_effect}}),
    "the policy": lambda: (PLAIN, Planned(), {"policy": Denies()}),
    "the guard 'boom'": lambda: (Agent(name="a", tools=["look"], guards=["boom"]), Planned(), {"guards": {"boom": boom}}),
    "the hook before act": lambda: (PLAIN, Planned(), {"hooks": KernelHooks(before={"act": boom})}),
    "a phase of the kernel": lambda: (PLAIN, Planned(), {"kernel": make_kernel((think, act, broken_phase))}),
    "the meta-tool 'peek'": lambda: (Agent(name="a", tools=["peek"]), Planned(tool="peek"), {"kernel": make_kernel(meta_tools=(PEEK,))}),
    "the effect 'verify 1": lambda: (Agent(name="a", tools=["look"], verify=[boom]), Planned(), {}),
}


@pytest.mark.parametrize("who", list(WHO))
def test_whatever_of_the_user_raises_its_traceback_is_in_the_result_and_in_the_logging(who: str, caplog: pytest.LogCaptureFixture) -> None:
    """File, line and the line's text. Without it, "KeyError: 'nothing here'" is all that the author of the code would have."""
    agent, planner, options = WHO[who]()

    async def main() -> None:
        async with Engine(**{"store": RamStore(), "planner": planner, "tools": [look]} | options) as engine:
            result = await engine.run(agent, "go", run_id="r")
            assert 'test_tracebacks.py", line' in result.traceback
            assert 'return {}["nothing here"]' in result.traceback and "KeyError: 'nothing here'" in result.traceback
            assert "src/detent" not in result.traceback.partition("test_tracebacks.py")[0]  # it begins with the user's code
            (kept,) = tracebacks(result.state)
            assert kept.who.startswith(who) and kept.error == "KeyError: 'nothing here'"
            assert kept.at.startswith(__file__) and kept.at.endswith("in boom")
            assert result.traceback in caplog.text and "run r" in caplog.text
            end = next(r.event for r in await engine.records("r") if isinstance(r.event, e.RunFinished))
            assert end.traceback == (1 if "nothing here" in end.error else 0)  # it leads from the error to the traceback
            assert not any("Traceback" in seen or "test_tracebacks" in seen for seen in planner.seen)  # no prompt has it
            assert (await engine.replay("r")).identical

    with caplog.at_level(logging.ERROR, logger="detent"):
        run_async(main)


def test_the_traceback_behind_the_error_is_told_not_the_last_one() -> None:
    """A tool that raised beforehand is not why the run failed; both are kept, and who resumes the run elsewhere finds them."""

    async def main() -> None:
        store = RamStore()
        planner = Planned()
        planner.first = lambda: Plan(actions=(ToolCall(tool="look", args={}),)) if len(planner.seen) == 1 else boom()
        async with Engine(store=store, planner=planner, tools=[broken_after]) as engine:
            result = await engine.run(PLAIN, "go", run_id="r")
            assert [one.who for one in tracebacks(result.state)][1:] == ["the planner"]
            assert "in plan" in result.traceback
        async with Engine(store=store) as elsewhere:
            state = await elsewhere.load("r")
            assert traceback_behind(state, state.error) == 2 and tracebacks(state)[1].text == result.traceback

    run_async(main)


def test_a_run_in_which_nothing_of_the_users_raised_has_no_traceback() -> None:
    """Nothing was raised by the user, or what was says all there is to say."""

    async def main() -> None:
        planner = Planned(first=lambda: Plan(actions=(Abstain(reason="no"),)))
        async with Engine(store="ram:", planner=planner) as engine:
            assert (await engine.run(Agent(name="a"), "go")).traceback == ""

    run_async(main)


def test_a_traceback_is_redacted() -> None:
    """A message may hold what must not be kept, as may the line that raised."""

    def plan() -> Plan:
        raise ValueError("card 4111-1111 was refused")

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Planned(first=plan), redact=[r"\d{4}-\d{4}"]) as engine:
            result = await engine.run(Agent(name="a"), "go", run_id="r")
            assert "4111" not in repr(tracebacks(result.state)) and "card" in result.traceback
            assert all(b"4111" not in line for line in await store.read("r"))

    run_async(main)


def test_a_run_keeps_a_bounded_number_of_bounded_tracebacks() -> None:
    """A tool that fails in each turn would fill the log; the first ones are kept, and the one that ended the run."""
    count = 0

    @tool(name="look", side_effect="read")
    def differs() -> str:
        """Looks."""
        nonlocal count
        count += 1
        raise ValueError(f"{count}: " + "x" * 3 * LONGEST)

    async def main() -> None:
        planner = Planned()
        planner.first = lambda: Plan(actions=(ToolCall(tool="look", args={}),)) if len(planner.seen) < 30 else boom()
        agent = Agent(name="a", tools=["look"], budget=Budget(max_iterations=30, max_failed_turns=100, max_non_progress=100))
        async with Engine(store="ram:", planner=planner, tools=[differs]) as engine:
            result = await engine.run(agent, "go", run_id="r")
            kept = tracebacks(result.state)
            assert [one.error[:14] for one in kept] == [f"ValueError: {n}: x"[:14] for n in range(1, MOST + 1)] + ["KeyError: 'not"]
            assert "in plan" in result.traceback
            assert all(len(one.text) <= LONGEST + 100 for one in kept) and (await engine.replay("r")).identical

    run_async(main)


def test_a_traceback_is_erased_with_its_run() -> None:
    """It may quote what the run was about."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Planned(first=boom)) as engine:
            await engine.run(Agent(name="a"), "go", run_id="r")
            assert any(b"nothing here" in line for line in await store.read("r"))
            await engine.erase("r", by="ann", why="asked to")
            assert not any(b"nothing here" in line for line in await store.read("r"))

    run_async(main)


def test_a_log_of_an_earlier_version_has_no_reference_and_replays() -> None:
    """Its `RunFinished` names no traceback, and no record holds one; what raises again in the replay is what raised then."""
    state = msgspec.json.decode(msgspec.json.encode({"status": "failed", "reason": "kernel_error", "error": "KeyError: 'x'"}))
    assert msgspec.convert(state, e.RunFinished).traceback == 0


def test_what_a_planner_states_has_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """`PlannerFailed` says all that there is to say, as `ToolFailed` does for a tool; it is no mistake in the code."""

    def plan() -> Plan:
        raise PlannerFailed("the model is on holiday")

    result = Engine(store="ram:", planner=Planned(first=plan)).run_sync(Agent(name="a"), "go")
    assert (result.error, result.traceback, caplog.text) == ("the model is on holiday", "", "")


def test_an_error_of_detents_own_shows_the_line_of_the_user_that_led_to_it() -> None:
    """A strategy that calls `run.kernel` wrongly is told where it does."""

    @strategy()
    async def wrong(run: StrategyRun) -> Any:
        return await run.kernel("x", kernel="no such kernel")

    result = Engine(store="ram:", planner=Planned(), strategies={"wrong": wrong}).run_sync(Agent(name="a", strategy="wrong"), "go")
    assert "no such kernel" in str(result.error) and 'run.kernel("x", kernel="no such kernel")' in result.traceback


@pytest.mark.parametrize("way", ["chain", "note", "group"])
def test_a_sensitive_argument_is_hidden_wherever_an_exception_has_it(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """A cause, a note and a member of a group are part of a traceback, and not of the message that the planner is told."""

    @tool(name="look", side_effect="read", sensitive=["password"])
    def login(password: str) -> str:
        """Logs in."""
        bad = ValueError(f"bad {password}")
        if way == "group":
            raise ExceptionGroup("login failed", [bad])
        error = RuntimeError("login failed")
        if way == "note":
            error.add_note(str(bad))
        raise error from (bad if way == "chain" else None)

    async def main() -> None:
        store = RamStore()
        planner = Planned()
        planner.first = lambda: Plan(actions=(ToolCall(tool="look", args={"password": "hunter2"}),)) if len(planner.seen) == 1 else END
        async with Engine(store=store, planner=planner, tools=[login]) as engine:
            result = await engine.run(PLAIN, "go", run_id="r")
            assert "login failed" in result.traceback and "hunter2" not in repr(tracebacks(result.state)) + caplog.text

    run_async(main)


def test_what_is_secret_is_hidden_before_a_traceback_is_cut() -> None:
    """Half of it would match no pattern."""

    def plan() -> Plan:
        raise ValueError("sk-1234567890 " * LONGEST)

    result = Engine(store="ram:", planner=Planned(first=plan), redact=[r"sk-\d{10}"]).run_sync(Agent(name="a"), "go")
    assert "sk-1" not in repr(tracebacks(result.state)) and "4567890" not in repr(tracebacks(result.state))


def test_a_replay_tells_nobody_what_the_live_run_has_hidden(caplog: pytest.LogCaptureFixture) -> None:
    """The strategy raises once more, and no run keeps that."""

    @strategy()
    async def wrong(run: StrategyRun) -> Any:
        raise ValueError("card 4111-1111")

    async def main() -> None:
        async with Engine(store="ram:", strategies={"wrong": wrong}, redact=[r"\d{4}-\d{4}"]) as engine:
            await engine.run(Agent(name="a", strategy="wrong"), "go", run_id="r")
            caplog.clear()
            assert (await engine.replay("r")).identical and "raised" not in caplog.text

    run_async(main)
