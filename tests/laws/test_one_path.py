"""Law 7: guards, policy, bounds and journal see every call of every tool, whoever asked for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.kernel.act import act as act_phase
from detent.kernel.guards import default_guards
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.policies.tiers import TieredPolicy
from detent.ports import Block, Call
from detent.testing import ScriptedPlanner
from laws.checks import check_laws
from laws.places import KINDS, Place, agent_of, engine_on


class Seen:
    """A policy and a guard that write down what they were shown."""

    def __init__(self) -> None:
        self.policy: list[tuple[str, Any]] = []
        self.guard: list[tuple[str, Any]] = []
        self.tier = TieredPolicy()
        self.version = self.tier.version
        self.may_ask = self.tier.may_ask

    def decide(self, call: Call, state: Any) -> Any:
        """Decide by tier."""
        self.policy.append((call.tool.name, dict(call.args)))
        return self.tier.decide(call, state)

    def look(self, call: Call, state: Any, run: Any) -> Block | None:
        """Block the number 13."""
        self.guard.append((call.tool.name, dict(call.args)))
        return Block("13 brings bad luck") if call.args.get("n") == 13 else None


def tools_for(ran: list[Any]) -> list[Any]:
    """Return one tool of each tier, and one that ends the turn."""

    def make(name: str, **options: Any) -> Any:
        async def function(n: int) -> str:
            ran.append((name, n))
            return f"{name} {n}"

        function.__doc__ = "Do it."
        return tool(function, name=name, **options)

    return [
        make("look", side_effect="read"),
        make("calm", side_effect="none"),
        make("put", side_effect="write"),
        make("wipe", side_effect="destructive"),
        make("finish", side_effect="none", ends_turn=True),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_policy_and_guards_see_every_call_before_it_runs(kind: str, tmp_path: Path) -> None:
    """Calls of a batch, approved, edited and embedded ones, healed ones as they will run, and `done`-like ones; once each, and again when edited."""
    ran: list[Any] = []
    seen = Seen()
    turns = [
        (ToolCall(tool="look", args={"n": 1}), ToolCall(tool="calm", args='{"n": 2}'), ToolCall(tool="put", args={"n": 3})),
        ToolCall(tool="wipe", args={"n": 4}),
        ToolCall(tool="wipe", args={"n": 5}),
        ToolCall(tool="put", args={"n": 13}),
        ToolCall(tool="look", args={"n": 7}),
        ToolCall(tool="wipe", args={"n": 13}),
        FinalAnswer(content='put({"n": 13})'),
        FinalAnswer(content='put({"n": 6})'),
    ]

    async def main() -> None:
        place = Place(kind, tmp_path)
        kernel = make_kernel(guards=(*default_guards, seen.look))
        tools = tools_for(ran)
        async with engine_on(place.store(), lambda view: turns[view.iteration - 1], tools, policy=seen, kernel=kernel) as engine:
            result = await engine.run(agent_of(*tools), "go", run_id="run")
            assert (result.status, ran) == ("waiting_for_approval", [("look", 1), ("calm", 2), ("put", 3)])
            result = await engine.approve("run", "main.2.0", by="ann")
            result = await engine.approve("run", "main.3.0", by="ann", args={"n": 50})
            if result.status == "waiting_for_approval" and "main.3.0" in result.state.approvals:
                result = await engine.approve("run", "main.3.0", by="ann")
            assert (result.status, list(result.state.approvals)) == ("waiting_for_approval", ["main.8.0"]), "text that writes is asked for"
            assert ran[3:] == [("wipe", 4), ("wipe", 50), ("look", 7)]
            result = await engine.approve("run", "main.8.0", by="ann")
            assert (result.status, result.output, ran[-1]) == ("completed", "put 6", ("put", 6))
            assert (await engine.replay("run")).identical
        shown = {(name, args["n"]) for name, args in seen.policy}
        assert shown == {("look", 1), ("calm", 2), ("put", 3), ("wipe", 4), ("wipe", 5), ("wipe", 50), ("look", 7), ("put", 6)}
        assert {(name, args["n"]) for name, args in seen.guard} == shown | {("put", 13), ("wipe", 13)}
        assert set(ran) <= shown
        assert [i.error.code for i in result.tool_calls if i.error] == ["guard_blocked"] * 3
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("who", ["guard", "policy"])
def test_a_guard_or_policy_that_fails_refuses(who: str, tmp_path: Path) -> None:
    """A check that cannot be made is no permission; the planner is told, and the run goes on."""
    ran: list[Any] = []

    def breaks(*_: Any) -> Any:
        raise KeyError("oops \udcff")

    async def main() -> None:
        place = Place("ram", tmp_path)
        seen = Seen()
        tools = tools_for(ran)
        options: dict[str, Any] = {"kernel": make_kernel(guards=(breaks,))} if who == "guard" else {"policy": seen}
        seen.decide = breaks  # type: ignore[method-assign]
        planner = ScriptedPlanner([ToolCall(tool="put", args={"n": 1}), FinalAnswer(content="done")])
        async with engine_on(place.store(), planner, tools, **options) as engine:
            result = await engine.run(agent_of(*tools), "go", run_id="run")
            assert (result.status, ran) == ("completed", [])
            (item,) = result.tool_calls
            assert item.error is not None
            assert item.error.code == ("guard_blocked" if who == "guard" else "policy_denied")
            assert "oops" in item.error.message
        check_laws(await place.lines("run"))

    asyncio.run(main())


def test_a_denied_call_never_ran_and_is_not_among_the_tools_used(tmp_path: Path) -> None:
    """It is an observation with its code; state, log and result agree that nothing was executed."""
    ran: list[Any] = []

    class Denies(TieredPolicy):
        """Denies putting."""

        def decide(self, call: Call, state: Any) -> Any:
            """Deny."""
            from detent.ports import Verdict

            return Verdict(decision="deny", rule="no", reason="not here") if call.tool.name == "put" else super().decide(call, state)

    def plan(view: View) -> Any:
        if view.iteration == 1:
            return (ToolCall(tool="look", args={"n": 1}), ToolCall(tool="put", args={"n": 2}), ToolCall(tool="finish", args={"n": 3}))
        return FinalAnswer(content="done")

    async def main() -> None:
        place = Place("ram", tmp_path)
        tools = tools_for(ran)
        async with engine_on(place.store(), plan, tools, policy=Denies()) as engine:
            result = await engine.run(agent_of(*tools), "go", run_id="run")
            assert [(i.tool, i.ok, i.executed, i.error.code if i.error else "") for i in result.tool_calls] == [
                ("look", True, True, ""),
                ("put", False, False, "policy_denied"),
                ("finish", False, False, "batch_failed"),
            ]
            assert result.state.passes["main"].tools_used == {"look"}
            assert ran == [("look", 1)]
            assert not [r for r in await engine.records("run") if isinstance(r.event, e.ToolStarted) and r.event.tool != "look"]
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))

    asyncio.run(main())


def test_a_phase_that_executes_twice_at_once_runs_nothing_twice(tmp_path: Path) -> None:
    """There is one path, and it is taken one at a time: a running call is not taken for one that a dead worker left."""
    ran: list[Any] = []

    async def hasty(state: Any, context: Any) -> Any:
        """Execute twice at once."""
        await asyncio.gather(context.execute(), context.execute(), return_exceptions=True)
        return context.state

    @tool(side_effect="write", idempotent=True)
    async def act(n: int) -> int:
        """Act, and take a moment."""
        ran.append(n)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return n

    def plan(view: View) -> Any:
        return ToolCall(tool="act", args={"n": 1}) if not view.results else FinalAnswer(content="done")

    async def main() -> None:
        place = Place("ram", tmp_path)
        async with engine_on(place.store(), plan, [act], kernel=make_kernel((think, hasty, act_phase))) as engine:
            await engine.run(agent_of(act), "go", run_id="run")
        assert ran == [1]
        check_laws(await place.lines("run"))

    asyncio.run(main())
