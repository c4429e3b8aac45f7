"""A worker in a process of its own: `python model_child.py STORE MODEL WHERE GOAL` runs an agent until it is told to die at WHERE.

`stream`: it says so and hangs at the first text of its second answer. `again`: the same, in a run that another worker began. `answered`: it kills
itself when its first model call is on record as finished, `plan`: when its first plan has been committed, before a tool begins, `tool`: in the first
call of its tool. What the tool did stands in calls.txt of the working directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from detent import Agent, Budget, Engine, tool
from detent.core.events import ModelCallFinished, Planned


@tool(side_effect="write", idempotent=True)
def put(x: int) -> int:
    """Put x."""
    with Path("calls.txt").open("a") as file:
        file.write(f"{x}\n")
    if sys.argv[3:4] == ["tool"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


AGENT = Agent(
    name="putter",
    model="set by the caller",
    model_settings={"max_tokens": 1000},
    tools=[put],
    budget=Budget(max_total_tokens=1_000_000),
)
"""With a bound on tokens, so that a call is on record before it is made, and one for each answer, so that it reserves no more than that."""


class Killer:
    """Ends the process where it is told to."""

    def __init__(self, where: str) -> None:
        self.where, self.plans = where, 0

    def on_record(self, record: Any, state: Any) -> None:
        if isinstance(record.event, ModelCallFinished) and self.where == "answered":
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(record.event, Planned):
            self.plans += 1
            if self.where == "plan":
                os.kill(os.getpid(), signal.SIGKILL)

    def on_chunk(self, chunk: Any) -> None:
        if chunk.kind == "text" and (self.where == "again" or (self.where == "stream" and self.plans == 1)):
            print("streaming", flush=True)
            threading.Event().wait()


async def main(store: str, model: str, where: str, goal: str) -> None:
    import msgspec

    async with Engine(store=store, tools=[put]) as engine:
        if where == "again":
            await engine.resume("r", observers=[Killer(where)])
            return
        await engine.run(msgspec.structs.replace(AGENT, model=model), goal, run_id="r", observers=[Killer(where)])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
