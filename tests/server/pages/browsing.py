"""A real Chromium for the inspector's tests: the system's, without a window."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from detent.server.pages.visits import cookie_at

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
TOOLS = Path(os.environ.get("NODE_TOOLS") or Path(__file__).parents[3] / ".node-tools")


def needs_chromium() -> None:
    """Skip the test, saying so, where there is no Chromium; fail with `CHROMIUM_REQUIRED`."""
    if not CHROMIUM:
        told = "no Chromium here (Debian: chromium): the inspector is not tried in a browser"
        if os.environ.get("CHROMIUM_REQUIRED"):
            pytest.fail(told, pytrace=False)
        pytest.skip(told)


class Seen:
    """A page in a browser, and what went wrong in it: errors of scripts, refusals of the content policy, dialogs, requests elsewhere."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        page.on("console", lambda told: self.wrong.append(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: None if asked.url.startswith(url) else self.wrong.append(f"request: {asked.url}"))

    async def open(self, path: str) -> Any:
        """Open a page of the server, and return it."""
        await self.page.goto(self.url + path)
        return self.page


@contextlib.asynccontextmanager
async def browser() -> AsyncGenerator[Any]:
    """Start a browser."""
    from playwright.async_api import async_playwright

    needs_chromium()
    async with async_playwright() as tools:
        started = await tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            await started.close()


@contextlib.asynccontextmanager
async def visiting(started: Any, url: str, *, token: str = "ann", width: int = 1280, dark: bool = False) -> AsyncGenerator[Seen]:
    """Give a page of somebody who is signed in; fail if anything went wrong in it."""
    context = await started.new_context(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    if token:
        await context.add_cookies([{"name": cookie_at(int(url.rpartition(":")[2])), "value": token, "url": url}])
    seen = Seen(await context.new_page(), url)
    seen.page.set_default_timeout(30_000)
    try:
        yield seen
    finally:
        await context.close()
    assert not seen.wrong, seen.wrong
