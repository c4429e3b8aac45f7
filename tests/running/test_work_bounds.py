"""Bounds of single tools, and the last turn that an agent may be granted to answer with what is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import crossed, thinned
from detent import Agent, Budget, FinalAnswer, Plan, ToolCall, View, tool
from detent.config.environment import parse_budget
from detent.core import events as e
from detent.core.errors import BudgetRefused, ConfigError, NotAllowedNow, UnknownName
from detent.stores.ram import RamStore
from detent.testing.clocks import SequentialIds
from detent.testing.faults import Crash, CrashingStore
from detent.tools.done import done_tool
from kernel.runs import Desk, Script, call, engine_for, look, ran
from laws.places import Place

pytestmark = [crossed, thinned]

END = FinalAnswer(content="what I have")


# Single tools --------------------------------------------------------------------------------------------------------------------


def test_a_single_tool_is_bounded_and_the_bound_is_named() -> None:
    """The third call of `put` ends the run; the calls before it ran, `look` is not counted, and the log replays."""
    desk = Desk()
    turn = (call("look", n=0), call("put", n=0))
    script = [turn, (call("look", n=1), call("look", n=2), call("put", n=1)), (call("look", n=3), call("put", n=2)), END]
    done_ = ran(script, *desk.all, budget=Budget(max_calls_of={"put": 2}))
    assert (done_.why, done_.state.dimension, done_.state.limit, done_.state.used) == (
        ("stopped", "budget_exhausted"),
        "tool_calls:put",
        2,
        2,
    )
    assert [name for name, _ in desk.ran] == ["look", "put", "look", "look", "put", "look"]
    assert done_.state.error == "max_calls_of.put is 2, used 2"


def test_of_calls_that_run_together_only_so_many_begin_as_their_tool_may() -> None:
    """Five reads at once of a tool that may be called three times: three run, in order."""
    desk = Desk()
    done_ = ran([tuple(call("look", n=n) for n in range(5)), END], *desk.all, budget=Budget(max_calls_of={"look": 3}))
    assert (desk.ran, done_.state.dimension) == ([("look", 0), ("look", 1), ("look", 2)], "tool_calls:look")


def test_calls_of_other_tools_that_run_together_with_it_do_not_count_against_a_tool() -> None:
    """Two reads of another tool begin in the same moment as the one call that this tool may have: it runs."""

    @tool(side_effect="read")
    async def peek() -> str:
        """Peek."""
        return "peeked"

    desk = Desk()
    done_ = ran([(call("look", n=0), call("look", n=1), call("peek")), END], *desk.all, peek, budget=Budget(max_calls_of={"peek": 1}))
    assert (done_.why, done_.codes) == (("completed", "final_answer"), ["", "", ""])


def test_the_bound_of_a_tool_holds_over_resumption_and_only_naming_it_opens_the_run_again() -> None:
    """What was called stays called; the refusal says how to raise it; other tools keep their bounds."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        script = [call("put", n=0), call("put", n=1), call("put", n=2), call("look"), call("look", n=5), END]
        made = engine_for(Script(script), *desk.all, store=store)
        agent = Agent(name="w", tools=[t.name for t in desk.all])
        result = await made.run(agent, "go", run_id="r", budget=Budget(max_calls_of={"put": 1, "look": 1}))
        assert (result.state.dimension, len(desk.ran)) == ("tool_calls:put", 1)
        with pytest.raises(NotAllowedNow, match=r"max_calls_of=\{'put': \.\.\.\}.*--budget max_calls_of\.put=\.\.\."):
            await made.reopen("r", budget=Budget(max_tool_calls=50))
        result = await made.reopen("r", budget=Budget(max_calls_of={"put": 5}))
        assert (result.state.dimension, result.state.limit) == ("tool_calls:look", 1), "its bound was not named and holds"
        assert (await made.replay("r")).identical

    asyncio.run(main())


