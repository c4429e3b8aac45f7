"""Who is told of a run cannot change it: hooks and observers get copies of arguments, plans, notes and variables. DESIGN, law 2."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, FinalAnswer, ToolCall, ToolFailed, tool
from detent.core import events as e
from detent.observers.bus import EventBus
from detent.ports import Abort, Branch, KernelHooks, Skip
from kernel.runs import END, Decide, Desk, Script, call, engine_for, ran, run_async


def meddle(state: Any, *_: Any) -> None:
    """Write into everything that can be reached."""
    for known in state.calls.values():
        known.args["n"] = 99
    for action in state.plan.actions if state.plan is not None else ():
        if isinstance(action, ToolCall):
            action.args["n"] = 98
    state.meta["evil"] = 1
    state.scratchpad["evil"] = "1"


HOOKS = [KernelHooks(**{name: meddle}) for name in ("on_thought", "on_action", "on_observation", "on_done")]  # type: ignore[arg-type]
HOOKS += [KernelHooks(**{side: {name: meddle}}) for side in ("before", "after") for name in ("think", "act")]  # type: ignore[arg-type]


@pytest.mark.parametrize("hooks", HOOKS)
def test_a_hook_that_writes_into_what_it_is_shown_changes_nothing(hooks: KernelHooks) -> None:
    """The policy decides about, the tool runs with, and the log holds what was planned; the state is still the fold of the log."""
    desk, decided = Desk(), []

    def decide(asked: Any) -> str:
        decided.append(asked.args)
        return "allow"

    done = ran([call("put", n=1), call("look", n=2), END], *desk.all, hooks=hooks, policy=Decide(decide))
    assert desk.ran == [("put", 1), ("look", 2)] and decided == [{"n": 1}, {"n": 2}] * 2  # live and in the replay
    assert done.main.meta == {} and dict(done.main.scratchpad) == {}
    assert [item.args for item in done.items] == [{"n": 1}, {"n": 2}]


def test_a_handler_that_writes_into_an_error_changes_nothing() -> None:
    """What the tool said of it is still there."""
    bus = EventBus()
    bus.on(e.ToolFinished, lambda event, state: event.error.details.clear())

    @tool(side_effect="read")
    async def weigh() -> str:
        """Fail."""
        raise ToolFailed("too heavy", details={"kg": 900})

    error = ran([call("weigh"), END], weigh, observers=[bus]).items[0].error
    assert error is not None and error.details == {"kg": 900}


def test_a_handler_that_writes_into_other_passes_changes_none_of_them() -> None:
    """Whatever record it is told of, what works beside it is a copy, too."""
    bus, desk = EventBus(), Desk()

    def meddle_everywhere(event: Any, state: Any) -> None:
        for known in state.passes.values():
            meddle(known)

    async def both(run: Any) -> str:
        made = [Branch(label=f"put-{n}", calls=(call("put", n=n),)) for n in (1, 2)]
        await run.parallel(*made)
        return "done"

    bus.subscribe(meddle_everywhere)
    done = ran([], *desk.all, observers=[bus], strategies={"both": both}, agent={"strategy": "both"}, policy=Decide(lambda c: "allow"))
    assert sorted(desk.ran) == [("put", 1), ("put", 2)] and all(not known.meta for known in done.state.passes.values())


def test_a_handler_of_the_bus_that_writes_into_an_event_changes_nothing() -> None:
    """Such as one that takes a secret out before it prints."""
    bus, desk = EventBus(), Desk()

    def strip(event: Any, state: Any) -> None:
        for action in event.actions:
            if isinstance(action, ToolCall):
                action.args.clear()
        state.variables["unit"] = "miles"
        for known in state.passes.values():
            for one in known.calls.values():
                one.args["n"] = 5

    bus.on(e.Planned, strip)
    run = {"variables": {"unit": "km"}}
    done = ran([call("put", n=1), END], *desk.all, observers=[bus], run=run)
    assert desk.ran == [("put", 1)] and done.items[0].args == {"n": 1} and done.views[1].variables == {"unit": "km"}


@pytest.mark.parametrize("where", ["think", "act"])
def test_a_hook_that_hangs_is_ended_by_a_cancellation(where: str) -> None:
    """No effect follows, and the log replays."""

    async def main() -> None:
        desk, inside = Desk(), asyncio.Event()

        async def hang(state: Any) -> None:
            inside.set()
            await asyncio.Event().wait()

        async with engine_for(Script([call("put", n=1), END]), *desk.all, hooks=KernelHooks(before={where: hang})) as engine:
            running = asyncio.ensure_future(engine.run(Agent(name="w", tools=["put"]), "go", run_id="r"))
            await inside.wait()
            await engine.cancel("r", by="ann", why="enough")
            result = await running
            assert (result.status, result.reason, desk.ran) == ("stopped", "cancelled", [])
            assert (await engine.replay("r")).identical

    run_async(main)


@pytest.mark.parametrize("answer", [5, "abort", {"skip": 1}, None])
def test_what_is_neither_skip_nor_abort_lets_the_phase_run(answer: Any) -> None:
    """A hook says no in one way only."""
    desk = Desk()
    ran([call("put", n=1), END], *desk.all, hooks=KernelHooks(before={"act": lambda state: answer}))
    assert desk.ran == [("put", 1)]


@pytest.mark.parametrize("reason", [Skip(""), Skip("half \ud800"), Abort("half \ud800")])
def test_a_refusal_holds_whatever_its_reason_is(reason: Any) -> None:
    """Blank, or no text at all."""
    desk = Desk()
    ran([call("put", n=1), END], *desk.all, hooks=KernelHooks(before={"act": lambda state: reason}))
    assert desk.ran == []


def test_the_reason_of_a_hook_is_redacted_like_anything_that_is_recorded() -> None:
    """What the agent hides stays hidden when a hook repeats it."""
    desk = Desk()
    hooks = KernelHooks(before={"act": lambda state: Skip("the key is sk-12345678")})
    done = ran([call("put", n=1), END], *desk.all, hooks=hooks, agent={"redact": [r"sk-\d+"]})
    assert b"sk-12345678" not in b"".join(done.lines) and done.codes == ["hook_refused"]


def test_what_a_phase_changed_is_kept_after_its_hook() -> None:
    """Meta and notes of a phase with an after hook arrive."""
    from detent.core.state import transition
    from detent.kernel.act import act
    from detent.kernel.kernel import make_kernel
    from detent.kernel.think import think

    async def count(state: Any, context: Any) -> Any:
        return transition(state, meta={**state.meta, "turns": state.meta.get("turns", 0) + 1}, guidance=("counted",))

    kernel = make_kernel(phases=(think, act, count))
    hooks = KernelHooks(after={"count": lambda state: None})
    done = ran([call("put", n=1), call("look"), END], *Desk().all, kernel=kernel, hooks=hooks)
    assert done.main.meta["turns"] == 3 and done.views[1].guidance == ("counted",)


def test_an_outcome_that_a_person_settles_is_an_observation() -> None:
    """on_observation hears of a call that was in doubt once it is known what became of it."""
    from detent import tool

    heard: list[Any] = []

    @tool(side_effect="write")
    async def post() -> str:
        """Post, and nobody knows."""
        raise RuntimeError("line dead")

    async def main() -> None:
        hooks = KernelHooks(on_observation=lambda state, text, ok, call: heard.append((text, ok)))
        async with engine_for(Script([call("post"), FinalAnswer(content="done")]), post, hooks=hooks) as engine:
            result = await engine.run(Agent(name="w", tools=["post"]), "go", run_id="r")
            assert result.status == "waiting_for_reconciliation" and heard == []
            await engine.reconcile("r", "main.1.0", happened=True, result="posted", by="ann")
            assert heard == [('"posted"', True)]

    run_async(main)
