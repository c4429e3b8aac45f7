"""The report in a real Chromium: no network, nothing runs, it fits a narrow screen, and hostile text stays text in every format."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from amounts import in_check
from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.evals import Case, Evaluation, Suite, Variant, compare, evaluate, summarised, writing
from detent.evals.transcripts import MOST_CALLS, MOST_TEXT, Transcript, transcripts
from detent.expressions.display import clean
from detent.testing import ScriptedPlanner
from server.pages.browsing import TOOLS, browser, needs_chromium, visiting

EVIL = (
    "<script>document.title='hit'</script><img src=http://127.0.0.1:9/x onerror=alert(1)> | `x` [a](javascript:hit()) ]]> \u202e\x1b[2J\x00"
)
SECRET = "sk-live-abcdefghij0123456789"
ID = "<b>one</b> | [x](y)"


@tool(side_effect="write")
def send(text: str) -> str:
    """Send something."""
    return f"sent {text} {EVIL}"


class Planner:
    """Sends what is hostile, very long or secret, and answers with it."""

    def __init__(self, good: bool) -> None:
        self.good = good

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        texts = [EVIL, SECRET, "x" * 9_000]
        made = len(view.results)
        step: Any = (
            ToolCall(tool="send", args={"text": texts[made]}) if made < 3 else FinalAnswer(content=f"{EVIL} {self.good} {'y' * 400}")
        )
        return await ScriptedPlanner([step]).plan(view)


async def evaluated(good: bool) -> tuple[Evaluation, dict[str, Transcript]]:
    """Return a result whose every text is hostile, with its transcripts."""
    async with Engine(store="ram:", agents=[Agent(name="a", tools=[send])], planner=Planner(good), redact=[r"sk-live-\w+"]) as engine:
        suite = Suite(
            name=f"evil {EVIL}",
            cases=tuple(Case(id=f"{ID} {n}", goal=f"Do it {EVIL} {SECRET}") for n in range(6)),
            graders=(
                {"kind": "contains", "name": EVIL[:60], "expected": "True"},
                {"kind": "contains", "expected": EVIL, "required": False},
            ),
            trials=2,
            variants={"": Variant(), "b": Variant(agent="a")},
        )
        trials = await evaluate(engine, suite, id=f"good{good}")
        return summarised(suite.name, "id", trials), await transcripts(engine, trials)


def both() -> tuple[Any, Any, dict[str, Transcript]]:
    """Return two results and the transcripts of both."""

    async def made() -> tuple[Any, Any, dict[str, Transcript]]:
        (a, told), (b, others) = await evaluated(False), await evaluated(True)
        return a, b, {**told, **others}

    return asyncio.run(made())


@in_check
def test_hostile_texts_stay_texts_in_every_format() -> None:
    """In HTML, Markdown, JUnit, JSON and at a terminal. Secrets are redacted as in the log, and everything is bounded."""
    pytest.importorskip("jinja2")
    a, b, told = both()
    compared = (compare(a.trials, b.trials), a)
    page, text = writing.html(b, told, compared) + writing.html(a, told), writing.markdown(b, compared) + writing.markdown(a)
    assert "<script" not in page and "<img" not in page and "&lt;script&gt;" in page and "javascript:hit" in page
    assert not re.search(r"(?<!\\)[<\]]", text), "every character that begins something in Markdown is escaped"
    root = ET.fromstring(writing.junit(a))  # noqa: S314 - our own
    assert clean(ID) in root[0][0].get("classname", "")
    data = json.loads(msgspec.json.encode(b))
    assert EVIL in data["suite"] and data["schema"] == 1
    shown = "".join([page, text, writing.junit(a).decode()])
    assert SECRET not in shown + json.dumps(data) and not {"\u202e", "\x1b", "\x00"} & set(shown)
    one = next(iter(told.values()))
    assert len(one.steps) == 3 <= MOST_CALLS and "<secret:" in one.goal and "<secret:" in one.steps[1].args
    assert all(len(part) < MOST_TEXT + 400 for step in one.steps for part in (step.args, step.result))
    assert len(page) < 90_000 * len(b.trials)


@in_check
@pytest.mark.parametrize("dark", [False, True])
def test_the_report_opens_without_a_network_and_fits_a_narrow_screen(tmp_path: Path, dark: bool) -> None:
    """Axe finds nothing, nothing scrolls sideways at 360 pixels, and each trial's transcript is there."""
    needs_chromium()
    pytest.importorskip("jinja2")
    a, b, told = both()
    (tmp_path / "one.html").write_text(writing.html(b, told))
    (tmp_path / "diff.html").write_text(writing.html(b, told, (compare(a.trials, b.trials), a)))
    axe = TOOLS / "node_modules/axe-core/axe.min.js"

    async def look() -> None:
        async with browser() as started:
            for name in ("one.html", "diff.html"):
                for width in (360, 1280):
                    async with visiting(started, f"{tmp_path.as_uri()}/", token="", width=width, dark=dark) as seen:
                        page = await seen.open(name)
                        assert await page.locator("details.trial").count() == len(b.trials) == 24
                        await page.evaluate(
                            "document.querySelectorAll('details').forEach((one, n) => { one.open = n < 2 || one.className === 'trial' && n < 16 })"
                        )
                        first = page.locator("details.trial").first
                        assert await first.locator("li").count() == 3 and "onerror=alert(1)" in (await first.text_content() or "")
                        assert await page.locator("svg").count() >= 3 and await page.locator("td.full, td.none, td.part").count() >= 12
                        assert await page.evaluate("document.documentElement.scrollWidth") <= width
                        assert (await page.title()).startswith("evil") and await page.locator("script, img").count() == 0
                        if name == "diff.html":
                            assert await page.locator("ins, del").count() and "Cases that changed" in (
                                await page.text_content("main") or ""
                            )
                        if axe.is_file() and name == "diff.html" and width == 1280:
                            await page.evaluate(axe.read_text())
                            found = await page.evaluate(
                                "axe.run().then(found => found.violations.map(one => one.id + ' ' + one.nodes[0].html))"
                            )
                            assert not found, found

    asyncio.run(look())
