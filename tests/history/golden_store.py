"""The golden store: runs in every state that somebody may leave them in, as version 0.1.0 kept them in SQLite and in files.

The archives in `tests/golden` were written once and are read for ever. When a store's format changes on purpose, the old archives stay, and
`python tests/history/golden_store.py` (with src and tests on the path) writes those of the version that is installed beside them.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import detent
from detent import Agent, AskUser, Engine, FinalAnswer, Schedule, Suspended, ToolCall, ToolFailed, View, tool
from detent.core.errors import StoreBusy
from detent.core.events import DeadLettered
from detent.ports import EventStore, Signal
from detent.stores import open_store
from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.faults import CrashingStore
from laws.places import PurePlanner

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "golden"
KINDS = ("sqlite", "file")
DAY_S = 86_400.0

made: list[str] = []
"""What the tools really did, since somebody emptied it."""


@tool(side_effect="read", max_result_bytes=100)
async def big(n: int) -> list[str]:
    """Give more than the cap."""
    return [f"line {k} ñ" for k in range(n)]


@tool(side_effect="write", sensitive=("token",))
async def put(text: str, token: str = "") -> str:
    """Write once; fail in a known way, or in one of which nobody knows what it did."""
    made.append(f"put {text}")
    if text == "bad":
        raise ToolFailed("no room", error_code="no_room")
    if text == "lost":
        raise ConnectionError("the line went dead")
    return f"put {text}"


@tool(side_effect="destructive")
async def wipe(name: str) -> str:
    """Remove something, which needs approval."""
    made.append(f"wipe {name}")
    return f"{name} is gone"


TOOLS = ("big", "put", "wipe")
KEEPER = Agent(name="keeper", tools=list(TOOLS), instructions="Keep it.")

Turn = tuple[Any, ...] | Any
PLANS: dict[str, list[Turn]] = {
    "work": [(ToolCall(tool="big", args={"n": 40}), ToolCall(tool="put", args={"text": "a", "token": "s3cret"}))],
    "fail": [ToolCall(tool="put", args={"text": "bad"})] * 9,
    "wipe": [
        (
            ToolCall(tool="put", args={"text": "before"}),
            ToolCall(tool="wipe", args={"name": "x"}),
            ToolCall(tool="put", args={"text": "after"}),
        )
    ],
    "ask": [AskUser(question="which colour?")],
    "sleep": [Schedule(delay_s=3600)],
    "lose": [ToolCall(tool="put", args={"text": "lost"})],
    "stop": [ToolCall(tool="put", args={"text": "one"}), ToolCall(tool="put", args={"text": "two"})],
}
"""What a goal's first word means, turn by turn; then comes the answer."""


def plan(view: View) -> Any:
    """Return the plan of this turn, by the first word of the goal."""
    turns = PLANS[view.goal.split()[0]]
    return turns[view.iteration - 1] if view.iteration <= len(turns) else FinalAnswer(content=f"done: {view.goal}")


def engine_on(store: EventStore, *, days: float = 0) -> Engine:
    """Return an engine as it was then, or so many days later."""
    clock = FakeClock(tick_s=0.25)
    clock.advance(days * DAY_S)
    return Engine(store=store, planner=PurePlanner(plan), tools=[big, put, wipe], approver="caller", clock=clock, ids=SequentialIds())


async def write(store: EventStore) -> None:
    """Put one run of each kind into a store. Its id says how it was left."""
    engine = engine_on(store)

    async def begin(run_id: str, goal: str, **options: Any) -> str:
        return (await engine.run(KEEPER, goal, run_id=run_id, **options)).status

    await begin("finished", "work", variables={"x": [1, None]})
    await engine.fork("finished", at=3, child_id="forked", edits={"goal": "work more"})
    await begin("failed", "fail")
    await begin("erased", "work")
    await engine.erase("erased", by="ann", why="asked for")
    for name in ("done", "open", "approved", "denied", "cancelled", "undigested", "twice"):
        await begin(f"approval-{name}", "wipe")
    call = "main.1.1"
    await engine.approve("approval-done", call, by="ann")
    await engine.approve("approval-approved", call, by="ann", resume=False)
    await engine.deny("approval-denied", call, by="ann", reason="not that", resume=False)
    await engine.signal("approval-cancelled", Signal(id="enough", kind="cancel", by="ann", payload={"why": "enough"}))
    await store.post("approval-undigested", Signal(id="old", kind="approval", by="ann", payload={"call": call, "decision": "approved"}))
    (asked,) = await engine.approvals(run_id="approval-twice")
    for by, decision in (("ann", "denied"), ("bob", "approved")):
        said = {"call": call, "decision": decision, "digest": asked.digest}
        await store.post("approval-twice", Signal(id=f"of {by}", kind="approval", by=by, payload=said))
    for name in ("open", "replied"):
        await begin(f"question-{name}", "ask")
    await engine.reply("question-replied", "blue", by="ann", resume=False)
    await begin("timer", "sleep")
    for name in ("open", "happened", "again"):
        await begin(f"doubt-{name}", "lose")
    call = "main.1.0"
    await engine.reconcile("doubt-happened", call, happened=True, result="put lost", by="ann", resume=False)
    await engine.reconcile("doubt-again", call, happened=False, by="ann", resume=False)
    for at, run_id in enumerate(("stopped-in-a-call", "stopped-between-turns"), start=5):
        broken = engine_on(CrashingStore(store, at=at, operations=("append",), error=lambda: StoreBusy("it is busy"), once=True))
        try:
            await broken.run(KEEPER, "stop", run_id=run_id)
        except Suspended:
            continue
        raise AssertionError(f"{run_id} was not stopped")
    await begin("given-up", "ask")
    await engine.hand().resume("given-up", DeadLettered(why="nobody could advance it", attempts=5), advance=False)


def packed(version: str, kind: str) -> Path:
    """Return the archive of a version's store."""
    return GOLDEN_DIR / f"store-{version}-{kind}.tar.gz"


def url_in(directory: Path, kind: str) -> str:
    """Return where the store of a kind is in a directory."""
    return f"sqlite:///{directory}/runs.db" if kind == "sqlite" else f"file:{directory}/runs"


async def unpacked(version: str, kind: str, directory: Path) -> EventStore:
    """Unpack a golden store and return it open."""
    with tarfile.open(packed(version, kind)) as archive:
        known: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4 and later
        archive.extractall(directory, **known)  # noqa: S202 - an archive of our own
    store = open_store(url_in(directory, kind))
    await store.open()
    return store


def _pack(path: Path, directory: Path) -> None:
    """Write what is in a directory, and nothing of who wrote it."""

    def bare(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for file in sorted(directory.iterdir()):
            archive.add(file, file.name, filter=bare)
    path.write_bytes(gzip.compress(whole.getvalue(), mtime=0))


async def main(progress: Callable[[str], None] = print) -> None:
    """Write the golden stores of this version; they say nothing of who writes them, or where."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as there:
            store = open_store(url_in(Path(there), kind))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="ann"))  # pyright: ignore[reportUnknownLambdaType]
                patch.setattr("socket.gethostname", lambda: "host")
                await store.open()
                try:
                    await write(store)
                finally:
                    await store.close()
            _pack(path := packed(detent.__version__, kind), Path(there))
            progress(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    asyncio.run(main())
