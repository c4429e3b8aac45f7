"""`init`, `demo`, removing, and which setting wins."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import in_check
from cli.desk import Desk, ended
from cli.terminals import at_a_terminal
from cli.test_models import NO_KEYS
from detent.cli.demo import demonstrate, payments, proof, records_of
from detent.cli.output import Output
from detent.cli.packaged import packaged
from detent.cli.starting import TEMPLATES
from detent.core.events import ToolInDoubt, ToolStarted
from forked import asking, fork
from planners.model.chat_server import ChatServer, says

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_init_writes_an_agent_that_runs_as_it_is(desk: Desk) -> None:
    """The printed command works; a second init refuses and changes nothing."""
    begun = desk.detent("init", "new")
    assert begun.code == 0
    assert 'cd new && detent run "Count the text files here"' in begun.err
    other = inside(desk, "new")
    other.write("a.txt", "hello")
    done = other.detent("run", "Count the text files here")
    assert (done.code, done.out) == (0, "1 files match **/*.txt; written to count.md\n")
    assert "1 files match" in (other.home / "count.md").read_text()
    (other.home / "rules.yaml").write_text("mine")
    (other.home / "test_agent.py").unlink()
    for template in ("rules", "model"):
        again = desk.detent("init", "new", "--template", template)
        assert (again.code, "nothing was written" in again.err) == (2, True)
    assert (other.home / "rules.yaml").read_text() == "mine"
    assert not (other.home / "tools.py").exists(), "a part of a template was written"


def inside(desk: Desk, name: str) -> Desk:
    """Return a desk whose files are those that were written there."""
    other = Desk.__new__(Desk)
    other.home, other.imports = desk.home / name, desk.imports
    return other


@pytest.mark.parametrize("template", [name if name == "rules" else pytest.param(name, marks=in_check) for name in TEMPLATES])
def test_each_template_runs_as_it_is_and_its_own_test_passes(desk: Desk, template: str) -> None:
    """What a person gets from `init` is broken, or needs something that nobody named."""
    begun = desk.detent("init", "new", "--template", template, DETENT_TRUST="")
    assert (begun.code, f"next: cd new && {TEMPLATES[template].first}" in begun.err) == (0, True), begun
    home = desk.home / "new"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if TEMPLATES[template].first.startswith("detent run"):  # it is trusted as it was written
        words = shlex.split(TEMPLATES[template].first)[1:]
        done = ended(fork(["-m", "detent", *words, "--json"], cwd=home, env=environment, stderr=subprocess.PIPE))
        assert done.json["status"] == ("waiting_for_approval" if template == "coding" else "completed"), done
        shutil.rmtree(home)
        desk.detent("init", "new", "--template", template)
    imports = asking("openai") if template == "model" else ()
    tested = ended(
        fork(
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir=.", f"--basetemp={desk.home / 'tmp'}"],
            cwd=home,
            env=environment,
            stderr=subprocess.PIPE,
            imports=imports,
        )
    )
    assert (tested.code, "failed" in tested.out, "skipped" in tested.out) == (0, False, False), tested


def test_at_a_terminal_init_asks_what_the_project_is_for(desk: Desk) -> None:
    """And which model plans. The name stands in the agent file in place of the rules, and nothing but a name can."""
    left = [("PROVIDER:NAME", "ollama:qwen3\n"), ("number or the words", "2\n")]
    sat = at_a_terminal(
        "init", "new", types=lambda shown: left.pop()[1] if left and left[-1][0] in shown else "", env=desk.environment, cwd=desk.home
    )
    assert sat.code == 0 and "What is the project for?" in sat.shown, sat.shown
    home = desk.home / "new"
    assert 'model = "ollama:qwen3"\n' in (home / "agent.toml").read_text() and not (home / "rules.yaml").exists()
    other = inside(desk, "new")
    other.imports = asking("openai")
    with ChatServer([says(None, ("c1", "population", {"city": "Lyon"})), says("520,000 people.")]) as server:
        done = other.detent("run", "How many people live in Lyon?", **NO_KEYS | {"OLLAMA_BASE_URL": server.url})
    assert (done.code, done.out) == (0, "520,000 people.\n"), done
    for words in (("--template", "rules", "--model", "openai:x"), ("--template", "model", "--model", 'x"\nrules = "evil.yaml')):
        assert desk.detent("init", "another", *words).code == 2
    assert not (desk.home / "another").exists()


def test_what_demo_and_init_need_is_in_the_package() -> None:
    """From a wheel they find no example."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"examples/{name}": f"detent/examples/{name}" for name in ("demo", "templates")}
    assert {path.name for path in packaged("templates").iterdir()} == set(TEMPLATES)


@in_check
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


@in_check
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
    """`--model auto` without any key: one line, and nothing is written."""
    done = desk.detent("demo", "--dir", "shown", "--model", "auto", **NO_KEYS)
    assert (done.code, "no provider key is set" in done.err) == (2, True), done
    assert not (desk.home / "shown").exists()


@in_check
def test_a_demo_asks_the_model_that_is_named(desk: Desk) -> None:
    """And says where everything is when it fails."""
    asked = desk.detent("demo", "--model", "nobody:nothing")
    assert (asked.code, "nobody:nothing" in asked.err) == (1, True), asked
    assert "everything is still there" in asked.err


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
