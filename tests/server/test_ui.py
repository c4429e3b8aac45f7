"""`detent ui`: the browser that it opens, and the end of the terminal that it was started at."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from amounts import in_check
from cli.desk import Desk, told_by
from cli.terminals import at_a_terminal
from server.pages.browsing import browser, needs_chromium


def opened(desk: Desk) -> dict[str, str]:
    """Return an environment whose browser tells a pipe with which words it was started."""
    os.mkfifo(desk.home / "opened")
    script = desk.write("browser", f'#!/bin/sh\nprintf "%s\\n" "$*" > {desk.home}/opened\n')
    script.chmod(0o700)
    return {"BROWSER": f"{script} %s", "DISPLAY": ""}


def test_the_browser_is_started_without_the_token_and_a_file_of_this_user_leads_to_the_page(tmp_path: Path) -> None:
    """Its address is what other users of the machine see. The file ends with the server; the token that is printed still works."""
    desk = Desk(tmp_path)
    ui = desk.start("ui", "--store", f"sqlite:///{tmp_path}/runs.db", **opened(desk))
    try:
        printed = re.search(r"http://\S+", told_by(ui, "#token="))
        assert printed is not None
        words = (desk.home / "opened").read_text().strip()
        token = printed[0].partition("#token=")[2]
        assert token and token not in words
        file = Path(unquote(urlsplit(words).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert printed[0] in file.read_text()
        ui.send_signal(signal.SIGTERM)
        assert ui.wait(20) == 0
        assert not file.exists()
    finally:
        ui.kill()
        ui.communicate()


@in_check
def test_a_browser_comes_to_the_runs_through_that_file(tmp_path: Path) -> None:
    """It is signed in."""
    needs_chromium()
    desk = Desk(tmp_path)
    ui = desk.start("ui", "--store", f"sqlite:///{tmp_path}/runs.db", **opened(desk))

    async def look() -> None:
        async with browser() as started:
            page = await started.new_page()
            await page.goto(await asyncio.to_thread(lambda: (desk.home / "opened").read_text().strip()))
            await page.wait_for_selector("h1:has-text('Runs')")
            assert "token" not in page.url

    try:
        asyncio.run(look())
    finally:
        ui.kill()
        ui.communicate()


def test_closing_its_terminal_ends_it_cleanly(tmp_path: Path) -> None:
    """What it would still print has no reader."""
    desk = Desk(tmp_path)
    environment = {**desk.environment, **opened(desk)}
    told = list[str]()
    reading = threading.Thread(target=lambda: told.append((desk.home / "opened").read_text().strip()))
    reading.start()

    def types(shown: str) -> str | None:
        if "the token ends" not in shown:
            return ""
        reading.join()
        return None

    sat = at_a_terminal("ui", "--store", f"sqlite:///{tmp_path}/runs.db", types=types, env=environment, cwd=desk.home)
    assert sat.code == 0
    assert not Path(unquote(urlsplit(told[0]).path)).exists()
