"""How soon the inspector shows a long run, a list of many runs and a record that was just committed, and how smoothly a long run scrolls.

    python benchmarks/inspector.py [--records 10000] [--runs 100000] [--rounds 7] [--quick] [--json]

A server in a process of its own and a headless Chromium, on loopback and SQLite. Each page is opened in a new context, and the first opening of each is
thrown away. `on the screen` is the time from the start of the navigation until a frame with the first turn, or the first row, was drawn; `last byte` and
`CPU` are the part of the server in it, and the floor is the page of evaluations without any. `first view`: the server has not read this run before
(target: 500 ms); `again`: it has. `list`: all runs, of which 50 are shown (target: 200 ms); `found by a word`: one with as many newer ones as are searched.

`live` is the time from the last record of a turn, made just before its commit, to its text in the DOM of an open page (target: 100 ms): in a short run of
the server's process, in one of another process, and in a long run. The floor is the same record at a reader of the run's events.

`frames` are the times between two animation frames while a long run is scrolled by wheel steps of 400 pixels, beside an empty page of the same height.
Nothing is asserted: the figures of a busy or slow machine are what they are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.events import ToolFinished
from detent.core.records import RunHead
from detent.server import app
from detent.server.pages.visits import cookie_at
from detent.stores import open_store
from server import CALLER, SETTINGS, server

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
TICKER = Agent(name="ticker", tools=["tick"], budget=Budget(max_iterations=100_000, max_tool_calls=100_000))
A_TURN, EVERY_S, REST_S = 4, 0.2, 1.0
"""The records of a turn, the seconds between two turns of a run that is looked at, and those in which a browser comes to rest that was given a new page."""


@tool(side_effect="read")
async def tick(n: int) -> str:
    """Count."""
    return f"tick {n}: {'some words ' * 25}"


class Planner:
    """Ticks at once as often as the first number of the goal says; once the file that it names is there, as often as the second one, with pauses."""

    async def plan(self, view: Any) -> Plan:
        """Return the next action."""
        quick, slow, begun = json.loads(view.goal)
        n = len(view.results)
        if n >= quick:
            while n < quick + slow and not Path(begun).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(EVERY_S)
            await asyncio.sleep(EVERY_S * random.uniform(0.5, 1.5))  # in step with no poll
        return Plan(actions=(ToolCall(tool="tick", args={"n": n}, reason="one more") if n < quick + slow else FinalAnswer(content="done"),))


def engine_at(store: str) -> Engine:
    """Return an engine."""
    return Engine(store=store, agents=[TICKER], planner=Planner(), tools=[tick], ceiling=100_000)


def serve(store: str, port: int) -> None:
    """Be the server's process; each answer has the processor time that it took so far."""
    made = app(engine_at(store), tokens=lambda _: CALLER, settings=SETTINGS)

    async def timed(scope: Any, receive: Any, send: Any) -> None:
        began = time.process_time()

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                spent = b"cpu;dur=%.3f" % ((time.process_time() - began) * 1e3)
                message["headers"] = [*message["headers"], (b"server-timing", spent)]
            await send(message)

        await made(scope, receive, sent)

    uvicorn.run(timed, host="127.0.0.1", port=port, log_level="error")


async def fill(store: str, runs: int) -> None:
    """Write the listing entries of many runs that have ended. None of them has a log that can be read."""
    kept, now = open_store(store), datetime.now(UTC)
    await kept.open()

    async def add(i: int) -> None:
        at, status = now - timedelta(seconds=20 * (i + 1)), ("completed", "completed", "completed", "failed")[i % 4]
        head = RunHead(
            run_id=f"old-{i}", goal_id=f"old-{i}", goal=f"Pay invoice {i} of Hansen", agent="ticker", status=status, iterations=i % 30,
            records=1, created_at=at, updated_at=at,
        )  # fmt: skip
        await kept.append(head.run_id, 0, [b'{"n":1}'], head=head)

    for i in range(0, runs, 500):
        await asyncio.gather(*map(add, range(i, min(runs, i + 500))))
    await kept.close()