def test_a_bound_of_a_tool_that_is_not_there_is_refused_because_it_would_bound_nothing() -> None:
    """At the start, of the run and of its agent, before anything is recorded; at a resumption; at an opening again."""

    async def main() -> None:
        desk, store, wrong = Desk(), RamStore(), Budget(max_calls_of={"putt": 1})
        made = engine_for(Script([call("wipe", n=0), END, END]), *desk.all, store=store)
        agent, said = Agent(name="w", tools=["put", "wipe"]), "max_calls_of 'putt'; did you mean 'put'"
        for start in (made.run(agent, "go", budget=wrong), made.run(msgspec.structs.replace(agent, budget=wrong), "go")):
            with pytest.raises(UnknownName, match=said):
                await start
        assert await made.list_runs() == []
        assert (await made.run(agent, "go", run_id="r", budget=Budget(max_calls_of={"look": 1}))).status == "waiting_for_approval"
        with pytest.raises(UnknownName, match=said):
            await made.resume("r", budget=wrong)
        await made.cancel("r")
        with pytest.raises(UnknownName, match=said):
            await made.reopen("r", budget=wrong)

    asyncio.run(main())


def test_bounds_of_tools_are_said_on_the_command_line_by_name() -> None:
    """`max_calls_of.TOOL=N`, also for names with dashes; what is no number, or not above 0, is refused."""
    assert parse_budget(["max_calls_of.put=2", "calls-of.web-search=5", "tool_calls=9"]) == Budget(
        max_calls_of={"put": 2, "web-search": 5}, max_tool_calls=9
    )
    with pytest.raises(ConfigError, match=r"max_calls_of\.put"):
        parse_budget(["max_calls_of.put=many"])
    with pytest.raises(BudgetRefused, match=r"max_calls_of\.put is 0"):
        parse_budget(["max_calls_of.put=0"])


# The last turn -------------------------------------------------------------------------------------------------------------------


def wrapping(script: Any, *tools: Any, **options: Any) -> Any:
    return ran(script, *tools, agent={"wrap_up": True}, **options)


def test_an_exhausted_bound_of_turns_grants_one_turn_to_answer() -> None:
    """It is shown no tool, told why, and its answer is the run's; without the option the run stops."""
    desk = Desk()
    script = [call("look", n=0), call("look", n=1), END]
    done_ = wrapping(script, desk.look, budget=Budget(max_iterations=2))
    assert (done_.why, done_.result.output) == (("completed", "final_answer"), "what I have")
    assert [len(v.tools) for v in done_.views] == [1, 1, 0]
    assert done_.views[-1].guidance == (
        "This is your last turn: max_iterations is 2 and it is used up. Answer now with what you have; say honestly what is missing.",
    )
    stopped = ran(script, desk.look, budget=Budget(max_iterations=2))
    assert (stopped.why, len(stopped.views)) == (("stopped", "max_iterations"), 2)


@pytest.mark.parametrize(
    ("limits", "turn", "calls"),
    [
        (Budget(max_tool_calls=2), (call("look", n=1), call("put", n=2), call("put", n=3)), 2),
        (Budget(max_calls_of={"put": 1}), (call("put", n=1), call("look", n=2), call("put", n=3)), 2),
        (Budget(max_failures=1), (call("slip"), call("put", n=1)), 1),
    ],
    ids=["tool_calls", "one tool", "failures"],
)
def test_a_bound_that_is_reached_in_the_middle_of_a_batch_grants_it_too(limits: Budget, turn: Any, calls: int) -> None:
    """What had begun has its outcome, the rest is told that it was not run, and the next turn is the last."""
    desk = Desk()
    done_ = wrapping([turn, END], *desk.all, budget=limits)
    assert (done_.why, len(done_.views)) == (("completed", "final_answer"), 2), done_.state.error
    assert all(item.error.code == "budget_exhausted" for item in done_.items if item.error and item.tool != "slip")
    assert len(desk.ran) >= calls
    assert done_.views[-1].tools == ()


def test_in_the_last_turn_no_work_is_done_but_the_run_may_be_ended_by_its_tool() -> None:
    """Calls are refused with an observation; `done` runs; and after a last turn without an answer the run stops by the bound."""
    desk = Desk()
    ended = wrapping(
        [call("look"), ToolCall(tool="done", args={"answer": "by done"})], desk.look, done_tool(), budget=Budget(max_iterations=1)
    )
    assert (ended.why, ended.result.output) == (("completed", "done_tool"), "by done")
    assert [[t.name for t in v.tools] for v in ended.views] == [["look", "done"], ["done"]]
    desk = Desk()
    working = wrapping([call("put", n=0), (call("put", n=1), call("look"))], *desk.all, budget=Budget(max_iterations=1))
    assert (working.why, desk.ran) == (("stopped", "max_iterations"), [("put", 0)])
    assert working.codes == ["", "budget_exhausted", "budget_exhausted"]
    assert working.state.usage.tool_calls == 1


