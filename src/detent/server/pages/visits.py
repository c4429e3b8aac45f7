"""One visit of a page: who is signed in, what the form says, and the answer as HTML under a strict policy for its content.

A browser is signed in by a cookie that holds its token, which scripts cannot read. Its name has the port, because browsers send the cookies of a host to
all its ports: two servers on one machine would else sign each other's visitors out. A form carries a code that is made from that token, so a page of
another origin cannot send one; browsers name the origin as well, and `Doors` compares it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from detent.server.callers import Caller, Role
from detent.server.pages.rendering import render
from detent.server.problems import Problem, Refused, problem_met
from detent.server.served import Served

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page by somebody who is signed in."""

    served: Served
    caller: Caller
    path: Mapping[str, str]
    request: Request
    token: str

    @property
    def asked(self) -> dict[str, str]:
        """The query of the request; of a name that is given twice the last."""
        return dict(self.request.query_params)

    @property
    def code(self) -> str:
        """What a form of this visitor carries, so that no other page can send one."""
        return hmac.new(self.token.encode(), b"a form of the inspector", sha256).hexdigest()

    async def form(self) -> dict[str, str]:
        """Return the fields of the form that was sent; raise `Refused` (403) for one that no page of this visitor made."""
        fields = fields_of(await self.request.body())
        if not hmac.compare_digest(fields.pop("code", "").encode(), self.code.encode()):
            raise Refused(
                403, "bad_form", "this form is not from a page of yours that is still signed in; go back, reload the page and send it again"
            )
        return fields

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page, or a part of one, as HTML."""
        known = {"caller": self.caller, "code": self.code, "at_path": self.request.url.path, "asked": self.asked}
        return HTMLResponse(render(template, **known, **values), status, HEADERS)

    def go(self, path: str) -> Response:
        """Return the answer to a form: see this page next."""
        return RedirectResponse(path, 303, {"Cache-Control": "no-store"})

    def need(self, role: Role) -> None:
        """Raise `Refused` (403) if the visitor does not have the role."""
        if role not in self.caller.roles:
            has = ", ".join(self.caller.roles) or "none"
            raise Refused(403, "role_missing", f"this needs the role {role!r}; you have: {has}. Ask whoever runs this server")

    @property
    def of_all(self) -> bool:
        """Whether the visitor operates the whole store: the role `operate`, and no tenant. Others see and touch what is of their tenant."""
        return not self.caller.tenant and "operate" in self.caller.roles

    def need_all(self) -> None:
        """Raise `Refused` (403) if the visitor does not operate the whole store."""
        self.need("operate")
        if not self.of_all:
            raise Refused(
                403, "of_all_tenants", f"this concerns all tenants, and you are of tenant {self.caller.tenant!r}; ask the operator"
            )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One address of the inspector: who may open it, and what it answers."""

    path: str
    handle: Callable[[Visit], Awaitable[Response]]
    role: Role = "see"
    method: Literal["GET", "POST"] = "GET"

    @property
    def name(self) -> str:
        """The name of its route."""
        return f"{self.method} {self.path}"


def fields_of(body: bytes) -> dict[str, str]:
    """Return the fields of a form; raise `Refused` for bytes that are none. A browser ends lines with CR LF, whatever was written."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200, errors="strict")
        return {name: value.replace("\r\n", "\n") for name, value in pairs}
    except ValueError as error:  # also UnicodeDecodeError
        raise Refused(422, "bad_form", f"the form cannot be read: {error}") from error


def cookie_at(port: int | None) -> str:
    """Return the name of the cookie of a server that the browser reaches at this port; None: the usual one of HTTP or HTTPS."""
    return f"detent_token_{port}" if port else "detent_token"


async def visited(served: Served, one: Page, request: Request) -> Response:
    """Answer a request for a page: who visits, may they, then the page itself. A problem is a page, too."""
    token = request.cookies.get(cookie_at(request.url.port), "")
    try:
        caller = await served.caller(token)
    except Refused:
        return (
            signing_in(request)
            if one.method == "GET"
            else problem_page(Refused(401, "not_signed_in", "you are not signed in; open the page again").problem)
        )
    try:
        served.rates.take(f"{caller.tenant}\0{caller.principal}")
        visit = Visit(served=served, caller=caller, path=request.path_params, request=request, token=token)
        visit.need(one.role)
        return await one.handle(visit)
    except Refused as refused:
        return problem_page(refused.problem, refused.headers)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:  # noqa: BLE001 - whatever a page raises is answered as a page
        return problem_page(problem_met(error, request, served.engine.store.url))


def problem_page(problem: Problem, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """Return a problem as a page."""
    return HTMLResponse(render("problem.html", problem=problem), problem.status, {**HEADERS, **(headers or {})})


def signing_in(request: Request, *, why: str = "", status: int = 401) -> HTMLResponse:
    """Return the page on which a visitor gives a token, and continues to where they wanted to."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return HTMLResponse(render("sign_in.html", wanted=wanted, why=why), status, HEADERS)


async def sign_in(served: Served, request: Request) -> Response:
    """Take a token from the form, and keep it in a cookie that scripts cannot read."""
    try:
        fields = fields_of(await request.body())
        token, wanted = fields.get("token", "").strip(), fields.get("wanted", "/")
        await served.caller(token)
    except Refused as refused:
        why = "this token is unknown or has expired" if refused.problem.status == 401 else refused.problem.detail
        return HTMLResponse(render("sign_in.html", wanted="/", why=why), refused.problem.status, HEADERS)
    here = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    answer = RedirectResponse(quote(wanted, safe="/?&=%:@+,;~!$'()*#") if here else "/", 303, {"Cache-Control": "no-store"})
    answer.set_cookie(cookie_at(request.url.port), token, httponly=True, samesite="lax", secure=request.url.scheme == "https")
    return answer


async def sign_out(served: Served, request: Request) -> Response:
    """Forget the token."""
    answer = RedirectResponse("/", 303, {"Cache-Control": "no-store", "Clear-Site-Data": '"cache"'})
    answer.delete_cookie(cookie_at(request.url.port))
    return answer
