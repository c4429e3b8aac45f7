"""A request to the responses API, read strictly: what is not honoured is refused by name."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from detent.server.openai.requests import Part, flag, message_of, refuse_others, schema_of, streamed, table, text_of, unsupported
from detent.server.problems import Refused

KNOWN = ("model", "input", "instructions", "stream", "stream_options", "background", "previous_response_id", "conversation", "text")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to an approval request of an earlier response: the run, the call and the digest that were shown."""

    run_id: str
    call: str
    digest: str
    approve: bool
    reason: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for."""

    model: str
    parts: tuple[Part, ...]
    decisions: tuple[Decision, ...]
    previous: str
    conversation: str
    stream: bool
    background: bool


def read(body: dict[str, Any]) -> Asked:
    """Read a request; raise `Refused` (400), naming the parameter."""
    refuse_others(body, KNOWN)
    given = body.get("input")
    items: list[Any] = (
        [{"role": "user", "content": given}] if isinstance(given, str) else cast("list[Any]", given) if isinstance(given, list) else []
    )
    parts: list[Part] = []
    decisions: list[Decision] = []
    for index, item in enumerate(items):
        said: dict[str, Any] = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if said.get("type") == "mcp_approval_response":
            decisions.append(_decision(said, f"input[{index}]"))
        elif said.get("type") in (None, "message"):
            parts.append(message_of(item, f"input[{index}]"))
        else:
            raise unsupported(
                f"input[{index}].type", f"an item of type {said.get('type')!r} is not taken; send messages and mcp_approval_response"
            )
    if not parts and not decisions:
        raise Refused(400, "invalid_value", "input must be a text, or a list with at least one message", param="input")
    if parts and parts[-1].role != "user":
        raise Refused(400, "invalid_value", f"the last message is of {parts[-1].role!r}; it must be the user's", param="input")
    if parts and decisions:
        raise unsupported(
            "input", "it holds an mcp_approval_response beside a message; send the approval first, and the message when it has ended"
        )
    conversation = body.get("conversation")
    instructions = body.get("instructions")
    text = table(body, "text", "format")
    streamed(body)
    if schema_of(text.get("format"), "text.format") is not None:
        raise unsupported(
            "text.format", "a message of a conversation has the answer of its agent (output_type); ask chat completions, or leave it out"
        )
    return Asked(
        model=text_of(body.get("model"), "model"),
        parts=(*((Part(role="system", text=text_of(instructions, "instructions")),) if instructions else ()), *parts),
        decisions=tuple(decisions),
        previous=_name(body.get("previous_response_id"), "previous_response_id"),
        conversation=_name(
            cast("dict[str, Any]", conversation).get("id", "") if isinstance(conversation, dict) else conversation, "conversation"
        ),
        stream=flag(body, "stream"),
        background=flag(body, "background"),
    )


def _name(value: Any, name: str) -> str:
    if value is not None and (not isinstance(value, str) or not value):
        raise Refused(400, "invalid_value", f"{name} must be an id", param=name)
    return value or ""


def _decision(said: dict[str, Any], at: str) -> Decision:
    about, _, digest = str(said.get("approval_request_id", "")).removeprefix("mcpr_").rpartition(":")
    run_id, _, call = about.partition("~")  # no run has one in its id
    if not run_id or not isinstance(said.get("approve"), bool):
        raise Refused(400, "invalid_value", f"{at} must name its approval_request_id, and approve true or false", param=at)
    return Decision(run_id=run_id, call=call, digest=digest, approve=said["approve"], reason=str(said.get("reason") or ""))
