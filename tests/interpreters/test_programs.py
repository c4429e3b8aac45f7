"""Programs of a model in their sandbox: nothing gets out but calls of the given functions, everything ends, and a snapshot continues elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check, sampled, thinned, times
from detent import Agent, Budget, Engine, FinalAnswer, Plan, View, tool
from detent.core import events as e
from detent.interpreters.monty import MontyInterpreter
from detent.ports.interpreting import ProgramAnswer, ProgramLimits, ProgramMove
from interpreters.random_programs import TRICKS, program

pytestmark = thinned

LIMITS = ProgramLimits(steps=60, seconds=0.3, memory_bytes=16 * 2**20, output=300)


def answered(moved: ProgramMove, number: int) -> ProgramAnswer:
    """Return the answer of a call: its number."""
    return ProgramAnswer(error=moved.refused) if moved.refused else ProgramAnswer(value=number)


async def to_its_end(interpreter: MontyInterpreter, text: str, *, limits: ProgramLimits = LIMITS) -> tuple[list[ProgramMove], ProgramMove]:
    """Return the calls of a program and its end; every call gives its number."""
    calls: list[ProgramMove] = []
    moved = await interpreter.start(text, ("pay", "lookup"), limits)
    while moved.call:
        calls.append(moved)
        moved = await interpreter.answer(limits, answered(moved, len(calls)))
    return calls, moved


def test_no_trick_gets_out_of_the_sandbox_or_goes_on_for_ever() -> None:
    """Imports, attributes, memory, loops, recursion, floods, shadows, generators, exits: each ends, and asks for nothing but the two functions."""

    async def main() -> None:
        async with MontyInterpreter() as interpreter:
            for trick in TRICKS:
                calls, end = await to_its_end(interpreter, trick)
                assert {one.call for one in calls} <= {"pay", "lookup"}, trick
                assert len(end.printed) <= LIMITS.output and "root:" not in f"{end.value}{end.printed}", trick
                json.dumps([end.value, [[one.args, one.kwargs] for one in calls]], allow_nan=False)
            caught = "while True:\n    try: pay()\n    except BaseException: pass"
            assert "more than 60 times" in (await to_its_end(interpreter, caught))[1].error

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads the environment of another process")
def test_the_process_of_a_program_knows_no_secret_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever broke out of the interpreter would find no key in its environment, and none in that of the process below it."""
    monkeypatch.setenv("SOME_API_KEY", "sk-very-secret")

    async def main() -> None:
        async with MontyInterpreter() as interpreter:
            await interpreter.start("pay()", ("pay",), LIMITS)
            process = interpreter._process
            assert process is not None
            below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert below
            for pid in (process.pid, *below):
                assert b"sk-very-secret" not in Path(f"/proc/{pid}/environ").read_bytes()

    asyncio.run(main())


NOT_INSIDE = {
    "import time\ntime.time()": "no clock",
    "from datetime import datetime\ndatetime.now()": "no clock",
    "import datetime\ndatetime.date.today()": "no clock",
    "import time\ntime.perf_counter()": "no clock",
    "import asyncio\nasyncio.run(asyncio.sleep(1))": "",
    "import random\nrandom.random()": "no randomness",
    "import os\nos.urandom(8)": "no randomness",
    "import os\nos.environ['HOME']": "not available",
    "import uuid": "No module named 'uuid'",
    "{'b', 'a', 'c'}": "sorted(...)",
    "input()": "the functions are: lookup, pay",
}


def test_there_is_no_clock_no_chance_and_no_order_of_hashes_inside() -> None:
    """Whoever asks for one is told so."""

    async def main() -> None:
        async with MontyInterpreter() as interpreter:
            for text, said in NOT_INSIDE.items():
                end = (await to_its_end(interpreter, text))[1]
                assert end.error and said in end.error, text

    asyncio.run(main())


COMPUTES = """
import random, math, json, hashlib
class A: pass
def f(): pass
s = {'b', 'a', 'zz', 5, 7, 1000, (1, 2)}
s.discard('zz')
random.seed(3)
[
    [str(x) for x in s], list(map(str, frozenset('hello'))), hash('abc'), hash((1, 'a')), id(A()), repr(A()), repr(f), hash(f), str(s),
    random.random(), random.choice([1, 2, 3]), math.sin(1e22), json.dumps({'b': 1, 'a': 2}), hashlib.md5(b'x').hexdigest(),
]
"""


def test_two_processes_compute_the_same() -> None:
    """Orders, hashes, addresses, seeded chance, floats: whatever a program can make a decision of."""
    text = COMPUTES

    async def main() -> list[Any]:
        ends = []
        for _ in range(2):
            async with MontyInterpreter() as interpreter:
                ends.append((await to_its_end(interpreter, text))[1])
        return ends

    first, second = asyncio.run(main())
    assert first == second and not first.error, first.error


STEADY = """
import random
class Box:
    def __init__(self): self.items = {'b', 'a', 'c', 3, 1}
box, seen = Box(), []
random.seed(1)
def work(n):
    box.items.add(n)
    seen.append([str(one) for one in box.items])
    try:
        return lookup(key=str(n)) + (lookup(key='x') if n % 2 else 0)
    finally:
        print('did', n, random.random())
for n in range(3):
    if work(n) > 2:
        box.items.discard('a')
[seen, sorted(map(str, box.items)), hash(str(seen)), random.random()]
"""


