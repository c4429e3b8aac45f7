"""The pages of sessions, memory, agents, the fleet and operations in a real browser: accessible, narrow, live, and by keyboard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from amounts import in_check
from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.evals import Case, Suite, Variant, evaluate
from detent.metering.tenants import TenantBudget
from detent.ports.remembering import key_of
from server.pages.browsing import TOOLS, browser, needs_chromium, visiting
from server.pages.visiting import EVIL
from server.serving import serving


@tool(side_effect="destructive", scopes=["payments:write"])
def pay(iban: str) -> str:
    """Pay somebody."""
    return iban


CLERK = Agent(
    name="clerk",
    instructions=f"Pay. {EVIL}",
    tools=[pay],
    actions=("ask_user",),
    policy=[{"id": "never", "decision": "deny", "tool": "x*"}],
)


class Clerk:
    """Asks where the goal says so, pays, or answers; behind a gate if there is one."""

    gate: asyncio.Event | None = None

    async def plan(self, view: View) -> Plan:
        if self.gate is not None:
            await self.gate.wait()
        told = [item.text for item in view.transcript if item.kind == "user"]
        if view.goal.startswith("ask") and len(told) < 2:
            return Plan(actions=(AskUser(question="Which one?"),))
        if view.goal.startswith("pay") and not view.results:
            return Plan(actions=(ToolCall(tool="pay", args={"iban": "DE02" * 60}),))
        return Plan(actions=(FinalAnswer(content=f"you said {told[-1]}"),))


def office(tmp_path: Path, store_url: str) -> Engine:
    return Engine(
        store=store_url,
        agents=[CLERK],
        planner=Clerk(),
        memory=f"sqlite:///{tmp_path}/memory.db",
        approver="caller",
        tenant_budgets={"": TenantBudget(max_runs=30), "x" * 60: TenantBudget(max_tool_calls=3)},
    )


async def filled(engine: Engine) -> list[str]:
    """Put something of everything into the store; return the addresses of the pages that show it."""
    host = Host(principal="ann", scopes=("payments:write",))
    session = engine.session("clerk", "talk", host)
    for text in (f"tell {EVIL} {'w' * 200}", "ask"):
        await session.send(text, by="ann")
    paying = await engine.session("clerk", "paying", host).send("pay", by="ann")
    item = await engine.memory.add(f"it is {'v' * 150} {EVIL}", scope="-/clerk", by="ann")
    new = await engine.memory.correct(item.id, "it is another", by="ann", why="looked again")
    await engine.pause("tool:nothing", by="ann", why="w" * 120)
    ready = await engine.operations.prepare("cancel", by="ann", why="v" * 150, where="status=waiting")
    done = await engine.operations.prepare("replay", by="ann", where="every run")
    await engine.operations.advance(done.id, by="ann")
    cases = tuple(Case(id=f"{number} {'c' * 90}", goal=f"{goal} {'u' * 120}", expected="x") for number, goal in enumerate(("tell", "ask")))
    variants = {f"{name} {'z' * 60}": Variant(agent="clerk") for name in ("now", EVIL)}
    await evaluate(engine, Suite(name=f"s {'s' * 150}", cases=cases, graders=({"kind": "exact"},), variants=variants, trials=2), id="shown")
    items = [f"/ui/memory/items/{key_of(one)}" for one in (item, new)]
    return [
        "/ui/sessions", "/ui/sessions/talk", "/ui/sessions/paying", "/ui/memory", "/ui/memory?view=all", *items,
        f"/ui/memory/forget?item={key_of(new)}", "/ui/agents", "/ui/agents/clerk", "/ui/fleet", "/ui/operations",
        "/ui/evaluations", "/ui/evaluations/shown", f"/ui/runs/{paying.run_id}/calls/main.1.0",
        f"/ui/operations/{ready.id}", f"/ui/operations/{done.id}",
    ]  # fmt: skip


@in_check
@pytest.mark.parametrize("dark", [False, True])
def test_each_page_is_accessible_and_fits_a_narrow_screen(tmp_path: Path, dark: bool) -> None:
    """Axe finds nothing, and nothing scrolls sideways at 360 pixels."""
    axe = TOOLS / "node_modules/axe-core/axe.min.js"
    if not axe.is_file():
        pytest.skip("no axe-core here: scripts/node-tools installs it")
    needs_chromium()

    async def main() -> None:
        engine, found = office(tmp_path, f"sqlite:///{tmp_path}/runs.db"), list[str]()
        async with (
            serving(engine, works=False) as url,
            browser() as started,
            visiting(started, url, dark=dark, width=360 if dark else 1280) as seen,
        ):
            for path in await filled(engine):
                page = await seen.open(path)
                assert await page.locator("h1").count() == 1, path
                await page.evaluate(axe.read_text())
                told = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})")
                found += [f"{path}: {one['id']}: {one['nodes'][0]['html'][:200]}" for one in told["violations"]]
                if (wide := await page.evaluate("document.documentElement.scrollWidth")) > (360 if dark else 1280):
                    found.append(f"{path}: {wide} pixels wide")
        assert not found, "\n".join(found)

    asyncio.run(main())


@in_check
def test_a_conversation_and_an_operation_move_by_themselves(tmp_path: Path, store_url: str) -> None:
    """The answer and the progress come without loading the page again; what was typed meanwhile stays."""
    needs_chromium()

    async def main() -> None:
        engine, clerk = office(tmp_path, store_url), Clerk()
        engine.planner = clerk
        async with serving(engine) as url, browser() as started, visiting(started, url) as seen:
            page = await seen.open("/ui/sessions")
            clerk.gate = asyncio.Event()
            await page.fill("textarea", f"hello {EVIL}")
            await page.click("text=Send")
            await page.wait_for_selector("#talk .status.live")
            assert await page.locator("text=you said").count() == 0
            await page.fill("textarea", "half a sen")
            clerk.gate.set()
            await page.wait_for_selector("text=you said hello")
            assert await page.input_value("textarea") == "half a sen"
            clerk.gate = None
            for n in range(3):
                await engine.run(CLERK, f"ask {n}", host=Host(principal="ann"))
            page = await seen.open("/ui/operations")
            await page.fill("input[name=goal]", "ask")
            await page.keyboard.press("Enter")
            await page.wait_for_selector("text=Cancel 3 runs")
            await page.focus("#begin")
            await page.keyboard.press("Enter")
            await page.wait_for_selector("#now .status.good >> text=finished")
            assert "3 done" in await page.inner_text("#now")

    asyncio.run(main())


@in_check
def test_the_progress_of_an_evaluation_moves_by_itself(tmp_path: Path, store_url: str) -> None:
    """What moves is fetched again; the page says that its figures are older, until somebody opens it again."""
    needs_chromium()

    async def main() -> None:
        engine, clerk = office(tmp_path, store_url), Clerk()
        engine.planner = clerk
        clerk.gate = asyncio.Event()
        suite = Suite(
            name="answers", cases=(Case(id="<b>", goal="tell"),), graders=({"kind": "contains", "expected": "you said"},), trials=3
        )
        async with serving(engine, works=False) as url, browser() as started, visiting(started, url) as seen:
            task = asyncio.create_task(evaluate(engine, suite, id="moving"))
            async with asyncio.timeout(30):
                while len(await engine.list_runs()) < 3:
                    await asyncio.sleep(0.01)
            page = await seen.open("/ui/evaluations")
            await page.click("text=answers")
            await page.wait_for_selector("#now .status.live")
            assert "3 to come" in await page.inner_text("main") and await page.locator("#now tbody tr").count() == 3
            clerk.gate.set()
            await task
            await page.wait_for_selector("#now .status.good >> text=ended")
            assert await page.locator("#now progress").count() == 0 and "3 to come" in await page.inner_text("main")
            await page.click("text=Open it again")
            await page.wait_for_selector("text=3 of 3 passed")
            await page.click("text=3 of 3 passed")
            await page.click("table.cards a >> nth=0")
            await page.wait_for_selector("text=you said tell")

    asyncio.run(main())
