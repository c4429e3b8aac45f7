"""Self-consistent: independent episodes, plurality, an early stop, and an abstention where too few agree (row K127)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from amounts import crossed, stride
from detent import Agent, Budget, Engine, ToolCall, View, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import ConfigError
from detent.expressions.agreeing import plain, plurality
from detent.running.receipts import receipt_of
from detent.stores.ram import RamStore
from detent.strategies.self_consistent import SelfConsistentOptions, fewest
from detent.testing.faults import Crash, CrashingStore
from strategies.scenarios import GOAL, Model, events, passes
from strategies.test_each_strategy import go


def episodes(*said: Any) -> dict[str, Any]:
    return {f"episode-{number}": one for number, one in enumerate(said, 1)}


def broken(view: View) -> Any:
    raise RuntimeError("no line")


@pytest.mark.parametrize(
    ("said", "ran", "options", "output", "agreement"),
    [
        (["a", "A.", " a "], 3, {}, "a", 1.0),
        (["b", "a", "a", "a", "-"], 4, {}, "a", 3 / 4),
        (["a", "b", "b", "a", "c"], 5, {}, "b", 2 / 5),
        (["a", "a"], 2, {"samples": 3}, "a", 1.0),
        (["a", "a", "a"], 3, {"samples": 3, "min_samples": 3}, "a", 1.0),
        (["a"], 1, {"samples": 1, "min_samples": 1}, "a", 1.0),
        (["a", "a", "a", "a"], 4, {"agreement": 0.8}, "a", 1.0),
        (["b", "a", "a", "a", "a"], 5, {"agreement": 0.8}, "a", 0.8),
        ([broken, "a", "a", "a"], 4, {}, "a", 3 / 4),
        ([{"x": 1, "y": 2}, {"y": 2, "x": 1}], 2, {"samples": 3}, {"x": 1, "y": 2}, 1.0),
        ([{"n": 7, "why": "p"}, {"n": 7, "why": "q"}], 2, {"samples": 3, "field": "n"}, {"n": 7, "why": "p"}, 1.0),
    ],
)
def test_the_most_frequent_answer_wins_and_no_episode_begins_that_could_change_nothing(
    said: list[Any], ran: int, options: dict[str, Any], output: Any, agreement: float
) -> None:
    """Counted by case, spaces and full stop aside; of two equally frequent ones, the first to get there. The receipt has the share."""
    result, engine, _ = go("self-consistent", episodes(*said), options=options)
    assert (result.status, result.output) == ("completed", output), result.error
    assert passes(engine) == [f"episode-{n}" for n in range(1, ran + 1)]
    assert receipt_of(result.state).agreement == result.receipt.agreement == pytest.approx(agreement)


@pytest.mark.parametrize(
    ("said", "ran", "options", "why"),
    [
        (
            ["a", "b", "a", "c"],
            4,
            {"agreement": 0.8},
            "too little agreement: the most frequent answer has 2 of 4 episodes; agreement is 0.8",
        ),
        (["a", broken, broken, broken], 4, {"min_samples": 3}, "too little agreement: 1 of 4 episodes have an answer; min_samples is 3"),
        (
            [{"m": 1}, {"n": 1}, {"m": 2}],
            3,
            {"samples": 3, "field": "n"},
            "too little agreement: 1 of 3 episodes have an answer; min_samples is 2",
        ),
    ],
)
def test_it_abstains_if_too_few_agree(said: list[Any], ran: int, options: dict[str, Any], why: str) -> None:
    """And begins no further episode once the share cannot be reached."""
    result, engine, _ = go("self-consistent", episodes(*said), options={"concurrency": 1, **options})
    assert (result.status, result.reason, result.output, result.error) == ("stopped", "abstained", None, why)
    assert len(passes(engine)) == ran


def test_without_any_answer_it_fails_like_its_last_episode() -> None:
    """Nothing is made up; the error is the model's."""
    result, _, _ = go("self-consistent", episodes(broken, broken, broken, broken, broken))
    assert result.status == "failed" and result.reason == "planner_error" and "no line" in result.error


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_episodes_run_side_by_side_and_only_as_many_as_a_decision_needs(concurrency: int) -> None:
    """Three of five decide at the earliest: four at a time are never begun."""
    open_now: set[str] = set()
    most = [0]

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        open_now.add(str(n))
        most[0] = max(most[0], len(open_now))
        await asyncio.sleep(0)
        open_now.discard(str(n))
        return n

    answers = episodes(*([ToolCall(tool="look", args={"n": n}), "a"] for n in range(5)))
    result, engine, _ = go("self-consistent", answers, look, options={"concurrency": concurrency})
    assert (result.output, len(passes(engine)), most[0]) == ("a", 3, min(concurrency, 3))


def test_each_episode_sees_only_the_goal_and_its_part_of_the_budget() -> None:
    """Independent: no answer, no result of another. What may still follow keeps its share, so the first episodes cannot use up all."""
    answers = episodes([ToolCall(tool="none")] * 4 + ["x"], "a", "a", "a")
    result, engine, model = go("self-consistent", answers, budget=Budget(max_iterations=20, max_failed_turns=9), options={"concurrency": 1})
    assert (result.output, result.receipt.agreement) == ("a", 3 / 4)
    assert [view.task for view in model.views] == [GOAL] * len(model.views)
    assert not any(item.text == "a" for view in model.views for item in view.transcript)
    assert [event.limits.max_iterations for event in events(engine, e.PassStarted)] == [4, 4, 5, 7]
    limited = go("self-consistent", episodes("a", "a", "a"), options={"turns": 2})[1]
    assert {event.limits.max_iterations for event in events(limited, e.PassStarted)} == {2}