@in_check
def test_a_snapshot_at_every_call_continues_in_a_new_process_with_the_same_result() -> None:
    """Also what was printed and what was asked for so far; a dump that is none crashes nothing here."""

    async def main() -> None:
        async with MontyInterpreter() as interpreter:
            calls, end = await to_its_end(interpreter, STEADY)
        assert len(calls) == 4 and not end.error, end
        for at in sampled(range(len(calls)), few=1):
            async with MontyInterpreter() as first:
                moved = await first.start(STEADY, ("pay", "lookup"), LIMITS)
                for number in range(at):
                    moved = await first.answer(LIMITS, ProgramAnswer(value=number + 1))
                dump = await first.dump()
            async with MontyInterpreter() as second:
                moved = await second.start(STEADY, ("pay", "lookup"), LIMITS, at=moved, dump=dump)
                for number in range(at, len(calls)):
                    assert moved == calls[number]
                    moved = await second.answer(LIMITS, ProgramAnswer(value=number + 1))
                assert moved == end
        async with MontyInterpreter() as third:
            assert (await third.start(STEADY, ("lookup",), LIMITS, at=calls[0], dump="AAAA")).error
            assert (await to_its_end(third, "1 + 1"))[1].value == 2

    asyncio.run(main())


@in_check
@pytest.mark.parametrize("seed", range(times(10, soak=200)))
def test_a_random_program_continues_from_a_snapshot_at_any_of_its_calls(seed: int) -> None:
    """In a new process, with the same calls from there and the same end: its value, its error, what it printed."""
    text = program(seed)

    async def main() -> None:
        dumps: list[str] = []
        async with MontyInterpreter() as interpreter:
            calls, moved = list[ProgramMove](), await interpreter.start(text, ("pay", "lookup"), LIMITS)
            while moved.call:
                calls.append(moved)
                dumps.append(await interpreter.dump())
                moved = await interpreter.answer(LIMITS, answered(moved, len(calls)))
        if moved.stopped:
            return  # its time or memory may be over elsewhere next time
        for at in sampled(range(len(calls)), few=1):
            async with MontyInterpreter() as second:
                again = await second.start(text, ("pay", "lookup"), LIMITS, at=calls[at], dump=dumps[at])
                for number in range(at, len(calls)):
                    assert again == calls[number], (seed, at, number)
                    again = await second.answer(LIMITS, answered(again, number + 1))
                assert again == moved, (seed, at)

    asyncio.run(main())


@pytest.mark.parametrize("first", range(0, times(40, soak=5_000), 50))
def test_random_programs_reach_tools_only_on_the_single_path_and_always_end(first: int) -> None:
    """Every call is decided and validated; no argument of another type gets through; whatever happens is replayed alike."""
    got: list[Any] = []

    @tool(side_effect="write")
    async def pay(to: str, amount: int, note: str = "") -> int:
        """Pay."""
        got.append((to, amount, note))
        return amount

    @tool(side_effect="read")
    async def lookup(key: str) -> str:
        """Look up."""
        got.append((key,))
        return "ann"

    class Writes:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        async def plan(self, view: View) -> Plan:
            number = int(view.scope.partition("#")[2] or 1)
            said = f"```python\n{program(self.seed + number)}\n```" if view.scope.startswith("program") else "given up"
            return Plan(actions=(FinalAnswer(content=said),), model="m")

    async def main(seed: int, programs: int) -> None:
        got.clear()
        bounds = Budget(max_iterations=1000, max_model_calls=1000)
        schema = {"type": "object", "required": ["never"]}  # so that each program is followed by the next one
        options = {"programs": programs, "steps": 8, "seconds": 0.2, "memory_mb": 16, "output": 300}
        agent = Agent(name="a", strategy="code-action", strategy_options=options, tools=["pay", "lookup"], output_schema=schema)
        async with Engine(planner=Writes(seed), tools=[pay, lookup]) as engine:
            result = await engine.run(agent, "Do something that takes more than a few words to say", run_id="r", budget=bounds)
            log = [record.event for record in await engine.records("r")]
            planned = [event for event in log if isinstance(event, e.Planned) and event.provenance == "program"]
            started = [event for event in log if isinstance(event, e.ToolFinished) and event.error is None]
            assert result.output == "given up", result.error
            assert sum(scope.startswith("program") for scope in result.state.passes) == programs
            assert len(got) == len(started) <= len(planned) and all(len(event.actions) == 1 for event in planned)
            for one in got:
                assert all(type(value) is kind for value, kind in zip(one, (str, int, str) if len(one) == 3 else (str,), strict=True))
            replay = await engine.replay("r")
            assert replay.identical, (seed, replay.divergence)

    asyncio.run(main(first * 1000, min(50, times(40, soak=5_000))))


ORPHAN = """
import asyncio, os, signal, sys
from detent.interpreters.monty import MontyInterpreter
from detent.ports.interpreting import ProgramLimits
async def main():
    async with MontyInterpreter() as interpreter:
        await interpreter.ready()
        print(interpreter._process.pid, flush=True)
        sys.stdin.readline()
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGKILL)
        await interpreter.start("while True: pass", (), ProgramLimits(seconds=600))
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is not its own")
def test_nothing_goes_on_computing_when_its_worker_was_killed() -> None:
    """The process of the program ends with the worker, in the middle of an endless loop that nobody will ever read."""
    worker = subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdin is not None and worker.stdout is not None
        handle = os.pidfd_open(int(worker.stdout.readline()))
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.wait()
    try:
        assert select.select([handle], [], [], 60.0)[0], "it still runs"
    finally:
        os.close(handle)
