"""Stores that an older version wrote: every run in them resumes, replays and verifies, and what people had said to it counts as it did then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Engine
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import RunErased
from detent.ports import EventStore, RunQuery, Signal
from history.golden_store import GOLDEN_DIR, KINDS, engine_on, made, unpacked

VERSIONS = ("0.1.0",)

AFTER: dict[str, tuple[str, str, list[str]]] = {
    "approval-approved": ("waiting_for_approval", "completed", ["wipe x", "put after"]),
    "approval-cancelled": ("waiting_for_approval", "stopped", []),
    "approval-denied": ("waiting_for_approval", "completed", ["put after"]),
    "approval-done": ("completed", "completed", []),
    "approval-open": ("waiting_for_approval", "waiting_for_approval", []),
    "approval-twice": ("waiting_for_approval", "completed", ["put after"]),
    "approval-undigested": ("waiting_for_approval", "waiting_for_approval", []),
    "doubt-again": ("waiting_for_reconciliation", "waiting_for_reconciliation", ["put lost"]),
    "doubt-happened": ("waiting_for_reconciliation", "completed", []),
    "doubt-open": ("waiting_for_reconciliation", "waiting_for_reconciliation", []),
    "failed": ("stopped", "stopped", []),
    "finished": ("completed", "completed", []),
    "forked": ("completed", "completed", []),
    "given-up": ("waiting_for_operator", "waiting_for_operator", []),
    "question-open": ("waiting_for_user", "waiting_for_user", []),
    "question-replied": ("waiting_for_user", "completed", []),
    "stopped-between-turns": ("running", "completed", []),
    "stopped-in-a-call": ("running", "waiting_for_reconciliation", []),
    "timer": ("waiting_for_schedule", "completed", []),
}
"""How each run was left, what it comes to a day later when somebody resumes it, and what its tools do for that."""

both = pytest.mark.parametrize(("version", "kind"), [(version, kind) for version in VERSIONS for kind in KINDS])


def with_golden(version: str, kind: str, directory: Path, body: Callable[[EventStore, Engine], Awaitable[None]]) -> None:
    """Do `body` with a copy of a golden store, and an engine on it a day later."""

    async def main() -> None:
        made.clear()
        store = await unpacked(version, kind, directory)
        try:
            await body(store, engine_on(store, days=1))
        finally:
            await store.close()

    asyncio.run(main())


async def events_of(store: EventStore, run_id: str) -> list[Any]:
    """Return what a log says happened."""
    return [record.event for record in read_log(run_id, await store.read(run_id))]


@both
def test_every_run_of_an_older_store_resumes_replays_and_verifies(version: str, kind: str, tmp_path: Path) -> None:
    """An update of the program would strand runs that wait, repeat what their tools did, or break the evidence of those that are over."""

    async def body(store: EventStore, engine: Engine) -> None:
        left = {head.run_id: head.status for head in await store.list_runs(RunQuery())}
        assert left == {run_id: before for run_id, (before, _, _) in AFTER.items()} | {"erased": "completed"}
        for run_id, (_, after, effects) in AFTER.items():
            lines = await store.read(run_id)
            assert (await engine.verify(run_id)).ok and (await engine.replay(run_id)).identical, run_id
            made.clear()
            assert ((await engine.resume(run_id)).status, made) == (after, effects), run_id
            assert (await store.read(run_id))[: len(lines)] == lines, run_id
            assert (await engine.verify(run_id)).ok and (await engine.replay(run_id)).identical, run_id
            assert not await store.signals([run_id]), run_id

    with_golden(version, kind, tmp_path, body)


@both
def test_what_people_had_said_to_an_older_store_counts(version: str, kind: str, tmp_path: Path) -> None:
    """The first answer counts; one that does not say what it answers is refused on the record, and the run still waits."""

    async def body(store: EventStore, engine: Engine) -> None:
        await engine.resume("approval-undigested")
        (refused,) = [event for event in await events_of(store, "approval-undigested") if isinstance(event, e.AnswerRefused)]
        assert (refused.signal, refused.kind, refused.by, refused.code) == ("old", "approval", "ann", "digest_missing")
        (asked,) = await engine.approvals(run_id="approval-undigested")
        done = await engine.approve("approval-undigested", asked.call_id, by="ann", digest=asked.digest)
        assert (done.status, made) == ("completed", ["wipe x", "put after"])
        await engine.resume("approval-twice")
        said = await events_of(store, "approval-twice")
        assert [(event.by, event.decision) for event in said if isinstance(event, e.ApprovalResolved)] == [("ann", "denied")]
        assert [(event.by, event.signal) for event in said if isinstance(event, e.AnswerRefused)] == [("bob", "of bob")]
        (taken,) = [event.signal for event in await events_of(store, "approval-done") if isinstance(event, e.ApprovalResolved)]
        await store.post("approval-done", Signal(id=taken, kind="approval", by="ann"))
        assert not await store.signals(["approval-done"]), "an id that was consumed then is posted again"

    with_golden(version, kind, tmp_path, body)


@both
def test_runs_of_an_older_store_are_reopened_forked_and_settled(version: str, kind: str, tmp_path: Path) -> None:
    """What was left for a person to decide could not be decided any more."""

    async def body(store: EventStore, engine: Engine) -> None:
        assert (await engine.reopen("given-up", by="ann")).status == "waiting_for_user"
        assert (await engine.reply("given-up", "blue", by="ann")).status == "completed"
        assert (await engine.reopen("failed", by="ann")).status == "stopped"
        await engine.resume("stopped-in-a-call")
        settled = await engine.reconcile("stopped-in-a-call", "main.2.0", happened=True, result="put two", by="ann")
        assert (settled.status, "put two" in made) == ("completed", False)
        child = await engine.fork("approval-done", at=3, child_id="child", effects="reuse")
        for run_id in ("given-up", "failed", "stopped-in-a-call", child.run_id):
            assert (await engine.verify(run_id)).ok and (await engine.replay(run_id)).identical, run_id
        assert (await engine.verify("erased")).erased
        for refused in (engine.resume, engine.replay):
            with pytest.raises(RunErased):
                await refused("erased")
        artifact = await store.get_blob("finished", (await engine.load("finished")).passes["main"].results[0].artifact.key)  # type: ignore[union-attr]
        assert artifact and b"line 39" in artifact

    with_golden(version, kind, tmp_path, body)


def test_there_is_a_golden_store_of_every_version_in_every_form() -> None:
    """One that is missing would guard nothing."""
    there = {path.name for path in GOLDEN_DIR.glob("store-*")}
    assert there == {f"store-{version}-{kind}.tar.gz" for version in VERSIONS for kind in KINDS}
