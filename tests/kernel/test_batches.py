"""Batches: what runs together, what is a barrier, the order of observations, and the rules of `done`. Rows T12, T13, K23, K84, DESIGN 6."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Budget, FatalToolError, ToolCall, ToolFailed, tool
from detent.core import events as e
from detent.tools.done import done_tool
from kernel.runs import END, Decide, Desk, call, ran

MEET_S = 60


class Meeting:
    """A tool of any kind whose calls tell when they begin and end, and of which `together` can only end when all of them have begun."""

    def __init__(self, together: int = 1) -> None:
        self.trace: list[str] = []
        self.begun = 0
        self.most = 0
        self._now = 0
        self._all = asyncio.Event()
        self._together = together

    async def meet(self, name: str) -> str:
        """Begin, wait for the others, end."""
        self.trace.append(f"begin {name}")
        self._now += 1
        self.begun += 1
        self.most = max(self.most, self._now)
        if self.begun >= self._together:
            self._all.set()
        await asyncio.wait_for(self._all.wait(), MEET_S)
        await asyncio.sleep(0)
        self._now -= 1
        self.trace.append(f"end {name}")
        return name

    def make(self, name: str, **options: Any) -> Any:
        """Return a tool called `name`."""

        async def function(n: int) -> str:
            """Meet."""
            return await self.meet(f"{name}{n}")

        return tool(function, name=name, timeout_s=None, **options)


def batch(*names: str) -> tuple[ToolCall, ...]:
    """Return a batch of calls, numbered by position."""
    return tuple(ToolCall(tool=name, args={"n": i}) for i, name in enumerate(names))


# Together and alone -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side_effect", ["none", "read"])
def test_consecutive_calls_that_only_read_run_together(side_effect: Any) -> None:
    """Proved by a meeting: none of the three can end before all have begun."""

    async def main() -> None:
        from kernel.runs import go

        meeting = Meeting(together=3)
        done = await go([batch("look", "look", "look"), END], meeting.make("look", side_effect=side_effect))
        assert (
            meeting.most == 3
            and [i.content for i in done.items] == ["look0", "look1", "look2"]
            and done.why == ("completed", "final_answer")
        )
        assert not done.all(e.ToolStarted) and sorted(x.call for x in done.all(e.ToolFinished)) == [f"main.1.{n}" for n in range(3)]

    asyncio.run(main())


def test_any_other_call_is_a_barrier_and_runs_alone() -> None:
    """K84: reads before it have ended, reads after it have not begun."""
    meeting = Meeting()
    tools = [meeting.make("look", side_effect="read"), meeting.make("put", side_effect="write")]
    done = ran([batch("look", "look", "put", "look", "put", "put"), END], *tools, replays=False)
    position = {line: i for i, line in enumerate(meeting.trace)}
    for name in ("put2", "put4", "put5"):
        assert position[f"end {name}"] == position[f"begin {name}"] + 1
    assert max(position[f"end look{n}"] for n in (0, 1)) < position["begin put2"] < position["end put2"] < position["begin look3"]
    assert [i.content for i in done.items] == ["look0", "look1", "put2", "look3", "put4", "put5"]


@pytest.mark.parametrize("options", [{"side_effect": "write"}, {"side_effect": "read", "concurrency_safe": False}])
def test_a_tool_that_writes_or_is_not_safe_never_runs_beside_itself(options: Any) -> None:
    """`concurrency_safe` is for tools that only read, and can be said no to."""
    meeting = Meeting()
    ran([batch("act", "act", "act"), END], meeting.make("act", **options), replays=False)
    assert meeting.most == 1 and meeting.trace == [f"{w} act{n}" for n in range(3) for w in ("begin", "end")]


def test_a_concurrency_safe_writer_is_still_a_barrier() -> None:
    """Read-only and concurrency-safe, both (DESIGN 6)."""
    meeting = Meeting()
    ran([batch("act", "act"), END], meeting.make("act", side_effect="write", concurrency_safe=True), replays=False)
    assert meeting.most == 1


def test_observations_keep_the_order_of_calls_when_the_last_ends_first() -> None:
    """State, transcript and results by index; the log in the order of completion; replay agrees."""

    async def main() -> None:
        from kernel.runs import go

        order: list[int] = []
        gates = [asyncio.Event() for _ in range(4)]
        gates[3].set()

        @tool(side_effect="read", timeout_s=None)
        async def late(n: int) -> int:
            """End after the call behind it."""
            await asyncio.wait_for(gates[n].wait(), MEET_S)
            order.append(n)
            if n:
                gates[n - 1].set()
            return n * 10

        done = await go([tuple(call("late", n=n) for n in range(4)), END], late)
        assert order == [3, 2, 1, 0] and [x.call[-1] for x in done.all(e.ToolFinished)] == ["3", "2", "1", "0"]
        assert [i.content for i in done.items] == [0, 10, 20, 30]
        assert (
            [i.content for i in done.views[1].transcript if i.kind == "tool"]
            == [0, 10, 20, 30]
            == [i.content for i in done.views[1].results]
        )

    asyncio.run(main())


def test_a_failure_in_a_group_does_not_disturb_the_others() -> None:
    """Each outcome is its own record; the batch goes on."""

    @tool(side_effect="read")
    async def odd(n: int) -> int:
        """Fail where n is odd."""
        if n % 2:
            raise ToolFailed(f"{n} is odd", error_code="odd")
        return n

    done = ran([tuple(call("odd", n=n) for n in range(5)), END], odd)
    assert done.codes == ["", "odd", "", "odd", ""] and done.why == ("completed", "final_answer") and done.result.usage.failures == 2


def test_a_refused_call_in_the_middle_holds_nothing_back() -> None:
    """Denied, unknown and malformed calls are observed in place; the others run."""
    desk = Desk()
    plan = (call("look", n=0), call("nowhere"), call("put", n="x"), call("put", n=3), call("look", n=4), call("put", n=13))
    done = ran([plan, END], *desk.all, policy=Decide(lambda c: "deny" if c.args.get("n") == 13 else "allow"))
    assert done.codes == ["", "tool_not_found", "schema_validation_failed", "", "", "policy_denied"]
    assert desk.ran == [("look", 0), ("put", 3), ("look", 4)] and [i.args for i in done.items][2] == {"n": "x"}


def test_every_call_is_decided_before_any_is_executed() -> None:
    """DESIGN 6: all decisions stand before the first start in the log."""
    done = ran([(call("look", n=1), call("put", n=2), call("look", n=3)), END], *Desk().all)
    names = [n for n in done.names if n in ("PolicyDecided", "ToolStarted", "ToolFinished")]
    assert names[:3] == ["PolicyDecided"] * 3 and names[3:] == ["ToolFinished", "ToolStarted", "ToolFinished", "ToolFinished"]


def test_a_fatal_error_in_a_group_lets_the_started_ones_end_and_runs_nothing_after() -> None:
    """Their outcomes are facts; the write behind the group is not begun."""
    desk = Desk()

    @tool(side_effect="read")
    async def fatal(n: int) -> int:
        """End it."""
        raise FatalToolError("gone")

    done = ran([(call("look", n=0), call("fatal", n=1), call("look", n=2), call("put", n=3))], fatal, *desk.all)
    assert done.why == ("failed", "fatal_tool_error") and sorted(desk.ran) == [("look", 0), ("look", 2)]
    assert [i.call_id for i in done.items][:3] == ["main.1.0", "main.1.1", "main.1.2"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_bound_of_tool_calls_lets_a_group_end_that_has_begun(limit: int) -> None:
    """Not one call more than allowed, and every started call has its outcome."""
    meeting = Meeting()
    done = ran([batch("look", "look", "look", "look")], meeting.make("look", side_effect="read"), budget=Budget(max_tool_calls=limit))
    assert meeting.begun == limit == len(done.all(e.ToolFinished)) == len(done.items) and done.why == ("stopped", "budget_exhausted")


# done -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["42", {"n": 42}, [1], 0, False])
def test_done_ends_the_run_with_its_answer(answer: Any) -> None:
    """It is a tool and takes act's path: decided, started, finished; reason done_tool."""
    done = ran([ToolCall(tool="done", args={"answer": answer})], done_tool())
    assert done.why == ("completed", "done_tool") and done.result.output == answer and done.result.iterations == 1
    assert [n for n in done.names if "Policy" in n or "Tool" in n] == ["PolicyDecided", "ToolStarted", "ToolFinished"]


