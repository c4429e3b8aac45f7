"""`init`, `demo`, removing, and which setting wins."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.desk import Desk
from cli.test_models import NO_KEYS
from detent.cli.demo import demonstrate, payments, proof, records_of
from detent.cli.output import Output
from detent.cli.packaged import packaged
from detent.core.events import ToolInDoubt, ToolStarted
from forked import asking
from planners.model.chat_server import ChatServer, fails


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_init_writes_an_agent_that_runs_as_it_is(desk: Desk) -> None:
    """The printed command works; a second init refuses and changes nothing."""
    begun = desk.detent("init", "new")
    assert begun.code == 0
    assert 'cd new && detent run "Count the text files here"' in begun.err
    other = Desk.__new__(Desk)  # its files are those that were written
    other.home, other.imports = desk.home / "new", desk.imports
    other.write("a.txt", "hello")
    done = other.detent("run", "Count the text files here")
    assert (done.code, done.out) == (0, "1 files match **/*.txt; written to count.md\n")
    assert "1 files match" in (other.home / "count.md").read_text()
    (other.home / "rules.yaml").write_text("mine")
    again = desk.detent("init", "new")
    assert again.code == 2
    assert "nothing was written" in again.err
    assert (other.home / "rules.yaml").read_text() == "mine"


def test_the_demo_can_be_read_and_proves_that_nothing_was_done_twice(desk: Desk) -> None:
    """In a pipe: lines of at most 80 columns that name the commands, the kill, the doubt, the approval, the plain loop and the checks.

    A payment that is in the ledger or in the log once more than it should, or a log that was changed, is found. It trusts its directory as
    it wrote it, and no other.
    """
    done = desk.detent("demo", "--dir", "shown", DETENT_TRUST="")
    assert done.code == 0, done
    for piece in (
        "$ detent run",
        "SIGKILL inside `pay`: A-18 is in the ledger",
        "$ detent resume pay",
        "in doubt: call main.3.0",
        "$ detent reconcile pay main.3.0 --happened paid",
        "$ detent approve pay main.4.0",
        "$ python plain_loop.py",
        "its ledger: A-17, A-18, A-17, A-18, A-19",
        "no invoice is paid twice",
        "identical",
        "sound:",
        "paid exactly once",
    ):
        assert piece in done.out
    assert "\x1b" not in done.out + done.err
    assert max(map(len, done.out.replace(str(desk.home), "/tmp").splitlines())) <= 80
    home = desk.home / "shown"
    trusted = {one["directory"]: one["digest"] for one in desk.detent("trust", "--list", "--json").json}
    assert len(trusted[str(home)]) == 64 and str(desk.home) not in trusted
    assert desk.detent("demo", "--dir", "shown").code == 2, "it writes into a directory that is not empty"
    after, ledger = asyncio.run(records_of(home)), payments(home / "ledger.csv")
    before = after[: next(n for n, r in enumerate(after) if isinstance(r.event, ToolInDoubt)) - 1]
    started = next(r for r in after if isinstance(r.event, ToolStarted) and r.event.tool == "pay")
    again = msgspec.structs.replace(started, event=msgspec.structs.replace(started.event, attempt=2))
    for holds, found in (
        ([True, True, True, True], proof(before, after, ledger)),
        ([True, True, False, False], proof(before, after, [*ledger, ledger[0]])),
        ([True, True, True, False], proof(before, after, ledger[1:])),
        ([False, True, True, True], proof(after[1:2], after, ledger)),
        ([True, False, True, True], proof(before, [again if r is started else r for r in after], ledger)),
    ):
        assert [one for _, one in found] == holds, found


def test_the_demo_fails_where_something_is_done_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tool that pays twice: the demo says what does not hold, and exits with 1."""
    example = tmp_path / "example"
    shutil.copytree(packaged("demo"), example)
    tools = example / "tools.py"
    line = "        csv.writer(file).writerow((invoice, to, amount))\n"
    assert line in tools.read_text()
    tools.write_text(tools.read_text().replace(line, f"{line}        if invoice == 'A-19':\n    {line}"))
    monkeypatch.setattr("detent.cli.demo.packaged", lambda _: example)
    monkeypatch.setattr(
        "detent.cli.demo._Demo.plain_loop", lambda _: [("A-17", "", ""), ("A-17", "", ""), ("A-18", "", ""), ("A-18", "", "")]
    )
    output = Output(json_wanted=True)
    told: list[Any] = []
    monkeypatch.setattr(output, "document", told.append)
    assert demonstrate(output, tmp_path / "shown") == 1
    assert "no invoice is paid twice" in told[0]["problem"]


