"""The ASGI application: routes from operations, and what every request passes on its way: host, origin, size, identity, rate, role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.server import agents, agui, answers, events, memory, runs, schedules, sessions
from detent.server.callers import Authenticate, Caller, Tokens
from detent.server.doors import Doors
from detent.server.keys import read_key
from detent.server.mcp import McpDoor
from detent.server.openai import chat, conversations, responses
from detent.server.openapi import document
from detent.server.operations import Call, Operation, path_of, read_body, read_query, token_of, written
from detent.server.pages import routes as pages
from detent.server.problems import Problem, Refused, answer, openai_answer, problem_met
from detent.server.served import Hub, Served
from detent.server.settings import ServerSettings

OPERATIONS: tuple[Operation, ...] = (
    *agents.OPERATIONS,
    *runs.OPERATIONS,
    *answers.OPERATIONS,
    *events.OPERATIONS,
    *sessions.OPERATIONS,
    *memory.OPERATIONS,
    *schedules.OPERATIONS,
    *chat.OPERATIONS,
    *responses.OPERATIONS,
    *conversations.OPERATIONS,
    *agui.OPERATIONS,
)


def app(
    engine: Engine,
    *,
    tokens: Tokens | Authenticate,
    settings: ServerSettings | None = None,
    works: bool = True,
    work: Callable[[Hub], Awaitable[Any]] | None = None,
) -> Starlette:
    """Return the ASGI application over an engine, which it opens and closes.

    `tokens` says who a bearer token belongs to: `Tokens` of a file, `by_jwt(...)`, or a sync or async function that returns a `Caller` or None. With
    `works` its process also advances runs, as a worker does. Raises `ConfigError` for an engine whose store ends with the process's memory but
    that does not work here.
    """
    if not works and engine.store.url == "ram:":
        raise ConfigError(
            "a store in memory has no other workers: nobody would advance what is started; leave works=True, or give another store"
        )
    served = Served(engine, authenticate=tokens, settings=settings or ServerSettings(), works=works, work=work)
    routes = [Route(one.path, partial(_answer, served, one), methods=[one.method], name=one.name) for one in OPERATIONS]
    routes += [
        *(Route(path, partial(_vital, served), name=path) for path in ("/healthz", "/readyz", "/metrics")),
        Route("/openapi.json", partial(_document, served), name="openapi"),
    ]
    served.mcp = door = McpDoor(served)
    routes.append(Route("/mcp", door, methods=["GET", "POST", "DELETE"], name="mcp"))
    routes += pages.routes(served)
    middleware = [Middleware(Doors, settings=served.settings)]
    if served.settings.origins:
        allowed = ["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"]
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware, allow_origins=list(served.settings.origins), allow_methods=["GET", "POST", "DELETE"], allow_headers=allowed
            ),
        )
    handlers: dict[Any, Any] = {HTTPException: _http_problem}
    made = Starlette(routes=routes, middleware=middleware, lifespan=served.lifespan, exception_handlers=handlers)
    made.router.redirect_slashes = False  # a path that is not one is answered as that, for every method
    made.state.served = served
    return made


async def _answer(served: Served, one: Operation, request: Request) -> Response:
    """Answer a request to an operation: who sends it, may they, and does it fit; then the operation itself."""
    refusal = openai_answer if one.errors == "openai" else answer
    try:
        caller = await _caller(served, request)
        if one.role not in caller.roles:
            has = ", ".join(caller.roles) or "none"
            raise Refused(
                403, "role_missing", f"{one.name} needs the role {one.role!r}; this token has: {has}. Ask whoever runs this server"
            )
        if one.method != "GET":
            served.refuse_stopping()
        path = path_of(one, request)
        query = read_query(request.query_params, request.query_params.multi_items(), one.query)
        body = read_body(await request.body(), one.body, request.headers.get("content-type", "")) if one.body is not None else None
        key = read_key(request.headers.get("idempotency-key", "")) if one.method == "POST" else ""
        value = await one.handle(Call(served=served, caller=caller, path=path, query=query, body=body, key=key, request=request))
        return value if isinstance(value, Response) else written(value, one.status)
    except Refused as refused:
        return refusal(refused.problem, refused.headers)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:  # noqa: BLE001 - whatever an operation raises is answered as a problem
        problem = problem_met(error, request, served.engine.store.url)
        return refusal(problem, {"Retry-After": "1"} if problem.status == 503 else None)


async def _caller(served: Served, request: Request) -> Caller:
    caller = await served.caller(token_of(request))
    served.rates.take(f"{caller.tenant}\0{caller.principal}")
    return caller


async def _http_problem(_: Request, error: Any) -> Response:
    """Say what Starlette refuses in the same form."""
    said = {404: "there is nothing at this path; /openapi.json lists all", 405: "this path does not take this method; see /openapi.json"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    status = error.status_code
    return answer(
        Problem(
            status=status,
            code=codes.get(status, "refused"),
            title=codes.get(status, "refused").replace("_", " "),
            detail=said.get(status, str(error.detail)),
        ),
        dict(error.headers or {}),
    )


async def _vital(served: Served, request: Request) -> Response:
    """Say whether the process lives and is ready, as a worker does. The metrics are of all tenants, so they are for operators of no tenant."""
    path = request.url.path
    if path == "/readyz" and served.stopping.is_set():
        return Response("the server stops\n", 503)
    if path == "/metrics":
        try:
            caller = await _caller(served, request)
            if "operate" not in caller.roles or caller.tenant:
                raise Refused(
                    403, "role_missing", "the metrics are of all tenants: they need a token without a tenant and with the role 'operate'"
                )
        except Refused as refused:
            return answer(refused.problem, refused.headers)
    found = await served.engine.health(path)
    return Response(found.text, found.status, {"Cache-Control": "no-store"}, media_type=found.content_type)


async def _document(served: Served, _: Request) -> Response:
    return written(document(OPERATIONS), 200)
