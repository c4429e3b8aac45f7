"""The five hooks: once an event, after its commit, from one place; they can never fail a run. Rows S0-12 to S0-14, K9, K10."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from detent import Agent, Plan, Suspended, Thought, ToolFailed, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.errors import Conflict, MalformedPlan
from detent.observers import EventBus
from detent.ports import KernelHooks, Signal, noop_hooks
from detent.running.control import Control
from detent.running.patience import patience_of
from detent.stores.ram import RamStore
from kernel.runs import END, Decide, Desk, Script, call, engine_for, ran, run_async


class Heard:
    """Hooks that keep what they are told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

        def keep(name: str) -> Any:
            def hook(state: Any, *rest: Any) -> None:
                self.said.append((name, state.iteration, *rest))

            return hook

        self.hooks = KernelHooks(
            on_thought=keep("thought"),
            on_action=keep("action"),
            on_observation=keep("observation"),
            on_done=keep("done"),
            on_error=keep("error"),
        )

    @property
    def names(self) -> list[str]:
        """Which hooks were called, in order."""
        return [name for name, *_ in self.said]


def test_each_hook_fires_once_for_its_event_in_order() -> None:
    """S0-12, S0-13: n calls, n actions and n observations; one thought a plan; one done."""
    heard = Heard()
    ran(
        [Plan(actions=(call("put", n=1),), text="I put."), (call("look", n=2), call("slip", n=3)), END],
        *Desk().all,
        hooks=heard.hooks,
        replays=False,
    )
    assert heard.names == [
        "thought",
        "action",
        "observation",
        "thought",
        "action",
        "observation",
        "action",
        "observation",
        "thought",
        "done",
    ]
    assert heard.said[0] == ("thought", 1, "I put.") and heard.said[1] == ("action", 1, "put", "main.1.0")
    shown = [(text, ok, state.tool) for _, _, text, ok, state in (s for s in heard.said if s[0] == "observation")]
    assert shown == [('"put 1"', True, "put"), ('{"n":2}', True, "look"), ("slipped on 3", False, "slip")]


def test_a_call_that_was_refused_is_an_observation_and_no_action() -> None:
    """Nothing began."""
    heard = Heard()
    ran([call("put", n=1), call("nowhere"), END], *Desk().all, hooks=heard.hooks, policy=Decide(lambda c: "deny"))
    assert heard.names == ["thought", "observation", "thought", "observation", "thought", "done"]


def test_a_run_that_ends_badly_says_so_once() -> None:
    """on_error, with the error; not on_done."""
    heard = Heard()
    ran([call("end")], *Desk().all, hooks=heard.hooks)
    assert heard.names == ["thought", "action", "observation", "error"] and heard.said[-1] == ("error", 1, "the disk is gone")


def test_retries_are_actions_and_give_one_observation() -> None:
    """Every attempt is one; its outcome is one."""
    tries: list[int] = []

    @tool(side_effect="read", retries=2)
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "ok"

    heard = Heard()
    ran([call("flaky"), END], flaky, hooks=heard.hooks, replays=False)
    assert heard.names == ["thought", "action", "action", "action", "observation", "thought", "done"] and len(tries) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_late_worker_tells_of_a_call_in_doubt_is_its_observation(fails: bool) -> None:
    """Result or error, it is the outcome that counts; of a call that is settled already nothing is said again."""

    class Partitioned(RamStore):
        async def claim(self, run_id: str) -> None:
            """Let everybody in."""

        async def release(self, run_id: str) -> None:
            """There is nothing to give up."""

    async def main() -> None:
        store, began, go, late = Partitioned(), asyncio.Event(), asyncio.Event(), Heard()

        @tool(side_effect="write")
        async def act() -> str:
            """Act."""
            began.set()
            await go.wait()
            if fails:
                raise ToolFailed("no paper")
            return "acted"

        def engine(**more: Any) -> Any:
            return engine_for(Script([call("act"), END]), act, store=store.sibling(), **more)

        first = asyncio.create_task(engine(hooks=late.hooks).run(Agent(name="a", tools=["act"]), "act", run_id="r"))
        await began.wait()
        assert (await engine().resume("r")).status == "waiting_for_reconciliation"
        go.set()
        with pytest.raises(Conflict):
            await first
        assert [(name, *rest[1:3]) for name, *rest in late.said if name == "observation"] == [
            ("observation", "no paper", False) if fails else ("observation", '"acted"', True)
        ]

    run_async(main)


