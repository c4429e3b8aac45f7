"""Runs over HTTP: start, list, look, continue, fork, check."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from starlette.responses import Response

from detent.core.codec import encode
from detent.core.errors import Conflict, RunErased
from detent.history.comparing import Diff
from detent.history.explaining import Explanation, follow
from detent.history.explaining import explain as explained
from detent.history.trees import Tree
from detent.history.upkeep import Erasure
from detent.ports import RunQuery
from detent.running.lineage import history
from detent.running.receipts import Receipt
from detent.running.results import Verification
from detent.running.runtime import pass_on
from detent.server.keys import alone, another, digest_of, id_of, mark, marks, request_id
from detent.server.operations import Call, Operation
from detent.server.problems import Refused
from detent.server.shapes import Erase, Fork, ListRuns, ReadRecords, Records, Reopen, Resume, Run, Runs, StartRun, Strict, Waits, run_of
from detent.server.starting import Started, submitted

STARTS = ("variables", "budget", "output_schema", "priority", "fair_key", "weight", "dedupe_key", "on_same", "debounce")
"""The fields of a body that `Engine.submit` takes as they are."""


async def start(call: Call) -> Run:
    """Start a run durably; this server's worker, or another one, advances it."""
    body: StartRun = call.body
    served, engine, host = call.served, call.served.engine, call.caller.host
    if body.wait_s < 0 or body.wait_s > served.settings.wait_s:
        raise Refused(422, "wait_too_long", f"wait_s is {body.wait_s:g}; give 0 to {served.settings.wait_s:g}, or read the run's events")
    if call.key and body.run_id:
        raise Refused(422, "two_ids", "the request has a run_id and an Idempotency-Key, which both name the run; leave one of them out")
    run_id = await submitted(
        call,
        Started(
            agent=body.agent,
            goal=body.goal,
            run_id=f"key-{id_of(call.caller, call.key)}" if call.key else body.run_id or None,
            request=digest_of(msgspec.structs.replace(body, wait_s=0.0)),
            options={name: getattr(body, name) for name in STARTS},
        ),
    )
    if body.wait_s:
        with contextlib.suppress(TimeoutError):
            return run_of(await asyncio.wait_for(served.rested(run_id, host), body.wait_s))
    return run_of(await engine.load(run_id, host=host))


async def listed(call: Call) -> Runs:
    """List runs."""
    query: ListRuns = call.query
    wanted: dict[str, Any] = {**msgspec.structs.asdict(query), "limit": query.limit + 1, "tenant": call.caller.tenant}
    found = await call.served.engine.list_runs(RunQuery(**wanted), host=call.caller.host)
    page = found[: query.limit]
    return Runs(runs=page, after=page[-1].run_id if len(found) > query.limit else "")


async def get(call: Call) -> Run:
    """Return a run."""
    return run_of(await call.served.engine.load(call.path["run_id"], host=call.caller.host))


async def records(call: Call) -> Records:
    """Return verified records of a run."""
    query: ReadRecords = call.query
    found = await call.served.engine.records(call.path["run_id"], host=call.caller.host)
    page = found[query.after : query.after + query.limit]
    more = query.after + query.limit < len(found)
    raw: Any = [msgspec.Raw(encode(record)) for record in page]  # `encode` knows what records may hold
    return Records(records=raw, after=query.after + query.limit if more else 0)


async def tree(call: Call) -> Tree:
    """Return a run with all runs below it."""
    return await call.served.engine.tree(call.path["run_id"], host=call.caller.host)


async def waits(call: Call) -> Waits:
    """Return what a run waits for."""
    return Waits(waits=await call.served.engine.waits(call.path["run_id"], host=call.caller.host))


async def receipt(call: Call) -> Receipt:
    """Return what the run's answer is based on."""
    return (await call.served.engine.load(call.path["run_id"], host=call.caller.host)).receipt


