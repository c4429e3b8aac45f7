"""Suspension and `run_sync`: Ctrl-C, SIGTERM and closing finish nothing and lose nothing. DESIGN 4."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, Suspended, tool
from detent.config.groups import Bounds
from detent.core.errors import StoreFull
from detent.running import watcher
from detent.stores.ram import RamStore
from forked import fork
from kernel.runs import END, Script, call, engine_for, run_async
from laws.places import PurePlanner

CHILD = """
import asyncio, sys
sys.path[:0] = {paths!r}
from detent import Agent, Engine, Suspended, tool
from kernel.runs import END, Script, call

@tool(side_effect="write", timeout_s=None)
async def put(n: int) -> str:
    with open({effects!r}, "a") as f:
        f.write(str(n))
    return "ok"

@tool(side_effect="read", timeout_s=None)
async def hang() -> str:
    print("hanging", flush=True)
    await asyncio.Event().wait()
    return ""

engine = Engine(store={url!r}, planner=Script([call("put", n=1), call("hang"), END]), tools=[put, hang])
try:
    engine.run_sync(Agent(name="w", tools=["put", "hang"]), "go", run_id="r")
except Suspended as error:
    print("suspended", error.run_id, error.why, flush=True)
    sys.exit(5)
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_ctrl_c_and_sigterm_suspend_a_run_that_can_be_resumed(tmp_path: Path, number: int, name: str) -> None:
    """DESIGN 4: the claim is released, nothing finished; `Suspended` is raised; another process goes on and repeats nothing."""
    effects, url = tmp_path / "effects", f"sqlite:///{tmp_path / 'runs.db'}"
    root = Path(__file__).resolve().parents[2]
    program = CHILD.format(paths=[str(root / "src"), str(root / "tests")], effects=str(effects), url=url)
    child = fork(["-c", program], stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "hanging\n"
    os.kill(child.pid, number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (5, f"suspended r {name}\n", "")

    async def main() -> None:
        @tool(side_effect="write")
        async def put(n: int) -> str:
            """Put."""
            effects.write_text(effects.read_text() + str(n))
            return "ok"

        @tool(side_effect="read")
        async def hang() -> str:
            """Do not hang any more."""
            return "free"

        async with Engine(store=url, planner=Script([END]), tools=[put, hang]) as engine:
            assert (await engine.load("r")).status == "running"
            result = await engine.resume("r")
            assert (result.status, result.tool_calls[0].content, effects.read_text()) == ("completed", "ok", "1")
            assert (await engine.replay("r")).identical

    run_async(main)


def test_the_claim_of_a_run_in_a_long_call_is_renewed_and_a_run_that_was_lost_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 5: the lease is renewed while a tool runs; when that finds the claim lost, the run is suspended, and says why."""
    monkeypatch.setattr(watcher, "RENEW_S", 0.0)
    renewed: list[int] = []

    class Store(RamStore):
        async def renew(self) -> list[str]:
            renewed.append(1)
            return ["r"] if len(renewed) == 3 else []

        async def changed(self, timeout_s: float, *, records: bool = False) -> None:
            await asyncio.sleep(0)

    async def main() -> None:
        @tool(side_effect="read", timeout_s=None)
        async def hang() -> str:
            """Hang."""
            await asyncio.Event().wait()
            return ""

        engine = engine_for(Script([call("hang"), END]), hang, store=Store())
        with pytest.raises(Suspended, match=watcher.LOST):
            await asyncio.wait_for(engine.run(Agent(name="w", tools=["hang"]), "go", run_id="r"), 60)
        assert len(renewed) == 3

    run_async(main)


def test_closing_an_engine_suspends_its_runs() -> None:
    """Nothing is finished; `run` raises; the next engine goes on."""

    async def main() -> None:
        place, begun = RamStore(), asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def hang() -> str:
            """Hang once."""
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return "free"

        engine = engine_for(Script([call("hang"), END]), hang, store=place)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["hang"]), "go", run_id="r"))
        await begun.wait()
        await engine.close()
        with pytest.raises(Suspended, match="the engine is closing"):
            await running
        after = engine_for(Script([END]), hang, store=place)
        assert (await after.load("r")).status == "running" and (await after.resume("r")).status == "completed"

    run_async(main)


@pytest.mark.parametrize("waits_for", ["its claim", "its turn"])
def test_a_suspension_reaches_a_run_that_has_not_begun(waits_for: str) -> None:
    """Whether it waits for the store's claim or for its turn among `max_concurrent_runs`: `Suspended`, never a cancellation, and nothing begins."""

    async def main() -> None:
        waiting, begun = asyncio.Event(), list[str]()

        class Slow(RamStore):
            async def claim(self, run_id: str) -> None:
                if waits_for == "its claim":
                    waiting.set()
                    await asyncio.Event().wait()
                await super().claim(run_id)

        @tool(side_effect="read", timeout_s=None)
        async def hang(who: str) -> str:
            """Hang."""
            begun.append(who)
            waiting.set()
            await asyncio.Event().wait()
            return ""

        engine = engine_for(
            PurePlanner(lambda view: call("hang", who=view.run_id)), hang, store=Slow(), bounds=Bounds(max_concurrent_runs=1)
        )
        agent = Agent(name="w", tools=["hang"])
        running = [asyncio.create_task(engine.run(agent, "go", run_id=name)) for name in ("one", "two")]
        await waiting.wait()
        assert engine.suspend("enough") == 2
        for task in running:
            with pytest.raises(Suspended, match="enough"):
                await task
        assert begun == (["one"] if waits_for == "its turn" else [])
        await engine.close()

    run_async(main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mine", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None], ids=["ignored", "default", "handled"])
def test_run_sync_leaves_the_handlers_of_the_program_as_they_were(number: int, mine: Any) -> None:
    """A server that tidies up on SIGTERM still does so after a run; what is ignored, as in the background of a script, is so meanwhile, too."""
    seen: list[Any] = []

    @tool(side_effect="read")
    async def look() -> str:
        """Look."""
        seen.append(signal.getsignal(number))
        return "ok"

    before = signal.signal(number, mine)
    try:
        Engine(planner=Script([call("look"), END]), tools=[look]).run_sync(Agent(name="w", tools=["look"]), "go")
        assert signal.getsignal(number) is mine
        assert (seen == [signal.SIG_IGN]) is (mine is signal.SIG_IGN)
    finally:
        signal.signal(number, before)


def test_run_sync_works_from_a_thread_and_leaves_signals_as_they_were() -> None:
    """Also where no signal handler can be set."""
    import threading

    before = signal.getsignal(signal.SIGINT)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(Engine(planner=Script([END])).run_sync(Agent(name="w"), "go")))
    thread.start()
    thread.join(60)
    results.append(Engine(planner=Script([END])).run_sync(Agent(name="w"), "go"))
    assert [r.status for r in results] == ["completed"] * 2 and signal.getsignal(signal.SIGINT) is before


def test_an_engine_can_be_used_again_after_run_sync() -> None:
    """Each call has an event loop of its own."""
    engine = Engine(planner=Script([END]))
    assert [engine.run_sync(Agent(name="w"), "go").status for _ in range(2)] == ["completed"] * 2


class Full(RamStore):
    """A store that has room for so many appends, and then for nothing, not even for taking a claim out."""

    room = 99

    async def append(self, *args: Any, **options: Any) -> None:
        self.room -= 1
        if self.room < 0:
            raise StoreFull("no room left")
        await super().append(*args, **options)

    async def release(self, run_id: str) -> None:
        await super().release(run_id)
        raise StoreFull("no room left for this either")


@pytest.mark.parametrize("room", [3, 99])
def test_a_claim_that_cannot_be_given_back_hides_nothing(room: int) -> None:
    """Of a run that the full store stopped, `Suspended` with its id and why; of one that ended all the same, its result; erased, deleted."""

    @tool(side_effect="write")
    async def put(n: int) -> str:
        return "ok"

    async def main() -> None:
        store = Full()
        store.room = room
        engine = engine_for(PurePlanner(lambda view: END if view.results else call("put", n=1)), put, store=store)
        if room == 99:
            assert (await engine.run(Agent(name="w", tools=["put"]), "go", run_id="r")).output == END.content
            await engine.erase("r", by="ann")
            await engine.delete("r")
            assert await engine.list_runs() == []
            return
        with pytest.raises(Suspended) as suspended:
            await engine.run(Agent(name="w", tools=["put"]), "go", run_id="r")
        assert (suspended.value.run_id, suspended.value.why) == ("r", "no room left")
        store.room = 99
        assert (await engine.resume("r")).output == END.content

    run_async(main)