@pytest.mark.parametrize(
    "limits", [Budget(max_model_calls=1), Budget(max_total_tokens=10), Budget(max_cost_usd=0.01)], ids=["model_calls", "tokens", "cost"]
)
def test_what_a_last_turn_would_use_itself_grants_none(limits: Budget) -> None:
    """The bounds on model calls, tokens and money are never passed for it."""
    desk = Desk()
    usage = e.Usage(model_calls=1, input_tokens=10, cost_usd=0.01)
    done_ = wrapping([Plan(actions=(call("look"),), usage=usage), END], desk.look, budget=limits)
    assert (done_.why, len(done_.views)) == (("stopped", "budget_exhausted"), 1)


def last_turn(view: View) -> Any:
    """Two calls a turn, and the answer when there is nothing else to do."""
    return (call("put", n=view.iteration), call("put", n=view.iteration + 90)) if view.tools else FinalAnswer(content=len(view.results))


@pytest.mark.parametrize(
    "budget", [Budget(max_iterations=2), Budget(max_tool_calls=3), Budget(max_calls_of={"put": 3})], ids=["turns", "calls", "one tool"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_of_the_last_turn_ends_the_same_way(budget: Budget, when: Any, tmp_path: Path) -> None:
    """The turn is granted once, whoever resumes: never a second one, never none."""

    async def main() -> None:
        agent = Agent(name="w", tools=["put"], wrap_up=True)
        at, over = 0, False
        while not over:
            at += 1
            directory = tmp_path / str(at)
            directory.mkdir()
            place, desk = Place("ram", directory), Desk()
            store = CrashingStore(place.store(), at=at, when=when, operations=("append",))
            try:
                await engine_for(Script([last_turn] * 9), desk.put, store=store).run(agent, "go", run_id="r", budget=budget)
                over = True
            except Crash:
                pass
            await place.close()
            planner = Script([last_turn] * 9)
            made = engine_for(planner, desk.put, store=place.store(), ids=SequentialIds(5000))
            await made.store.open()
            if await made.store.head("r") is None:
                result = await made.run(agent, "go", run_id="r", budget=budget)
            else:
                result = await made.resume("r")
                for call_id in result.state.in_doubt:
                    result = await made.reconcile("r", call_id, happened=True, result="put", by="ann")
            done_ = await look(made, result, planner)
            assert (done_.why, result.output) == (("completed", "final_answer"), 4), f"died {when} append {at}"
            turns = done_.all(e.TurnStarted)
            assert [bool(t.wrap_up) for t in turns] == [False, False, True]
            assert len(done_.all(e.Planned)) == 3
            await place.close()
        assert at > 6

    asyncio.run(main())


# resume --budget -----------------------------------------------------------------------------------------------------------------


def test_resume_with_a_budget_is_recorded_with_who_changed_it_and_keeps_what_was_used() -> None:
    """The bound holds from there on; the log replays; a finished run is refused with the way to go on."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        made = engine_for(Script([call("look", n=n) for n in range(9)]), desk.look, store=store)
        agent = Agent(name="w", tools=["look"])
        await made.run(agent, "go", run_id="r", budget=Budget(max_iterations=4), turns=2)
        result = await made.resume("r", budget=Budget(max_iterations=6, max_calls_of={"look": 5}), by="ann")
        assert (result.state.dimension, result.usage.tool_calls) == ("tool_calls:look", 5)
        (changed,) = [r.event for r in await made.records("r") if isinstance(r.event, e.BudgetChanged)]
        assert (changed.by, changed.budget) == ("ann", Budget(max_iterations=6, max_calls_of={"look": 5}))
        assert (await made.load("r")).budget.max_failed_turns == 3, "what was not named stays"
        assert (await made.replay("r")).identical
        with pytest.raises(NotAllowedNow, match="detent reopen r --budget"):
            await made.resume("r", budget=Budget(max_iterations=50))
        with pytest.raises(BudgetRefused, match="ceiling"):
            await made.resume("r", budget=Budget(max_iterations=5000))

    asyncio.run(main())
