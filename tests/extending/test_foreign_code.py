"""Phases, guards, policies, planners, strategies, hooks and meta-tools get copies and a facade: what they write is recorded or refused. DESIGN 6."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent import Agent, Budget, FinalAnswer
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.fold import fold
from detent.core.state import transition
from detent.extend import Answer, MetaTool, ToolSpec, Verdict, act, default_guards, make_kernel, think
from detent.kernel.context import KernelContext, Run
from detent.kernel.journal import Journal
from detent.ports import KernelHooks
from detent.running.live import LiveWorld
from detent.stores.ram import RamStore
from kernel.runs import END, Allow, Desk, Script, call, engine_for, ran, run_async

pytestmark = thinned

force = msgspec.structs.force_setattr


def phases(*own: Any) -> dict[str, Any]:
    """Return the kernel that has these phases before the usual two."""
    return {"kernel": make_kernel(phases=(*own, think, act), name="own")}


# What a phase writes ------------------------------------------------------------------------------------------------------------


async def counts_in_place(state: Any, context: Any) -> Any:
    """Count turns as anybody would write it at first."""
    state.meta["n"] = state.meta.get("n", 0) + 1
    state.scratchpad["n"] = str(state.meta["n"])
    return state


async def counts_in_the_state_of_now(state: Any, context: Any) -> Any:
    """Count in what the context gives, and return that."""
    now = context.state
    now.meta["n"] = now.meta.get("n", 0) + 1
    context.state.scratchpad["n"] = str(now.meta["n"])
    return context.state


async def counts_and_advises(state: Any, context: Any) -> Any:
    """Count in place, and make a transition besides."""
    state.meta["n"] = state.meta.get("n", 0) + 1
    state.scratchpad["n"] = str(state.meta["n"])
    return transition(state, guidance=("go on",))


@pytest.mark.parametrize("phase", [counts_in_place, counts_in_the_state_of_now, counts_and_advises])
def test_what_a_phase_writes_into_the_state_that_it_returns_is_recorded(phase: Any) -> None:
    """`state.meta["n"] += 1` was lost: the fold, a resume and a replay did not know of it."""
    done = ran([call(n=1), END], *Desk().all, **phases(phase))
    assert [change.meta for change in done.all(e.StateChanged)] == [{"n": 1}, {"n": 2}]
    assert (done.main.meta, done.main.scratchpad) == ({"n": 2}, {"n": "2"}) and done.why == ("completed", "final_answer")


async def forgets(state: Any, context: Any) -> Any:
    """Write into the one, return the other."""
    await context.plan()
    state.meta["n"] = 1
    return context.state


async def writes_into_the_run(state: Any, context: Any) -> Any:
    """Write into the state of the whole run."""
    context.run.state.passes["main"].meta["n"] = 1
    return state


async def lifts_the_bound(state: Any, context: Any) -> Any:
    """Write into a frozen structure by force."""
    force(context.run.state.budget, "max_iterations", 10**9)
    return state


async def raises_its_use(state: Any, context: Any) -> Any:
    """Write a fact by force into the state that it returns."""
    force(state, "status", "done")
    return state


async def pays_another(state: Any, context: Any) -> Any:
    """Write into the arguments of a call that was planned."""
    await context.plan()
    now = context.state
    for known in now.calls.values():
        known.args["n"] = 99
    return now


@pytest.mark.parametrize(
    ("phase", "what"),
    [
        (forgets, "'meta' of a KernelState"), (writes_into_the_run, "'passes' of a RunState"), (lifts_the_bound, "'budget' of a RunState"),
        (raises_its_use, "changed 'status' without an event"), (pays_another, "changed 'calls' without an event"),
    ],
)  # fmt: skip
def test_what_a_phase_writes_elsewhere_is_refused_and_not_lost(phase: Any, what: str) -> None:
    """The run ends as `kernel_error` that says what was written where; nothing of it is in the state, and no tool ran with it."""
    desk = Desk()
    done = ran([call(n=1), END], *desk.all, **phases(phase))
    assert done.why == ("failed", "kernel_error") and what in str(done.result.error), done.result.error
    assert desk.ran == [] and done.main.meta == {} and done.state.budget.max_iterations == 50


def test_what_a_phase_writes_into_a_recorded_value_changes_no_record() -> None:
    """The value that it was given was the recorded one: written into, the phase found another in the same turn than after a resume."""
    found: list[Any] = []

    async def pick() -> dict[str, Any]:
        return {"n": [1]}

    async def spoils(state: Any, context: Any) -> Any:
        for _ in range(2):
            value = await context.effect(0, "pick", pick)
            found.append(msgspec.json.encode(value))
            value["n"].append(2)
        return context.state

    done = ran([END], *Desk().all, **phases(spoils))
    assert found[:2] == [b'{"n":[1]}'] * 2 and done.main.effects["0:pick:0"] == {"n": [1]}


def test_what_a_meta_tool_writes_into_a_state_is_refused_and_not_lost() -> None:
    """Its author would believe it kept; what it is to keep goes into its answer."""

    async def counts(args: Any, state: Any, context: Any) -> Answer:
        state.meta["n"] = state.meta.get("n", 0) + 1
        return Answer(content="counted")

    kernel = make_kernel(meta_tools=(MetaTool(spec=ToolSpec(name="count", side_effect="none"), handler=counts),))
    done = ran([call("count"), END], *Desk().all, kernel=kernel, agent={"tools": ["count"]})
    (item,) = done.main.results
    assert item.error is not None and "the meta-tool 'count' wrote into 'meta' of a KernelState" in item.error.message
    assert done.main.meta == {}


# What anybody writes ------------------------------------------------------------------------------------------------------------


def vandalise(*values: Any, depth: int = 9, by_force: bool = True) -> None:
    """Write into all that can be reached from `values`: entries of dictionaries and lists, and fields of frozen structures by force."""
    for value in values if depth else ():
        with contextlib.suppress(TypeError, AttributeError):
            if isinstance(value, msgspec.Struct):
                vandalise(*(getattr(value, field) for field in value.__struct_fields__), depth=depth - 1, by_force=by_force)
                for field in value.__struct_fields__ if by_force else ():
                    if type(getattr(value, field)) in (str, int, float, bool):
                        force(value, field, type(getattr(value, field))(7))
            elif isinstance(value, Mapping):
                vandalise(*value.values(), depth=depth - 1, by_force=by_force)
                if isinstance(value, dict):
                    value["evil"] = 1
            elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
                vandalise(*value, depth=depth - 1, by_force=by_force)
                if isinstance(value, list):
                    value.append("evil")


class VandalPolicy(Allow):
    """Allows, and writes into what it is asked about."""

    def decide(self, call: Any, state: Any) -> Verdict:
        vandalise(call, state)
        return super().decide(call, state)

    def offers(self, tool: Any, state: Any) -> bool:
        """Show each tool."""
        vandalise(tool, state)
        return True


def vandal_guard(call: Any, state: Any, run: Any) -> None:
    """Let pass, and write into what it is asked about."""
    vandalise(call, state, run)


async def vandal_phase(state: Any, context: Any) -> Any:
    """Write into all that no state holds: what it is told of the pass."""
    vandalise(context.input, context.agent, context.specs, context.tools, await context.plan())
    return context.state


async def vandal_answer(args: Any, state: Any, context: Any) -> Answer:
    """Answer, and write into what it is told of the pass."""
    vandalise(args, context.input, context.agent, context.specs, context.tools)
    return Answer(content="seen")


async def vandal_strategy(run: Any) -> Any:
    """Write into what passes give, and into what the run says of itself."""

    async def value() -> Any:
        return {"deep": [1]}

    passed = await run.kernel("main")
    again = await run.effect("value", value)
    vandalise(passed, again, run.variables, run.output_schema, run.tools, run.budget_remaining)
    await run.kernel("made", calls=(call("look", n=9),))
    return "the end"


def vandal_hook(state: Any, *rest: Any) -> None:
    """Write into what a hook is shown."""
    vandalise(state, *rest)


def hooks() -> KernelHooks:
    """Return a hook everywhere."""
    names = ("on_thought", "on_action", "on_observation", "on_done")
    return KernelHooks(before={"act": vandal_hook}, after={"think": vandal_hook}, **dict.fromkeys(names, vandal_hook))


class Told:
    """An observer that writes into what it is told."""

    def on_record(self, record: Any, state: Any) -> None:
        vandalise(record.event, state)

    def on_chunk(self, chunk: Any) -> None:
        """Write into it."""
        vandalise(chunk)


LOOK = MetaTool(spec=ToolSpec(name="where", side_effect="none"), handler=vandal_answer)
VANDALS: dict[str, dict[str, Any]] = {
    "guard": {"kernel": make_kernel(guards=(*default_guards, vandal_guard), meta_tools=(LOOK,))},
    "policy": {"policy": VandalPolicy()},
    "phase": {"kernel": make_kernel(phases=(vandal_phase, think, act), meta_tools=(LOOK,))},
    "strategy": {"strategies": {"mine": vandal_strategy}},
    "hooks": {"hooks": hooks()},
    "observer": {"observers": [Told()]},
}


async def plain_answer(args: Any, state: Any, context: Any) -> Answer:
    """Answer."""
    return Answer(content="seen")


async def plain_strategy(run: Any) -> Any:
    """Do what the vandal does, without the damage."""

    async def value() -> Any:
        return {"deep": [1]}

    await run.kernel("main")
    await run.effect("value", value)
    await run.kernel("made", calls=(call("look", n=9),))
    return "the end"


def without_effects(done: Any) -> dict[str, Any]:
    """Return the passes without what hooks decided, which is recorded with them."""
    return {scope: msgspec.structs.replace(known, effects={}) for scope, known in done.state.passes.items()}


@pytest.mark.parametrize("who", [*VANDALS, "planner", "meta-tool"])
def test_who_writes_into_all_that_it_can_reach_changes_nothing(who: str) -> None:
    """The same records, the same effects and the same state as without it, and the state is still the fold of the log.

    Planners share what cannot be changed, such as their agent, with the run: only what is plain data is a copy.
    """
    seen = MetaTool(spec=LOOK.spec, handler=plain_answer)
    usual = {"kernel": make_kernel(meta_tools=(seen,)), "policy": Allow(), "strategies": {"mine": plain_strategy}}
    agent = {"strategy": "mine", "tools": ["look", "put", "slip", "where"], "meta": {"mine": {"list": [1]}}}
    given = {"variables": {"who": {"name": "ann"}, "list": [1]}, "output_schema": {"type": "string"}, "attachments": [{"text": "t"}]}
    entries = [(call("put", n=1), call("where")), call("look", n=2), call("slip", n=3), call("put", n=4), END]

    def script(write: bool) -> list[Any]:
        def entry(actions: Any) -> Any:
            def planned(view: Any) -> Any:
                if write:
                    vandalise(view, by_force=False)
                return actions

            return planned

        return [entry(actions) for actions in entries]

    plain, desk, other = ran(script(write=False), *Desk().all, agent=agent, run=given, **usual), Desk(), Desk()
    ran(script(write=False), *other.all, agent=agent, run=given, **usual)
    changed = {"kernel": make_kernel(meta_tools=(LOOK,))} if who == "meta-tool" else VANDALS.get(who, {})
    done = ran(script(write=who == "planner"), *desk.all, agent=agent, run=given, **{**usual, **changed})
    assert desk.ran == other.ran and without_effects(done) == without_effects(plain) and done.state.variables == given["variables"]
    assert [type(x) for x in done.events if not isinstance(x, e.EffectRecorded)] == [
        type(x) for x in plain.events if not isinstance(x, e.EffectRecorded)
    ]
    assert done.result.output == "the end" and done.state.budget == plain.state.budget and done.state.agent == plain.state.agent


def test_who_keeps_what_it_was_told_has_the_state_after_each_record() -> None:
    """What has not changed is copied once for one listener: what is told later must not show in what was told before, nor be missing in it."""

    class Keeps:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def on_record(self, record: Any, state: Any) -> None:
            self.told.append((record, state))

        def on_chunk(self, chunk: Any) -> None:
            """Leave it."""

    keeps = Keeps()
    done = ran(
        [(call("put", n=1), call("slip")), call("look", n=2), call("look", n=2), END, END], *Desk().all, observers=[keeps], hooks=hooks(),
        strategies={"mine": plain_strategy}, agent={"strategy": "mine"}, run={"variables": {"list": [1]}},
    )  # fmt: skip
    assert len(keeps.told) == len(done.records)
    for n, (record, state) in enumerate(keeps.told, start=1):
        assert record.event == done.events[n - 1] and state == fold(done.records[:n]), (n, record.event)
        assert state.variables is not done.state.variables


# The facade ---------------------------------------------------------------------------------------------------------------------

INSIDE = (Journal, Run, KernelContext, LiveWorld)


def reachable(thing: Any, seen: set[int], path: str = "context") -> list[str]:
    """Return by which attributes, private ones included, something of the kernel's inside is reached."""
    if id(thing) in seen or isinstance(thing, (str, int, float, bool, bytes, type, type(None))) or path.count(".") > 6:
        return []
    seen.add(id(thing))
    if isinstance(thing, INSIDE):
        return [path]
    names = {*getattr(thing, "__slots__", ()), *getattr(thing, "__dict__", ()), *getattr(thing, "__struct_fields__", ())}
    names |= {name for name in dir(type(thing)) if not name.startswith("__")} | {"__self__", "__func__", "__wrapped__", "args", "func"}
    found = [known for name in names if hasattr(thing, name) for known in reachable(getattr(thing, name), seen, f"{path}.{name}")]
    parts = thing.values() if isinstance(thing, Mapping) else thing if isinstance(thing, (list, tuple)) else ()
    return [*found, *(known for part in parts for known in reachable(part, seen, f"{path}[]"))]