def test_a_replay_calls_no_hook() -> None:
    """It is the past that is gone through."""
    heard = Heard()
    ran([call("put", n=1), END], *Desk().all, hooks=heard.hooks)
    assert heard.names == ["thought", "action", "observation", "thought", "done"]


def test_hooks_and_observers_are_told_after_the_commit() -> None:
    """K10, append before resolve: what they hear is in the store."""

    async def main() -> None:
        store = RamStore()
        late: list[Any] = []

        async def check(state: Any, *rest: Any) -> None:
            lines = await store.read("r")
            late.append(b'"type":"planned"' in b"".join(lines))

        class Watching:
            async def on_record(self, record: Any, state: Any) -> None:
                assert len(await store.read("r")) >= record.envelope.seq and state.seq == record.envelope.seq
                late.append(True)

            def on_chunk(self, chunk: Any) -> None: ...

        engine = engine_for(
            Script([call("put", n=1), END]), *Desk().all, store=store, hooks=KernelHooks(on_thought=check), observers=(Watching(),)
        )
        result = await engine.run(Agent(name="w", tools=["put"]), "go", run_id="r")
        assert result.status == "completed" and len(late) == 11 + 2 and all(late)

    run_async(main)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_raises_is_reported_once_and_fails_nothing(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    """K9: swallowed; log and state stay authoritative."""

    def broken(*_: Any) -> None:
        raise KeyError("hook")

    async def broken_later(*_: Any) -> None:
        raise KeyError("hook")

    with caplog.at_level(logging.ERROR, logger="detent"):
        done = ran([call(n=1), call(n=2), END], *Desk().all, hooks=KernelHooks(on_thought=broken_later if is_async else broken))
    assert done.why == ("completed", "final_answer") and len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_observers_handlers_and_hooks_are_told_in_one_way(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever fails is reported once, by name and in the same words, and whoever comes after it is told everything."""
    told: list[str] = []

    def failing(name: str) -> Any:
        def plain(*_: Any) -> None:
            told.append(name)
            raise KeyError(name)

        async def later(*_: Any) -> None:
            await asyncio.sleep(0)
            plain()

        fails = later if is_async else plain
        fails.__qualname__ = name
        return fails

    class Broken:
        on_record = staticmethod(failing("observer"))

        def on_chunk(self, chunk: Any) -> None: ...

    bus = EventBus()
    bus.on(e.ToolFinished, failing("handler"))
    bus.on(e.ToolFinished, lambda event, state: told.append("after"))
    hooks = KernelHooks(on_observation=failing("observation"), on_action=failing("action"), on_done=failing("done"))
    with caplog.at_level(logging.ERROR, logger="detent"):
        done = ran([call(n=1), call(n=2), END], *Desk().all, hooks=hooks, observers=[Broken(), bus], replays=False)
    assert done.why == ("completed", "final_answer")
    words = "{} failed; the run continues, and further failures of it are not reported"
    names = (Broken.__qualname__, "handler", "action", "observation", "done")
    assert sorted(r.getMessage() for r in caplog.records) == sorted(words.format(name) for name in names)
    assert [told.count(name) for name in ("after", "handler", "action", "observation", "done")] == [2, 2, 2, 2, 1]
    assert told.count("observer") == len(done.records)


def test_without_hooks_nothing_is_called_and_nothing_fails() -> None:
    """S0-14: `noop_hooks` is the default, and a value of its own."""
    assert (
        ran([call(n=1), END], *Desk().all, hooks=noop_hooks).why == ran([call(n=1), END], *Desk().all).why == ("completed", "final_answer")
    )
    assert noop_hooks == KernelHooks() and KernelHooks().on_done("anything") is None


def test_a_rejected_plan_is_no_thought() -> None:
    """Only a plan is."""

    def bad(view: Any) -> Any:
        raise MalformedPlan("no")

    heard = Heard()
    ran([bad, Thought(content="hm"), END], hooks=heard.hooks)
    assert heard.names == ["thought", "thought", "done"]


def test_the_order_of_hooks_is_that_of_the_log() -> None:
    """One source: each hook call stands for one record."""
    heard = Heard()
    done = ran([(call("look", n=1), call("look", n=2)), END], *Desk().all, hooks=heard.hooks)
    kinds = {e.Planned: ["thought"], e.ToolFinished: ["action", "observation"], e.PassFinished: ["done"]}
    assert heard.names == [name for x in done.events for name in kinds.get(type(x), [])]


# What never returns -------------------------------------------------------------------------------------------------------------


class Stuck:
    """An observer, hooks or handler that hangs at the first plan, and one behind it that hears everything."""

    def __init__(self, kind: str) -> None:
        self.begun, self.heard = asyncio.Event(), list[int]()
        bus = EventBus()
        bus.on(e.Planned, self.hang)
        hooks = KernelHooks(on_thought=self.hang) if kind == "hook" else noop_hooks
        observers: dict[str, Any] = {"observer": self, "handler": bus}
        observed = (*([observers[kind]] if kind in observers else []), self.Behind(self))
        self.options: dict[str, Any] = {"hooks": hooks, "observers": observed, "bounds": Bounds(grace_s=0.01)}

    async def hang(self, *_: Any) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def on_record(self, record: Any, state: Any) -> None:
        if isinstance(record.event, e.Planned):
            await self.hang()

    def on_chunk(self, chunk: Any) -> None: ...

    class Behind:
        def __init__(self, stuck: Stuck) -> None:
            self.stuck = stuck

        async def on_record(self, record: Any, state: Any) -> None:
            await asyncio.sleep(0)
            self.stuck.heard.append(record.envelope.seq)

        def on_chunk(self, chunk: Any) -> None: ...


@pytest.mark.parametrize("kind", ["hook", "observer", "handler"])
def test_a_cancellation_does_not_wait_for_what_never_returns(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the grace it is interrupted and reported; the run ends as cancelled, and the observers behind it have heard every record."""

    async def main() -> None:
        stuck, store = Stuck(kind), RamStore()
        engine = engine_for(Script([call("put", n=1), END]), *Desk().all, store=store, **stuck.options)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["put"]), "go", run_id="r"))
        await stuck.begun.wait()
        await engine.cancel("r", by="ann")
        result = await running
        assert (result.status, result.reason) == ("stopped", "cancelled")
        assert stuck.heard == list(range(1, len(await store.read("r")) + 1))
        assert (await engine.replay("r")).identical

    with caplog.at_level(logging.ERROR, logger="detent"):
        run_async(main)
    assert "after the run was cancelled" in caplog.text


