"""A service with approvals. Start it with `uvicorn app:app --timeout-graceful-shutdown 3`: without the option, uvicorn waits for open streams.

    POST /runs                               {"goal": "Close the account of bob"} starts a run and returns its id
    GET  /runs/{run_id}                      returns the status of the run
    GET  /runs/{run_id}/events               streams what happens in it (server-sent events) until the run has ended
    GET  /approvals                          lists the calls that wait for a person
    POST /runs/{run_id}/approvals/{call_id}  {"approved": true, "digest": "...", "by": "ann"} decides
    GET  /doubts                             lists the calls that may or may not have happened
    POST /runs/{run_id}/doubts/{call_id}     {"happened": true, "result": "...", "by": "ann"} settles, after ann has looked

Runs are in runs.db. Stop or kill the service whenever you like: the next start continues every run from the end of its log. There is no login
here. Put one in front before anybody else can reach the service, and take `by` from it. For several tenants pass `host=Host(tenant=...)` to every
call of the engine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from detent import Agent, Bounds, DetentError, Engine, Result
from detent.extend import events as facts
from tools import close_account, find_account

HERE = Path(__file__).resolve().parent
TOOLS = [find_account, close_account]
RULES = [  # stand in for a model until the environment variable MODEL names one, such as openai:gpt-5
    {"name": "find", "call": {"tool": "find_account", "args": {"name": r"${find(goal, '\\w+$')}"}}, "as": "account", "on_error": "stop"},
    {
        "name": "close",
        "call": {"tool": "close_account", "args": {"address": "${results.account.value}"}},
        "as": "closed",
        "on_error": "stop",
    },
    {"name": "say", "answer": "${results.closed.value}"},
]
PLAN: dict[str, Any] = {"model": os.environ["MODEL"]} if os.environ.get("MODEL") else {"rules": RULES}
AGENT = Agent(name="support", instructions="Close the account that the goal names, and say which.", tools=TOOLS, **PLAN)


class Goal(BaseModel):
    """What a run is to reach."""

    goal: str


class Decision(BaseModel):
    """What a person says about a call. `digest` is that of the call that they saw: another one is refused."""

    approved: bool
    digest: str
    by: str


class Finding(BaseModel):
    """What a person found out about a call in doubt: it happened with this result, or it did not, and runs again."""

    happened: bool
    result: Any = None
    by: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store, and advance runs for as long as the service is up."""
    bounds = Bounds(goal_words_in_ids=False)  # goals name people, and ids are in addresses and logs
    async with Engine(store=f"sqlite:///{HERE / 'runs.db'}", tools=TOOLS, approver="caller", bounds=bounds) as engine:
        app.state.engine = engine
        worker = asyncio.create_task(engine.work())
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


app = FastAPI(title="support", lifespan=lifespan)


@app.exception_handler(DetentError)
async def refused(request: Request, error: DetentError) -> JSONResponse:
    """Report what went wrong: an unknown run, an answer that does not fit, a busy store. The message is for the log, because it names places."""
    logging.getLogger("support").info("%s %s: %s", request.method, request.url.path, error)
    status = {"run_not_found": 404, "store_busy": 503, "store_full": 503}.get(error.code, 409)
    return JSONResponse({"error": error.code, "reason": getattr(error, "reason_code", "")}, status_code=status)


@app.post("/runs", status_code=202)
async def start(body: Goal) -> dict[str, Any]:
    """Start a run durably; the worker advances it."""
    return {"run_id": await app.state.engine.submit(AGENT, body.goal)}


@app.get("/runs/{run_id}")
async def show(run_id: str) -> dict[str, Any]:
    """Return the status of a run."""
    state = await app.state.engine.load(run_id)
    return {"run_id": run_id, "status": state.status, "reason": state.reason, "output": state.output, "records": state.seq}


@app.get("/runs/{run_id}/events")
async def follow(run_id: str) -> StreamingResponse:
    """Stream what the log of a run records, and its status when it waits or has ended."""
    await show(run_id)  # an unknown run is refused before the stream begins

    async def events() -> AsyncIterator[str]:
        async for item in app.state.engine.follow(run_id, through_waits=True):
            ends = isinstance(item, Result) or isinstance(item.event, facts.RunWaiting)
            said = await show(run_id) if ends else {"record": item.envelope.seq, "event": type(item.event).__name__}
            yield f"data: {json.dumps(said)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/approvals")
async def approvals() -> list[dict[str, Any]]:
    """List the calls that wait for a person, with all that they would do."""
    return [
        {"run_id": one.run_id, "call_id": one.call_id, "tool": one.tool, "args": one.args, "reason": one.reason, "digest": one.digest}
        for one in await app.state.engine.approvals()
        if not one.answered_by
    ]


@app.post("/runs/{run_id}/approvals/{call_id}", status_code=202)
async def decide(run_id: str, call_id: str, body: Decision) -> dict[str, Any]:
    """Approve or deny a call; the worker continues the run. `posted` is not decided yet: of two answers, the first one counts."""
    answer = app.state.engine.approve if body.approved else app.state.engine.deny
    result = await answer(run_id, call_id, by=body.by, digest=body.digest, resume=False)
    return {**await show(run_id), "answer": result.answered.outcome if result.answered else ""}


@app.get("/doubts")
async def doubts() -> list[dict[str, Any]]:
    """List the calls that may or may not have happened. `key` is the idempotency key that the other system has seen."""
    return [
        {"run_id": one.run_id, "call_id": one.call_id, "tool": one.tool, "args": one.args, "why": one.why, "key": one.key}
        for one in await app.state.engine.doubts()
        if not one.answered_by
    ]


@app.post("/runs/{run_id}/doubts/{call_id}", status_code=202)
async def settle(run_id: str, call_id: str, body: Finding) -> dict[str, Any]:
    """Record whether a call happened; the worker continues the run."""
    result = await app.state.engine.reconcile(run_id, call_id, happened=body.happened, result=body.result, by=body.by, resume=False)
    return {**await show(run_id), "answer": result.answered.outcome if result.answered else ""}