@pytest.mark.parametrize(("effects", "sent"), [(False, 0), (True, 2)])
def test_episodes_change_nothing_unless_that_is_wanted(effects: bool, sent: int) -> None:
    """Five attempts must not be five mails: the tool is refused, and the model is told why."""
    done: list[str] = []

    @tool(side_effect="write")
    async def mail(to: str) -> str:
        """Send a mail."""
        done.append(to)
        return "sent"

    answers = episodes(*([ToolCall(tool="mail", args={"to": f"ann{n}"}), "a"] for n in range(2)))
    result, engine, _ = go("self-consistent", answers, mail, options={"samples": 3, "effects": effects})
    assert (result.output, len(done), len(events(engine, e.GuardBlocked))) == ("a", sent, 2 - sent)


def test_the_first_answer_that_is_checked_is_enough_where_that_is_wanted() -> None:
    """A check is better evidence than a vote; without any check the option is refused before a run."""

    def even(answer: Any, view: Any) -> str | None:
        return None if int(answer) % 2 == 0 else "it must be even"

    def result_of(said: list[Any]) -> Any:
        async def main() -> Any:
            agent = Agent(name="a", strategy="self-consistent", strategy_options={"accept_first": True}, verify=[even], max_corrections=0)
            async with Engine(planner=Model(episodes(*said))) as engine:
                result = await engine.run(agent, GOAL, run_id="r")
                assert (await engine.replay("r")).identical
                return result

        return asyncio.run(main())

    first = result_of(["4"])
    assert (first.output, list(first.state.passes), first.receipt.agreement) == ("4", ["episode-1"], None)
    voted = result_of(["3", "4", "4", "4"])
    assert (voted.output, list(voted.state.passes), voted.receipt.agreement) == ("4", [f"episode-{n}" for n in (1, 2, 3, 4)], 3 / 4)
    with pytest.raises(ConfigError, match="accept_first needs checks"):
        go("self-consistent", {}, options={"accept_first": True})


def test_no_bound_of_the_run_is_exceeded_by_episodes_side_by_side() -> None:
    """With fewer calls left than episodes wanted, fewer begin."""
    for most in (1, 2):
        model = Model(episodes("a", "a", "a"))
        result, _, _ = go("self-consistent", model, budget=Budget(max_model_calls=most))
        assert (result.status, result.reason, len(model.views)) == ("stopped", "budget_exhausted", most)


@crossed
@pytest.mark.parametrize("at", range(1, 40, stride(4)))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_asks_for_no_recorded_turn_again(at: int, when: Any) -> None:
    """Each turn of an episode that is recorded is not paid for twice, and the agreement is the same."""
    looked: list[int] = []

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        looked.append(n)
        return n

    answers = episodes(*([ToolCall(tool="look", args={"n": n}), said] for n, said in enumerate(("b", "a", "a", "a"))))

    async def main() -> None:
        inner, first, second = RamStore(), Model(answers), Model(answers)
        agent = Agent(name="a", strategy="self-consistent", tools=["look"])
        with contextlib.suppress(Crash):
            store = CrashingStore(inner, at=at, when=when, operations=("append",))
            await Engine(store=store, planner=first, tools=[look]).run(agent, GOAL, run_id="r")
        begun = list(read_log("r", await inner.read("r")))
        recorded = sum(isinstance(record.event, e.Planned) for record in begun)
        await inner.release("r")
        engine = Engine(store=inner, planner=second, tools=[look])
        result = await (engine.resume("r") if begun else engine.run(agent, GOAL, run_id="r"))
        assert (result.output, result.receipt.agreement, list(result.state.passes)) == ("a", 3 / 4, list(answers))
        assert recorded + len(second.views) == result.usage.model_calls == 8
        assert (await engine.replay("r")).identical

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"samples": 3, "min_samples": 4}, "only 3 samples"),
        ({"agreement": 1.5}, "at most 1"),
        ({"agreement": float("nan")}, "agreement is nan"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"turns": 0}, "turns is 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], why: str) -> None:
    """Before anything is paid."""
    with pytest.raises(ConfigError, match=why):
        go("self-consistent", {}, options=options)


def test_stopping_early_never_changes_the_result() -> None:
    """All ways in which up to six episodes can answer: the decision equals that of all of them."""
    from itertools import product

    for samples, agreement in ((3, 0.0), (4, 0.5), (5, 0.6), (6, 0.0)):
        options = SelfConsistentOptions(samples=samples, agreement=agreement, min_samples=2)
        for way in product(("a", "b", None), repeat=samples):
            keys: list[str | None] = []
            while count := fewest(keys, options):
                keys += way[len(keys) : len(keys) + count]
            assert decided(keys, options) == decided(list(way), options), (way, keys)


def decided(keys: list[str | None], options: SelfConsistentOptions) -> str | None:
    place, most = plurality(keys)
    enough = sum(key is not None for key in keys) >= options.min_samples and most / len(keys) >= options.agreement
    return keys[place] if enough and place is not None else None


def test_the_key_of_an_answer_is_without_what_says_nothing() -> None:
    """Case, spaces, a full stop, the order of fields."""
    assert plain(" The  Answer. ") == plain("the answer") and plain({"b": 1, "a": 2}) == plain({"a": 2, "b": 1})
    assert plurality([None, "b", "a", "a", "b"]) == (2, 2) and plurality([None]) == (None, 0)