def test_no_attribute_of_what_a_phase_is_given_leads_to_the_log() -> None:
    """Public or private: `context.run.record`, `context._run`, what a method is bound to. Code that walks frames gets anywhere."""
    found: list[str] = []

    async def look_around(state: Any, context: Any) -> Any:
        found.extend(reachable(context, set()))
        for name in ("_run", "journal", "carry_out", "propose", "gate", "hooks"):
            assert not hasattr(context, name)
        for name in ("journal", "record", "tools", "policy", "effect"):
            assert not hasattr(context.run, name)
        with pytest.raises(AttributeError):
            context.scope = "other"
        found.append("looked")
        return state

    async def look_around_too(args: Any, state: Any, context: Any) -> Answer:
        await look_around(state, context)
        return Answer(content="nothing")

    where = MetaTool(spec=ToolSpec(name="where", side_effect="none"), handler=look_around_too)
    kernel = make_kernel(phases=(look_around, think, act), meta_tools=(where,))
    ran([call("where"), END], *Desk().all, kernel=kernel, agent={"tools": ["where"]}, replays=False)
    assert found == ["looked"] * 3


def forging(event: Any) -> Any:
    """Return a phase that records what is not its own."""

    async def phase(state: Any, context: Any) -> Any:
        context.record(event)
        return context.state

    return phase


