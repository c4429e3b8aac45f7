"""The inspector in a real browser, on SQLite and PostgreSQL: keys, live news, the tour, decisions of two people, long runs, access, hostile texts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import PROFILE, in_check
from detent import Engine
from detent.server.pages import routes
from server.pages.browsing import TOOLS, browser, needs_chromium, visiting
from server.pages.test_pages import at
from server.pages.visiting import COUNTER, HOSTILE, IBAN, STRICTER, Visitor, ended, engine_at, invoiced
from server.serving import serving

Body = Callable[[Engine, str, Any], Awaitable[None]]
PAGES = [
    one.path
    for one in routes.PAGES
    if one.method == "GET" and not one.path.endswith(("/live", "/evidence", "/time", "/verified", "/{number}"))
]


def shown(store_url: str, body: Body, **options: Any) -> None:
    """Do something with a server of its own and a browser."""
    needs_chromium()

    async def run() -> None:
        engine = engine_at(store_url)
        async with serving(engine, **options) as url, browser() as started:
            await body(engine, url, started)

    asyncio.run(run())


@in_check
def test_the_printed_address_signs_in_and_keys_lead_from_the_list_to_why(store_url: str) -> None:
    async def body(engine: Engine, url: str, started: Any) -> None:
        await invoiced(engine)
        async with visiting(started, url, token="") as seen:
            seen.page.on("response", lambda answer: seen.wrong.clear() if answer.status == 401 else None)  # the page that asks for a token
            page = await seen.open("/#token=ann")
            await page.wait_for_selector("tr[data-item]")
            seen.wrong.clear()
            assert "token" not in page.url
            await page.keyboard.press("j")
            await page.keyboard.press("Enter")
            await page.wait_for_selector(".turn")
            await page.wait_for_selector("#verified .good")
            await page.keyboard.press("]")
            await page.keyboard.press("]")
            assert await page.locator(".turn.at").get_attribute("id") == "t1"
            await page.keyboard.press("?")
            assert await page.locator("#help").is_visible()
            await page.keyboard.press("Escape")
            await page.keyboard.press("/")
            await page.keyboard.type("Hansen")
            await page.keyboard.press("Enter")
            await page.wait_for_selector(".hits mark")
            await page.go_back()
            await page.click("#t1 .why")
            await page.wait_for_selector(".graph a")

    shown(store_url, body, works=False)


@in_check
def test_a_page_shows_news_by_itself_also_after_the_server_was_away(store_url: str) -> None:
    needs_chromium()

    async def run() -> None:
        async with browser() as started:
            engine = engine_at(store_url)
            async with contextlib.AsyncExitStack() as page_stack:
                async with serving(engine) as url:
                    seen = await page_stack.enter_async_context(visiting(started, url))
                    await invoiced(engine)
                    page = await seen.open("/ui/runs/invoice")
                    await page.wait_for_selector("text=Waits for approval of pay")
                engine = engine_at(store_url)
                async with serving(engine, port=int(url.rpartition(":")[2])), Visitor(url, "ann") as ann:
                    await ann.fill("/ui/inbox", "/ui/runs/invoice/approve")
                    await page.wait_for_selector("#head .status.good")
                    await page.wait_for_selector(f"#t1 >> text=paid 412.5 to {IBAN}")
                    await page.wait_for_selector("#end .receipt")
                seen.wrong = [text for text in seen.wrong if "ERR_" not in text and "[object " not in text]  # while nobody listened

    asyncio.run(run())


@in_check
@in_check
def test_the_tour_answers_its_four_questions_from_the_pages_alone(store_url: str) -> None:
    """Why did it stop, who allowed that call, where did that number come from, and what would another policy have done: by links, as the docs tell it."""

    async def body(engine: Engine, url: str, started: Any) -> None:
        await invoiced(engine)
        async with visiting(started, url) as seen:
            page = await seen.open("/")
            await page.click("text=Needs a person")
            await page.click("text=Hansen")
            await page.wait_for_selector("#head >> text=Waits for approval of pay")

            await page.click("#head >> text=Inbox")
            await page.click("text=Approve this call")
            await page.click("#done .notice a")
            await page.wait_for_selector("#head .status.good")
            await page.wait_for_selector(f"#t1 >> text=paid 412.5 to {IBAN}")
            assert "approved by ann" in await page.inner_text("#t1")

            await page.click("#t1 .why")
            assert "ann" in await page.inner_text(".trail")
            await page.click(".graph >> text=the result of look_up")
            assert IBAN in await page.inner_text("pre.raw")

            await page.go_back()
            await page.click("text=another policy")
            await page.fill("textarea[name=policy]", STRICTER)
            await page.click("text=Judge")
            await page.wait_for_selector("text=would refuse what succeeded")
            await page.click("td >> text=pay")

            await page.click(".crumbs >> text=Hansen")
            await page.click(".actions >> text=Fork")
            await page.fill("[name=goal]", "Pay the invoice of Berg & Co: 412.5")
            await page.click("text=Fork, and compare")
            await page.wait_for_selector(".first >> text=Berg & Co")

    shown(store_url, body)


@in_check
def test_two_people_who_decide_at_once_see_who_was_first(store_url: str) -> None:
    async def body(engine: Engine, url: str, started: Any) -> None:
        await invoiced(engine)
        async with visiting(started, url) as ann, visiting(started, url, token="ann") as other:
            pages = [await one.open("/ui/inbox") for one in (ann, other)]
            await asyncio.gather(pages[0].click("text=Approve this call"), pages[1].click("text=Deny"))
            told = [await page.locator("#done .notice, [role=alert]").first.inner_text() for page in pages if await _said(page)]
            await ended(engine, "invoice")
            assert sum("it counts" in text for text in told) <= 1, told
            for page in pages:
                await page.wait_for_selector("text=Nothing waits for a person")
            for one in (ann, other):
                one.wrong = [text for text in one.wrong if "409" not in text]

    shown(store_url, body)


async def _said(page: Any) -> bool:
    await page.wait_for_selector("#done .notice, .empty")
    return await page.locator("#done .notice").count() > 0


@in_check
def test_only_what_is_visible_of_a_long_run_is_in_the_page(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str, started: Any) -> None:
        await engine.run(COUNTER, f"count to {2_500 if PROFILE != 'default' else 400}", run_id="count")
        async with visiting(started, url) as seen:
            page = await seen.open("/ui/runs/count")
            most = 0
            for _ in range(40):
                await page.mouse.wheel(0, 4_000)
                await page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
                most = max(most, await page.locator("[data-turn]").count())
            await page.wait_for_selector('.block[data-here]:not([id="b0"])')
            assert most <= 200
            await page.evaluate("window.scrollTo(0, 0)")
            await page.wait_for_selector("#t0")
            at_place = await seen.open("/ui/runs/count?at=1000")
            await at_place.wait_for_selector(".turn.at")
            assert await at_place.locator(".turn.at").is_visible()

    shown(f"sqlite:///{tmp_path}/runs.db", body, works=False)


@in_check
def test_no_page_scrolls_sideways_on_a_narrow_screen(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str, started: Any) -> None:
        await invoiced(engine, goal=f"Pay {'x' * 300} of {'y' * 120}: 1")
        async with visiting(started, url, width=360) as seen:
            for path in PAGES:
                page = await seen.open(at(path))
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide <= 360, (path, wide)
            await seen.page.wait_for_load_state("networkidle")
            seen.wrong = [text for text in seen.wrong if "404" not in text and "403" not in text]

    shown(f"sqlite:///{tmp_path}/runs.db", body, works=False)


@in_check
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_on_any_page(tmp_path: Path, dark: bool) -> None:
    axe = TOOLS / "node_modules/axe-core/axe.min.js"
    if not axe.is_file():
        pytest.skip("no axe-core here: scripts/node-tools installs it")

    async def body(engine: Engine, url: str, started: Any) -> None:
        await invoiced(engine)
        await engine.run(COUNTER, "count to 4", run_id="count")
        found: list[str] = []
        async with visiting(started, url, dark=dark) as seen:
            for path in [*map(at, PAGES), "/ui/runs/count?depth=engineer", "/ui/compare?a=invoice&b=count", "/ui/search?find=Hansen"]:
                page = await seen.open(path)
                seen.wrong = [text for text in seen.wrong if "404" not in text]
                await page.evaluate(axe.read_text())
                told = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})")
                found += [f"{path}: {one['id']}: {one['nodes'][0]['html'][:200]}" for one in told["violations"]]
        assert not found, "\n".join(found)

    shown(f"sqlite:///{tmp_path}/runs.db", body, works=False)


@in_check
def test_hostile_texts_do_nothing_in_a_browser(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str, started: Any) -> None:
        for number, text in enumerate(HOSTILE):
            await invoiced(engine, f"run-{number}", f"Pay {text} of {text}: 1")
        async with visiting(started, url) as seen:
            await seen.page.add_init_script("window.hit = () => alert('hit')")
            for number in range(len(HOSTILE)):
                for path in ("/ui/runs/{run_id}?depth=engineer", "/ui/runs/{run_id}/calls/main.2.0", "/ui/runs/{run_id}/records/1"):
                    await seen.open(path.replace("{run_id}", f"run-{number}"))
            for path in ("/", "/ui/inbox", "/ui/search?find=Pay"):
                await seen.open(path)

    shown(f"sqlite:///{tmp_path}/runs.db", body, works=False)
