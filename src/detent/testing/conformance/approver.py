"""The contract of an approver, `Engine(approver=...)`, as tests.

An approver brings a request for approval to a person and the answer back: over a chat, a web page, a terminal. A project with an approver writes
an `ApproverMaker`, which creates it with a function in place of the person, and a class with one fixture:

    class TestMyApprover(ApproverContract):
        @pytest.fixture
        def maker(self):
            return MyApproverMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from detent.config.agents import Agent
from detent.core.actions import FinalAnswer, ToolCall
from detent.core.state import Item
from detent.engine import Approver, Engine
from detent.ports import View
from detent.running.results import Approval, Result
from detent.testing.conformance.promises import Maker, documented, soon
from detent.testing.scripted import ScriptedPlanner
from detent.tools.functions.function import Tool

__all__ = ["ApproverContract", "ApproverMaker", "Person"]

Person = Callable[[Approval], bool]
"""The person who decides: returns yes or no, or raises if nobody can be reached. It may be called from any thread."""


class ApproverMaker(Maker):
    """Makes approvers."""

    def approver(self, person: Person) -> Approver:
        """Return an approver that asks `person`. If `person` raises, nobody could be reached."""
        raise NotImplementedError


class _Desk:
    """An engine with an agent that removes accounts, which needs approval."""

    def __init__(self, approver: Approver, *names: str) -> None:
        self.removed: list[str] = []

        async def remove(args: dict[str, Any]) -> str:
            self.removed.append(args["name"])
            return f"removed {args['name']}"

        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        tool = Tool.from_schema(
            name="remove", description="Remove an account.", input_schema=schema, execute=remove, side_effect="destructive"
        )
        self.agent = Agent(name="cleaner", tools=(tool,))

        def plan(view: View) -> Any:
            if view.results:
                return FinalAnswer(content=" ".join(_said(item) for item in view.results))
            wanted = names or view.goal.split()
            return tuple(ToolCall(tool="remove", args={"name": name}) for name in wanted)

        self.engine = Engine(planner=ScriptedPlanner([plan] * 9), approver=approver)

    async def run(self, goal: str = "tidy up") -> Result:
        return await self.engine.run(self.agent, goal)


def _said(item: Item) -> str:
    return str(item.content) if item.ok else item.error.code if item.error is not None else ""


def _request(name: str = "bob") -> Approval:
    """Return a handmade request."""
    return Approval(
        run_id="20260301-120000-tidy-up-aaaaaa",
        call_id="main.1.0",
        tool="remove",
        args={"name": name, "odd": 'ñ \x1b[31m\u202e {"', "nested": [{"a": None}]},
        reason="destructive tools need approval",
        requested_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        digest="d" * 64,
        rule="tier:destructive",
        policy="tiers-1",
    )


async def _answer(approver: Approver, request: Approval, maker: Maker) -> Any:
    said = approver(request)
    return await soon(said, maker, "the approver") if inspect.isawaitable(said) else said


def _yes(_request: Approval) -> bool:
    return True


def _no(_request: Approval) -> bool:
    return False


@documented(page="howto/control/approvals.md#who-answers", port="Verdict")
class ApproverContract:
    """The promises of an approver. A subclass gives the fixture `maker`."""

    async def test_the_answer_is_true_or_false(self, maker: ApproverMaker) -> None:
        """The answer is exactly True or False: an engine treats any truthy value as a yes, even the text "no"."""
        for person, expected in ((_yes, True), (_no, False)):
            said = await _answer(maker.approver(person), _request(), maker)
            assert said is expected, f"the person said {'yes' if expected else 'no'}, the approver {said!r}"

    async def test_the_person_sees_exactly_the_call_that_will_run(self, maker: ApproverMaker) -> None:
        """Run, call, tool, arguments, reason and digest reach the person unchanged, and nothing changes the request on the way."""
        seen: list[Approval] = []

        def person(request: Approval) -> bool:
            seen.append(request)
            return True

        request = _request()
        before = msgspec.json.encode(request)
        await _answer(maker.approver(person), request, maker)
        assert msgspec.json.encode(request) == before, "the request was changed"
        assert len(seen) == 1, f"the person was asked {len(seen)} times"
        for name in ("run_id", "call_id", "tool", "args", "reason", "digest"):
            there = getattr(seen[0], name)
            assert there == getattr(request, name), f"the request has {name} {getattr(request, name)!r}, the person was shown {there!r}"

    async def test_after_a_yes_the_call_runs_once(self, maker: ApproverMaker) -> None:
        """The run continues in the same program and completes."""
        desk = _Desk(maker.approver(_yes), "bob")
        async with desk.engine:
            result = await soon(desk.run(), maker, "the run")
        assert (result.status, result.output, desk.removed) == ("completed", "removed bob", ["bob"])

    async def test_after_a_no_the_call_does_not_run(self, maker: ApproverMaker) -> None:
        """The planner is told `approval_rejected`."""
        desk = _Desk(maker.approver(_no), "bob")
        async with desk.engine:
            result = await soon(desk.run(), maker, "the run")
        assert desk.removed == [], "the person said no, and it ran"
        assert (result.status, result.output) == ("completed", "approval_rejected")

    async def test_where_nobody_can_be_reached_the_run_waits(self, maker: ApproverMaker) -> None:
        """The approver raises and decides nothing itself, neither yes nor no. A later call asks the person again."""
        there: list[bool] = []

        def person(request: Approval) -> bool:
            if not there:
                raise ConnectionError("nobody is there")
            return True

        desk = _Desk(maker.approver(person), "bob")
        async with desk.engine:
            waiting = await soon(desk.run(), maker, "the run")
            assert desk.removed == [], "nobody was reached, and it ran"
            assert waiting.status == "waiting_for_approval", f"nobody was reached, and the run is {waiting.status}: {waiting.output}"
            there.append(True)
            result = await soon(desk.engine.resume(waiting.run_id), maker, "the run, picked up again")
        assert (result.status, desk.removed) == ("completed", ["bob"]), "the person is there now, and the call did not run"

    async def test_each_call_gets_its_own_answer(self, maker: ApproverMaker) -> None:
        """If several calls of one run wait, exactly the approved ones run."""
        desk = _Desk(maker.approver(lambda request: request.args["name"] != "eve"), "ann", "eve", "bob")
        async with desk.engine:
            result = await soon(desk.run(), maker, "the run")
        assert desk.removed == ["ann", "bob"], f"eve was refused; removed were {desk.removed}"
        assert result.output == "removed ann approval_rejected removed bob"

    async def test_a_yes_is_for_one_call_only(self, maker: ApproverMaker) -> None:
        """The same call in another run is asked about again and may be refused."""
        answers = iter([True, False])
        desk = _Desk(maker.approver(lambda request: next(answers)), "bob")
        async with desk.engine:
            first, second = [await soon(desk.run(), maker, "the run") for _ in range(2)]
        assert (first.output, second.output) == ("removed bob", "approval_rejected"), "an answer was used for another call"

    async def test_runs_at_once_get_their_own_answers(self, maker: ApproverMaker) -> None:
        """One approver serves all runs of an engine, and several wait for people at the same time."""
        desk = _Desk(maker.approver(lambda request: request.args["name"].startswith("a")))
        names = [f"{'ab'[n % 2]}{n}" for n in range(8)]
        async with desk.engine:
            results = await soon(asyncio.gather(*(desk.run(name) for name in names)), maker, "eight runs at once")
        for name, result in zip(names, results, strict=True):
            expected = f"removed {name}" if name.startswith("a") else "approval_rejected"
            assert result.output == expected, f"the run about {name} gave {result.output!r}"
