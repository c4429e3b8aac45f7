"""Kernels of any phases: order, memoised records, recorded state changes, refused ones, one frozen context. Rows S0-8, S1-1 to S1-3, S1-5."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent import Agent, Budget, FinalAnswer, Plan, Thought, Usage
from detent.core import events as e
from detent.core.budget import Exhausted
from detent.core.history import Map, Seq
from detent.core.state import CallState, Item, KernelState, transition
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.guards import default_guards
from detent.kernel.kernel import FACTS, OWNED, Kernel, make_kernel
from detent.kernel.think import think
from detent.stores.ram import RamStore
from detent.testing.faults import Crash, CrashingStore
from kernel.runs import END, Desk, Script, call, engine_for, ran, records_of, run_async

replace = msgspec.structs.replace


def probe(name: str, seen: list[Any]) -> Any:
    """Return a phase that only says that it ran, in which turn, and what it found."""

    async def phase(state: KernelState, context: KernelContext) -> KernelState:
        seen.append((name, state.iteration))
        return state

    return phase


# Order ------------------------------------------------------------------------------------------------------------------------


def test_phases_run_left_to_right_before_between_and_after_the_default_two() -> None:
    """S1-3: any number of phases, every turn, in order; an answer counts when the last of them has seen it."""
    seen: list[Any] = []

    async def thinks(state: KernelState, context: KernelContext) -> KernelState:
        seen.append(("think", state.iteration))
        return await think(state, context)

    async def acts(state: KernelState, context: KernelContext) -> KernelState:
        seen.append(("act", state.iteration))
        return await act(state, context)

    phases = (probe("a", seen), thinks, probe("b", seen), probe("c", seen), acts, probe("d", seen))
    done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=phases), replays=False)
    assert seen == [*((p, 1) for p in ("a", "think", "b", "c", "act", "d")), *((p, 2) for p in ("a", "think", "b", "c", "act", "d"))]
    assert done.why == ("completed", "final_answer")


def test_a_phase_sees_what_the_phases_before_it_did() -> None:
    """It gets the state as it is now: the plan after think, the observations after act."""
    seen: list[Any] = []

    async def look_at(state: KernelState, context: KernelContext) -> KernelState:
        seen.append((state.plan is not None, len(state.results)))
        return state

    ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=(look_at, think, look_at, act, look_at)), replays=False)
    assert seen == [(False, 0), (True, 0), (True, 1), (False, 1), (True, 1), (True, 1)]


def test_a_kernel_without_an_act_phase_fails_and_says_so_instead_of_spinning() -> None:
    """Calls that nobody executes end the run (3.1: a custom pipeline must not spin)."""
    done = ran([call(n=1)] * 5, *Desk().all, kernel=make_kernel(phases=(think,)))
    assert done.why == ("failed", "kernel_error")
    assert "leaves calls without an outcome: main.1.0; add the act phase" in str(done.result.error)


def test_an_empty_kernel_is_bounded_too() -> None:
    """Law 4: turns that do nothing are counted, and the run does not stall for ever."""
    done = ran([], kernel=make_kernel(phases=()))
    assert done.why == ("stopped", "no_progress") and done.result.iterations == 12


def test_name_and_version_of_a_kernel_stand_in_the_log() -> None:
    """A resume can tell that it is another one."""
    done = ran([END], kernel=make_kernel(name="mine", version=3))
    assert done.all(e.RunStarted)[0].digests["kernel"] == "mine-3" and done.all(e.PassStarted)[0].kernel == "mine" == done.main.kernel_type


def test_the_default_kernel_is_react_with_the_default_guards() -> None:
    """S1-3: think, then act; given parts replace theirs, also by nothing."""
    assert (make_kernel().phases, make_kernel().guards, make_kernel().name) == ((think, act), default_guards, "react")
    assert make_kernel(phases=(), guards=()) == Kernel(phases=(), guards=())


def test_a_phase_that_raises_ends_the_run_and_nothing_escapes() -> None:
    """S0-2, 3.1.14: kernel_error, with type and message."""

    async def broken(state: KernelState, context: KernelContext) -> KernelState:
        raise ZeroDivisionError("by zero")

    for phases in ((broken, think, act), (think, broken, act), (think, act, broken)):
        done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=phases))
        assert done.why == ("failed", "kernel_error") and done.result.error == "ZeroDivisionError: by zero"


# State changes ----------------------------------------------------------------------------------------------------------------


def changing(change: Any) -> Any:
    """Return a phase that returns what `change` makes of the state."""

    async def phase(state: KernelState, context: KernelContext) -> KernelState:
        return change(state)

    return phase


def test_what_a_phase_changes_of_its_own_is_one_record_and_part_of_the_fold() -> None:
    """Meta, scratchpad and guidance; only what differs is written; the next view shows it."""

    def change(state: KernelState) -> KernelState:
        meta = {**state.meta, "turn": state.iteration, "same": [1]}
        return transition(state, meta=meta, scratchpad={"pad": str(state.iteration)}, guidance=(f"hint {state.iteration}",))

    done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=(changing(change), think, act)))
    first, second = done.all(e.StateChanged)
    assert (first.phase, first.meta, first.scratchpad, first.guidance) == (0, {"turn": 1, "same": [1]}, {"pad": "1"}, ("hint 1",))
    assert (second.meta, second.scratchpad, second.removed_meta) == ({"turn": 2}, {"pad": "2"}, ())
    assert [(v.guidance, v.scratchpad) for v in done.views] == [(("hint 1",), {"pad": "1"}), (("hint 2",), {"pad": "2"})]
    assert done.main.meta == {"turn": 2, "same": [1]}


def test_what_a_phase_removes_is_removed() -> None:
    """Keys that are gone from the returned state are gone from the fold."""
    put = changing(lambda s: transition(s, meta={"a": 1, "b": 2}, scratchpad={"x": "1"}))
    drop = changing(lambda s: transition(s, meta={"b": 2}, scratchpad={}))
    done = ran([END], kernel=make_kernel(phases=(put, drop, think, act)))
    assert done.main.meta == {"b": 2} and done.main.scratchpad == {}
    dropped = done.all(e.StateChanged)[1]
    assert (dropped.removed_meta, dropped.removed_scratchpad) == (("a",), ("x",))


def test_a_key_that_meta_and_scratchpad_share_is_removed_where_it_was_removed() -> None:
    """The fold is what the phase returned: the other one keeps it."""
    put = changing(lambda s: transition(s, meta={"k": 1}, scratchpad={"k": "v"}))
    drop = changing(lambda s: transition(s, scratchpad={}))
    done = ran([END], kernel=make_kernel(phases=(put, drop, think, act)))
    assert (done.main.meta, done.main.scratchpad) == ({"k": 1}, {})


def test_a_phase_that_changes_nothing_records_nothing() -> None:
    """Neither the same state, nor an equal one, nor an older one that differs in nothing of its own."""
    done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=(changing(lambda s: s), changing(transition), think, act)))
    assert done.all(e.StateChanged) == []


FACT_CHANGES: dict[str, Any] = {
    "task_id": "other", "strategy": "other", "kernel_type": "other", "scope": "other", "steps": Seq([Item(kind="note")]), "results": Seq([Item(kind="tool")]),
    "tools_used": frozenset({"x"}), "iteration": 9, "usage": Usage(iterations=9), "limits": None, "digest": "other", "status": "done",
    "ended": "final_answer", "output": "x",
    "error": "x", "memory": ("x",), "query": "x", "asked": "x", "compacted": 1, "summary": "x", "partial": "x",
    "compaction": e.ContextCompacted(items=1, summary="x"), "prompt": (1, 1), "plan": e.Planned(actions=(FinalAnswer(content="x"),)),
    "calls": {"main.1.9": CallState(call_id="main.1.9", index=9, tool="x", args={})}, "observed": 5, "acted": True, "turn_ok": 5, "turn_bad": 5, "rejected": 5,
    "progressed": True, "polled": True, "phases_done": frozenset({7}), "effects": {"x": 1}, "failed_turns": 5, "since_progress": 5, "reflections": 5,
    "seen": Map[str, bool]().put("x", True), "recalled": True, "metered": True, "wrapping_up": True, "bound": Exhausted("iterations", 1, 1),
    "balance": e.TenantBalance(tenant="x", window="day", since="2026-01-01", limits=Budget()), "balance_at": Usage(iterations=9),
    "holds": True, "marks": True, "refused": 5, "answering": "done_tool",
}  # fmt: skip


@pytest.mark.parametrize("field", FACTS)
def test_no_phase_changes_a_kernel_fact_without_an_event(field: str) -> None:
    """Each fact by name: the run ends as `kernel_error`, the fold is not touched, and the message says whose fields are whose."""
    assert field in FACT_CHANGES, "a new kernel fact: say here how a phase would try to change it"
    value = FACT_CHANGES[field]
    if field == "limits":
        value = Budget(max_iterations=9)
    done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=(changing(lambda s: replace(s, **{field: value})), think, act)))
    assert done.why == ("failed", "kernel_error") and f"phase 0 changed '{field}' without an event" in str(done.result.error)
    assert "only meta, scratchpad, guidance belong to phases" in str(done.result.error) and done.views == []


def test_every_field_of_a_state_is_a_fact_or_belongs_to_phases() -> None:
    """Nothing is in between."""
    assert set(FACTS) | set(OWNED) == set(KernelState.__struct_fields__) and not set(FACTS) & set(OWNED)


@pytest.mark.parametrize("returned", [None, {"status": "done"}, "done"])
def test_what_a_phase_returns_must_be_a_state(returned: Any) -> None:
    """Said with what to return instead."""
    done = ran([END], kernel=make_kernel(phases=(changing(lambda s: returned), think, act)))
    assert done.why == ("failed", "kernel_error") and "not a KernelState; return `context.state`" in str(done.result.error)


def test_a_phase_that_returns_the_state_it_was_given_after_an_event_is_refused() -> None:
    """It would undo what was recorded: the message names the first field that differs."""

    async def stale(state: KernelState, context: KernelContext) -> KernelState:
        await context.plan()
        return state

    done = ran([call(n=1)], *Desk().all, kernel=make_kernel(phases=(stale, act)))
    assert done.why == ("failed", "kernel_error") and "without an event" in str(done.result.error)


# Memoised records -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_what_a_phase_recorded_in_a_turn_is_found_again_after_a_crash(crash_at: int) -> None:
    """Think finds its plan, act its outcomes, a critique its critique: each is made once, whichever write the worker died before."""
    made: list[str] = []

    async def critique(state: KernelState, context: KernelContext) -> KernelState:
        async def ask() -> str:
            made.append(f"critique {state.iteration}")
            return f"good {state.iteration}"

        said = await context.effect(1, "critique", ask)
        await context.commit()
        again = await context.effect(1, "critique", ask)
        assert said == again
        return transition(context.state, meta={**context.state.meta, f"said {state.iteration}": said})

    def planning(view: Any) -> Any:
        made.append(f"plan {view.iteration}")
        return END if view.iteration == 3 else call("put", n=view.iteration)

    async def main() -> None:
        place, desk = RamStore(), Desk()
        kernel = make_kernel(phases=(think, critique, act))

        class Pure:
            async def plan(self, view: Any) -> Any:
                return Plan(actions=(planning(view),))

        dying = CrashingStore(place, at=crash_at, operations=("append",))
        first = engine_for(Pure(), *desk.all, store=dying, kernel=kernel)
        with pytest.raises(Crash):
            await first.run(Agent(name="w", tools=["put"]), "go", run_id="r")
        async with engine_for(Pure(), *desk.all, store=place.sibling() if hasattr(place, "sibling") else place, kernel=kernel) as second:
            await place.release("r")
            if not await place.read("r"):
                return
            result = await second.resume("r")
            assert result.status in ("completed", "waiting_for_reconciliation")
            if result.status == "waiting_for_reconciliation":
                (doubt,) = result.state.in_doubt
                result = await second.reconcile("r", doubt, happened=True, result="put")
            assert result.status == "completed" and (await second.replay("r")).identical
            events = [r.event for r in await records_of(place, "r")]
            effects = [x for x in events if isinstance(x, e.EffectRecorded)]
            assert [x.value for x in effects] == ["good 1", "good 2"] and len([x for x in events if isinstance(x, e.Planned)]) == 3
            assert result.state.passes["main"].meta == {"said 1": "good 1", "said 2": "good 2"}
            assert desk.ran.count(("put", 1)) == 1 and desk.ran.count(("put", 2)) <= 1

    run_async(main)


@pytest.mark.parametrize("crash_at", [3, 4])
def test_a_phase_whose_change_is_on_record_is_not_run_again_in_that_turn(crash_at: int) -> None:
    """Whoever resumes within the turn goes on with the next phase: what it counted is counted once."""
    began: list[int] = []

    async def count(state: KernelState, context: KernelContext) -> KernelState:
        began.append(state.iteration)
        return transition(state, meta={"turns": state.meta.get("turns", 0) + 1})

    async def main() -> None:
        place, desk = RamStore(), Desk()
        kernel = make_kernel(phases=(count, think, act))
        agent = Agent(name="w", tools=["put"], on_unknown="tell")
        dying = CrashingStore(place, at=crash_at, operations=("append",))
        with pytest.raises(Crash):
            await engine_for(Script([call("put", n=1), END]), *desk.all, store=dying, kernel=kernel).run(agent, "go", run_id="r")
        await place.release("r")
        result = await engine_for(Script([END]), *desk.all, store=place, kernel=kernel).resume("r")
        assert (result.status, result.state.passes["main"].meta, desk.ran) == ("completed", {"turns": 2}, [("put", 1)])
        changes = [r.event for r in await records_of(place, "r") if isinstance(r.event, e.StateChanged)]
        assert [c.meta for c in changes] == [{"turns": 1}, {"turns": 2}] and began.count(1) == 1

    run_async(main)


def test_the_same_label_is_remembered_by_occurrence_and_phase_and_for_one_turn() -> None:
    """(pass, iteration, phase, label, occurrence)."""
    made: list[str] = []

    def value(text: str) -> Any:
        async def make() -> str:
            made.append(text)
            return text

        return make

    async def draws(state: KernelState, context: KernelContext) -> KernelState:
        for phase in (0, 1):
            for occurrence in (0, 1, 0):
                said = await context.effect(phase, "draw", value(f"{state.iteration}/{phase}/{occurrence}"), occurrence=occurrence)
                assert said == f"{state.iteration}/{phase}/{occurrence}"
        return context.state

    done = ran([Thought(content="hm"), END], kernel=make_kernel(phases=(draws, think, act)))
    assert made == [f"{i}/{p}/{o}" for i in (1, 2) for p in (0, 1) for o in (0, 1)] and len(done.all(e.EffectRecorded)) == 8


def test_replay_takes_effects_from_the_log_and_makes_none() -> None:
    """A clock, a random number, a model's critique: law 5, no live call."""
    values = iter(range(100))

    async def draws(state: KernelState, context: KernelContext) -> KernelState:
        async def make() -> int:
            return next(values)

        await context.effect(0, "random", make)
        return context.state

    done = ran([Thought(content="hm"), END], kernel=make_kernel(phases=(draws, think, act)))
    assert [x.value for x in done.all(e.EffectRecorded)] == [0, 1] and next(values) == 2


def test_a_plan_is_asked_for_once_a_turn_whoever_asks() -> None:
    """A phase that plans in a loop gets the same plan (law 4)."""

    async def greedy(state: KernelState, context: KernelContext) -> KernelState:
        plans = [await context.plan() for _ in range(20)]
        assert all(p is plans[0] for p in plans)
        return context.state

    done = ran([call(n=1), END], *Desk().all, kernel=make_kernel(phases=(greedy, think, act)))
    assert len(done.views) == 2
