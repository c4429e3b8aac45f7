"""Questions that a strategy puts to the user: they wait in a store, in any process, and a reply that does not fit is refused."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from amounts import crossed
from detent import Agent, AskUser, Budget, Engine, ToolCall, tool
from detent.core import events as e
from detent.core.errors import ConfigError, NotAllowedNow, PassFailed
from detent.ports import Branch, StrategyRun
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.testing.faults import Crash, CrashingStore
from strategies.test_passes import Answers, engine_with, events, run

AGENT = Agent(name="a", strategy="mine")
AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer", "minimum": 1}}, "required": ["amount"]}


async def ask_twice(run: StrategyRun) -> Any:
    """Ask for a colour and an amount, with a pass between."""
    colour = await run.ask_user("colour", "Which colour?")
    await run.kernel("work")
    return [colour, await run.ask_user("amount", "How much?", AMOUNT)]


def test_a_strategy_asks_waits_and_goes_on_with_the_reply_in_another_process(tmp_path: Any) -> None:
    """The run waits as rows in a store; each reply comes to an engine that knows nothing of the one that asked."""

    async def main() -> None:
        def engine() -> Engine:
            return engine_with(ask_twice, planner, store=SqliteStore(tmp_path / "runs.db"))

        planner = Answers({"work": "done"})
        async with engine() as first:
            waiting = await first.run(AGENT, "go", run_id="r")
            assert (waiting.status, planner.asked) == ("waiting_for_user", [])
            assert [(ask.ask_id, ask.question) for ask in waiting.state.asks.values()] == [("colour.1", "Which colour?")]
        async with engine() as second:
            waiting = await second.reply("r", "blue", by="ann")
            assert (waiting.status, planner.asked) == ("waiting_for_user", ["work"])
            assert waiting.state.asks["amount.1"].expected == AMOUNT
            with pytest.raises(NotAllowedNow, match="does not fit") as refused:
                await second.reply("r", {"amount": 0}, by="ann")
            assert refused.value.reason_code == "reply_not_as_expected"
        async with engine() as third:
            result = await third.reply("r", '{"amount": 3}', by="ann")
            assert (result.status, result.output) == ("completed", ["blue", {"amount": 3}])
            assert planner.asked == ["work"] and (await third.replay("r")).identical

    asyncio.run(main())


@pytest.mark.parametrize(
    ("expected", "said", "reply"),
    [
        (None, "3", "3"),
        ({"type": "integer"}, 3, 3),
        ({"type": "integer"}, "3", 3),
        ({"type": "string"}, "3", "3"),
        ({"enum": ["yes", "no"]}, "yes", "yes"),
        ({"type": ["null", "boolean"]}, None, None),
        ({"type": "array"}, [], []),
    ],
)
def test_a_reply_is_what_was_expected(expected: Any, said: Any, reply: Any) -> None:
    """A number where a number was asked for, text where nothing was; nothing at all can be a reply too."""

    async def mine(run: StrategyRun) -> Any:
        return {"reply": await run.ask_user("q", "What?", expected)}

    engine = engine_with(mine, Answers({}))
    assert run(engine).status == "waiting_for_user"
    result = asyncio.run(engine.reply("r", said, by="ann"))
    assert result.output == {"reply": reply} and asyncio.run(engine.replay("r")).identical


@crossed
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_at_any_write_asks_nobody_twice(at: int, when: Any) -> None:
    """What was asked is asked once, and what was replied is not asked again."""

    async def main() -> None:
        inner = RamStore()
        store = CrashingStore(inner, at=at, when=when, operations=("append",))
        with contextlib.suppress(Crash):
            engine = engine_with(ask_twice, Answers({"work": "done"}), store=store)
            await engine.run(AGENT, "go", run_id="r")
            await engine.reply("r", "blue", by="ann")
            await engine.reply("r", {"amount": 2}, by="ann")
        engine = engine_with(ask_twice, Answers({"work": "done"}), store=inner)
        await inner.release("r")
        result = await (engine.resume("r") if await inner.read("r") else engine.run(AGENT, "go", run_id="r"))
        for said in ("blue", {"amount": 2}):
            if result.status == "waiting_for_user" and (said == "blue") is ("colour.1" in result.state.asks):
                result = await engine.reply("r", said, by="ann")
        assert (result.status, result.output) == ("completed", ["blue", {"amount": 2}])
        log = [record.event for record in await engine.records("r")]
        assert [event.ask_id for event in log if isinstance(event, e.UserAsked)] == ["colour.1", "amount.1"]
        assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_a_question_that_no_reply_could_fit_is_refused_before_it_is_asked() -> None:
    """Nobody would find out before the reply was there."""
    for question, expected, problem in (
        (" ", None, "a question to the user is blank"),
        ("What?", {"type": "strange"}, "'What\\?': what it expects is not a JSON Schema"),
    ):

        async def mine(run: StrategyRun, question: str = question, expected: Any = expected, problem: str = problem) -> Any:
            with pytest.raises(ConfigError, match=problem):
                await run.ask_user("q", question, expected)
            return "refused"

        result = run(engine := engine_with(mine, Answers({})))
        assert result.output == "refused" and events(engine, e.UserAsked) == []


def test_questions_side_by_side_are_answered_in_any_order() -> None:
    """Each pass gets the reply to its own question, and what needs nobody goes on meanwhile."""

    async def wide(run: StrategyRun) -> Any:
        questions = [Branch(label=name, question=AskUser(question=f"{name}?")) for name in ("left", "right")]
        return [passed.output for passed in await run.parallel(*questions, Branch(label="work"))]

    engine = engine_with(wide, Answers({"work": "done"}))
    waiting = run(engine)
    assert waiting.status == "waiting_for_user" and sorted(waiting.state.asks) == ["left.1", "right.1"]
    assert waiting.state.passes["work"].status == "done"
    assert asyncio.run(engine.reply("r", "second", by="ann", ask_id="right.1")).status == "waiting_for_user"
    result = asyncio.run(engine.reply("r", "first", by="bob"))
    assert (result.status, result.output) == ("completed", ["first", "second", "done"])
    assert asyncio.run(engine.replay("r")).identical


def test_calls_that_ask_a_person_wait_for_the_reply() -> None:
    """The batch is not over before, nothing of it runs twice, and the reply is the result of the call that asked."""
    put: list[int] = []

    @tool(side_effect="write")
    async def keep(n: int) -> str:
        """Keep a number."""
        put.append(n)
        return "kept"

    def question(text: str, *choices: str) -> ToolCall:
        return ToolCall(tool="ask_user", args={"question": text, "choices": list(choices)} if choices else {"question": text})

    async def batch(run: StrategyRun) -> Any:
        calls = (question("Which?", "red", "blue"), ToolCall(tool="keep", args={"n": 1}), question("Why?"))
        passed = await run.kernel("calls", calls=calls)
        return [passed.status, [item.content for item in passed.results]]

    engine = engine_with(batch, Answers({}), keep)
    waiting = run(engine, "keep", "ask_user")
    assert (waiting.status, put) == ("waiting_for_user", [1]) and waiting.state.passes["calls"].status not in ("done", "failed")
    assert asyncio.run(engine.reply("r", "because", by="ann", ask_id="calls.1.2")).status == "waiting_for_user"
    with pytest.raises(NotAllowedNow, match="does not fit"):
        asyncio.run(engine.reply("r", "green", by="ann"))
    result = asyncio.run(engine.reply("r", "blue", by="ann"))
    assert (result.status, result.output) == ("completed", ["done", ["blue", "kept", "because"]])
    assert put == [1] and asyncio.run(engine.replay("r")).identical


def test_a_reply_that_is_there_before_the_run_waits_repeats_nothing() -> None:
    """Somebody answers as soon as the question is on record: neither the question nor the calls beside it are made again."""
    put: list[int] = []

    @tool(side_effect="write")
    async def keep(n: int) -> str:
        """Keep a number."""
        put.append(n)
        return "kept"

    async def both(run: StrategyRun) -> Any:
        calls = (ToolCall(tool="keep", args={"n": 1}), ToolCall(tool="ask_user", args={"question": "Why?"}))
        passed = await run.kernel("calls", calls=calls)
        return [await run.ask_user("q", "Which?"), *(item.content for item in passed.results)]

    class Quick:
        """Answers every question at once."""

        async def on_record(self, record: Any, state: Any) -> None:
            if isinstance(record.event, e.UserAsked):
                await engine.reply("r", f"to {record.event.question}", by="ann", ask_id=record.event.ask_id)

        def on_chunk(self, chunk: Any) -> None:
            """Nothing is streamed."""

    engine = engine_with(both, Answers({}), keep, observers=[Quick()])
    result = run(engine, "keep", "ask_user")
    assert (result.status, result.output, put) == ("completed", ["to Which?", "kept", "to Why?"], [1])
    assert [event.ask_id for event in events(engine, e.UserAsked)] == ["calls.1.1", "q.1"] and asyncio.run(engine.replay("r")).identical


def test_a_question_ends_with_its_run() -> None:
    """Cancelled, it waits for nobody; a strategy cannot ask more often than the run has turns."""

    async def endless(run: StrategyRun) -> Any:
        while True:
            with contextlib.suppress(PassFailed):
                await run.ask_user("q", "And now?")

    engine = engine_with(endless, Answers({}))
    assert run(engine, budget=Budget(max_iterations=2)).status == "waiting_for_user"
    assert asyncio.run(engine.reply("r", "go on", by="ann")).reason == "max_iterations"
    engine = engine_with(endless, Answers({}))
    assert run(engine).status == "waiting_for_user"
    cancelled = asyncio.run(engine.cancel("r", by="ann"))
    assert (cancelled.status, cancelled.reason, asyncio.run(engine.replay("r")).identical) == ("stopped", "cancelled", True)


def test_what_a_question_and_its_reply_hide_is_hidden_and_replays() -> None:
    """Patterns of the agent hold in what is asked and in what is said."""

    async def mine(run: StrategyRun) -> Any:
        return await run.ask_user("q", "Is 4111-1111 your card, or which is?")

    engine = engine_with(mine, Answers({}), redact=[r"\d{4}-\d{4}"])
    waiting = run(engine)
    assert "4111" not in waiting.state.asks["q.1"].question
    result = asyncio.run(engine.reply("r", "it is 4222-2222", by="ann"))
    assert "4222" not in str(result.output) and "<secret:" in result.output and asyncio.run(engine.replay("r")).identical


def test_a_fork_asks_again_and_may_be_told_the_reply() -> None:
    """An open question belongs to the run that asked it."""

    async def mine(run: StrategyRun) -> Any:
        return {"n": await run.ask_user("q", "How many?", {"type": "integer"})}

    engine = engine_with(mine, Answers({}))
    seq = run(engine).state.seq
    fork = asyncio.run(engine.fork("r", at=seq))
    assert fork.status == "waiting_for_user" and list(fork.state.asks) == ["q.1"]
    assert asyncio.run(engine.reply(fork.run_id, "4", by="ann")).output == {"n": 4}
    told = asyncio.run(engine.fork("r", at=seq, edits={"replies": {"q.1": 5}}))
    assert told.output == {"n": 5} and asyncio.run(engine.replay(told.run_id)).identical
