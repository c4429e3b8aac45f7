"""A visitor of the inspector's pages: signed in by the cookie, sending forms as its pages make them, and reading what a page says."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from html import unescape
from typing import Any

import httpx2

from detent import Engine
from server.serving import serving

EVIL = "<script>alert('\u202e1')</script>&\"'<img src=x onerror=alert(1)>"
"""What nobody may be able to put into a page."""


class Visitor(httpx2.AsyncClient):
    """A browser without scripts."""

    def __init__(self, url: str, who: str) -> None:
        super().__init__(base_url=url, cookies={"detent_token": who}, timeout=30, follow_redirects=True)
        self.code = hmac.new(who.encode(), b"a form of the inspector", sha256).hexdigest()

    async def see(self, path: str, *, status: int = 200) -> str:
        """Return a page as it came. No page has markup that somebody else wrote."""
        answer = await self.get(path)
        assert answer.status_code == status, (path, answer.status_code, words(answer.text)[:600])
        return checked(answer.text)

    async def submit(self, path: str, *, expect: int = 200, **fields: str) -> str:
        """Send a form, and return the page that it leads to."""
        answer = await self.post(path, data={"code": self.code, **fields})
        assert answer.status_code == expect, (path, answer.status_code, words(answer.text)[:600])
        return checked(answer.text)

    async def part(self, path: str) -> httpx2.Response:
        """Return a part of a page, as its script asks for it."""
        return await self.get(path, headers={"HX-Request": "true"})


def checked(page: str) -> str:
    """Return the page; fail if what `EVIL` says is markup in it, or a script or style is in the page itself."""
    assert "<script>" not in page and "<img" not in page and "<style" not in page and " style=" not in page and "\u202e" not in page
    return page


def words(page: str) -> str:
    """Return what a page says, as one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2] or page)).split())


Body = Callable[[Engine, Callable[[str], Visitor]], Awaitable[None]]


def visited(engine: Engine, body: Body, **options: Any) -> None:
    """Serve an engine, and do something with it and with visitors by the names of their tokens."""

    async def run() -> None:
        async with serving(engine, **options) as url:
            visitors: list[Visitor] = []

            def visitor(who: str) -> Visitor:
                visitors.append(Visitor(url, who))
                return visitors[-1]

            try:
                await body(engine, visitor)
            finally:
                for one in visitors:
                    await one.aclose()

    asyncio.run(run())
