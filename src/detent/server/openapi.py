"""The OpenAPI 3.1 document of the API, generated from its operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from detent.server.operations import Operation
from detent.server.problems import TITLES, Problem

REF = "#/components/schemas/{name}"
ALWAYS = (400, 401, 403, 404, 405, 421, 422, 429, 500, 503, 507)
ABOUT_RUNS = (409, 410)
SAYS = "What happened, why, and what to do next"
WITH_BODY = (408, 409, 413, 415)


EVENTS = "text/event-stream"


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document."""
    kinds: list[Any] = [Problem]
    for one in operations:
        kinds += [kind for kind in (one.answer, one.body) if kind not in (None, bytes, str)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    known = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, Any] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Detent", "version": version("detent"), "description": "Runs of agents: start, follow, decide, check."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "problem": {"description": SAYS, "content": _problem()},
                "openai": {"description": SAYS, "content": {"application/json": {"schema": _OPENAI}, **_problem()}},
            },
        },
    }


_OPENAI = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {
            "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": "string"},
        },
    }},
}  # fmt: skip


def _problem() -> dict[str, Any]:
    return {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}


def _operation(one: Operation, known: dict[int, Any]) -> dict[str, Any]:
    statuses = sorted(
        {
            *ALWAYS,
            *(ABOUT_RUNS if "{" in one.path or one.media == EVENTS or one.streams else ()),
            *(WITH_BODY if one.method != "GET" else ()),
        }
    )
    schema: dict[str, Any] = {} if one.answer is str else known.get(id(one.answer), {})  # the events of a stream have no schema here
    content = {one.media: {"schema": {"type": "string", "format": "binary"} if one.answer is bytes else schema}}
    if one.streams:
        content[EVENTS] = {"schema": {}}
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Needs the role `{one.role}`.",
        "parameters": [
            *_in_path(one.path),
            *_in_query(one.query),
            *(_KEY if one.method == "POST" else ()),
            *(_LAST if one.media == EVENTS else ()),
        ],
        "responses": {
            str(one.status): {"description": one.summary} if one.status == 204 else {"description": one.summary, "content": content},
            **{str(status): {"$ref": f"#/components/responses/{one.errors}"} for status in statuses if status in TITLES},
        },
    }
    if one.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[id(one.body)]}}}
    return made


_KEY = ({
    "name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string", "maxLength": 200},
    "description": "The same key is the same request: sent again, it is answered, and done once. Another body under it is refused (409).",
},)  # fmt: skip
_LAST = ({
    "name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}, "description": "Begin behind this event.",
},)  # fmt: skip


def _in_path(path: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", path)]


def _in_query(kind: Any) -> list[dict[str, Any]]:
    if kind is None:
        return []
    (schema,), components = msgspec.json.schema_components([kind], ref_template=REF)
    own = components[schema["$ref"].rpartition("/")[2]]
    required = own.get("required", ())
    return [{"name": name, "in": "query", "required": name in required, "schema": field} for name, field in own["properties"].items()]
