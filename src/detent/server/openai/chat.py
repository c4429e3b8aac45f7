"""Chat completions: each request is a new run. Earlier messages are data, never results; a client's system message is user data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from detent.core.codec import encode
from detent.core.state import RunState
from detent.ports import Chunk, RunQuery
from detent.running.results import Result
from detent.server.below import waits_for
from detent.server.events import event, merged, sse
from detent.server.keys import digest_of, id_of
from detent.server.openai.requests import AGAIN_S, flag, is_repeated, message_of, refuse_others, same_sender, schema_of, streamed, text_of
from detent.server.operations import Call, Operation, written
from detent.server.problems import Refused
from detent.server.starting import Started, submitted

KNOWN = ("model", "messages", "stream", "stream_options", "response_format", "store")
"""What is honoured. `store` says whether OpenAI may show the request to its owner later; the log keeps it either way."""

MOST_ALIKE = 10


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for."""

    model: str
    goal: str
    earlier: tuple[dict[str, str], ...]
    attachments: tuple[dict[str, Any], ...]
    schema: dict[str, Any] | None
    stream: bool
    usage: bool


def read(body: dict[str, Any]) -> Asked:
    """Read a request; raise `Refused` (400), naming the parameter."""
    refuse_others(body, KNOWN)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "invalid_value", "messages must be a list with at least one message", param="messages")
    said = [message_of(one, f"messages[{index}]") for index, one in enumerate(cast("list[Any]", messages))]
    if said[-1].role != "user":
        raise Refused(
            400,
            "invalid_value",
            f"the last message is of {said[-1].role!r}; it must be the user's",
            param=f"messages[{len(said) - 1}].role",
        )
    options = streamed(body, "include_usage")
    flag(body, "store")
    return Asked(
        model=text_of(body.get("model"), "model"),
        goal=said[-1].text or "Look at what is attached.",
        earlier=tuple({"role": one.role, "content": one.text} for one in said[:-1]),
        attachments=tuple(one for part in said for one in part.attachments),
        schema=schema_of(body.get("response_format"), "response_format"),
        stream=flag(body, "stream"),
        usage=options.get("include_usage") is True,
    )


async def start(call: Call, asked: Asked) -> str:
    """Start the run of a request, or find the one that it has started before: by its key, or as a repetition that the SDK says it is."""
    engine, host = call.served.engine, call.caller.host
    same = f"chat:{call.caller.principal}:{digest_of(call.body)}"[:200]
    if is_repeated(call):
        since = datetime.now(UTC) - timedelta(seconds=AGAIN_S)
        for head in await engine.list_runs(RunQuery(dedupe_key=same, since=since, tenant=call.caller.tenant, limit=MOST_ALIKE), host=host):
            if await same_sender(call, head.run_id):
                return head.run_id
    run_id = f"key-{id_of(call.caller, call.key)}" if call.key else None
    options: dict[str, Any] = {
        "seed_memory": asked.earlier,
        "attachments": asked.attachments,
        "output_schema": asked.schema,
        "dedupe_key": same,
    }
    return await submitted(call, Started(agent=asked.model, goal=asked.goal, run_id=run_id, request=digest_of(call.body), options=options))


async def create(call: Call) -> Any:
    """Answer a chat request."""
    asked = read(call.body)
    if asked.model not in call.served.engine.agents:
        raise Refused(404, "model_not_found", f"there is no agent {asked.model!r}; GET /v1/models lists them", param="model")
    call.served.refuse_full(call.caller)
    run_id = await start(call, asked)
    headers = {"X-Detent-Run": run_id}
    if asked.stream:
        return sse(call, _streamed(call, asked, run_id), run_id)
    with call.served.streaming(call.caller):  # whoever waits takes a place, as whoever reads
        result = await call.served.rested(run_id, call.caller.host)
    text, detent = await said(call, result)
    choice = {"index": 0, "message": {"role": "assistant", "content": text, "refusal": None}, "finish_reason": "stop", "logprobs": None}
    data = _head(asked, run_id, "chat.completion") | {"choices": [choice], "usage": usage_of(result), "detent": detent}
    return written(data, 200, headers | {"X-Detent-Status": result.status})