FORGED = [
    e.PassFinished(status="done", reason="final_answer", output="forged"),
    e.Planned(actions=(FinalAnswer(content="forged"),)),
    e.BudgetChanged(budget=Budget(max_iterations=10**9)),
    e.EffectRecorded(label="before act", phase=-1, value=["", ""]),
]


@pytest.mark.parametrize("event", FORGED, ids=lambda event: type(event).__name__)
def test_a_phase_or_meta_tool_that_forges_a_record_of_the_kernel_is_refused(event: Any) -> None:
    """A phase gave a completed answer of its own and lifted the bound of iterations; one decided what a hook was to decide."""
    done = ran([call(n=1), END], *Desk().all, **phases(forging(event)))
    assert done.why == ("failed", "kernel_error") and event not in done.events and "record" in str(done.result.error)

    async def forge(args: Any, state: Any, context: Any) -> Answer:
        context.record(event)
        return Answer(content="forged")

    kernel = make_kernel(meta_tools=(MetaTool(spec=ToolSpec(name="where", side_effect="none"), handler=forge),))
    done = ran([call("where"), END], *Desk().all, kernel=kernel, agent={"tools": ["where"]})
    assert event not in done.events and done.codes == [] and done.main.results[0].error is not None


def test_a_phase_records_and_asks_what_is_its_own() -> None:
    """Notes, values, the plan, the state of the run, the whole of a result: what the guide promises still works through the facade."""
    seen: list[Any] = []

    async def own(state: Any, context: Any) -> Any:
        async def make() -> Any:
            return {"list": [1]}

        value = await context.effect(0, "value", make)
        value["list"].append(2)  # a copy
        context.record(e.NoteWritten(text="mine"))
        plan = await context.plan()
        assert plan is await context.plan() and plan == context.state.plan
        await context.commit()
        items = [item for item in context.state.results if item.ok]
        seen.append((context.run.state.usage.iterations, [await context.run.world.full(item) for item in items], context.time_left()))
        return context.state

    done = ran([call(n=1), END], *Desk().all, **phases(own))
    assert done.why == ("completed", "final_answer") and [x.value for x in done.all(e.EffectRecorded)] == [{"list": [1]}] * 2
    assert seen[:2] == [(1, [], None), (2, [{"n": 1}], None)] and len(done.all(e.NoteWritten)) == 2


