"""Reports: what they say, that they are text only, and what is required."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from amounts import in_check
from cli.desk import Desk
from detent import Agent, Engine, FinalAnswer
from detent.core.errors import ConfigError
from detent.evals import Case, Evaluation, Suite, Variant, compare, evaluate, summarised, writing
from detent.evals.trials import Trial
from detent.testing import ScriptedPlanner
from detent.tools.workspace.sandbox import probe
from server.pages.browsing import browser, needs_chromium

HOSTILE = "<script>hit()</script> | `x` [a](b) ]]> \x00\u202e"


class Echo:
    """Says the goal; the second variant is wrong in one of four."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        wrong = view.agent.name == "worse" and view.goal.startswith("3")
        return await ScriptedPlanner([FinalAnswer(content="no" if wrong else view.goal)]).plan(view)


def made() -> Evaluation:
    """Return an evaluation of two variants."""

    async def run() -> Evaluation:
        async with Engine(store="ram:", agents=[Agent(name="good", tools=()), Agent(name="worse", tools=())], planner=Echo()) as engine:
            cases = tuple(Case(id=f"{n} {HOSTILE[:40]}", goal=f"{n} {HOSTILE[:40]}", expected=f"{n} {HOSTILE[:40]}") for n in range(4))
            variants = {"good": Variant(agent="good"), "worse": Variant(agent="worse")}
            suite = Suite(name=f"echo {HOSTILE[:22]}", cases=cases, graders=({"kind": "exact"},), trials=3, variants=variants)
            return summarised(suite.name, "one", await evaluate(engine, suite))

    return asyncio.run(run())


def test_a_report_is_one_file_that_loads_nothing_and_runs_nothing() -> None:
    pytest.importorskip("jinja2")
    found = made()
    good, worse = (msgspec.structs.replace(found, trials=tuple(t for t in found.trials if t.variant == name)) for name in ("good", "worse"))
    page = writing.html(worse, {}, (compare(good.trials, worse.trials), good))
    assert not re.search(r"<script|<link|<img|@import|url\(|https?://(?!www.w3.org)", page)
    assert "&lt;script&gt;" in page and page.count('<details class="trial">') == 3 and "pass^3" in page and "lost" in page
    text = writing.markdown(found, (compare(good.trials, worse.trials), good))
    assert "<script>" not in text and "\\|" in text and "Lost: 3" in text


@in_check
def test_a_long_report_is_laid_out_in_parts_as_they_come_near_the_screen(tmp_path: Path) -> None:
    """In a browser: each row is there once, and most of them are laid out only after somebody scrolls to them."""
    pytest.importorskip("jinja2")
    needs_chromium()
    found = tuple(
        Trial(case=f"case {n}", cluster=f"case {n}", variant="", number=1, run_id=f"run-{n}", standing="passed") for n in range(1950)
    )
    page = writing.html(summarised("long", "one", found))
    assert page.count(">run-") == page.count(">1 of 1<") == 1950 and page.count("<th>Run</th>") == page.count("<th>Case</th>") - 20 == 20
    (tmp_path / "report.html").write_text(page)

    async def run() -> None:
        async with browser() as started:
            shown = await started.new_page(viewport={"width": 1280, "height": 900})
            await shown.goto((tmp_path / "report.html").as_uri())
            client = await shown.context.new_cdp_session(shown)
            await client.send("Performance.enable")

            async def laid_out() -> int:
                await shown.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
                return {one["name"]: one["value"] for one in (await client.send("Performance.getMetrics"))["metrics"]}["LayoutObjects"]

            assert (first := await laid_out()) < 2000
            await shown.get_by_text("case 1900", exact=True).first.scroll_into_view_if_needed()
            assert first < await laid_out() < 4000

    asyncio.run(run())


def test_what_is_not_passed_is_a_failure_for_those_who_read_junit() -> None:
    root = ET.fromstring(writing.junit(made()))  # noqa: S314 - our own
    counts = {suite.get("name", "")[-5:]: (suite.get("tests"), suite.get("failures"), suite.get("errors")) for suite in root}
    assert counts == {" good": ("12", "0", "0"), "worse": ("12", "3", "0")}
    assert len(root.findall(".//failure")) == 3


@pytest.mark.parametrize(
    ("source", "good", "worse"),
    [
        ("pass_hat(3) >= 0.9", True, False), ("passed >= 0.75 && graded == 12", True, True), ("pass_at(9) > 0.0", False, False),
        ("p95_s < 60.0 && machinery == 0", True, True), ("cost_usd < 0.1", True, True),
    ],
)  # fmt: skip
def test_what_is_required_is_said_in_figures_and_the_unknown_is_not_true(source: str, good: bool, worse: bool) -> None:
    figures = made().figures
    assert (writing.required(source, figures["good"]), writing.required(source, figures["worse"])) == (good, worse)


def test_an_expression_with_a_wrong_name_is_named() -> None:
    with pytest.raises(ConfigError, match="passd"):
        writing.required("passd > 0.5", made().figures["good"])


