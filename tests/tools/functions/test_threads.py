"""The pool of daemon threads: how many run, what becomes of those that hang, and that nothing waits for them."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent.core.errors import ConfigError
from detent.ports import ToolOutcome
from detent.tools import ThreadPool, tool
from tool_calls import context_for


async def until(true: Callable[[], bool]) -> None:
    """Wait until something that another thread does is done; fail after 20 s."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0)


def test_a_call_returns_or_raises_what_the_function_does() -> None:
    """In a daemon thread, with the caller's context variables."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def look() -> tuple[bool, str]:
        return threading.current_thread().daemon, variable.get()

    def boom() -> None:
        raise KeyError("boom")

    async def main() -> None:
        pool = ThreadPool(1)
        variable.set("mine")
        assert await pool.call(look) == (True, "mine")
        with pytest.raises(KeyError, match="boom"):
            await pool.call(boom)
        await until(lambda: (pool.busy, pool.waiting, pool.stuck) == (0, 0, 0))
        pool.close()

    asyncio.run(main())


def test_no_more_than_its_size_run_at_once_and_none_is_lost() -> None:
    """A hundred calls through three threads."""
    lock, running, most = threading.Lock(), [0], [0]

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return number

    async def main() -> list[int]:
        pool = ThreadPool(3)
        done = await asyncio.gather(*(pool.call(lambda n=n: work(n)) for n in range(100)))
        pool.close()
        return list(done)

    assert asyncio.run(main()) == list(range(100))
    assert 1 <= most[0] <= 3


def test_threads_are_used_again() -> None:
    """One after the other needs one thread."""

    async def main() -> set[int]:
        pool = ThreadPool(8)
        idents: set[int] = set()
        for _ in range(20):
            idents.add(await pool.call(threading.get_ident))
            await until(lambda: pool.busy == 0)
        pool.close()
        return idents

    assert len(asyncio.run(main())) == 1


def test_a_hung_call_is_counted_replaced_and_leaves_when_it_ends() -> None:
    """The next call runs at once although the only thread hangs; the late result goes nowhere."""
    release, started = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hang() -> str:
        threads.append(threading.current_thread())
        started.set()
        release.wait(60)
        return "late"

    async def main() -> None:
        pool = ThreadPool(1)
        hung = asyncio.create_task(pool.call(hang))
        await asyncio.to_thread(started.wait, 20)
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        assert pool.stuck == 1
        assert await pool.call(lambda: "next") == "next"
        release.set()
        await until(lambda: pool.stuck == 0)
        assert await pool.call(lambda: "after") == "after"
        await asyncio.to_thread(threads[0].join, 5)  # less than the time after which any idle thread ends
        assert not threads[0].is_alive()
        pool.close()

    asyncio.run(main())


def test_a_call_that_is_given_up_while_it_waits_never_runs() -> None:
    """It is taken out of the queue."""
    release, started = threading.Event(), threading.Event()
    ran: list[int] = []

    async def main() -> None:
        pool = ThreadPool(1)
        first = asyncio.create_task(pool.call(lambda: (started.set(), release.wait(60))))
        await asyncio.to_thread(started.wait, 20)
        second = asyncio.create_task(pool.call(lambda: ran.append(1)))
        await until(lambda: pool.waiting == 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (pool.waiting, pool.stuck) == (0, 0)
        release.set()
        await first
        assert await pool.call(lambda: 3) == 3
        pool.close()

    asyncio.run(main())
    assert ran == []


def test_a_tool_that_waits_for_a_thread_has_not_timed_out() -> None:
    """Its own limit counts from when it starts; the one before it took longer than that."""
    release, started = threading.Event(), threading.Event()
    slow = tool(lambda: started.set() or release.wait(60), name="slow", side_effect="none")
    quick = tool(lambda: "done", name="quick", side_effect="write", timeout_s=0.02)

    async def main() -> ToolOutcome:
        pool = ThreadPool(1)
        first = asyncio.create_task(slow.run({}, context_for(slow), pool=pool))
        await asyncio.to_thread(started.wait, 20)
        second = asyncio.create_task(quick.run({}, context_for(quick), pool=pool))
        loop = asyncio.get_running_loop()
        passed = asyncio.Event()
        loop.call_later(0.06, passed.set)
        await passed.wait()
        assert not second.done()
        release.set()
        await first
        outcome = await second
        pool.close()
        return outcome

    outcome = asyncio.run(main())
    assert (outcome.kind, outcome.result) == ("ok", b'"done"')


def test_a_tool_that_never_got_a_thread_was_not_executed() -> None:
    """The run's deadline passed while it waited: that is known, also of a destructive tool, and the message says why."""
    release, started = threading.Event(), threading.Event()
    ran: list[int] = []
    slow = tool(lambda: started.set() or release.wait(60), name="slow", side_effect="none")
    wipe = tool(lambda: ran.append(1), name="wipe")

    async def main() -> ToolOutcome:
        pool = ThreadPool(1)
        first = asyncio.create_task(slow.run({}, context_for(slow), pool=pool))
        await asyncio.to_thread(started.wait, 20)
        deadline = asyncio.get_running_loop().time() + 0.02
        outcome = await wipe.run({}, context_for(wipe, deadline=deadline), pool=pool)
        release.set()
        await first
        pool.close()
        return outcome

    outcome = asyncio.run(main())
    assert (outcome.kind, outcome.error_code, ran) == ("not_executed", "timeout", [])
    assert "all 1 threads" in outcome.message