# Hanging ------------------------------------------------------------------------------------------------------------------------


class Hanging:
    """Something that hangs in one place; `stubborn` swallows its cancellation and hangs on."""

    def __init__(self, where: str, *, stubborn: bool = False) -> None:
        self.where, self.stubborn, self.inside = where, stubborn, asyncio.Event()

    async def hang(self, *_: Any) -> Any:
        """Wait for ever."""
        self.inside.set()
        while True:
            try:
                return await asyncio.Event().wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    async def phase(self, state: Any, context: Any) -> Any:
        """Hang in a phase, after a record of its own."""
        context.record(e.NoteWritten(text="before"))
        await self.hang()

    async def held(self, state: Any, context: Any) -> Any:
        """Hang in an effect of a phase."""
        await context.effect(0, "long", self.hang)

    async def strategy(self, run: Any) -> Any:
        """Hang in a strategy, between two passes."""
        await run.kernel("main")
        await self.hang()

    async def effect(self, run: Any) -> Any:
        """Hang in an effect of a strategy."""
        await run.effect("long", self.hang)

    async def side_by_side(self, run: Any) -> Any:
        """Hang in a phase of one of two passes."""
        from detent.ports import Branch

        await run.parallel(Branch(label="a", kernel="own"), Branch(label="b", kernel="own"))

    async def meta(self, args: Any, state: Any, context: Any) -> Any:
        """Hang in a meta-tool."""
        await self.hang()

    def engine(self, **options: Any) -> Any:
        """Return an engine in which it hangs, and its agent."""
        kernel = make_kernel(meta_tools=(MetaTool(spec=ToolSpec(name="where", side_effect="none"), handler=self.meta),))
        strategies: dict[str, Any] = {}
        if self.where in ("phase", "held", "side_by_side"):
            own = self.held if self.where == "held" else self.phase
            kernel = make_kernel(phases=(own, think, act))
        if self.where in ("strategy", "effect", "side_by_side"):
            strategies = {"mine": getattr(self, self.where)}
        hooks = {"before": KernelHooks(before={"act": self.hang}), "on_thought": KernelHooks(on_thought=self.hang)}.get(
            self.where, KernelHooks()
        )
        first = call("where") if self.where == "meta" else call("put", n=1)
        desk = Desk()
        agent = Agent(name="w", tools=["put", "where"] if self.where == "meta" else ["put"], strategy="mine" if strategies else "reactive")
        planner = Script([END, END] if self.where in ("strategy", "side_by_side") else [first, END])
        made = engine_for(
            planner, *desk.all, kernel=kernel, kernels={"own": kernel}, strategies=strategies, hooks=hooks, clock=None,
            bounds=Bounds(grace_s=0.05), **options,
        )  # fmt: skip
        return made, agent, desk