async def artifact(call: Call) -> Response:
    """Return the bytes of an artifact; a browser saves them and shows nothing of them."""
    data = await call.served.engine.artifact(call.path["run_id"], call.path["key"], host=call.caller.host)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return Response(data, 200, headers, media_type="application/octet-stream")


async def verify(call: Call) -> Verification:
    """Check the log of a run."""
    return await call.served.engine.verify(call.path["run_id"], host=call.caller.host)


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the installed code reproduces the log, and the first difference."""

    identical: bool
    divergence: dict[str, Any] | None = None


async def replay(call: Call) -> Replayed:
    """Replay a run; nothing is called."""
    found = await call.served.engine.replay(call.path["run_id"], host=call.caller.host)
    return Replayed(
        identical=found.identical, divergence=None if found.divergence is None else msgspec.json.decode(encode(found.divergence))
    )


class DiffWith(Strict, frozen=True, kw_only=True):
    """`with` is the id of the other run."""

    other: str = msgspec.field(name="with")


async def diff(call: Call) -> Diff:
    """Return the differences between two runs."""
    return await call.served.engine.diff(call.path["run_id"], call.query.other, host=call.caller.host)


async def resume(call: Call) -> Run:
    """Have a run continued by a worker."""
    engine, host = call.served.engine, call.caller.host
    loaded = await engine.load(call.path["run_id"], host=host)
    budget = call.body.budget
    async with alone(call, loaded.run_id):
        request, done = await _request(call, loaded.run_id)
        if budget is not None and not done:
            await call.served.begun(
                lambda observers: engine.resume(
                    loaded.run_id, budget=budget, by=call.caller.principal, request=request, observers=observers
                ),
                name=f"run {loaded.run_id}",
            )
        elif not done:
            await mark(engine.store, loaded.run_id, request)
    await pass_on(engine.runtime, loaded.run_id)
    return run_of(await engine.load(loaded.run_id))


async def reopen(call: Call) -> Run:
    """Open a run again; a worker continues it."""
    engine, host = call.served.engine, call.caller.host
    loaded = await engine.load(call.path["run_id"], host=host)
    async with alone(call, loaded.run_id):
        request, done = await _request(call, loaded.run_id)
        if done:
            return run_of(loaded)
        result = await engine.reopen(
            loaded.run_id, by=call.caller.principal, why=call.body.why, budget=call.body.budget, resume=False, request=request
        )
    await pass_on(engine.runtime, loaded.run_id)
    return run_of(result)


async def _request(call: Call, run_id: str) -> tuple[str, bool]:
    """Return the id of a request about a run, and whether the run's log, or a mark beside it, states that it was done."""
    if not call.key:
        return "", False
    store = call.served.engine.store
    known = [*await store.read(run_id), *await marks(store, run_id)]
    return request_id(call.caller, call.key, [call.request.url.path, call.body], run_id, known=known)


async def erase(call: Call) -> Erasure:
    """Remove the content of a run. Once it is gone, a repeated request (one with a key) finds nothing more to remove."""
    body: Erase = call.body
    engine, host = call.served.engine, call.caller.host
    run_id = await engine.runtime.visible(call.path["run_id"], host)
    options: dict[str, Any] = {"why": body.why, "keep_later": body.keep_later, "memory": body.memory}
    async with alone(call, run_id):
        request, done = await _request(call, run_id)
        erased = Erasure(run_id=run_id)
        if not done:
            try:
                erased = await engine.erase(run_id, by=call.caller.principal, host=host, **options)
            except RunErased:
                if not call.key:
                    raise
            await mark(engine.store, run_id, request)  # afterwards: with the run's content, its marks are removed
    return erased


class CallOf(Strict, frozen=True, kw_only=True):
    """`call_id` is the id of a call of the run."""

    call_id: str


async def explain(call: Call) -> Explanation:
    """Return why a call happened, or did not."""
    engine = call.served.engine
    run_id = await engine.runtime.visible(call.path["run_id"], call.caller.host)
    return await follow(explained(await history(engine.store, run_id), call.query.call_id), engine.store)


