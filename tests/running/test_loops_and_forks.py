"""Engines, stores and pools beyond the event loop and the process that they were used in."""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, in_check, thinned
from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.config.groups import Bounds
from detent.core.errors import RunBusy, RunNotFound, Suspended
from detent.ports import Signal
from detent.stores import open_store
from detent.testing import ScriptedPlanner
from detent.tools import ThreadPool
from forked import fork

pytestmark = crossed

PLAN = [ToolCall(tool="wait"), FinalAnswer(content="done")]
STORES = ["ram:", "file:{}/runs", "sqlite:///{}/runs.db"]
FORKED = [pytest.param(url, marks=in_check if url.startswith("file:") else ()) for url in STORES]


@tool(side_effect="read")
async def wait() -> str:
    """Never return, the first time."""
    if not BEGUN:
        BEGUN.append(asyncio.get_running_loop())
        await asyncio.Event().wait()
    return "waited"


@tool(side_effect="read")
def sync() -> str:
    """Return at once, in a thread."""
    return threading.current_thread().name


BEGUN: list[asyncio.AbstractEventLoop] = []
AGENT = Agent(name="waiter", tools=[wait, sync])


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    BEGUN.clear()


def until_it_waits(engine: Engine) -> tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]:
    """Begin the run "one" in a loop that then stops; return both, for somebody has to keep them."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(engine.run(AGENT, "Wait", run_id="one"))

    async def begun() -> None:
        while not BEGUN:
            await asyncio.sleep(0)

    loop.run_until_complete(begun())
    return loop, task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("url", STORES)
def test_an_engine_is_closed_in_another_loop_and_then_holds_nothing(url: str, closed: bool, tmp_path: Path) -> None:
    """`close` neither hangs nor raises where the loop of a run was closed or stopped; whoever comes next has the run."""
    store = open_store(url.format(tmp_path))
    engine = Engine(store=store, planner=ScriptedPlanner(PLAN))
    loop, task = until_it_waits(engine)
    if closed:
        loop.close()
    asyncio.run(asyncio.wait_for(engine.close(), 20))
    other = getattr(store, "sibling", lambda: open_store(url.format(tmp_path)))()

    async def next_one() -> None:
        await other.open()
        async with Engine(store=other, planner=ScriptedPlanner(PLAN[1:]), tools=[wait, sync]) as next_engine:
            assert (await next_engine.resume("one")).status == "completed"
        await other.close()
        await store.close()

    asyncio.run(asyncio.wait_for(next_one(), 20))
    loop.close()
    del task


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("url", STORES)
def test_a_run_whose_loop_was_closed_is_taken_on_by_the_same_engine(url: str, tmp_path: Path) -> None:
    """Not even the engine that began it says `RunBusy`; signals are seen in the new loop, too."""
    engine = Engine(store=url.format(tmp_path), planner=ScriptedPlanner(PLAN), bounds=Bounds(grace_s=0.01))
    loop, task = until_it_waits(engine)
    loop.close()

    async def again() -> None:
        async with engine:
            assert (await engine.resume("one")).status == "completed"
            BEGUN.clear()
            engine.planner = ScriptedPlanner(PLAN)
            run = asyncio.create_task(engine.run(AGENT, "Wait", run_id="two"))
            while not BEGUN:
                await asyncio.sleep(0)
            await engine.store.post("two", Signal(id="stop", kind="cancel", by="me"))
            assert (await run).reason == "cancelled"

    asyncio.run(asyncio.wait_for(again(), 30))
    del task


def closed_under_a_claim(url: str, *, beside: bool) -> None:
    """Close the loop in which a store has claimed "one", and wait until another store has it."""
    store = open_store(url, **({} if url == "ram:" else {"lease_s": 600.0}))
    other = getattr(store, "sibling", lambda: open_store(url))()
    loop = asyncio.new_event_loop()

    async def claim(run_id: str) -> None:
        await store.open()
        await store.claim(run_id)

    loop.run_until_complete(claim("one"))

    async def next_one() -> None:
        await other.open()
        while True:
            try:
                await other.claim("one")
                break
            except RunBusy:
                await asyncio.sleep(0.02)  # polls, until the deadline
        if beside:
            with pytest.raises(RunBusy):
                await other.claim("two")
        await other.close()

    def wait_for_it() -> None:
        asyncio.run(asyncio.wait_for(next_one(), 20))

    async def meanwhile() -> None:
        await claim("two")
        loop.close()
        await asyncio.to_thread(wait_for_it)
        await store.close()

    if beside:
        asyncio.run(asyncio.wait_for(meanwhile(), 30))
    else:
        loop.close()
        wait_for_it()
        asyncio.run(asyncio.wait_for(store.close(), 20))


@thinned
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("url", "beside"), [*itertools.product(STORES, (False, True)), ("postgresql", False)])
def test_a_run_whose_loop_was_closed_is_free_for_others_although_its_engine_is_never_used_again(
    url: str, beside: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nobody closes the engine, and its lease would last for ten minutes. `beside`: another loop still works with the engine's store, and keeps what it has."""
    url = request.getfixturevalue("postgres_url") if url == "postgresql" else url.format(tmp_path)
    closed_under_a_claim(url, beside=beside)
    gc.collect()  # what was left in the loop is complained of here, and not in the next test


