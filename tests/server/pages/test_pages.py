"""The inspector without a browser: who may see and do what, what pages say, and that everything from outside is text."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import html
import html.parser
import io
import logging
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.codec import read_record
from detent.core.events import AnswerRefused, ApprovalResolved
from detent.core.state import RunState
from detent.history.traces import Tracer
from detent.policies.tiers import TieredPolicy
from detent.ports import Call, Verdict
from detent.server import ServerSettings
from detent.server.pages import routes
from detent.testing import ScriptedPlanner
from server.pages.visiting import COUNTER, ECHO, HOSTILE, IBAN, Visitor, ended, engine_at, invoiced, look_up, pay, shown, tick, words
from server.serving import CAL, callers, serving

ROOT = Path(__file__).parents[3]
PAGES = [one.path for one in routes.PAGES if one.method == "GET" and not one.path.endswith("/live")]


def at(path: str, run_id: str = "invoice") -> str:
    """Return the address of a page of a run."""
    path = path.replace("{run_id}", run_id).replace("{number}", "0").replace("{sequence}", "1").replace("{call_id:path}", "main.2.0")
    return re.sub(r"\{[^}]*\}", "clerk", path)


def test_nobody_sees_a_page_without_signing_in(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        for token in ("", "nobody"):
            async with Visitor(url, token) as visitor:
                for path in PAGES:
                    answer = await visitor.get(at(path))
                    assert (answer.status_code, "Hansen" in answer.text) == (401, False), path
                assert (await visitor.get("/ui/runs/invoice/live")).status_code == 401

    shown(tmp_path, body)


def test_a_token_signs_in_and_the_next_page_is_one_of_this_server(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        async with Visitor(url, "") as visitor:
            for wanted, next_page in (("/ui/inbox", "/ui/inbox"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\evil", "/")):
                answer = await visitor.post("/ui/sign-in", data={"token": "ann", "wanted": wanted}, follow_redirects=False)
                assert (answer.status_code, answer.headers["location"]) == (303, next_page)
                cookie = answer.headers["set-cookie"].lower()
                assert "httponly" in cookie and "samesite=lax" in cookie
            refused = await visitor.post("/ui/sign-in", data={"token": "wrong", "wanted": "/"})
            assert refused.status_code == 401 and "unknown or has expired" in refused.text

    shown(tmp_path, body)


def test_two_servers_on_one_host_sign_nobody_out_of_the_other(tmp_path: Path) -> None:
    """Browsers send the cookies of a host to all its ports."""

    async def run() -> None:
        engines = [engine_at(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "two")]
        async with serving(engines[0]) as one, serving(engines[1], tokens=callers(cal=CAL)) as two, Visitor(one, "") as visitor:
            for url, token in ((one, "ann"), (two, "cal")):
                assert (await visitor.post(f"{url}/ui/sign-in", data={"token": token, "wanted": "/"})).status_code == 200
            for url, principal in ((one, "ann"), (two, "cal"), (one, "ann")):
                assert f">{principal}</span>" in await visitor.see(url)
            await visitor.post(f"{two}/ui/sign-out")
            assert (await visitor.get(two)).status_code == 401 and ">ann</span>" in await visitor.see(one)

    asyncio.run(run())


ACTIONS = {
    "/ui/runs/invoice/approve": {"call_id": "main.2.0", "digest": "x"},
    "/ui/runs/invoice/deny": {"call_id": "main.2.0", "digest": "x"},
    "/ui/runs/invoice/reply": {"reply": "yes"},
    "/ui/runs/invoice/reconcile": {"call_id": "main.2.0", "happened": "yes"},
    "/ui/runs/invoice/cancel": {"why": "no"},
    "/ui/runs/invoice/fork": {"goal": "other"},
    "/ui/runs/invoice/share": {"days": "1"},
    "/ui/backtest": {"policy": ""},
}


def test_what_needs_a_role_is_refused_without_it_and_changes_nothing(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        before = [record.digest for record in await engine.records("invoice")]
        async with Visitor(url, "bob") as visitor:
            code = re.findall(r'name="code" value="(\w+)"', await visitor.see("/ui/backtest"))[0]
            for action, fields in ACTIONS.items():
                answer = await visitor.post(action, data={**fields, "code": code})
                assert (answer.status_code, "role_missing" in answer.text) == (403, True), action
        assert [record.digest for record in await engine.records("invoice")] == before
        assert len(await engine.list_runs()) == 1

    shown(tmp_path, body, works=False)


def test_a_form_that_no_page_of_the_visitor_made_is_refused(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann, Visitor(url, "cal") as cal:
            theirs = re.findall(r'name="code" value="(\w+)"', await cal.see("/ui/backtest"))[0]
            for code in ("", theirs):
                for action, fields in ACTIONS.items():
                    answer = await ann.post(action, data={**fields, "code": code})
                    assert (answer.status_code, "bad_form" in answer.text) == (403, True), action
            foreign = await ann.post("/ui/runs/invoice/cancel", data={"code": ""}, headers={"Origin": "https://evil.example"})
            assert foreign.status_code == 403
        assert (await engine.load("invoice")).status == "waiting_for_approval"

    shown(tmp_path, body, works=False)


def test_another_tenant_finds_nothing_of_a_run(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "eve") as eve:
            for path in PAGES:
                answer = await eve.get(at(path))
                assert "Hansen" not in answer.text and answer.status_code in (200, 403, 404), path
            assert "0 records" in await eve.see("/ui/search?find=Hansen")
            assert (await eve.get("/ui/compare?a=invoice&b=invoice")).status_code == 404

    shown(tmp_path, body, works=False)


def test_every_page_forbids_what_it_does_not_need(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            for path in PAGES:
                answer = await ann.get(at(path))
                if answer.headers["content-type"].startswith("text/html"):
                    policy = answer.headers["content-security-policy"]
                    assert "default-src 'none'" in policy and "unsafe" not in policy, path
                    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=|javascript:", answer.text), path

    shown(tmp_path, body, works=False)


# Decisions ----------------------------------------------------------------------------------------------------------------------------------


def test_an_approval_decides_once_and_says_who_was_first(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            inbox = await ann.see("/ui/inbox")
            assert "clerk asks to call" in inbox and IBAN in inbox and "an untrusted source (look_up, call main.1.0)" in inbox
            both = await asyncio.gather(
                ann.fill("/ui/inbox", "/ui/runs/invoice/approve"), ann.fill("/ui/inbox", "/ui/runs/invoice/deny", reason="no")
            )
            await ended(engine, "invoice")
            decided = [
                record.event for record in await engine.records("invoice") if isinstance(record.event, (ApprovalResolved, AnswerRefused))
            ]
            assert [type(event) for event in decided] in ([ApprovalResolved], [ApprovalResolved, AnswerRefused])
            assert sum("it counts" in one.text for one in both) <= 1
            assert sum("does not count" in one.text or one.status_code == 409 for one in both) <= 1

    shown(tmp_path, body)


def test_edited_arguments_are_what_runs(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            bad = await ann.fill("/ui/inbox", "/ui/runs/invoice/approve", args="{")
            assert bad.status_code == 422 and "nothing was decided" in bad.text
            done = await ann.fill("/ui/inbox", "/ui/runs/invoice/approve", args=f'{{"iban": "{IBAN}", "amount": 7}}')
            assert "Approved with other arguments: it counts" in done.text or "Posted, not decided yet" in done.text
            assert (await ended(engine, "invoice")).output == f"Hansen & Søn: paid 7 to {IBAN}"

    shown(tmp_path, body)


# What a run says ----------------------------------------------------------------------------------------------------------------------------


def test_a_value_is_traced_to_the_record_that_it_came_from(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/runs/invoice/calls/main.2.0")
            chain = page[page.index("<code>iban</code>") :]
            assert '<code>amount</code> <span class="text">412.5</span>' in page and "the user&#39;s goal" in page
            found = re.search(r'<a href="(/ui/runs/invoice/records/\d+)">the result of look_up, call main.1.0</a>', chain)
            assert found and "an untrusted source" in chain
            record = await ann.see(found[1])
            assert "ToolFinished" in record and IBAN in record

    shown(tmp_path, body, works=False)


def test_the_graph_of_a_value_leads_through_children_to_the_record_that_had_it_first(tmp_path: Path) -> None:
    """Two sources are two branches; each place is a link to a record that has the value, and one that was erased says so."""

    class Family:
        async def plan(self, view: Any) -> Any:
            steps = {
                "boss": [
                    ToolCall(tool="agent_clerk", args={"goal": "find it"}),
                    ToolCall(tool="pay", args={"iban": IBAN, "amount": 412.5}),
                ],
                "clerk": [ToolCall(tool="look_up", args={"supplier": "Hansen"}), FinalAnswer(content=f"it is {IBAN}")],
            }[view.agent.name]
            return await ScriptedPlanner([steps[len(view.results)]]).plan(view)

    async def run() -> None:
        clerk = Agent(name="clerk", tools=[look_up])
        boss = Agent(name="boss", tools=[pay], subagents={"clerk": clerk})
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[boss], planner=Family())
        async with serving(engine, works=False) as url, Visitor(url, "ann") as ann:
            assert (await engine.run(boss, "pay 412.5 to Hansen", run_id="boss")).status == "waiting_for_approval"
            (child,) = [head.run_id for head in await engine.list_runs() if head.parent]
            page = await ann.see("/ui/runs/boss/calls/main.2.0")
            graph = page[page.index("<code>iban</code>") : page.index("</figure>")]
            places = re.findall(r'<a href="(/ui/runs/[^"]+/records/\d+)">([^<]+)</a>', graph)
            assert [said.split(" ")[0] for _, said in places] == ["what", f"child:{child},", "untrusted:"], places
            for address, _ in places:
                assert IBAN in await ann.see(address)
            await engine.erase(child, by="ann")
            assert "that run was erased" in await ann.see("/ui/runs/boss/calls/main.2.0")

    asyncio.run(run())


def test_calls_of_low_importance_are_folded_but_never_one_that_failed(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await engine.run(COUNTER, "count to 4", run_id="count")
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/runs/count")
            low = re.findall(r'<details class="low">.*?</details>', page, re.DOTALL)
            assert low and all("two is broken" not in part for part in low)
            assert "two is broken" in page
            assert "two is broken" in await ann.see("/ui/runs/count?only=failed")
            assert "data-turn data-seq" not in (await ann.see("/ui/runs/count?only=needs-me"))

    shown(tmp_path, body, works=False)


def test_a_long_run_is_sent_in_blocks(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await engine.run(COUNTER, "count to 130", run_id="count")
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/runs/count")
            assert page.count("data-turn ") <= 40 and page.count('class="block"') == 7
            assert "tick 65" not in page and "tick 65" in await ann.see("/ui/runs/count/blocks/3")
            there = await ann.see("/ui/runs/count?at=270")
            assert "tick 65" in there
            only = await ann.see("/ui/runs/count?from=60&to=62")
            assert only.count("data-turn ") == 3 and "tick 60" in only

    shown(tmp_path, body, works=False)


def test_search_finds_arguments_and_results_and_leads_to_their_record(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        await engine.run(COUNTER, "count to 1", run_id="count")
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/search?find=søn")
            assert "<mark>Søn</mark>" in page and "ToolFinished" in page and 'href="/ui/runs/invoice?at=' in page
            assert "0 records" in await ann.see("/ui/search?find=Hansen&run=count")
            assert "0 records" in await ann.see("/ui/search?find=tool_finished")

    shown(tmp_path, body, works=False)


def test_the_news_of_a_run_come_as_its_records_do(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann, ann.stream("GET", "/ui/runs/invoice/live?after=3") as stream:
            lines = stream.aiter_lines()
            seen = ""
            async for line in lines:
                seen += line + "\n"
                if not line:
                    break
            assert 'id="t1"' in seen and "waits for approval" in seen
            async with Visitor(url, "ann") as other:
                await other.fill("/ui/inbox", "/ui/runs/invoice/approve")
            async for line in lines:
                seen += line + "\n"
                if line == "event: over":
                    break
            assert f"paid 412.5 to {IBAN}" in seen

    shown(tmp_path, body)


def test_the_news_have_what_another_process_records(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann, ann.stream("GET", "/ui/runs/invoice/live?after=3") as stream:
            async with engine_at(f"sqlite:///{tmp_path}/runs.db") as other:
                await other.approve("invoice", "main.2.0", by="ann")
            told = [line async for line in stream.aiter_lines()]
        assert "event: over" in told and f"paid 412.5 to {IBAN}" in "".join(told)

    shown(tmp_path, body, works=False)


def test_looking_at_a_run_again_reads_what_is_new_and_not_the_whole_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run that moves is drawn with each record, so its head, and what the run waits for, come from what was read before."""
    lines: list[bytes] = []

    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            await ann.see("/ui/runs/invoice")
            read = engine.store.read

            async def counted(*args: Any, **options: Any) -> list[bytes]:
                found = await read(*args, **options)
                lines.extend(found)
                return found

            monkeypatch.setattr(engine.store, "read", counted)
            assert "Waits for approval of pay" in words(await ann.see("/ui/runs/invoice"))
        assert len(lines) == 1, "the last record, which has to be the one that was read"

    shown(tmp_path, body, works=False)