@pytest.mark.parametrize("answer", ["", "  ", None, "\u200b\u200d\ufeff"])
def test_a_blank_answer_of_done_is_a_failed_observation(answer: Any) -> None:
    """Law 6: never completed with nothing."""
    done = ran([ToolCall(tool="done", args={"answer": answer}), END], done_tool())
    assert done.why == ("completed", "final_answer") and len(done.codes) == 1 and done.codes[0] != ""


def test_a_tool_that_ends_the_turn_with_what_cannot_be_seen_has_failed() -> None:
    """Its result is the answer, and there is none."""

    @tool(side_effect="write", ends_turn=True)
    async def publish() -> str:
        """Publish and finish."""
        return "\u200b"

    done = ran([call("publish"), END], publish)
    assert done.why == ("completed", "final_answer") and done.codes == ["handler_error"]


def test_calls_before_done_run_and_calls_after_it_do_not() -> None:
    """It must be the last of its batch: what follows is observed as not run, and costs nothing."""
    desk = Desk()
    done = ran(
        [(call("put", n=1), call("look", n=2), call("done", answer="x"), call("put", n=3), call("look", n=4))], done_tool(), *desk.all
    )
    assert done.why == ("completed", "done_tool") and desk.ran == [("put", 1), ("look", 2)] and done.result.output == "x"
    assert done.codes == ["", "", "", "not_run", "not_run"] and done.result.usage.failures == 0 and done.result.usage.tool_calls == 3