def test_an_engine_whose_loop_runs_in_another_thread_is_closed_there(tmp_path: Path) -> None:
    """The run is suspended in its own loop, and `close` returns when that is done."""
    engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", planner=ScriptedPlanner(PLAN))
    loop, came_to = asyncio.new_event_loop(), list[BaseException]()

    async def run() -> None:
        try:
            await engine.run(AGENT, "Wait", run_id="one")
        except Suspended as stopped:
            came_to.append(stopped)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()

    async def close() -> None:
        while not BEGUN:
            await asyncio.sleep(0)
        await engine.close()

    asyncio.run(asyncio.wait_for(close(), 20))
    thread.join(20)
    loop.close()
    assert [type(error) for error in came_to] == [Suspended]


def in_child(work: Callable[[], bool]) -> int:
    """Fork; return what the child ended with: 0 if `work` returned true there, -14 if it hung."""
    if (pid := os.fork()) == 0:
        status = 1
        try:
            signal.alarm(100)
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FORKING = """
import asyncio, os, signal, sys
sys.path[:0] = {path!r}
from running.test_loops_and_forks import {name}
{name}({url!r})
"""


def in_a_process_of_its_own(name: str, url: str) -> None:
    """Call a function of this file in a process without other threads, from which it may fork."""
    source = FORKING.format(path=[str(Path(__file__).parents[1])], name=name, url=url)
    process = fork(["-c", source], stderr=subprocess.PIPE, imports=["running.test_loops_and_forks"])
    _, said = process.communicate(timeout=100)
    assert (process.returncode, said) == (0, "")


def preloaded(url: str) -> None:
    """What a server does that loads the program, uses the engine, and forks its workers."""
    engine = Engine(store=url, planner=ScriptedPlanner([ToolCall(tool="sync"), FinalAnswer(content="done")]))
    agent = Agent(name="worker", tools=[sync])

    async def use(run_id: str) -> bool:
        return (await engine.run(agent, "Work", run_id=run_id)).status == "completed"

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(use("of-the-parent"))

    async def there(run_id: str) -> bool:
        found = await use(run_id)
        try:
            known = (await engine.load("of-the-parent")).status
        except RunNotFound:
            known = ""
        await engine.close()
        return found and known == ("" if url == "ram:" else "completed")

    for run_id in ("a", "b"):
        assert in_child(lambda run_id=run_id: asyncio.run(there(run_id))) == 0
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if asyncio.run(there("c")) else 1))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert loop.run_until_complete(use("of-the-parent-too"))
    loop.run_until_complete(engine.close())
    loop.close()


@pytest.mark.parametrize("url", FORKED)
def test_an_engine_that_was_used_before_a_fork_works_in_its_children_and_in_the_parent(url: str, tmp_path: Path) -> None:
    """Its store, its tool threads and its watcher are new in each child; `ram:` is empty there, else both would take the same runs on."""
    in_a_process_of_its_own("preloaded", url.format(tmp_path))


def in_the_middle(url: str) -> None:
    """Fork while a run is in progress: the child has no part in it."""
    engine = Engine(store=url, planner=ScriptedPlanner(PLAN), bounds=Bounds(max_concurrent_runs=1))
    loop, task = until_it_waits(engine)
    agent = Agent(name="worker", tools=[sync])

    async def there() -> bool:
        engine.planner = ScriptedPlanner([ToolCall(tool="sync"), FinalAnswer(content="done")])
        status = (await engine.run(agent, "Work", run_id="two")).status
        try:
            await engine.resume("one")
        except Exception as error:  # noqa: BLE001 - what it is is what is looked at
            refused = type(error).__name__
        else:
            refused = ""
        return (status, refused) == ("completed", "RunNotFound" if url == "ram:" else "RunBusy")

    assert in_child(lambda: asyncio.run(there())) == 0
    loop.run_until_complete(engine.close())
    assert isinstance(task.exception(), Suspended)
    loop.close()


@pytest.mark.parametrize("url", FORKED)
def test_a_run_in_progress_stays_with_the_parent(url: str, tmp_path: Path) -> None:
    """The child neither goes on with it nor gives its claim away, and works on others: it takes up no room there."""
    in_a_process_of_its_own("in_the_middle", url.format(tmp_path))


def pools(_: str) -> None:
    """Use a pool, fork, and use it again."""
    pool = ThreadPool(2)

    async def use() -> bool:
        return await pool.call(lambda: 1) == 1

    assert asyncio.run(use())
    assert in_child(lambda: asyncio.run(use())) == 0


def test_a_thread_pool_that_was_used_before_a_fork_has_threads_in_the_child() -> None:
    """The idle threads that it counted are the parent's."""
    in_a_process_of_its_own("pools", "")


def test_closing_an_engine_ends_its_idle_tool_threads() -> None:
    """They would else wait for ten seconds each; an engine that is opened again has threads again."""

    async def main() -> None:
        engine = Engine(planner=ScriptedPlanner([ToolCall(tool="sync"), FinalAnswer(content="done")] * 2))
        agent = Agent(name="worker", tools=[sync])
        before = set(threading.enumerate())
        for _ in range(2):
            async with engine:
                assert (await engine.run(agent, "Work")).status == "completed"
                (mine,) = set(threading.enumerate()) - before
            mine.join(60)
            assert not mine.is_alive()

    asyncio.run(main())