def test_the_garbage_collector_rests_while_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read stays; scanning it again and again took as long as a third of the first view of 10,000 records."""
    collects: list[bool] = []
    read = Tracer.read

    def noted(tracer: Tracer, record: Any) -> None:
        collects.append(gc.isenabled())
        read(tracer, record)

    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        monkeypatch.setattr(Tracer, "read", noted)
        async with Visitor(url, "ann") as ann:
            await ann.see("/ui/runs/invoice")
        assert set(collects) == {False} and gc.isenabled()

    shown(tmp_path, body, works=False)


# What if ------------------------------------------------------------------------------------------------------------------------------------


def test_a_fork_is_made_with_what_was_changed_and_compared(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            made = await ann.fill(
                "/ui/runs/invoice/fork", "/ui/runs/invoice/fork", at="6", goal="Pay the invoice of Berg: 1", call="", effects="dry_run"
            )
            assert "The first difference: goal" in made.text and "Pay the invoice of Berg: 1" in made.text
            (forked,) = [head.run_id for head in await engine.list_runs() if head.parent]
            assert read_record((await engine.store.read(forked))[0]).event.by == "ann"
            assert "forked by ann from record 6 of run invoice" in await ann.see(f"/ui/runs/{forked}?depth=engineer")

    shown(tmp_path, body)


def test_a_fork_at_a_place_that_is_not_allowed_says_why_and_keeps_what_was_written(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            refused = await ann.fill("/ui/runs/invoice/fork", "/ui/runs/invoice/fork", at="9999", goal="Another goal", effects="dry_run")
            assert refused.status_code == 422 and "fork it at one of 1 to" in refused.text and "Another goal" in refused.text
        assert len(await engine.list_runs()) == 1

    shown(tmp_path, body, works=False)


def test_a_call_leads_to_another_policy_for_its_agent(tmp_path: Path) -> None:
    """Of a name with any characters, the form gets the whole."""

    async def body(engine: Engine, url: str) -> None:
        odd = Agent(name="a & b #1", tools=[tick])
        engine.planner = ScriptedPlanner([ToolCall(tool="tick", args={"n": 0}), FinalAnswer(content="done")])
        await engine.run(odd, "count", run_id="odd")
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/runs/odd/calls/main.1.0")
            link = re.search(r'<a href="([^"]+)">What would another policy', page)
            assert link is not None
            assert f'name="agent" value="{html.escape(odd.name)}"' in await ann.see(html.unescape(link[1]))

    shown(tmp_path, body, works=False)


def test_another_policy_is_tried_on_recorded_decisions(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await engine.run(COUNTER, "count to 1", run_id="count")
        async with Visitor(url, "ann") as ann:
            policy = '[[rules]]\r\nid = "no"\r\ntool = "tick"\r\ndecision = "deny"\r\n'
            page = (await ann.fill("/ui/backtest", "/ui/backtest", policy=policy)).text
            assert "1 decision of 1 would differ" in page and "would refuse what succeeded" in page, page
            assert "\\r" not in page, "what is sent again is what was written"
            wrong = await ann.fill("/ui/backtest", "/ui/backtest", policy="[[")
            assert wrong.status_code == 422 and "notice" in wrong.text

    shown(tmp_path, body, works=False)


# What leaves --------------------------------------------------------------------------------------------------------------------------------


def test_a_bundle_proves_a_run_with_python_alone(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            packed = (await ann.get("/ui/runs/invoice/evidence")).content
        place = tmp_path / "bundle"
        zipfile.ZipFile(io.BytesIO(packed)).extractall(place)
        words = [sys.executable, "-I", "-S", str(place / "verify.py")]
        sound = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (sound.returncode, sound.stdout.startswith("sound: ")) == (0, True), sound
        page = (place / "page.html").read_text()
        assert "Hansen" in page and not re.search(r'(src|href)="(?!#)', page)
        log = place / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b"412.5", b"412.6"))
        damaged = subprocess.run(words, capture_output=True, text=True, check=False)
        assert damaged.returncode == 1 and "is not what was written" in damaged.stdout

    shown(tmp_path, body, works=False)


def test_a_signed_link_shows_one_run_without_an_account_until_it_expires(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann, Visitor(url, "") as stranger:
            links: dict[str, str] = {}
            for name, fields in (("whole", {}), ("bare", {"bare": "yes"}), ("first", {"last": "1"})):
                page = (await ann.fill("/ui/runs/invoice/share", "/ui/runs/invoice/share", days="1", **fields)).text
                links[name] = re.findall(r"http://\S+?(/ui/shared/[\w.-]+)", page)[0]
            whole, bare, first = [await stranger.see(links[name]) for name in ("whole", "bare", "first")]
            assert "Hansen" in whole and "pay" in whole
            assert "pay" in bare and "Hansen" not in bare and IBAN not in bare
            assert "look_up" in first and '<span class="tool">pay</span>' not in first
            head, payload, seal = links["whole"].split(".")
            for wrong in (f"{head}.{payload[:-2]}xx.{seal}", f"{head}.{payload}.{seal[:-2]}xx", "/ui/shared/none"):
                assert (await stranger.get(wrong)).status_code == 404
            assert (await ann.fill("/ui/runs/invoice/share", "/ui/runs/invoice/share", days="0")).status_code == 422

    shown(tmp_path, body, works=False)


# Text ---------------------------------------------------------------------------------------------------------------------------------------


class _Elements(html.parser.HTMLParser):
    """Collects what a page consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.targets |= {value or "" for name, value in attrs if name in ("href", "src", "action", "hx-get", "hx-post", "sse-connect")}