PLACES = ["phase", "held", "side_by_side", "strategy", "effect", "before", "on_thought", "meta"]


@pytest.mark.parametrize("stubborn", [False, True], ids=["", "stubborn"])
@pytest.mark.parametrize("where", PLACES)
def test_a_cancellation_ends_what_hangs(where: str, stubborn: bool) -> None:
    """Also what swallows it; the run ends as cancelled, no effect follows, and the log comes out again."""

    async def main() -> None:
        hanging = Hanging(where, stubborn=stubborn)
        engine, agent, desk = hanging.engine()
        async with engine:
            running = asyncio.ensure_future(engine.run(agent, "go", run_id="r"))
            await hanging.inside.wait()
            await engine.cancel("r", by="ann", why="enough")
            result = await running
            assert (result.status, result.reason, result.error) == ("stopped", "cancelled", "enough")
            assert desk.ran == [] or where == "on_thought"  # what was intended before the cancellation came
            again = await engine.replay("r")
            assert again.identical, again.divergence

    run_async(main)


@pytest.mark.parametrize("bound", ["max_running_s", "max_total_s"])
@pytest.mark.parametrize("where", PLACES)
def test_a_bound_of_time_ends_what_hangs(where: str, bound: str) -> None:
    """The run is stopped by its bound, which is named, and the log comes out again."""

    async def main() -> None:
        hanging = Hanging(where)
        engine, agent, desk = hanging.engine()
        async with engine:
            result = await engine.run(agent, "go", run_id="r", budget=Budget(**{bound: 0.05}))
            assert (result.status, result.reason, result.state.dimension) == ("stopped", "budget_exhausted", bound.removeprefix("max_"))
            assert hanging.inside.is_set() and (desk.ran == [] or where == "on_thought")
            again = await engine.replay("r")
            assert again.identical, again.divergence

    run_async(main)


BEGUN: ContextVar[asyncio.Event] = ContextVar("begun")