def test_a_timed_out_tool_frees_its_place() -> None:
    """The tool after it is served, and the hung thread is counted."""
    release = threading.Event()
    hang = tool(lambda: release.wait(60), name="hang", side_effect="read", timeout_s=0.02)
    fine = tool(lambda: 1, name="fine", side_effect="read")

    async def main() -> None:
        pool = ThreadPool(1)
        assert (await hang.run({}, context_for(hang), pool=pool)).error_code == "timeout"
        assert pool.stuck == 1
        assert (await fine.run({}, context_for(fine), pool=pool)).kind == "ok"
        release.set()
        await until(lambda: pool.stuck == 0)
        pool.close()

    asyncio.run(main())


def test_one_pool_serves_several_event_loops() -> None:
    """An engine may be used from several threads, or by `run_sync` more than once; a loop that is gone is no error."""
    pool, release, started = ThreadPool(2), threading.Event(), threading.Event()

    async def leave_behind() -> None:
        pool.submit(lambda: (started.set(), release.wait(60)))
        await asyncio.to_thread(started.wait, 20)

    asyncio.run(leave_behind())
    release.set()
    assert asyncio.run(pool.call(lambda: 1)) == 1
    assert asyncio.run(pool.call(lambda: 2)) == 2
    pool.close()


def test_a_closed_pool_takes_no_jobs_and_its_idle_threads_end() -> None:
    """Without waiting for those that work."""

    async def main() -> list[threading.Thread]:
        pool = ThreadPool(2)
        threads = [await pool.call(threading.current_thread)]
        pool.close()
        with pytest.raises(ConfigError, match="closed"):
            await pool.call(lambda: 1)
        return threads

    for thread in asyncio.run(main()):
        thread.join(60)
        assert not thread.is_alive()


def test_a_pool_needs_a_thread() -> None:
    """A size of 0 would wait for ever."""
    with pytest.raises(ConfigError, match="size of 1 or more"):
        ThreadPool(0)


def test_a_stuck_thread_does_not_keep_the_interpreter_alive() -> None:
    """A program whose tool hangs for ever ends when its main function does."""
    code = """
        import asyncio, threading
        from detent.tools import ThreadPool, tool
        from tool_calls import context_for
        hang = tool(lambda: threading.Event().wait(), name="hang", side_effect="read", timeout_s=0.02)
        pool = ThreadPool(1)
        print(asyncio.run(hang.run({}, context_for(hang), pool=pool)).error_code, pool.stuck)
    """
    tests = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n" + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["timeout", "1"], "")


def test_a_tool_without_a_pool_runs_in_a_thread_of_its_own() -> None:
    """For tests of one's own: `tool.run(args, context)` needs no engine."""
    made: Any = tool(lambda: threading.current_thread().daemon, name="alone", side_effect="none")

    async def main() -> ToolOutcome:
        return await made.run({}, context_for(made))

    assert asyncio.run(main()).result == b"true"