def _head(asked: Asked, run_id: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{run_id}", "object": kind, "created": int(time.time()), "model": asked.model}


async def said(call: Call, result: Result[Any]) -> tuple[str, dict[str, Any]]:
    """Return what a client reads of a run as it stands, and the field `detent`."""
    state: RunState = result.state
    detent: dict[str, Any] = {"run_id": result.run_id, "status": result.status, "reason": result.reason}
    if result.status == "completed":
        output: Any = result.output
        return output if isinstance(output, str) else encode(output).decode(), detent
    link = f"{str(call.request.base_url).rstrip('/')}/runs/{result.run_id}"
    if state.terminal:
        raise Refused(
            500 if result.status == "failed" else 409, result.reason or result.status,
            f"run {result.run_id} {result.status}: {result.error or result.reason}. {link} has its record",
        )  # fmt: skip
    waits = await waits_for(call.served, state, call.caller.host)
    return f"This waits for {waits}. See {link}", detent | {"link": link}


def usage_of(result: Result[Any]) -> dict[str, Any]:
    """Return the tokens of a run as this API counts them."""
    used = result.usage
    return {
        "prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens, "total_tokens": used.total_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens}, "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }  # fmt: skip


async def _streamed(call: Call, asked: Asked, run_id: str) -> AsyncGenerator[bytes]:
    """Yield what is written as it is written; what was not streamed of the answer comes at its end."""
    head = _head(asked, run_id, "chat.completion.chunk")

    def delta(piece: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return event(head | {"choices": [{"index": 0, "delta": piece, "finish_reason": finish, "logprobs": None}]} | more)

    sent = ""
    try:
        yield delta({"role": "assistant", "content": ""})
        async with contextlib.aclosing(merged(call, run_id, 0, waits=False)) as items:
            async for item in items:
                if isinstance(item, Chunk) and item.run_id == run_id and item.kind == "text" and isinstance(item.content, str):
                    sent += item.content
                    yield delta({"content": item.content})
                elif isinstance(item, Chunk) and item.kind == "model" and sent and not sent.endswith("\n\n"):
                    sent += "\n\n"
                    yield delta({"content": "\n\n"})
                elif isinstance(item, Result):
                    text, detent = await said(call, item)
                    if not sent.rstrip().endswith(text.strip()):
                        yield delta({"content": text if not sent else f"\n\n{text}"})
                    yield delta({}, "stop", detent=detent)
                    if asked.usage:
                        yield event(head | {"choices": [], "usage": usage_of(item)})
                elif isinstance(item, str):
                    raise Refused(503, "stopped", item)
        yield b"data: [DONE]\n\n"
    except Refused as refused:
        yield event({"error": {"message": str(refused), "type": "server_error", "code": refused.problem.code, "param": None}})


async def models(call: Call) -> dict[str, Any]:
    """List the agents as models."""
    return {"object": "list", "data": [_model(name) for name in sorted(call.served.engine.agents)]}


async def model(call: Call) -> dict[str, Any]:
    """Return one."""
    if call.path["model"] not in call.served.engine.agents:
        raise Refused(404, "model_not_found", f"there is no agent {call.path['model']!r}; GET /v1/models lists them", param="model")
    return _model(call.path["model"])


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "detent"}


OPERATIONS = (
    Operation(
        name="openaiModels", method="GET", path="/v1/models", role="see", summary="Agents as models", handle=models, answer=dict[str, Any],
        errors="openai",
    ),
    Operation(
        name="openaiModel", method="GET", path="/v1/models/{model}", role="see", summary="An agent as a model", handle=model,
        answer=dict[str, Any], errors="openai",
    ),
    Operation(
        name="openaiChat", method="POST", path="/v1/chat/completions", role="run", summary="A chat completion: a new run", handle=create,
        body=dict[str, Any], answer=dict[str, Any], errors="openai", streams=True,
    ),
)  # fmt: skip