@contextlib.asynccontextmanager
async def visiting(browser: Any, url: str, path: str, script: str = "") -> AsyncGenerator[Any]:
    """Give a page of somebody who is signed in, in a context of its own."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    await context.add_cookies([{"name": cookie_at(int(url.rpartition(":")[2])), "value": "x", "url": url}])
    await context.add_init_script(script)
    page = await context.new_page()
    await asyncio.sleep(REST_S)
    await page.goto(url + path)
    try:
        yield page
    finally:
        await context.close()


SEEN = """(selector => {
  const look = () => {
    const place = document.querySelector(selector)?.getBoundingClientRect();
    const there = place && place.height > 0 && place.top >= 0 && place.top < innerHeight;
    requestAnimationFrame(there ? () => { window.seen = performance.now(); } : look);
  };
  if (location.protocol !== "about:") requestAnimationFrame(look);
})"""
FOUND = """() => {
  const {responseEnd, serverTiming} = performance.getEntriesByType("navigation")[0];
  return window.seen && [seen, responseEnd, serverTiming[0].duration];
}"""


async def views(browser: Any, url: str, args: argparse.Namespace) -> dict[str, float]:
    """Return how soon pages are on the screen, the median."""
    found: dict[str, list[list[float]]] = {}
    for number in range(args.rounds + 1):
        for name, path, selector in (
            ("empty page", "/ui/evaluations", ".empty"),
            (f"first view of a run of {args.records} records", f"/ui/runs/long-{number}", "#t0"),
            ("the same run again", f"/ui/runs/long-{number}", "#t0"),
            (f"list of {args.runs} runs", "/", "tr[data-item]"),
            ("found by a word", f"/?find=invoice+{min(args.runs - 1, 19_000)}+of", "tr[data-item]"),
        ):
            rows = found.setdefault(name, [])
            async with visiting(browser, url, path, f"{SEEN}({json.dumps(selector)})") as page:
                seen = await (await page.wait_for_function(FOUND)).json_value()
            if number:  # the first one starts the browser's parts, and the server's
                rows.append(seen)
    return {
        f"{name}: {what}, ms": statistics.median(row[column] for row in rows)
        for name, rows in found.items()
        for column, what in enumerate(("on the screen", "last byte", "CPU of the server"))
    }


def told(name: str, times: list[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the longest of times."""
    times.sort()
    found = {"median": statistics.median(times), "95th percentile": times[int(len(times) * 0.95)], "longest": times[-1]}
    return {f"{name}, {what}, ms": value for what, value in found.items()}


FRAMES = """() => {
  window.times = [];
  const next = () => { times.push(performance.now()); requestAnimationFrame(next); };
  requestAnimationFrame(next);
  return document.documentElement.scrollHeight;
}"""
EMPTIED = "height => { document.body.replaceChildren(); document.body.style.height = `${height}px`; }"


async def scrolled(browser: Any, url: str, steps: int) -> dict[str, float]:
    """Return the times between frames while a long run is scrolled, and while an empty page is."""
    figures: dict[str, float] = {}
    height = 0.0
    for name, path in (("long run", "/ui/runs/long-0"), ("empty long page", "/ui/evaluations")):
        async with visiting(browser, url, path) as page:
            if height:
                await page.evaluate(EMPTIED, height)
            await page.mouse.move(640, 450)
            height = await page.evaluate(FRAMES)
            for _ in range(steps):
                await page.mouse.wheel(0, 400)
            times, far = await page.evaluate("() => [times, scrollY / (document.documentElement.scrollHeight - innerHeight)]")
        figures |= told(f"{name}: frames", [after - before for before, after in itertools.pairwise(times)])
        figures[f"{name}: scrolled, %"] = 100 * far
    return figures


LIVE = r"""() => {
  window.shown = {};
  const note = node => {
    for (const one of node.querySelectorAll?.("p.output") ?? []) shown[/^tick (\d+)/.exec(one.textContent)?.[1]] ??= Date.now();
  };
  new MutationObserver(changes => { for (const one of changes) one.addedNodes.forEach(note); }).observe(document, {childList: true, subtree: true});
}"""


