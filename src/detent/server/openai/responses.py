"""Responses: a conversation is a session, and a response is a stretch of one of its runs.

A request without `previous_response_id` or `conversation` begins a session. The ids say what they stand for, so every server of the store can answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from sse_starlette import EventSourceResponse

from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk
from detent.server.below import asking_below, begun_at
from detent.server.events import event as framed
from detent.server.events import merged, sse
from detent.server.openai import stretches
from detent.server.openai.conversations import ANY, operation, page_of
from detent.server.openai.reading import read
from detent.server.openai.requests import unsupported
from detent.server.openai.sending import decided, sent
from detent.server.openai.stretches import EACH, PIECES, Stretch, item_events, message_item, read_id, requests_of, stretch_of, turn
from detent.server.operations import Call, written
from detent.server.problems import Refused

MOST_OF_A_RECORD = 16
"""No record has more events."""


async def create(call: Call) -> Any:
    """Answer a request: send a message to a session, or answer an approval request."""
    asked = read(call.body)
    if asked.model not in call.served.engine.agents:
        raise Refused(404, "model_not_found", f"there is no agent {asked.model!r}; GET /v1/models lists them", param="model")
    if asked.conversation and asked.previous:
        raise unsupported("conversation", "previous_response_id names the conversation already; leave one of them out")
    if asked.stream or not asked.background:
        call.served.refuse_full(call.caller)
    run_id, begin = await (decided(call, asked) if asked.decisions else sent(call, asked))
    if asked.stream:
        return _stream(call, run_id, begin, after=-1)
    if not asked.background:
        await _ended(call, run_id, begin)
    return written(await shown(call, run_id, begin), 200, {"X-Detent-Run": run_id})


async def _stretch(call: Call, run_id: str, begin: int) -> Stretch:
    return stretch_of(await call.served.engine.records(run_id, host=call.caller.host), begin, await _ends(call, run_id))


async def _ends(call: Call, run_id: str) -> list[int]:
    """Return behind which records answers to runs below began other responses of a run."""
    begun = await begun_at(call.served.engine.store, run_id)
    return [begin for name, begin in begun.items() if name.startswith(stretches.ANSWERED)]


async def _ended(call: Call, run_id: str, begin: int) -> None:
    """Wait until a response has ended, or waits for an approval."""
    made = Stretch(begin, await _ends(call, run_id))
    with call.served.streaming(call.caller):  # whoever waits takes a place, as whoever reads
        async with contextlib.aclosing(merged(call, run_id, 0, chunks=False, asks=True)) as items:
            async for item in items:
                if isinstance(item, tuple) and any(requests_of(item)):
                    return
                if isinstance(item, str):
                    raise Refused(503, "stopped", item)
                if isinstance(item, Record):
                    made.read(item)
                    if made.rests:
                        return


async def shown(call: Call, run_id: str, begin: int, stretch: Stretch | None = None) -> dict[str, Any]:
    """Return a response as an object of the API."""
    loaded = await call.served.engine.load(run_id, host=call.caller.host)
    made = stretch or await _stretch(call, run_id, begin)
    state: RunState = loaded.state
    used = made.usage
    asked = (
        requests_of(await asking_below(call.served, run_id, call.caller.host)) if stretch is None and made.status == "in_progress" else ()
    )
    return {
        "id": stretches.id_of(run_id, begin), "object": "response", "status": made.status, "model": state.agent.name, "output": [*made.items, *asked],
        "created_at": state.started_at.timestamp() if state.started_at else time.time(), "error": made.error, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "top_p": None, "tool_choice": "auto", "tools": [],
        "background": False, "text": {"format": {"type": "text"}},
        "conversation": {"id": f"conv_{state.session.id}"} if state.session is not None else None,
        "usage": {
            "input_tokens": used.input_tokens, "output_tokens": used.output_tokens, "total_tokens": used.total_tokens,
            "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        },
        "detent": {"run_id": run_id, "status": state.status, "reason": state.reason},
    }  # fmt: skip


def _stream(call: Call, run_id: str, begin: int, *, after: int) -> EventSourceResponse:
    return sse(call, _events(call, run_id, begin, after), run_id)


async def _events(call: Call, run_id: str, begin: int, after: int) -> AsyncGenerator[bytes]:
    """Yield the events of a response behind number `after`, as they happen."""
    made, written_to, pieces = Stretch(begin, await _ends(call, run_id)), dict[str, str](), 0

    def event(number: int, kind: str, data: dict[str, Any]) -> bytes:
        return framed({"type": kind, "sequence_number": number} | data, kind)

    if after < 0:
        head = await shown(call, run_id, begin, Stretch(begin))
        yield event(begin * EACH + PIECES - 3, "response.created", {"response": head})
        yield event(begin * EACH + PIECES - 2, "response.in_progress", {"response": head})
    number = after
    async with contextlib.aclosing(merged(call, run_id, 0, asks=True)) as items:
        async for item in items:
            if isinstance(item, tuple):
                found = [one for n, asked in enumerate(requests_of(item), len(made.items)) for one in item_events(n, asked)]
                for kind, data in found:  # known from no record of this run, so whoever comes back gets them once more
                    number = max(number + 1, (made.seq + 1) * EACH - PIECES)
                    yield event(number, kind, data)
                if found:
                    return
            elif isinstance(item, Chunk):
                if item.run_id != run_id or item.kind != "text" or not isinstance(item.content, str) or pieces >= EACH - 2 * PIECES:
                    continue
                base = made.seq * EACH + PIECES
                for kind, data in _piece(made, run_id, item, written_to):
                    pieces += 1
                    if base + pieces > number:
                        number = base + pieces
                        yield event(number, kind, data)
            elif isinstance(item, Record):
                made.read(item)
                pieces = 0
                for one, kind, data in _fresh(made, item.envelope.seq, written_to):
                    if one > number:
                        number = one
                        yield event(one, kind, data or {"response": await shown(call, run_id, begin, made)})
                if made.rests:
                    return
            elif isinstance(item, str):
                return


def _fresh(made: Stretch, seq: int, written_to: dict[str, str]) -> Sequence[tuple[int, str, dict[str, Any]]]:
    """Return the events of a record; those of a message that was written piece by piece continue where the pieces ended."""
    fresh = [one for one in made.events[-MOST_OF_A_RECORD:] if one[0] // EACH == seq]
    for index, item in enumerate(made.items[-1:], len(made.items) - 1):
        if item["id"] in written_to and any(data.get("item", {}).get("id") == item["id"] for _, _, data in fresh):
            text, said = item["content"][0]["text"], written_to.pop(item["id"])
            rest = text.removeprefix(said) if text.startswith(said) else ""
            fresh = [
                *((seq * EACH + n, kind, data) for n, (kind, data) in enumerate(item_events(index, item, opened=True, rest=rest))),
                *(one for one in fresh if one[0] % EACH == PIECES - 1),
            ]
    return fresh


def _piece(made: Stretch, run_id: str, chunk: Chunk, written_to: dict[str, str]) -> Sequence[tuple[str, dict[str, Any]]]:
    """Return the events of a piece of text that a model writes now."""
    item = message_item(run_id, turn(chunk.iteration), "", status="in_progress")
    at = {"output_index": len(made.items)}
    found: list[tuple[str, dict[str, Any]]] = []
    if item["id"] not in written_to:
        written_to[item["id"]] = ""
        found.append(("response.output_item.added", at | {"item": item | {"content": []}}))
        found.append(("response.content_part.added", at | {"item_id": item["id"], "content_index": 0, "part": item["content"][0]}))
    written_to[item["id"]] += chunk.content
    found.append(("response.output_text.delta", at | {"item_id": item["id"], "content_index": 0, "delta": chunk.content, "logprobs": []}))
    return found


class Retrieve(msgspec.Struct, frozen=True, kw_only=True):
    """`stream` with `starting_after`: the events behind that number."""

    stream: bool = False
    starting_after: int = -1
    include_obfuscation: bool = False


def _named(call: Call) -> tuple[str, int]:
    run_id, begin = read_id(call.path["response_id"])
    if not run_id:
        raise Refused(404, "not_found", f"there is no response {call.path['response_id'][:80]!r}")
    return run_id, begin


async def retrieve(call: Call) -> Any:
    """Return a response as it stands, or its events."""
    run_id, begin = _named(call)
    query: Retrieve = call.query
    await call.served.engine.load(run_id, host=call.caller.host)
    if query.stream:
        call.served.refuse_full(call.caller)
        return _stream(call, run_id, begin, after=query.starting_after)
    return await shown(call, run_id, begin)


async def cancel(call: Call) -> dict[str, Any]:
    """Cancel a response's run."""
    run_id, begin = _named(call)
    await call.served.engine.cancel(run_id, by=call.caller.principal, host=call.caller.host)
    with contextlib.suppress(TimeoutError):  # whoever advances the run may still have to hear of it
        await asyncio.wait_for(call.served.rested(run_id, call.caller.host), call.served.settings.wait_s)
    return await shown(call, run_id, begin)


