"""The routes of the inspector: its pages, its sign-in, and the few files that a browser loads."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from detent.server.pages import (
    agents,
    evaluations,
    evidence,
    fleet,
    inbox,
    listing,
    memory,
    operations,
    run,
    searching,
    sessions,
    whatif,
    why,
)
from detent.server.pages.reading import Readings
from detent.server.pages.rendering import show_pages
from detent.server.pages.visits import Page, sign_in, sign_out, visited
from detent.server.served import Served

PAGES: tuple[Page, ...] = (
    *listing.PAGES,
    *run.PAGES,
    *inbox.PAGES,
    *why.PAGES,
    *whatif.PAGES,
    *searching.PAGES,
    *evidence.PAGES,
    *sessions.PAGES,
    *memory.PAGES,
    *agents.PAGES,
    *fleet.PAGES,
    *operations.PAGES,
    *evaluations.PAGES,
)
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {one.name: one for one in sorted((Path(__file__).parent / "static").iterdir()) if one.suffix in KINDS}


def routes(served: Served) -> list[Route]:
    """Return the routes of all pages."""
    served.readings = Readings()
    show_pages(frozenset(one.path for one in PAGES))
    return [
        *(Route(one.path, partial(visited, served, one), methods=[one.method], name=one.name) for one in PAGES),
        Route("/ui/sign-in", partial(sign_in, served), methods=["POST"], name="sign in"),
        Route("/ui/sign-out", partial(sign_out, served), methods=["POST"], name="sign out"),
        Route("/ui/shared/{token}", partial(evidence.shared, served), methods=["GET"], name="shared"),
        Route("/ui/static/{name}", _file, methods=["GET"], name="static"),
    ]


async def _file(request: Request) -> Response:
    """Return a file of the pages; a browser asks again only whether it has changed."""
    path = FILES.get(request.path_params["name"])
    if path is None:
        return Response("there is no such file\n", 404)
    data = path.read_bytes()
    tag = f'"{sha256(data).hexdigest()[:24]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers, media_type=KINDS[path.suffix])