def test_a_run_that_has_ended_is_let_go_by_a_cancellation_too(caplog: pytest.LogCaptureFixture) -> None:
    """What hangs at its end holds its caller and its claim no longer; it stays as it ended, and no signal is left."""

    async def main() -> None:
        begun, store = asyncio.Event(), RamStore()

        async def hang(*_: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        engine = engine_for(Script([END]), store=store, hooks=KernelHooks(on_done=hang), bounds=Bounds(grace_s=0.01))
        running = asyncio.create_task(engine.run(Agent(name="w"), "go", run_id="r"))
        await begun.wait()
        assert (await engine.cancel("r")).status == "completed"
        assert (await asyncio.wait_for(running, 60)).status == "completed"
        assert not await store.signals(["r"])

    with caplog.at_level(logging.ERROR, logger="detent"):
        run_async(main)
    assert "after the run was cancelled" in caplog.text


@pytest.mark.parametrize("kind", ["hook", "observer"])
def test_a_suspension_does_not_wait_for_what_never_returns(kind: str) -> None:
    """Nothing is finished, and another engine goes on."""

    async def main() -> None:
        stuck, store = Stuck(kind), RamStore()
        engine = engine_for(Script([call(n=1), END]), *Desk().all, store=store, **stuck.options)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["look"]), "go", run_id="r"))
        await stuck.begun.wait()
        engine.suspend("SIGTERM")
        with pytest.raises(Suspended, match="SIGTERM"):
            await running
        other = engine_for(Script([END]), *Desk().all, store=store)
        assert (await other.resume("r")).status == "completed"

    run_async(main)


def test_what_is_slow_is_waited_for_where_nobody_cancelled() -> None:
    """Patience has no end before a cancellation, and each that uses it up leaves a tenth of it to those after it."""

    async def main() -> None:
        control = Control(grace_s=0.01)
        patient = patience_of(control)
        assert await patient(asyncio.sleep(0.02, "slow")) == "slow"
        control.deliver([Signal(id="1", kind="cancel", by="ann")])
        for said in ("within 0.01 s", "within 0.001 s"):
            with pytest.raises(TimeoutError, match=said):
                await patient(asyncio.Event().wait())
        assert not control.told
        with pytest.raises(TimeoutError, match="its own"):
            await patient(fails(TimeoutError("its own")))

    run_async(main)