async def delete(call: Call) -> dict[str, Any]:
    """Erase what a response's run says; its digests stay."""
    run_id, begin = _named(call)
    await call.served.engine.erase(run_id, by=call.caller.principal, keep_later=True, host=call.caller.host)
    return {"id": stretches.id_of(run_id, begin), "object": "response", "deleted": True}


async def input_items(call: Call) -> dict[str, Any]:
    """Return what was asked."""
    run_id, _ = _named(call)
    state = (await call.served.engine.load(run_id, host=call.caller.host)).state
    content = [{"type": "input_text", "text": state.goal}]
    return page_of([{"type": "message", "id": f"msg_{run_id}_goal", "role": "user", "status": "completed", "content": content}])


OPERATIONS = (
    operation("Respond", "POST", "responses", "run", summary="A response: a message to a session", handle=create, body=ANY, streams=True),
    operation(
        "Response",
        "GET",
        "responses/{response_id}",
        "see",
        summary="A response as it stands, or its events",
        handle=retrieve,
        query=Retrieve,
        streams=True,
    ),
    operation("CancelResponse", "POST", "responses/{response_id}/cancel", "run", summary="Cancel a response", handle=cancel),
    operation("DeleteResponse", "DELETE", "responses/{response_id}", "operate", summary="Erase a response", handle=delete),
    operation("InputItems", "GET", "responses/{response_id}/input_items", "see", summary="What was asked", handle=input_items),
)
