"""Completion in a shell: commands, options, run ids, agents; nothing that a shell could execute."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from cli.desk import Desk
from cli.terminals import at_a_terminal
from detent import Agent, Engine, FinalAnswer
from detent.config.state_directory import store_url
from detent.testing import ScriptedPlanner

RUN = "20260301-120000-water-the-plants-7k3f9q"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def fill(desk: Desk, run_id: str, agent: str = "tester") -> None:
    """Put a run into the store of the desk."""

    async def main() -> None:
        async with Engine(store=store_url(desk.home), planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
            await engine.run(Agent(name=agent), "$(touch pwned) `touch pwned`", run_id=run_id)

    asyncio.run(main())


def offered(desk: Desk, line: str) -> list[str]:
    """Return what bash is offered after a line."""
    words = line.split(" ")
    done = desk.detent(_DETENT_COMPLETE="complete_bash", COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    assert done.err == ""
    return done.out.split()


def test_commands_options_runs_and_agents_are_offered(desk: Desk) -> None:
    """Runs by their short names, where these fit what was typed; agents of the configuration, of runs, and files."""
    fill(desk, RUN)
    fill(desk, "mine", agent="other")
    desk.write("detent.toml", '[agents]\nhelper = "helper.toml"\n')
    assert offered(desk, "detent rep") == ["reply", "replay"]
    assert offered(desk, "detent show --iter") == ["--iteration"]
    assert offered(desk, "detent show ") == ["last", "last-1", "mine", "20260301-120000"]
    assert offered(desk, "detent diff last 2026") == ["20260301-120000"]
    assert offered(desk, "detent show 20260301-120000-w") == [RUN]
    assert offered(desk, "detent show nothing") == []
    assert offered(desk, "detent run --agent ") == ["helper", "other", "tester", "agent.toml"]
    assert offered(desk, "detent help st")[0] == "start"


def test_sessions_are_offered_wherever_one_is_named(desk: Desk) -> None:
    """The newest first, by their whole ids; a run that only has such an id is no session."""

    async def main() -> None:
        async with Engine(store=store_url(desk.home), planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
            for name in ("trip", "talk"):
                await engine.session(Agent(name="tester"), name).send("hello")

    asyncio.run(main())
    fill(desk, "looks-like.1")
    assert offered(desk, "detent chat --session ") == ["last", "last-1", "talk", "trip"]
    assert offered(desk, "detent list --session tr") == ["trip"]
    assert offered(desk, "detent export --session looks") == []


def test_a_store_that_cannot_be_read_offers_no_run_and_says_nothing(desk: Desk) -> None:
    """A message would land in the line that is being typed."""
    assert offered(desk, "detent show ") == ["last", "last-1"]
    desk.write("detent.toml", "no TOML")
    assert offered(desk, "detent show ") == ["last", "last-1"]


def test_no_name_that_a_shell_would_execute_is_offered(desk: Desk) -> None:
    """Goals, titles and odd names of agents come from whoever starts runs; bash and zsh evaluate what they are offered."""
    fill(desk, RUN, agent="$(touch pwned)")
    for shell, line in (("bash", "detent list --agent "), ("zsh", "detent list --agent "), ("fish", "detent show ")):
        done = desk.detent(
            _DETENT_COMPLETE=f"complete_{shell}",
            COMP_WORDS=line.replace(" ", "\n"),
            COMP_CWORD=str(line.count(" ")),
            _TYPER_COMPLETE_ARGS=line,
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        )
        assert "touch" not in done.out + done.err and done.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_its_shell_can_read(desk: Desk, shell: str) -> None:
    """Without a name it is that of $SHELL; of another shell the command says which it knows."""
    script = desk.detent("completion", shell)
    assert script.code == 0 and f"_DETENT_COMPLETE=complete_{shell}" in script.out
    assert desk.detent("completion", SHELL=f"/usr/bin/{shell}").out == script.out
    unknown = desk.detent("completion", SHELL="/bin/ed")
    assert unknown.code == 2 and "bash, zsh or fish" in unknown.err
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=script.out, text=True, capture_output=True, check=True).stderr == ""


def test_bash_completes_with_the_script(desk: Desk, tmp_path: Path) -> None:
    """The function that the script defines fills COMPREPLY."""
    bash: Any = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    fill(desk, RUN)
    answers = desk.detent(_DETENT_COMPLETE="complete_bash", COMP_WORDS="detent\nshow\n2026", COMP_CWORD="2").out
    fake = tmp_path / "bin" / "detent"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho '{answers.strip()}'\n")
    fake.chmod(0o755)
    script = desk.detent("completion", "bash").out
    line = f'{script}\nCOMP_WORDS=(detent show 2026); COMP_CWORD=2; _detent_completion {fake}; echo "${{COMPREPLY[@]}}"'
    assert subprocess.run([bash, "--norc", "-c", line], capture_output=True, text=True, check=True).stdout == "20260301-120000\n"


def in_a_shell(desk: Desk) -> dict[str, str]:
    """Return the environment of a shell that finds `detent` and reads its settings from the desk."""
    program = desk.write("bin/detent", f'#!/bin/sh\nexec {sys.executable} -P -m detent "$@"\n')
    program.chmod(0o755)
    return {**desk.environment, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(desk.home), "TERM": "dumb"}


def test_zsh_completes_what_is_typed(desk: Desk) -> None:
    """In a real zsh at a terminal, with the line that the help gives for ~/.zshrc: Tab lists two commands, and fills in the id of a run."""
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh here: its completion is not tested")
    fill(desk, RUN)
    desk.write(".zshrc", 'PS1="ready> "\nautoload -U compinit; compinit -D -u\neval "$(detent completion zsh)"\n')
    steps = [("ready> ", "detent repl\t"), ("reply ", "\x15detent show 2026\t"), ("20260301-120000", "\x15exit\n")]
    read = 0

    def types(shown: str) -> str:
        nonlocal read
        if not steps or steps[0][0] not in shown[read:]:
            return ""
        read = len(shown)
        return steps.pop(0)[1]

    sat = at_a_terminal(program=[zsh, "-i"], types=types, env={**in_a_shell(desk), "ZDOTDIR": str(desk.home)}, cwd=desk.home, group=True)
    assert steps == [] and sat.code == 0
    assert "replay  -- Execute a log again with the current code" in sat.shown and "detent show 20260301-120000" in sat.shown


@in_check
def test_fish_completes_what_is_typed(desk: Desk) -> None:
    """In a real fish, with the line that the help gives for its configuration."""
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("no fish here: its completion is not tested")
    fill(desk, RUN)
    asked = ("detent rep", "detent show 2026", "detent completion ")
    lines = ["detent completion fish | source", *(f"complete -C '{line}'; echo" for line in asked)]
    done = subprocess.run(
        [fish, "-N", "-c", "\n".join(lines)], env=in_a_shell(desk), cwd=desk.home, capture_output=True, text=True, check=True
    )
    commands, runs, shells = done.stdout.strip().split("\n\n")
    assert commands == "replay\tExecute a log again with the current code\nreply\tAnswer a question of a run" and done.stderr == ""
    assert runs == "20260301-120000" and shells.split() == ["bash", "fish", "zsh"]