async def came(client: httpx2.AsyncClient, run_id: str, after: int, most: int = 0) -> dict[int, float]:
    """Return when the records of a run, or the first of them, came to a reader of its events, in milliseconds."""
    found: dict[int, float] = {}
    async with client.stream("GET", f"/runs/{run_id}/events?after={after}") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and '"seq":' in line[:200]:
                found[json.loads(line[6:])["envelope"]["seq"]] = time.time() * 1e3
                if len(found) == most:
                    break
    return found


async def live(browser: Any, client: httpx2.AsyncClient, engine: Engine, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return how soon a record is in an open page, and at a reader."""
    figures: dict[str, float] = {}
    for name, quick in (("server's process", 0), ("another process", 0), ("long run", args.records // A_TURN)):
        begun = folder / name
        goal = json.dumps([quick, args.live, str(begun)])
        running = asyncio.create_task(engine.run(TICKER, goal, run_id="live")) if name == "another process" else None
        run_id = "live" if running else (await client.post("/runs", json={"agent": "ticker", "goal": goal})).json()["run_id"]
        while not await came(client, run_id, quick * A_TURN, 1):  # noqa: ASYNC110 - another process begins the run
            await asyncio.sleep(0.01)
        async with visiting(browser, str(client.base_url).rstrip("/"), f"/ui/runs/{run_id}") as page:
            await page.evaluate(LIVE)
            await asyncio.sleep(REST_S)
            begun.touch()
            read = await came(client, run_id, quick * A_TURN)
            await page.wait_for_selector("#head .status.good")
            shown = await page.evaluate("() => shown")
        await (running or asyncio.sleep(0))
        ends = [one.envelope for one in await engine.records(run_id) if isinstance(one.event, ToolFinished)]
        made = [(str(n), one.seq, one.at.timestamp() * 1e3) for n, one in enumerate(ends)][quick:]
        figures |= told(f"live, {name}: in the page", [shown[n] - at for n, _, at in made])
        figures |= told(f"live, {name}: at a reader", [read[seq] - at for _, seq, at in made])
    return figures


TARGETS = {"first view of": 500, "list of": 200, "in the page": 100}


async def measured(args: argparse.Namespace) -> AsyncGenerator[dict[str, float]]:
    """Yield the figures of each part."""
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory(prefix="detent-bench-") as name:
        store = f"sqlite:///{name}/runs.db"
        await fill(store, args.runs)
        async with engine_at(store) as engine:
            for number in range(args.rounds + 1):
                await engine.run(TICKER, json.dumps([args.records // A_TURN, 0, ""]), run_id=f"long-{number}")
            async with server(store, serve) as client, async_playwright() as tools:
                browser = await tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                url = str(client.base_url).rstrip("/")
                yield await views(browser, url, args)
                yield await scrolled(browser, url, args.steps)
                yield await live(browser, client, engine, Path(name), args)
                await browser.close()


async def shown(args: argparse.Namespace) -> None:
    """Measure, and print each part when it is known."""
    every: dict[str, float] = {}
    async for figures in measured(args):
        every |= figures
        for name, value in figures.items() if not args.json else ():
            target = next((most for what, most in TARGETS.items() if what in name and name.endswith(("screen, ms", "median, ms"))), "")
            print(f"{name:<62} {value:10,.1f}  {target and f'target <= {target}'}".rstrip(), flush=True)
    if args.json:
        print(json.dumps(every))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000, help="of the long run")
    parser.add_argument("--runs", type=int, default=100_000, help="in the list")
    parser.add_argument("--rounds", type=int, default=7, help="how often each page is opened")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.live, args.steps = 60, 900  # turns that are looked at, and turns of the wheel
    if args.quick:
        args.records, args.runs, args.rounds, args.live, args.steps = 400, 400, 1, 15, 20
    if not CHROMIUM:
        raise SystemExit("no Chromium here (Debian: chromium): there is nothing to measure")
    asyncio.run(shown(args))


if __name__ == "__main__":
    main()
