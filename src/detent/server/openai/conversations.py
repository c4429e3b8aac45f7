"""Conversations: each is a session, whose messages are its items."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Any

from detent.core.errors import ConfigError
from detent.history.sessions import Session
from detent.server.keys import id_of
from detent.server.openai.requests import refuse_others, unsupported
from detent.server.openings import Opening, Openings
from detent.server.operations import Call, Operation
from detent.server.problems import Refused

ANY: Any = dict[str, Any]


def operation(
    name: str, method: Any, path: str, role: Any, *, summary: str, handle: Any, body: Any = None, query: Any = None, streams: bool = False
) -> Operation:
    """Return an operation of this API."""
    return Operation(
        name=f"openai{name}", method=method, path=f"/v1/{path}", role=role, summary=summary, handle=handle, body=body, query=query, answer=ANY,
        errors="openai", streams=streams,
    )  # fmt: skip


def page_of(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Return items as a page of this API, which has all of them."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": False,
    }


async def new_conversation(call: Call) -> dict[str, Any]:
    """Name a conversation: a session without a message, and without an agent yet."""
    refuse_others(call.body, ("items",))
    if items := call.body.get("items"):
        raise unsupported(
            "items", f"{len(items)} items cannot be put in before there is a message; send them as the input of its first response"
        )
    engine, host = call.served.engine, call.caller.host
    name = f"key-{id_of(call.caller, call.key)}" if call.key else f"c-{secrets.token_hex(10)}"
    if not call.key or not await engine.session(None, name, host).runs():
        await Openings(engine, host, name).begin(Opening(agent="", by=call.caller.principal), ())
    return _conversation(name)


def _conversation(name: str) -> dict[str, Any]:
    return {"id": f"conv_{name}", "object": "conversation", "created_at": int(time.time()), "metadata": {}}


async def conversation(call: Call) -> dict[str, Any]:
    """Return a conversation."""
    await _known(call)
    return _conversation(call.path["conversation_id"].removeprefix("conv_"))


async def delete_conversation(call: Call) -> dict[str, Any]:
    """End a conversation: it takes no further message. Its messages stay in the log; erase its responses to remove it."""
    session = await _known(call)
    await _opening(call).forget()
    await session.end(by=call.caller.principal)
    return {"id": call.path["conversation_id"], "object": "conversation.deleted", "deleted": True}


def _name(call: Call) -> str:
    return call.path["conversation_id"].removeprefix("conv_")


def _opening(call: Call) -> Openings:
    return Openings(call.served.engine, call.caller.host, _name(call))


async def _known(call: Call) -> Session:
    """Return the session of a conversation that has a message, or was created. Raise `Refused` (404)."""
    with contextlib.suppress(ConfigError):  # no session has such an id
        session = call.served.engine.session(None, _name(call), call.caller.host)
        if await session.runs() or await _opening(call).get() is not None:
            return session
    raise Refused(404, "not_found", f"there is no conversation {call.path['conversation_id'][:80]!r}")


async def conversation_items(call: Call) -> dict[str, Any]:
    """Return the messages."""
    found: list[dict[str, Any]] = []
    for index, one in enumerate(await (await _known(call)).messages()):
        if one.kind not in ("user", "model"):
            continue
        role, kind = ("user", "input_text") if one.kind == "user" else ("assistant", "output_text")
        part: dict[str, Any] = {"type": kind, "text": one.text} | ({"annotations": []} if role == "assistant" else {})
        found.append({"type": "message", "id": f"msg_{one.run_id}_{index}", "role": role, "status": "completed", "content": [part]})
    return page_of(found)


OPERATIONS = (
    operation("NewConversation", "POST", "conversations", "run", summary="A new conversation", handle=new_conversation, body=ANY),
    operation("Conversation", "GET", "conversations/{conversation_id}", "see", summary="A conversation", handle=conversation),
    operation(
        "DeleteConversation", "DELETE", "conversations/{conversation_id}", "run", summary="End a conversation", handle=delete_conversation
    ),
    operation(
        "ConversationItems", "GET", "conversations/{conversation_id}/items", "see", summary="The messages", handle=conversation_items
    ),
)
