"""The log triage example, end to end: its figures are right, its branches are taken, and a killed run repeats nothing."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check, sampled
from detent import Agent, Budget, Engine
from detent.planners import load_rules
from forked import fork

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "log-triage"
GOAL = "Find the error burst and its cause"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the example, to be written to."""
    return copied(tmp_path)


def copied(place: Path) -> Path:
    """Return a copy of the example."""
    return Path(shutil.copytree(EXAMPLE, place / "triage", ignore=shutil.ignore_patterns("reports")))


def triage(workspace: Path, store: str = "ram:", **variables: Any) -> Any:
    """Run the example on a workspace; return the result, after checking that the run replays."""
    settings = tomllib.loads((workspace / "agent.toml").read_text())
    agent = Agent(name=settings["name"], tools=settings["tools"], rules=load_rules(workspace / settings["rules"]))

    async def main() -> Any:
        async with Engine(store=store, workspace=workspace) as engine:
            result = await engine.run(agent, GOAL, variables={**settings["variables"], **variables}, budget=Budget(**settings["budget"]))
            assert (await engine.replay(result.run_id)).identical
            return result

    return asyncio.run(main())


def counted(log: Path) -> tuple[int, int, Counter[str]]:
    """Count a log without Detent: requests, 5xx answers, and 5xx answers by minute."""
    lines = log.read_text().splitlines()
    failed = [line for line in lines if re.search(r'" 5\d\d ', line)]
    return len(lines), len(failed), Counter(line.split("[")[1][:17] for line in failed)


def test_a_burst_after_a_deploy_leads_to_a_rollback(workspace: Path) -> None:
    """Report, timeline and answer hold the figures that counting by hand gives."""
    requests, failures, by_minute = counted(workspace / "logs" / "access.log")
    hot = sorted(minute for minute, count in by_minute.items() if count >= 6)
    within = sum(count for minute, count in by_minute.items() if hot[0] <= minute <= hot[-1])
    result = triage(workspace)
    assert (result.status, result.reason) == ("completed", "final_answer")
    assert f"{within} of " in result.output and f"worst minute {by_minute.most_common(1)[0][0]}" in result.output
    assert "4 minutes after checkout 2.31.0 was deployed" in result.output and "roll it back" in result.output
    report = (workspace / "reports" / "incident-logs-access.md").read_text()
    assert f"| requests in all | {requests} |" in report and f"| 5xx answers in all | {failures} |" in report
    assert f"| minutes of the burst | {len(hot)} |" in report and "| /api/checkout/confirm | " in report
    timeline = (workspace / "reports" / "timeline-logs-access.md").read_text()
    assert timeline.count("\n- ") == 7 and "suspect: checkout 2.31.0 by Mara Lindqvist" in timeline
    writes = [call for call in result.tool_calls if call.tool in ("append_file", "write_file")]
    assert len(result.tool_calls) >= 12 and len(writes) >= 8 and all(call.ok for call in result.tool_calls)


@in_check
def test_a_burst_without_a_deploy_is_looked_for_upstream(workspace: Path) -> None:
    """The same rules on another log, given by variable; variables of the command line are text."""
    result = triage(workspace, log="logs/access-2025-03-16.log", burst_per_minute="6")
    assert "No deploy in the 45 minutes before; 100.0 % of the failures are 502 or 504: look upstream" in result.output
    assert "looking upstream" in (workspace / "reports" / "timeline-logs-access-2025-03-16.md").read_text()


def test_without_a_burst_all_is_clear(workspace: Path) -> None:
    """Single failures are no burst."""
    result = triage(workspace, log="logs/access-2025-03-17.log")
    assert result.output.startswith("All clear in logs/access-2025-03-17.log: ")
    assert (workspace / "reports" / "incident-logs-access-2025-03-17.md").read_text().startswith("# All clear")


@in_check
def test_without_deploy_notes_the_burst_is_still_reported(workspace: Path) -> None:
    """What is missing is not invented."""
    (workspace / "notes" / "deploys.md").unlink()
    assert "No deploy in the 45 minutes before" in triage(workspace).output


@in_check
def test_the_size_of_pages_changes_nothing_in_the_figures(workspace: Path) -> None:
    """Also when pages are so large that their results are stored apart from the log."""
    assert triage(workspace, page_lines=97).output == triage(workspace, page_lines=1300).output


@pytest.mark.parametrize(
    ("log", "status", "said"),
    [
        ("logs/nope.log", "stop_action", "logs that are there: logs/access-2025-03-16.log"),
        ("notes/deploys.md", "abstained", "not in the combined log format"),
    ],
)
def test_a_log_that_cannot_be_read_ends_the_run_with_the_reason(workspace: Path, log: str, status: str, said: str) -> None:
    """A missing file names those that are there; another format is named."""
    result = triage(workspace, log=log)
    assert (result.status, result.reason, result.output) == ("stopped", status, None) and said in result.error
    assert not (workspace / "reports").exists()


CHILD = """
import asyncio, os, signal, sys, tomllib
from pathlib import Path
from detent import Agent, Budget, Engine
from detent.planners import load_rules

workspace, store, after = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = tomllib.loads((workspace / "agent.toml").read_text())
agent = Agent(name="log-triage", tools=settings["tools"], rules=load_rules(workspace / "rules.yaml"))

class Killer:
    seen = 0
    def on_record(self, record, state):
        self.seen += type(record.event).__name__ == "ToolFinished"
        if self.seen == after:
            os.kill(os.getpid(), signal.SIGKILL)
    def on_chunk(self, chunk): pass

async def main():
    async with Engine(store=store, workspace=workspace, observers=[Killer()]) as engine:
        await engine.run(agent, "Find the error burst and its cause", run_id="r1", variables=settings["variables"], budget=Budget(**settings["budget"]))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run that nobody disturbed: its workspace and its result."""
    place = copied(tmp_path_factory.mktemp("undisturbed"))
    return place, triage(place)


@in_check
@pytest.mark.parametrize("after", sampled([1, 7, 13, 14, 20], few=1))
def test_a_killed_run_goes_on_and_repeats_no_effect(workspace: Path, tmp_path: Path, undisturbed: tuple[Path, Any], after: int) -> None:
    """SIGKILL after that many outcomes; a fresh process ends with the same answer, report and timeline as an undisturbed run."""
    there, expected = undisturbed
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    killed = fork(["-c", CHILD, str(workspace), store, str(after)], stderr=subprocess.PIPE)
    said = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, said

    async def resume() -> Any:
        async with Engine(store=store, workspace=workspace) as engine:
            result = await engine.resume("r1")
            assert (await engine.replay("r1")).identical
            return result

    result = asyncio.run(resume())
    assert (result.status, result.output) == ("completed", expected.output)
    for file in sorted((there / "reports").iterdir()):
        assert (workspace / "reports" / file.name).read_text() == file.read_text()
    assert [(c.tool, c.args) for c in result.tool_calls] == [(c.tool, c.args) for c in expected.tool_calls]