async def takes_back_its_cancellation(state: Any, context: Any) -> Any:
    """Swallow it, and make the task forget it."""
    BEGUN.get().set()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            while task.cancelling():
                task.uncancel()


async def asks_for_one_effect_after_the_other(state: Any, context: Any) -> Any:
    """Swallow the end of each, and go on with the next."""
    BEGUN.get().set()
    hanging = Hanging("effect", stubborn=True)
    for n in range(10**9):
        with contextlib.suppress(BaseException):
            await context.effect(0, "long", hanging.hang, occurrence=n)
        with contextlib.suppress(Exception):
            await asyncio.sleep(0)


@pytest.mark.parametrize("bounded", [False, True], ids=["cancelled", "out of time"])
@pytest.mark.parametrize("phase", [takes_back_its_cancellation, asks_for_one_effect_after_the_other])
def test_what_works_against_its_end_is_ended_all_the_same(phase: Any, bounded: bool) -> None:
    """Who takes its cancellation back, or always waits for something of the kernel, would hang for ever."""

    async def main() -> None:
        BEGUN.set(asyncio.Event())
        kernel, budget = make_kernel(phases=(phase, think, act)), Budget(max_running_s=0.05) if bounded else Budget()
        async with engine_for(Script([END]), kernel=kernel, clock=None, bounds=Bounds(grace_s=0.02)) as engine:
            running = asyncio.ensure_future(engine.run(Agent(name="w"), "go", run_id="r", budget=budget))
            if not bounded:
                await BEGUN.get().wait()
                await engine.cancel("r", by="ann")
            assert (await running).reason == ("budget_exhausted" if bounded else "cancelled")
            again = await engine.replay("r")
            assert again.identical, again.divergence

    run_async(main)


@pytest.mark.parametrize("where", ["phase", "strategy", "effect"])
def test_a_suspended_run_leaves_what_hung_and_goes_on_there(where: str) -> None:
    """Nothing is finished: the next opening goes the same way, and a cancellation ends it then."""
    from detent import Suspended

    async def main() -> None:
        store, hanging = RamStore(), Hanging(where)
        engine, agent, _ = hanging.engine(store=store)
        async with engine:
            running = asyncio.ensure_future(engine.run(agent, "go", run_id="r"))
            await hanging.inside.wait()
            engine.suspend("stop")
            with pytest.raises(Suspended):
                await running
            assert (await engine.load("r")).status == "running" and (await engine.replay("r")).identical
        hanging.inside.clear()
        engine, _, _ = hanging.engine(store=store)
        async with engine:
            running = asyncio.ensure_future(engine.resume("r"))
            await hanging.inside.wait()
            await engine.cancel("r", by="ann")
            assert (await running).reason == "cancelled" and (await engine.replay("r")).identical

    run_async(main)


def test_a_cancellation_reaches_a_tool_that_a_phase_executes_with_its_grace() -> None:
    """The phase is not interrupted while it waits for the kernel: the tool tidies up, and what it did is recorded."""
    from detent import tool

    async def main() -> None:
        inside, tidied = asyncio.Event(), list[str]()

        @tool(side_effect="write")
        async def work(context: Any = None) -> str:
            """Work until asked to stop."""
            inside.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                tidied.append("tidied")
                raise
            return ""

        async def acting(state: Any, context: Any) -> Any:
            return await act(state, context)

        kernel = make_kernel(phases=(think, acting))
        async with engine_for(Script([call("work"), END]), work, kernel=kernel, clock=None, bounds=Bounds(grace_s=0.05)) as engine:
            running = asyncio.ensure_future(engine.run(Agent(name="w", tools=["work"]), "go", run_id="r"))
            await inside.wait()
            await engine.cancel("r", by="ann")
            result = await running
            assert (result.reason, tidied, result.state.in_doubt) == ("cancelled", ["tidied"], ("main.1.0",))
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_run_is_on_disk_before_the_first_line_of_its_strategy_runs() -> None:
    """What a strategy does by itself before its first pass is known to belong to a run, whatever happens then."""

    async def main() -> None:
        store, found = RamStore(), list[Any]()

        async def mine(run: Any) -> Any:
            found.append(await store.head("r"))
            raise SystemError("died")

        async with engine_for(Script([]), store=store, strategies={"mine": mine}) as engine:
            await engine.run(Agent(name="w", strategy="mine"), "go", run_id="r")
            assert found[0] is not None and found[0].records == 1 and found[0].agent == "w"

    run_async(main)
