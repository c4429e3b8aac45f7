"""The lock of the journal and of a pass: one at a time, in order, and no task that is cancelled keeps others out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from detent.ports.gates import Gate


class Visitors:
    """Tasks that pass a gate and stay inside until they are told to leave; `seen` is who came in, in order."""

    def __init__(self) -> None:
        self.gate, self.seen, self.inside = Gate(), list[str](), 0
        self.most = 0
        self.exits: dict[str, asyncio.Event] = {}

    async def visit(self, name: str) -> None:
        gate, leave = self.gate, self.exits.setdefault(name, asyncio.Event())
        gate.closed = not gate.closed or await gate.turn()
        try:
            self.seen.append(name)
            self.inside += 1
            self.most = max(self.most, self.inside)
            await leave.wait()
        finally:
            self.inside -= 1
            gate.leave()

    def come(self, *names: str) -> dict[str, asyncio.Task[None]]:
        return {name: asyncio.create_task(self.visit(name)) for name in names}

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not happened():
                await asyncio.sleep(0)


def test_one_at_a_time_in_the_order_in_which_they_came() -> None:
    """Also who comes at the moment between one's leaving and the next one's entering waits behind those who were there."""

    async def visits() -> None:
        here = Visitors()
        tasks = here.come("a", "b", "c")
        await here.until(lambda: here.seen == ["a"])
        here.exits["a"].set()
        await tasks["a"]
        late = here.come("d")
        for name in ("b", "c", "d"):
            await here.until(lambda name=name: here.seen[-1] == name)
            here.exits[name].set()
        await asyncio.gather(*tasks.values(), *late.values())
        assert (here.seen, here.most, here.gate.closed) == (["a", "b", "c", "d"], 1, False)

    asyncio.run(visits())


def test_who_is_cancelled_while_waiting_is_passed_over() -> None:
    """The next in the row gets the turn."""

    async def visits() -> None:
        here = Visitors()
        tasks = here.come("a", "b", "c")
        await here.until(lambda: here.seen == ["a"])
        tasks["b"].cancel()
        await asyncio.gather(tasks["b"], return_exceptions=True)
        here.exits["a"].set()
        await here.until(lambda: here.seen == ["a", "c"])
        here.exits["c"].set()
        await asyncio.gather(tasks["a"], tasks["c"])
        assert not here.gate.closed

    asyncio.run(visits())


def test_who_is_cancelled_when_the_turn_has_come_hands_it_on() -> None:
    """The one before has left, and the task is cancelled before it runs again."""

    async def visits() -> None:
        here = Visitors()
        tasks = here.come("a", "b", "c")
        await here.until(lambda: here.seen == ["a"])
        here.exits["a"].set()
        await here.until(lambda: here.inside == 0)
        tasks["b"].cancel()
        await here.until(lambda: here.seen == ["a", "c"])
        here.exits["c"].set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert tasks["b"].cancelled() and not here.gate.closed

    asyncio.run(visits())