async def fails(error: BaseException) -> None:
    """Raise it."""
    raise error


@pytest.mark.parametrize("kind", ["hook", "observer", "handler"])
@pytest.mark.parametrize("stop", ["cancel", "suspend"])
def test_what_swallows_its_cancellation_is_closed_after_the_grace_once_more(kind: str, stop: str, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on without it, on record or to its suspension; it is reported by name; nothing of it is left running."""

    class Deaf(Stuck):
        open = 0

        async def hang(self, *_: Any) -> None:
            self.begun.set()
            self.open += 1
            try:
                while True:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()
            finally:
                self.open -= 1

    async def main() -> None:
        deaf, store = Deaf(kind), RamStore()
        engine = engine_for(Script([call("put", n=1), END]), *Desk().all, store=store, **deaf.options)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["put"]), "go", run_id="r"))
        await deaf.begun.wait()
        if stop == "cancel":
            await engine.cancel("r")
            assert (await running).reason == "cancelled"
            assert deaf.heard == list(range(1, len(await store.read("r")) + 1))
        else:
            engine.suspend("SIGTERM")
            with pytest.raises(Suspended, match="SIGTERM"):
                await running
        assert deaf.open == 0

    with caplog.at_level(logging.ERROR, logger="detent"):
        run_async(main)
    assert stop == "suspend" or ("swallowed its cancellation" in caplog.text and ("hang" in caplog.text or "on_record" in caplog.text))


def test_a_hook_that_tidies_up_has_the_time_for_it_and_timeouts_of_its_own_are_its_own() -> None:
    """What it awaits after its cancellation comes to its end; an inner timeout is no wish of the run's, however long it then goes on."""

    async def main() -> None:
        control, did = Control(grace_s=0.3), list[str]()

        async def tidy() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.001)
                did.append("tidied")

        async def falls_back() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001):
                    try:
                        await asyncio.Event().wait()
                    finally:
                        await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            did.append("fell back")

        await patience_of(Control(grace_s=0.01))(falls_back())
        control.deliver([Signal(id="1", kind="cancel", by="ann")])
        with pytest.raises(TimeoutError, match="did not return within"):
            await patience_of(control)(tidy())
        assert did == ["fell back", "tidied"]
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    run_async(main)


@pytest.mark.parametrize("name", ["on_thought", "on_action", "on_observation", "on_done", "before", "after"])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_hook_that_is_cancelled_from_inside_stops_no_run(name: str, awaited: bool, caplog: pytest.LogCaptureFixture) -> None:
    """`CancelledError` of its own is a failure as any other: reported, and the run goes on."""

    def plain(*_: Any) -> None:
        raise asyncio.CancelledError

    async def inside(*_: Any) -> None:
        raise asyncio.CancelledError

    hook = inside if awaited else plain
    given: Any = {"think": hook} if name in ("before", "after") else hook
    with caplog.at_level(logging.ERROR, logger="detent"):
        done = ran([call("put", n=1), END], *Desk().all, hooks=KernelHooks(**{name: given}))
    assert done.why == ("completed", "final_answer")
    assert "cancelled from inside" in caplog.text


@pytest.mark.parametrize("stop", ["cancel", "suspend"])
def test_a_hook_before_a_phase_that_swallows_its_cancellation_holds_no_run(stop: str) -> None:
    """It is given the grace and closed; what it would have decided is not on record."""

    async def main() -> None:
        begun, store = asyncio.Event(), RamStore()

        async def deaf(state: Any) -> None:
            begun.set()
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        desk = Desk()
        engine = engine_for(
            Script([call("put", n=1), END]), *desk.all, store=store, hooks=KernelHooks(before={"act": deaf}), bounds=Bounds(grace_s=0.01)
        )
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["put"]), "go", run_id="r"))
        await begun.wait()
        if stop == "cancel":
            await engine.cancel("r")
            assert (await running).reason == "cancelled"
        else:
            engine.suspend("SIGTERM")
            with pytest.raises(Suspended):
                await running
        assert desk.ran == [] and not any(isinstance(x.event, e.EffectRecorded) for x in await engine.records("r"))

    run_async(main)