@pytest.mark.parametrize("before", ["slip", "nowhere", "put_badly"])
def test_done_fails_when_an_earlier_call_of_its_batch_failed_or_was_refused(before: str) -> None:
    """`batch_failed`: no success is announced over a failure; the run goes on and the model sees why."""
    desk = Desk()
    first = call("put", n="x") if before == "put_badly" else call(before, n=1)
    done = ran([(first, call("done", answer="all good"), call("put", n=2)), call("done", answer="now")], done_tool(), *desk.all)
    assert done.codes[1:3] == ["batch_failed", "not_run"] and done.codes[0] not in ("", "batch_failed")
    assert done.why == ("completed", "done_tool") and done.result.output == "now" and ("put", 2) not in desk.ran


def test_a_failure_in_an_earlier_turn_does_not_hold_done_back() -> None:
    """Only its own batch counts."""
    done = ran([call("slip", n=1), call("done", answer="x")], done_tool(), *Desk().all)
    assert done.why == ("completed", "done_tool")


def test_done_passes_guards_and_policy() -> None:
    """Law 7: a denied `done` is an observation like any other."""
    done = ran([call("done", answer="x"), END], done_tool(), policy=Decide(lambda c: "deny"))
    assert done.codes == ["policy_denied"] and done.why == ("completed", "final_answer")


def test_a_tool_of_ones_own_may_end_the_turn() -> None:
    """`ends_turn`: a dict without an answer is the output as it is."""

    @tool(side_effect="write", ends_turn=True)
    async def publish(text: str) -> dict[str, str]:
        """Publish and finish."""
        return {"url": f"https://example.org/{text}"}

    done = ran([call("publish", text="a")], publish)
    assert done.why == ("completed", "done_tool") and done.result.output == {"url": "https://example.org/a"}
