"""Errors as problem+json (RFC 9457): what happened, why, and what to do next, with Detent's own codes."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from detent.core import errors as e

log = logging.getLogger("detent.server")

STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (e.RunNotFound, 404),
    (e.ItemNotFound, 404),
    (e.RunErased, 410),
    (e.RunContextMismatch, 409),
    (e.RunBusy, 409),
    (e.NotAllowedNow, 409),
    (e.ToolsMissing, 409),
    (e.ItemConflict, 409),
    (e.Divergence, 409),
    (e.UnknownName, 404),
    (e.ItemRefused, 422),
    (e.ConfigError, 422),
    (e.StoreFull, 507),
    (e.StoreBusy, 503),
    (e.Suspended, 503),
    (e.Conflict, 409),
    (e.RunError, 409),
)
"""The status of each error, the first that fits; everything else is ours (500)."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A refused or failed request. `code` is stable; `detail` says what, which, why and what to do next."""

    status: int
    code: str
    title: str
    detail: str
    type: str = "about:blank"
    param: str = ""


class Refused(Exception):
    """Raised by a handler: the request ends with this problem."""

    def __init__(self, status: int, code: str, detail: str, *, param: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(status=status, code=code, title=TITLES.get(status, "refused"), detail=detail, param=param)
        self.headers = headers or {}


def not_begun() -> Refused:
    """Return the refusal of a message whose run has not begun in time; it may begin later."""
    why = "nothing of the message is recorded yet: the session is busy. Send it again with the same id; it is one message however often it is sent"
    return Refused(503, "not_begun", why, headers={"Retry-After": "5"})


TITLES = {
    400: "bad request", 401: "not signed in", 403: "not allowed", 404: "not found", 405: "method not allowed", 408: "too slow", 409: "conflict", 410: "erased",
    413: "too large", 415: "unsupported media type", 421: "wrong host", 422: "not valid", 429: "too many requests", 500: "internal error",
    503: "not available now", 507: "store full",
}  # fmt: skip


def told(text: str, place: str) -> str:
    """Return what an error says, without where this server keeps its runs: that is its operator's."""
    return text.replace(f" --store {place}", "").replace(place, "this server's store") if place != "ram:" else text


def problem_of(error: BaseException, place: str) -> Problem | None:
    """Return the problem that says what one of our errors says, without the `place` of the store; None for an error of the program."""
    if isinstance(error, e.DetentError):
        detail = told(str(error), place)
        for kind, status in STATUS:
            if isinstance(error, kind):
                code = getattr(error, "reason_code", "") or error.code
                return Problem(status=status, code=code, title=TITLES[status], detail=detail)
        return Problem(status=500, code=error.code, title=TITLES[500], detail=detail)
    return None


def problem_met(error: Exception, request: Request, place: str) -> Problem:
    """Return the problem that tells a caller what was raised while a request was answered. What is not theirs to mend is logged."""
    problem = problem_of(error, place)
    if problem is None or problem.status == 500:
        log.error("%s %s failed: %s: %s", request.method, request.url.path, type(error).__name__, error, exc_info=error)
    return problem or Problem(status=500, code="internal_error", title=TITLES[500], detail="the server failed; its log says why")


def answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Return a problem as a response."""
    more: dict[str, Any] = {"Cache-Control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(problem), problem.status, more, media_type="application/problem+json")


def openai_answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Return a problem as clients of OpenAI's API read it."""
    status = 400 if problem.status in (415, 422) else problem.status
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    error = {"message": problem.detail, "type": kind, "param": problem.param or None, "code": problem.code}
    return Response(
        msgspec.json.encode({"error": error}), status, {"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