def test_whatever_a_goal_a_tool_or_an_argument_says_is_text(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        for number, text in enumerate(HOSTILE):
            await invoiced(engine, f"run-{number}", f"Pay {text} of {text}: 1")
        async with Visitor(url, "ann") as ann:
            for path in PAGES:
                for number in range(len(HOSTILE) if "{run_id}" in path else 1):  # the others show all runs, or none
                    answer = await ann.get(at(path, f"run-{number}"))
                    if not answer.headers["content-type"].startswith("text/html"):
                        continue
                    seen = _Elements()
                    seen.feed(answer.text)
                    assert not seen.tags & {"iframe", "img", "style", "base", "math"}, (path, HOSTILE[number])
                    assert not {name for name in seen.attributes if name.startswith("on")}, (path, HOSTILE[number])
                    assert all(one.startswith(("/", "#", "?")) or not one for one in seen.targets), (path, seen.targets)
                    assert "<script>" not in answer.text and "\u202e" not in answer.text and "49 of" not in answer.text

    shown(tmp_path, body, works=False)


SHAPES = (
    "{}",
    "a {} b",
    '"{}"',
    "'{}'",
    "</p>{}",
    "\n{}\n",
    "{}{}",
    "<!-- {} -->",
    "\\{}",
    "&{};",
    "`{}`",
    "{} ",
    "=>{}",
    "%3C{}",
    "${{{}}}",
)
MANY = [shape.format(text, text) for shape in SHAPES for text in HOSTILE]


@in_check
def test_three_hundred_texts_through_goals_arguments_reasons_results_errors_and_answers(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        assert len(MANY) == 300
        logging.disable(logging.CRITICAL)
        try:
            for number, text in enumerate(MANY):
                assert (await engine.run(ECHO, text, run_id=f"run-{number}")).status == "completed"
        finally:
            logging.disable(logging.NOTSET)
        async with Visitor(url, "ann") as ann:
            for number, text in enumerate(MANY):
                for path in ("", "?depth=engineer", "/calls/main.1.0", "/calls/main.2.0", "/records/1"):
                    seen = _Elements()
                    seen.feed(page := await ann.see(f"/ui/runs/run-{number}{path}"))
                    assert not seen.tags & {"iframe", "img", "style", "base", "math"}, (path, text)
                    assert not {name for name in seen.attributes if name.startswith("on")}, (path, text)
                    assert all(one.startswith(("/", "#", "?")) or not one for one in seen.targets), (path, text)
                    assert "<script>" not in page and "\u202e" not in page, (path, text)
            seen = _Elements()
            seen.feed(await ann.see("/"))
            assert not seen.tags & {"iframe", "img", "style", "base", "math"}

    shown(tmp_path, body, works=False, settings=ServerSettings(grace_s=5, rate=10_000, burst=10_000))


# What changes while it is looked at -------------------------------------------------------------------------------------------------------


def test_a_run_that_was_erased_or_made_again_is_not_shown_from_memory(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await engine.run(COUNTER, "count to 1", run_id="gone")
        await engine.run(COUNTER, "count to 3", run_id="again")
        async with Visitor(url, "ann") as ann, Visitor(url, "") as stranger:
            made = (await ann.fill("/ui/runs/gone/share", "/ui/runs/gone/share", days="1")).text
            link = re.findall(r"http://\S+?(/ui/shared/[\w.-]+)", made)[0]
            assert "tick 0" in await ann.see("/ui/runs/gone") and "tick 0" in await stranger.see(link)
            assert "counted to 3" in await ann.see("/ui/runs/again")
            await engine.erase("gone", by="ann")
            await engine.delete("again")
            await engine.run(COUNTER, "count to 0", run_id="again")
            for visitor, path in ((ann, "/ui/runs/gone"), (stranger, link), (ann, "/ui/runs/gone/evidence")):
                answer = await visitor.get(path)
                assert (answer.status_code, "tick 0" in answer.text) == (410, False), path
            page = await ann.see("/ui/runs/again")
            assert "counted to 0" in page and "tick" not in page

    shown(tmp_path, body, works=False)


@pytest.mark.parametrize("at", ["6x", "-1", "²", "9" * 5_000])
def test_a_fork_at_something_that_is_no_number_is_refused(tmp_path: Path, at: str) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            assert (await ann.fill("/ui/runs/invoice/fork", "/ui/runs/invoice/fork", at=at, effects="dry_run")).status_code == 422
            for path in (f"records/{at}", f"blocks/{at}"):
                assert (await ann.get(f"/ui/runs/invoice/{path}")).status_code == 422, path
        assert len(await engine.list_runs()) == 1

    shown(tmp_path, body, works=False)


def test_other_changes_of_a_fork_and_answers_without_a_word_are_refused(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            wrong = await ann.fill("/ui/runs/invoice/fork", "/ui/runs/invoice/fork", rest='{"verify": 5}', effects="dry_run")
            assert wrong.status_code == 422 and "verify" in wrong.text
            code = re.findall(r'name="code" value="(\w+)"', await ann.see("/ui/backtest"))[0]
            silent = await ann.post("/ui/runs/invoice/reconcile", data={"code": code, "call_id": "main.2.0"})
            assert silent.status_code == 422 and "yes or no" in silent.text
            policy = await ann.fill("/ui/backtest", "/ui/backtest", policy="x = 1")
            assert policy.status_code == 422 and "/tmp" not in policy.text and "policy.toml" in policy.text
            assert (await ann.fill("/ui/backtest", "/ui/backtest", status="complete")).status_code == 422

    shown(tmp_path, body, works=False)


ODD_FACTS: Any = (
    {"rows[0]": "trusted"},
    {"rows[0]": None},
    {"rows[0]": {"label": [1], "origin": {"a": 1}, "sources": "x"}},
    {
        "rows[0]": {
            "label": "user",
            "origin": HOSTILE[0],
            "sources": [{"label": HOSTILE[0], "origin": HOSTILE[0], "run_id": "../x", "tool": HOSTILE[0]}],
        }
    },
    {"rows[0]": {"label": "memory", "sources": [{"label": "memory", "origin": "main.1.0", "run_id": "\x00", "tool": "x"}]}},
    {
        "rows[0]": {
            "label": "memory",
            "sources": [{"label": "memory", "origin": "x", "via": [{"item": "memory:x", "run_id": "r0", "sequence": 10**18}]}],
        }
    },
    [],
)


class Odd(TieredPolicy):
    """A policy whose facts are what the goal says."""

    version = "odd"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Allow everything."""
        return Verdict(decision="allow", reason=HOSTILE[0], facts={"args": ODD_FACTS[int(state.goal)]})


@tool(side_effect="write")
def put(rows: list[str]) -> str:
    """Put something down."""
    return "put"


def test_facts_of_any_policy_are_shown_as_far_as_they_say_where_a_value_came_from(store_url: str) -> None:
    async def run() -> None:
        planner = ScriptedPlanner([ToolCall(tool="put", args={"rows": ["one", "two"]}), FinalAnswer(content="done")] * len(ODD_FACTS))
        engine = Engine(store=store_url, agents=[Agent(name="putter", tools=[put])], planner=planner, policy=Odd())
        async with serving(engine, works=False) as url, Visitor(url, "ann") as ann:
            for number in range(len(ODD_FACTS)):
                await engine.run("putter", str(number), run_id=f"r{number}")
                assert "Where each argument came from" in await ann.see(f"/ui/runs/r{number}/calls/main.1.0"), number

    asyncio.run(run())


class Twice(TieredPolicy):
    """A policy that finds a value in one record, to which two ways lead, and a way back."""

    version = "twice"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Allow everything."""
        ways = [[(f"memory:{name}", number), ("child:c", 2)] for name, number in (("a", 3), ("b", 4))] + [[("child:c", 2), ("memory:a", 3)]]
        sources = [
            {"label": "user", "origin": "main.1.0", "run_id": "first", "tool": "put"}
            | {"via": [{"item": item, "run_id": "first", "sequence": sequence} for item, sequence in way]}
            for way in ways
        ]
        return Verdict(decision="allow", facts={"args": {"rows[0]": {"label": "user", "sources": sources}}})


def test_a_record_is_drawn_once_in_a_graph_however_many_ways_lead_to_it(tmp_path: Path) -> None:
    """The others name it. Ways that go round end."""

    async def run() -> None:
        planner = ScriptedPlanner([ToolCall(tool="put", args={"rows": ["one"]}), FinalAnswer(content="done")] * 2)
        engine = Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="putter", tools=[put])], planner=planner, policy=Twice())
        async with serving(engine, works=False) as url, Visitor(url, "ann") as ann:
            for name in ("first", "second"):
                await engine.run("putter", name, run_id=name)
            page = await ann.see("/ui/runs/second/calls/main.1.0")
            graph = page[page.index("<code>rows[0]</code>") : page.index("</figure>")]
            places = re.findall(r'records/(\d+)">([a-z]+)[^<]*</a>(?: <small>(as above)</small>)?', graph)
            drawn = [(number, said) for number, said, again in places if not again]
            assert len(drawn) == len(set(drawn)) == 4, places
            assert [said for _, said, again in places if again] == ["memory", "user", "child", "child"], places

    asyncio.run(run())


# What is loaded -----------------------------------------------------------------------------------------------------------------------------


def test_scripts_and_styles_are_small_and_those_of_others_are_as_they_were_fetched() -> None:
    static = ROOT / "src/detent/server/pages/static"
    assert sum(one.stat().st_size for one in static.iterdir() if one.suffix in (".js", ".css")) <= 150_000
    known = {name: digest for digest, name in (line.split() for line in (ROOT / "ui/digests.txt").read_text().splitlines())}
    assert {name: hashlib.sha256((static / name).read_bytes()).hexdigest() for name in known} == known


def test_an_unknown_file_and_a_known_one(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        async with Visitor(url, "") as visitor:
            assert (await visitor.get("/ui/static/..%2frouting.py")).status_code == 404
            style = await visitor.get("/ui/static/style.css")
            again = await visitor.get("/ui/static/style.css", headers={"If-None-Match": style.headers["etag"]})
            assert (style.status_code, again.status_code) == (200, 304)

    shown(tmp_path, body, works=False)


@pytest.mark.parametrize("query", ["at=x", "from=-1", "to=1e9", "at=" + "9" * 40])
def test_a_number_that_is_none_is_named(tmp_path: Path, query: str) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        async with Visitor(url, "ann") as ann:
            answer = await ann.get(f"/ui/runs/invoice?{query}")
            assert answer.status_code == 422 and query.partition("=")[0] in answer.text

    shown(tmp_path, body, works=False)


def test_agents_can_be_told_apart(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        await invoiced(engine)
        await engine.run(COUNTER, "count to 1", run_id="count")
        async with Visitor(url, "ann") as ann:
            assert "Hansen" not in await ann.see("/?agent=counter") and "Hansen" in await ann.see("/?view=needs-me")
            assert "count to 1" in await ann.see("/?find=COUNT") and "Hansen" not in await ann.see("/?view=completed")

    shown(tmp_path, body, works=False)