def test_the_demo_takes_a_model_only_where_there_is_one(desk: Desk) -> None:
    """`--model auto` without any key: one line, and nothing is written. A model that is named is asked, and what it answers is told."""
    done = desk.detent("demo", "--dir", "shown", "--model", "auto", **NO_KEYS)
    assert (done.code, "no key of a provider is set" in done.err) == (2, True), done
    assert not (desk.home / "shown").exists()
    desk.imports = asking("openai")
    with ChatServer([fails(404, "no such model")]) as server:
        asked = desk.detent("demo", "--model", "ollama:qwen3", **NO_KEYS | {"OLLAMA_BASE_URL": server.url})
    assert (asked.code, len(server.requests)) == (1, 1), asked
    assert "no such model" in asked.err and "everything is still there" in asked.err


def test_erase_keeps_the_chain_and_delete_keeps_nothing(desk: Desk) -> None:
    """After erase the content is gone from every command and the digests verify; after delete the run is unknown."""
    desk.detent("run", "--run-id", "mine", "A secret goal")
    assert desk.detent("erase", "last", "--yes").code == 0
    assert desk.detent("verify", "last").code == 0
    assert "secret" not in desk.detent("export", "last").out + desk.detent("list").out
    assert desk.detent("show", "last").code == 2
    assert b"secret" not in desk.store.read_bytes()
    assert desk.detent("delete", "last", "--yes").code == 0
    assert desk.detent("verify", "last").code == 2
    assert desk.detent("gc", "--yes").code == 0


def test_a_run_in_progress_is_not_erased(desk: Desk) -> None:
    """Busy: exit 5, and the run completes."""
    desk.steps("pause", "answer")
    process = desk.start_and_wait_for_the_tool("run", "Go")
    assert desk.detent("erase", "last", "--yes").code == 5
    assert desk.detent("delete", "last", "--yes").code == 5
    desk.write("go", "")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_more_particular_setting_wins(desk: Desk) -> None:
    """Built-in < detent.toml < agent file < environment < options, for a bound; what is not said falls through."""

    def bounds(*words: str, **environment: str) -> dict[str, float]:
        desk.detent("run", "Go", *words, **environment)
        audit = json.loads(desk.detent("show", "last", "--json").out)["audit"]
        return {b["bound"]: b["limit"] for b in audit["bounds"]}

    assert bounds()["max_iterations"] == 50
    desk.write("detent.toml", "[budget]\nmax_iterations = 40\nmax_tool_calls = 7\n")
    assert bounds()["max_iterations"] == 40
    agent = desk.home / "agent.toml"
    agent.write_text(agent.read_text() + "[budget]\nmax_iterations = 30\n")
    assert bounds()["max_iterations"] == 30
    assert bounds(DETENT_MAX_ITERATIONS="20")["max_iterations"] == 20
    last = bounds("--max-iterations", "10", DETENT_MAX_ITERATIONS="20")
    assert (last["max_iterations"], last["max_tool_calls"], last["max_failed_turns"]) == (10, 7, 3)


def test_the_store_follows_the_same_order(desk: Desk) -> None:
    """detent.toml names one store, the environment another, the option a third."""
    desk.write("detent.toml", 'store = "file:filed"\n')
    desk.detent("run", "Go")
    desk.detent("run", "Go", DETENT_STORE="file:environment")
    desk.detent("run", "Go", "--store", "file:option", DETENT_STORE="file:environment")
    assert [(desk.home / name).is_dir() for name in ("filed", "environment", "option")] == [True, True, True] and not desk.store.exists()


def test_agents_have_names_in_the_configuration(desk: Desk) -> None:
    """`--agent NAME` finds the file below [agents]; a name that is nearly right is pointed out."""
    (desk.home / "agent.toml").rename(desk.home / "other.toml")
    desk.write("detent.toml", '[agents]\ntidy = "other.toml"\n')
    assert desk.detent("run", "--agent", "tidy", "Go").code == 0
    wrong = desk.detent("run", "--agent", "tidi", "Go")
    assert wrong.code == 2
    assert "did you mean the agent 'tidy'" in wrong.err


def test_a_variable_keeps_the_form_in_which_it_is_written(desk: Desk) -> None:
    """Numbers and lists are JSON; 007, 1.10 and whatever the agent declares as text stay text; a misspelt name is pointed out."""
    agent = desk.home / "agent.toml"
    agent.write_text(agent.read_text() + '[variables]\nlog = "a.log"\ncount = 1\n')
    desk.detent(
        "run", "Go", "--var", "log=5", "--var", "count=3", "--var", "a=[1, 2]", "--var", "b=007", "--var", "c=1.10", "--var", "d=x=y"
    )
    shown = json.loads(desk.detent("show", "last", "--json").out)
    assert shown["variables"] == {"log": "5", "count": 3, "a": [1, 2], "b": "007", "c": "1.10", "d": "x=y"}
    wrong = desk.detent("run", "Go", "--var", "lgo=x")
    assert wrong.code == 2
    assert "did you mean 'log'" in wrong.err