SUITE = """
name = "files"
trials = 2
[[graders]]
kind = "completed"
[[cases]]
id = "one"
goal = "Note it"
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_command_runs_a_suite_grades_stored_runs_and_compares(desk: Desk) -> None:
    desk.write("suite.toml", SUITE)
    done = desk.detent("eval", "run", "suite.toml", "--require", "pass_hat(2) >= 0.5", "--out", "a.json", "--out", "a.xml")
    assert (done.code, "100.0%" in done.out, "reached: pass_hat(2) >= 0.5" in done.err) == (0, True, True), done
    assert desk.detent("eval", "run", "suite.toml", "--require", "pass_hat(2) > 1.0", "--out", "b.json").code == 1
    assert len(desk.notes) == 4
    compared = desk.detent("eval", "compare", "a.json", "b.json")
    assert compared.code == 0 and "quality" in compared.out
    graded = desk.detent("eval", "grade", "suite.toml", "--runs", "status=completed", "--out", "c.json")
    assert graded.code == 0 and len(Evaluation.read(desk.home / "c.json").trials) == 4
    assert desk.detent("eval", "from-runs", "--runs", "status=completed").out.count('"goal":"Note it"') == 4
    assert desk.detent("eval", "from-runs", "--out", "new/cases.jsonl").code == 0 and (desk.home / "new" / "cases.jsonl").is_file()
    assert "cannot be written" in desk.detent("eval", "from-runs", "--out", "a.json/cases.jsonl").err
    desk.write("suite.toml", f'require = "pass_hat(1) > 1.0"\n{SUITE}')
    assert desk.detent("eval", "grade", "suite.toml", "--runs", "status=completed").code == 1, "the suite requires it"
    assert "is unfinished; begin one" in desk.detent("eval", "resume").err
    assert len(desk.notes) == 4, "nothing was run for that"


FILES = """
name = "workspaces"
trials = 2
[[graders]]
kind = "file"
path = "report.md"
expected = "paid"
[[graders]]
kind = "command"
command = ["grep", "-q", "ann", "data.csv"]
[[graders]]
kind = "world"
command = ["cat", "world.json"]
path = "balance"
expected = 5
[[cases]]
id = "one"
goal = "Report"
files = {"data.csv" = "ann,5", "world.json" = '{"balance": 5}'}
"""


@pytest.mark.skipif(not probe().program, reason=probe().why)
def test_each_trial_has_a_fresh_workspace_that_graders_look_at(desk: Desk) -> None:
    """The tool refuses to write over a file that is there, so a workspace that is not fresh would be seen."""
    desk.write("agent.toml", 'name = "writer"\ntools = ["write_file"]\nrules = "rules.yaml"\n')
    desk.write(
        "rules.yaml", "- name: a\n  call: {tool: write_file, args: {path: report.md, content: all is paid}}\n- name: b\n  answer: done\n"
    )
    desk.write("suite.toml", FILES)
    done = desk.detent("eval", "run", "suite.toml", "--out", "a.json")
    found = Evaluation.read(desk.home / "a.json")
    assert [trial.standing for trial in found.trials] == ["passed", "passed"], (done, found.trials)
    assert not (desk.home / "report.md").exists() and not (desk.home / "data.csv").exists()


def test_an_evaluation_that_was_killed_goes_on(desk: Desk) -> None:
    desk.steps("pause", "note", "answer")
    desk.write("suite.toml", SUITE)
    process = desk.start_and_wait_for_the_tool("eval", "run", "suite.toml", "--parallel", "1")
    process.kill()
    process.communicate()
    (desk.home / "begun").unlink()
    desk.write("go", "")
    done = desk.detent("eval", "resume", "--out", "a.json")
    assert done.code == 0, done
    found = Evaluation.read(desk.home / "a.json")
    assert [trial.standing for trial in found.trials] == ["passed", "passed"] and len(desk.notes) == 2
    assert len(desk.detent("list", "--json").json) == 2


@in_check
def test_the_command_adds_a_column_for_each_fault_with_the_usual_agent_and_store(desk: Desk) -> None:
    """A process that dies while it writes the note resumes, and the note is written once; the result and the second half say so."""
    desk.write("suite.toml", SUITE.replace("trials = 2", "trials = 6"))
    words = ("--fault-rate", "0.9", "--require", "repeated == 0 && lost == 0", "--out", "a.json", "--out", "a.md")
    done = desk.detent("eval", "run", "suite.toml", "--faults", "kill, slow", *words)
    assert done.code == 0 and "files: 18 trials" in done.err, done
    found = Evaluation.read(desk.home / "a.json")
    assert list(found.figures) == ["", "kill", "slow"] and {trial.standing for trial in found.trials} == {"passed"}
    killed = found.figures["kill"].under
    assert killed is not None and killed.struck >= 4 and len(desk.notes) == 18
    assert "MORE TURNS" in done.out and "| UNDER |" in (desk.home / "a.md").read_text()
    assert "fault 'kil'" in desk.detent("eval", "run", "suite.toml", "--faults", "kil").err and len(desk.notes) == 18


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run",), "name the suite"), (("run", "none.toml"), "none.toml cannot be read"), (("compare", "a.json"), "two results"),
        (("report", "a.json"), "a.json is not a result"), (("run", "suite.toml", "--tag", "none"), "no case is left"),
        (("run", "suite.toml", "--fault-rate", "0.5"), "there is no fault"),
        (("resume", "--require", "pass_ht(2) == 1.0"), "calls pass_ht()"),
        (("run", "suite.toml", "--out", "a.pdf"), "ends in .json, .md, .xml, .html"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_named(desk: Desk, words: tuple[str, ...], said: str) -> None:
    desk.write("suite.toml", SUITE)
    done = desk.detent("eval", *words)
    assert done.code == 2 and said in done.err, done
