"""One operation of the API: its path, who may call it, what it takes and what it answers. The routes and the OpenAPI document come from these.

Rule: an operation is declared once. What its declaration does not name (a field, a query parameter) is refused by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from detent.core.codec import encode
from detent.core.errors import ConfigError
from detent.server.callers import Caller, Role
from detent.server.problems import Refused
from detent.server.served import Served


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request: who sent it, the parts of its path, its query and body as declared, and its idempotency key ("" without one)."""

    served: Served
    caller: Caller
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    key: str = ""
    request: Request


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What a client can call. `body` and `query` are struct types, None if it takes none; `answer` is the type of what it returns.

    `streams`: it may answer with a stream of events instead.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    role: Role
    summary: str
    handle: Callable[[Call], Awaitable[Any]]
    answer: Any
    query: Any = None
    body: Any = None
    status: int = 200
    media: str = "application/json"
    errors: Literal["problem", "openai"] = "problem"
    streams: bool = False


def token_of(request: Request) -> str:
    """Return the bearer token of a request, "" without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def read_body(body: bytes, kind: Any, media: str) -> Any:
    """Return the body of a request as the declared struct; raise `Refused` for one that does not fit."""
    if body and media.partition(";")[0].strip().lower() not in ("application/json", ""):
        raise Refused(415, "not_json", f"the body is {media!r}; send Content-Type: application/json")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        more = f". {fields_of(kind)}" if isinstance(kind, type) else ""
        raise Refused(422, "bad_body", f"the body does not fit: {error}{more}") from error


def read_query(given: Mapping[str, str], pairs: list[tuple[str, str]], kind: Any) -> Any:
    """Return the query of a request as the declared struct; a field that is a tuple takes the parameter several times."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)} if kind is not None else {}
    if unknown := [name for name in given if name not in fields]:
        why = f"there is no query parameter {unknown[0][:80]!r}; there are: {', '.join(fields) or 'none'}"
        raise Refused(400, "unknown_parameter", why, param=unknown[0][:80])
    if kind is None:
        return None
    several = {name for name, field in fields.items() if "tuple" in str(field.type)}
    raw: dict[str, Any] = {}
    for name, value in pairs:
        if name in several:
            raw.setdefault(name, []).append(value)
        elif name in raw:
            raise Refused(400, "repeated_parameter", f"query parameter {name!r} is given twice; give it once")
        else:
            raw[name] = value
    try:
        return msgspec.convert(raw, kind, strict=False)
    except (msgspec.ValidationError, ConfigError) as error:
        raise Refused(400, "bad_parameter", f"a query parameter does not fit: {error}") from error


def fields_of(kind: Any) -> str:
    """Return which fields a body has, for an error."""
    found = msgspec.structs.fields(kind)
    needed = [field.encode_name for field in found if field.required]
    return f"Fields: {', '.join(field.encode_name for field in found)}" + (f"; required: {', '.join(needed)}" if needed else "")


def written(value: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as the JSON response of an operation."""
    return Response(encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json")


def path_of(operation: Operation, request: Request) -> Mapping[str, str]:
    """Return the parts of the path; raise `Refused` for one that no name has."""
    for name, value in request.path_params.items():
        if not value.isprintable() or len(value) > 300:
            raise Refused(404, "not_found", f"{name} in the path is not one; ids are printable and at most 300 characters long")
    return request.path_params