async def fork(call: Call) -> Run:
    """Fork a run; a worker continues the fork."""
    body: Fork = call.body
    engine, host = call.served.engine, call.caller.host
    child = None
    if call.key:
        begin = f"key-{id_of(call.caller, call.key, call.path['run_id'])}-"
        child = begin + digest_of(body)
        for head in await engine.list_runs(RunQuery(starts_with=(begin,), tenant=call.caller.tenant), host=host):
            if head.run_id.partition("@")[0] != child:
                raise another(call.key)
            return run_of(await engine.load(head.run_id, host=host))
    try:
        result = await engine.fork(
            call.path["run_id"], at=body.at, edits=body.edits, effects=body.effects, child_id=child, host=host, resume=False
        )
    except Conflict:
        if child is None:
            raise
        return run_of(await engine.load(child, host=host))
    if body.resume:
        await pass_on(engine.runtime, result.run_id)
    return run_of(result)


OPERATIONS = (
    Operation(
        name="startRun", method="POST", path="/runs", role="run", summary="Start a run, and leave it to a worker", handle=start, body=StartRun,
        answer=Run, status=202,
    ),
    Operation(name="listRuns", method="GET", path="/runs", role="see", summary="List runs, newest first", handle=listed, query=ListRuns, answer=Runs),
    Operation(name="getRun", method="GET", path="/runs/{run_id}", role="see", summary="A run as it stands", handle=get, answer=Run),
    Operation(
        name="getRecords", method="GET", path="/runs/{run_id}/records", role="see", summary="The verified records of a run", handle=records,
        query=ReadRecords, answer=Records,
    ),
    Operation(name="getTree", method="GET", path="/runs/{run_id}/tree", role="see", summary="A run and all runs below it", handle=tree, answer=Tree),
    Operation(name="getWaits", method="GET", path="/runs/{run_id}/waits", role="see", summary="What a run waits for", handle=waits, answer=Waits),
    Operation(
        name="getReceipt", method="GET", path="/runs/{run_id}/receipt", role="see", summary="What an answer is based on", handle=receipt,
        answer=Receipt,
    ),
    Operation(
        name="getArtifact", method="GET", path="/runs/{run_id}/artifacts/{key}", role="see", summary="The bytes of an artifact", handle=artifact,
        answer=bytes, media="application/octet-stream",
    ),
    Operation(name="verifyRun", method="GET", path="/runs/{run_id}/verify", role="see", summary="Check a log", handle=verify, answer=Verification),
    Operation(
        name="replayRun", method="GET", path="/runs/{run_id}/replay", role="see", summary="Execute a log again with the installed code",
        handle=replay, answer=Replayed,
    ),
    Operation(
        name="diffRuns", method="GET", path="/runs/{run_id}/diff", role="see", summary="What differs between two runs", handle=diff,
        query=DiffWith, answer=Diff,
    ),
    Operation(
        name="resumeRun", method="POST", path="/runs/{run_id}/resume", role="run", summary="Have a run continued", handle=resume, body=Resume,
        answer=Run, status=202,
    ),
    Operation(
        name="reopenRun", method="POST", path="/runs/{run_id}/reopen", role="operate", summary="Open a run again", handle=reopen, body=Reopen,
        answer=Run, status=202,
    ),
    Operation(
        name="eraseRun", method="POST", path="/runs/{run_id}/erase", role="operate", summary="Remove the content of a run, keep its digests",
        handle=erase, body=Erase, answer=Erasure,
    ),
    Operation(
        name="explainCall", method="GET", path="/runs/{run_id}/explain", role="see", summary="Why a call happened, or did not",
        handle=explain, query=CallOf, answer=Explanation,
    ),
    Operation(
        name="forkRun", method="POST", path="/runs/{run_id}/fork", role="run", summary="Copy a run, change something, continue", handle=fork,
        body=Fork, answer=Run, status=202,
    ),
)  # fmt: skip
