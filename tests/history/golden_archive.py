"""The golden archive: one finished run with a failed call, an artifact and two turns of work, as version 1 wrote it.

`tests/golden/archive-v1.jsonl.gz` was written once and is read for ever, with the state that it folds to beside it. When the format of archives or
of records changes on purpose, `python tests/history/golden_archive.py` (with src and tests on the path) writes the files of the new version.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, ToolCall, ToolFailed, View, tool
from detent.history.moving import ARCHIVE_VERSION, archive
from detent.running.snapshots import load_run
from detent.running.states import dump_state
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock, SequentialIds
from laws.places import PurePlanner

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"
RUN = "golden"


@tool(side_effect="read", max_result_bytes=100)
async def big(n: int) -> list[str]:
    """Give more than the cap."""
    return [f"line {k} ñ" for k in range(n)]


@tool(side_effect="write")
async def put(text: str) -> str:
    """Write once, and fail once."""
    if text == "bad":
        raise ToolFailed("no room", error_code="no_room")
    return f"put {text}"


def plan(view: View) -> Any:
    """Return the plan of this turn."""
    turns = [(ToolCall(tool="big", args={"n": 40}), ToolCall(tool="put", args={"text": "a"})), ToolCall(tool="put", args={"text": "bad"})]
    return turns[view.iteration - 1] if view.iteration <= len(turns) else FinalAnswer(content={"done": [1, None, "ünï"]})


async def main() -> None:
    """Write the archive of this version, and the state of its run."""
    store = RamStore()
    await store.open()
    clock = FakeClock(tick_s=0.25)
    engine = Engine(store=store, planner=PurePlanner(plan), tools=[big, put], approver="caller", clock=clock, ids=SequentialIds())
    agent = Agent(name="keeper", tools=["big", "put"], instructions="Keep it.")
    await engine.run(agent, "keep a run", run_id=RUN, variables={"x": [1, None]})
    state = await load_run(store, RUN)
    await archive(store, GOLDEN_DIR, RUN)
    (GOLDEN_DIR / f"{RUN}.jsonl.gz").rename(GOLDEN_DIR / f"archive-v{ARCHIVE_VERSION}.jsonl.gz")
    (GOLDEN_DIR / f"archive-v{ARCHIVE_VERSION}.state.txt").write_bytes(dump_state(state) + b"\n")


if __name__ == "__main__":
    asyncio.run(main())
