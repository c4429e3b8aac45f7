"""`detent trust`: what is shown, asked and remembered, and how commands are told where nobody can be asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.desk import Desk
from cli.terminals import at_a_terminal, typed
from detent.config.state_directory import state_directory


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A directory whose agent imports tools; its commands trust it unless a test says otherwise."""
    (tmp_path / "work").mkdir()
    return Desk(tmp_path / "work")


UNTRUSTED = {"DETENT_TRUST": ""}


def asked(desk: Desk, answer: str, *words: str) -> tuple[int, str]:
    """Run a command at a terminal, type the answer to its question, and return its exit code and what was shown."""
    env = {**desk.environment, **UNTRUSTED, "NO_COLOR": "1"}
    sat = at_a_terminal(*words, types=typed("[y/N]: ", f"{answer}\n"), env=env, cwd=desk.home, piped=True)
    return sat.code, sat.shown


def test_at_a_terminal_it_is_asked_once_and_remembered_for_its_owner_alone(desk: Desk) -> None:
    """No ends the command with 2, and nothing ran; yes runs it, and the next command asks nothing. Revoked, it asks again."""
    code, shown = asked(desk, "n", "run", "Write")
    assert (code, desk.notes) == (2, []) and "import  tools  ./tools.py:note" in shown, shown
    code, shown = asked(desk, "y", "run", "Write")
    assert (code, desk.notes) == (0, ["one"]), shown
    assert desk.detent("run", "Write", **UNTRUSTED).code == 0
    place = state_directory(desk.home)
    assert ((place / "trust.json").stat().st_mode & 0o777, place.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [one["directory"] for one in desk.detent("trust", "--list", "--json").json].count(str(desk.home)) == 1
    assert desk.detent("trust", "--revoke").code == 0
    assert desk.detent("run", "Write", **UNTRUSTED).code == 2


def test_a_pinned_directory_asks_with_the_difference(desk: Desk) -> None:
    """A changed tool file is shown line by line; yes binds the trust to the files as they are now."""
    pinned = desk.detent("trust", "--pin", "--yes", **UNTRUSTED)
    digest = pinned.out.strip().rpartition("=")[2]
    assert pinned.code == 0 and pinned.out.endswith(f"DETENT_TRUST={desk.home}={digest}\n") and len(digest) == 64
    tools = desk.home / "tools.py"
    tools.write_text(tools.read_text().replace('return "written"', 'return "changed"', 1))
    refused = desk.detent("run", "Write", DETENT_TRUST=f"{desk.home}={digest}")
    assert refused.code == 2 and '+    return "changed"' in refused.err and "their digest is now" in refused.err, refused.err
    code, shown = asked(desk, "y", "run", "Write")
    assert code == 0 and '-    return "written"' in shown and '+    return "changed"' in shown, shown
    assert desk.detent("run", "Write", **UNTRUSTED).code == 0
    again = desk.detent("trust", "--pin", "--yes", **UNTRUSTED).out.strip().rpartition("=")[2]
    assert again != digest and desk.detent("run", "Write", DETENT_TRUST=f"{desk.home}={again}").code == 0


def test_where_nobody_can_be_asked_the_list_is_printed_with_what_to_do(desk: Desk) -> None:
    """Exit 2, also for --json; --trust is for one command, DETENT_TRUST may name several directories."""
    refused = desk.detent("run", "Write", **UNTRUSTED)
    assert refused.code == 2 and "import  tools  ./tools.py:wipe" in refused.err and f"detent trust {desk.home}" in refused.err
    assert "./tools.py:wipe" in desk.detent("run", "Write", "--json", **UNTRUSTED).json["error"]["message"]
    assert desk.detent("trust", **UNTRUSTED).code == 2
    assert desk.detent("run", "Write", "--trust", **UNTRUSTED).code == 0
    assert desk.detent("run", "Write", **UNTRUSTED).code == 2
    assert desk.detent("run", "Write", DETENT_TRUST=f"/nowhere{os.pathsep}{desk.home}").code == 0
    assert "write an absolute DIRECTORY" in desk.detent("run", "Write", DETENT_TRUST=".").err


def test_files_that_ask_for_nothing_need_no_trust(desk: Desk) -> None:
    """Rules and built-in tools: no question, from the first run on. A policy of its own is a question."""
    desk.write("agent.toml", 'name = "plain"\ntools = ["glob"]\nrules = [{name = "a", answer = "done"}]\n')
    assert desk.detent("run", "Look", **UNTRUSTED).code == 0
    desk.write("agent.toml", 'name = "plain"\npolicy = [{id = "a", decision = "allow"}]\nrules = [{name = "a", answer = "done"}]\n')
    refused = desk.detent("run", "Look", **UNTRUSTED)
    assert refused.code == 2 and "decide  policy" in refused.err, refused.err


def test_init_trusts_what_it_wrote(desk: Desk) -> None:
    """A tool that is added to the agent of `init` needs no question."""
    assert desk.detent("init", "new", **UNTRUSTED).code == 0
    agent = desk.home / "new" / "agent.toml"
    (desk.home / "new" / "tools.py").write_text((desk.home / "tools.py").read_text())
    agent.write_text(agent.read_text().replace('"glob",', '"glob", "./tools.py:note",'))
    assert desk.detent("run", "--agent", "new/agent.toml", "Count", **UNTRUSTED).code == 0
    listed = {one["directory"]: one["digest"] for one in desk.detent("trust", "--list", "--json").json}
    assert listed[str(desk.home / "new")] == ""


def test_a_worker_uses_its_own_agent_files(desk: Desk) -> None:
    """The log's agent file is gone, and one of the same name is in the worker's configuration: its tools are used."""
    desk.write("here/tools.py", (desk.home / "tools.py").read_text())
    desk.write("here/rules.yaml", (desk.home / "rules.yaml").read_text())
    desk.write("here/agent.toml", (desk.home / "agent.toml").read_text())
    assert desk.detent("submit", "Write").code == 0
    (desk.home / "agent.toml").unlink()
    (desk.home / "tools.py").unlink()
    left = desk.detent("worker", "--until-idle")
    assert left.code == 2 and "imports are not taken from logs" in left.err, left.err
    desk.write("detent.toml", '[agents]\nother = "here/agent.toml"\n')
    untrusted = desk.detent("worker", "--until-idle")
    assert untrusted.code == 2 and f"{desk.home / 'here'} is not trusted" in untrusted.err, untrusted.err
    done = desk.detent("worker", "--until-idle", DETENT_TRUST=f"{desk.home}{os.pathsep}{desk.home / 'here'}")
    assert (done.code, desk.notes) == (0, ["one"]), done.err


def test_a_run_is_resumed_where_its_files_are_trusted_only(desk: Desk) -> None:
    """A tool of --tools is the person's own word; in the next command it is the log's, and counts in a trusted directory."""
    desk.steps("wipe", "answer")
    (desk.home / "rules.yaml").rename(desk.home / "plan.yaml")
    desk.write("agent.toml", 'name = "plain"\ntools = ["wipe"]\nrules = "plan.yaml"\n')
    assert desk.detent("run", "--tools", "./tools.py:wipe", "Write", **UNTRUSTED).code == 3
    refused = desk.detent("approve", "last", "main.1.0", **UNTRUSTED)
    assert refused.code == 2 and "wipe" in refused.err and desk.notes == [], refused.err
    assert desk.detent("approve", "last", "main.1.0", "--trust", **UNTRUSTED).code == 0
    assert desk.notes == ["wiped x"]


def test_the_agent_file_that_a_log_names_is_not_written_by_its_agent(desk: Desk) -> None:
    """It asks for nothing, so its directory is not trusted; the run goes on in another process, and writes the file that it came from."""
    rules = '[{name = "w", call = {tool = "write_file", args = {path = "its.toml", content = "x", force = true}}}, {name = "a", answer = "done"}]'
    desk.write("its.toml", f'name = "plain"\ntools = ["write_file"]\nrules = {rules}\n')
    before = (desk.home / "its.toml").read_text()
    assert desk.detent("submit", "--agent", "its.toml", "Write", **UNTRUSTED).code == 0
    desk.detent("resume", "last", **UNTRUSTED)
    assert "protected_path" in desk.detent("show", "last").out
    assert (desk.home / "its.toml").read_text() == before
