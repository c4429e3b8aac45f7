"""Hooks before and after phases: they may skip or abort, never change, and they are asked once a turn. DESIGN 7, composable kernel 17."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from detent import Agent, FinalAnswer
from detent.core import events as e
from detent.core.errors import ConfigError, UnknownName
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import Abort, KernelHooks, Skip
from detent.stores.ram import RamStore
from kernel.runs import END, Decide, Desk, Script, call, engine_for, look, ran, run_async


def test_the_hook_before_act_runs_before_any_effect_and_can_refuse_it() -> None:
    """The calls are refused with its reason, nothing runs, the run goes on, and the log replays without asking the hook."""
    desk, asked = Desk(), []

    async def before(state: KernelState) -> Any:
        asked.append((list(desk.ran), [c.tool for c in state.calls.values()]))
        return Skip("not on fridays") if state.calls else None

    done = ran([(call("put", n=1), call("look")), END], *desk.all, hooks=KernelHooks(before={"act": before}))
    assert desk.ran == [] and done.codes == ["hook_refused", "hook_refused"] and done.why == ("completed", "final_answer")
    assert asked == [([], ["put", "look"])] and "not on fridays" in (done.items[0].error.message if done.items[0].error else "")


def test_a_phase_that_is_left_out_between_think_and_act_refuses_no_call() -> None:
    """Only the calls of a skipped `act` are refused."""

    async def review(state: KernelState, context: KernelContext) -> KernelState:
        raise AssertionError("it is left out")

    desk = Desk()
    hooks = KernelHooks(before={"review": lambda state: Skip("not today")})
    done = ran([call("put", n=1), END], *desk.all, hooks=hooks, kernel=make_kernel((think, review, act)))
    assert done.why == ("completed", "final_answer") and desk.ran == [("put", 1)]


def test_hooks_fire_around_each_phase_in_order() -> None:
    """Before and after, once a turn; without effect where they say nothing."""
    seen: list[str] = []
    hooks = KernelHooks(
        before={name: lambda s, name=name: seen.append(f"before {name}") for name in ("think", "act")},
        after={name: lambda s, name=name: seen.append(f"after {name}") for name in ("think", "act")},
    )
    done = ran([call("put", n=1), END], *Desk().all, hooks=hooks)
    assert seen == ["before think", "after think", "before act", "after act", "before think"] and done.result.output == "the end"


@pytest.mark.parametrize("where", [("before", "think"), ("after", "think"), ("before", "act"), ("after", "act")])
def test_a_hook_can_abort_the_run(where: tuple[str, str]) -> None:
    """`policy_stopped` with its reason; the log replays."""
    side, name = where
    desk = Desk()
    hooks = KernelHooks(**{side: {name: lambda s: Abort("stop here")}})  # type: ignore[arg-type]
    done = ran([call("put", n=1), END], *desk.all, hooks=hooks)
    assert done.why == ("stopped", "policy_stopped") and done.result.error == "stop here"
    assert desk.ran == ([("put", 1)] if where == ("after", "act") else [])


def test_a_hook_cannot_change_the_arguments() -> None:
    """It sees copies."""

    def meddle(state: KernelState) -> None:
        for known in state.calls.values():
            known.args["n"] = 99
        assert state.plan is not None
        for action in state.plan.actions:
            if not isinstance(action, FinalAnswer):
                action.args["n"] = 98  # type: ignore[union-attr]

    desk = Desk()
    ran([call("put", n=1), END], *desk.all, hooks=KernelHooks(before={"act": meddle}))
    assert desk.ran == [("put", 1)]


def test_a_hook_that_fails_is_reported_and_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """Before `act` the calls are refused; elsewhere it is as if it had said nothing."""

    def broken(state: KernelState) -> None:
        raise KeyError("x")

    desk = Desk()
    with caplog.at_level(logging.ERROR, logger="detent"):
        done = ran([call("put", n=1), END], *desk.all, hooks=KernelHooks(before={"act": broken, "think": broken}))
    assert done.why == ("completed", "final_answer") and desk.ran == [] and done.codes == ["hook_refused"] and caplog.records


def test_a_resumed_turn_does_not_ask_again() -> None:
    """The hook said yes before the call waited for approval; its answer stands."""

    async def main() -> None:
        desk, asked = Desk(), []

        def before(state: KernelState) -> None:
            asked.append(state.iteration)

        script = Script([call("wipe", n=1), END])
        async with engine_for(script, *desk.all, store=RamStore(), hooks=KernelHooks(before={"act": before})) as engine:
            result = await engine.run(Agent(name="w", tools=["wipe"]), "go")
            result = await engine.approve(result.run_id, "main.1.0", by="ann")
            done = await look(engine, result, script)
            assert desk.ran == [("wipe", 1)] and asked == [1] and len(done.all(e.EffectRecorded)) == 1

    run_async(main)


def test_a_strategys_own_calls_pass_the_hook_too() -> None:
    """One path: no kernel is without it."""
    from detent import ToolCall

    async def direct_calls(run: Any) -> Any:
        await run.kernel("calls", calls=(ToolCall(tool="put", args={"n": 1}),))
        return "done"

    desk = Desk()
    hooks = KernelHooks(before={"act": lambda s: Skip("no")})
    done = ran(
        [], *desk.all, hooks=hooks, strategies={"calls": direct_calls}, agent={"strategy": "calls"}, policy=Decide(lambda c: "allow")
    )
    assert desk.ran == [] and done.result.output == "done"


def test_what_a_strategy_asks_beside_its_passes_passes_the_hook_too() -> None:
    """A question is a turn of the loop like any."""

    async def asks(run: Any) -> Any:
        return await run.ask("quiz", "How many?")

    hooks = KernelHooks(before={"think": lambda s: Abort("no more questions")})
    done = ran([END], hooks=hooks, strategies={"asks": asks}, agent={"strategy": "asks"})
    assert done.why == ("stopped", "policy_stopped") and done.views == []


def test_a_hook_of_a_phase_that_there_is_not_is_refused_at_once() -> None:
    """With the nearest name."""
    with pytest.raises(UnknownName, match="act"):
        engine_for(Script([END]), hooks=KernelHooks(before={"acts": lambda s: None}))


def test_a_replay_without_the_hooks_that_decided_something_says_which() -> None:
    """All that are missing, and how to give them; with them it comes out again, and a hook that was not there is a divergence."""

    async def main() -> None:
        desk, store = Desk(), RamStore()

        def kept(state: Any) -> None:
            return None

        hooks = KernelHooks(before={"act": kept}, after={"think": kept})
        async with engine_for(Script([call("put", n=1), END]), *desk.all, store=store, hooks=hooks) as engine:
            done = await engine.run(Agent(name="w", tools=["look", "put"]), "go")
            assert (await engine.replay(done.run_id)).identical
        for given, missing in ((KernelHooks(), "after think, before act"), (KernelHooks(before={"act": kept}), "after think")):
            async with engine_for(Script([]), *desk.all, store=store, hooks=given) as engine:
                with pytest.raises(ConfigError, match=rf"had phase hooks that are not here \({missing}\).*Engine\(hooks=KernelHooks"):
                    await engine.replay(done.run_id)
        more = KernelHooks(before={"act": kept, "think": kept}, after={"think": kept})
        async with engine_for(Script([]), *desk.all, store=store, hooks=more) as engine:
            found = await engine.replay(done.run_id)
            assert found.divergence is not None
            assert "before think" in found.divergence.actual

    run_async(main)
