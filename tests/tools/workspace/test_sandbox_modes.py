"""Whether exec is sandboxed: auto, require, off; what the tool's declaration and its result say; what policies and runs make of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, Host, ToolCall, ToolContext, tool
from detent.config.engines import Config, WorkspaceConfig
from detent.config.environment import config_from_environment
from detent.config.loading import load_agent, load_config
from detent.core.errors import ConfigError
from detent.ports import Call, ToolSpec, Verdict
from detent.testing.scripted import ScriptedPlanner
from detent.tools.functions.schema import schema_digest
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace.sandbox import Sandbox, SandboxLimits, stricter
from detent.tools.workspace.tools import workspace_tools

WHY_NOT = boxes.probe().why
needs_bwrap = pytest.mark.skipif(bool(WHY_NOT), reason=f"the sandbox is NOT TESTED here: {WHY_NOT}")

HELP = "--json-status-fd --block-fd --size --die-with-parent --remount-ro --args --bind-fd --ro-bind-fd"
BROKEN = {
    "missing": None,
    "too old": "echo '--die-with-parent'",
    "cannot make a sandbox": f'[ "$1" = --help ] && echo "{HELP}" || {{ echo "bwrap: No permissions to create new namespace" >&2; exit 1; }}',
}


def exec_tool(tools: list[Any]) -> Any:
    return next(t for t in tools if t.spec.name == "exec")


def ran(tools: list[Any], command: str = "true", **args: Any) -> dict[str, Any]:
    """Run exec and return its result."""
    exec_ = exec_tool(tools)
    context = ToolContext(run_id="r", call_id="c", tool=exec_.spec, host=Host(), idempotency_key="k")
    outcome = asyncio.run(exec_.run({"command": command, **args}, context))
    assert outcome.kind == "ok", outcome.message
    import msgspec

    return msgspec.json.decode(outcome.result)


@pytest.fixture(params=BROKEN)
def without_sandbox(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine where bwrap is missing, too old, or may not make namespaces."""
    script = BROKEN[request.param]
    (bin_ := tmp_path / "bin").mkdir()
    for program in ("true", "sh"):
        (bin_ / program).symlink_to(f"/bin/{program}")
    if script is not None:
        (bin_ / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (bin_ / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_))
    return {"missing": "not installed", "too old": "too old", "cannot make a sandbox": "No permissions to create new namespace"}[
        request.param
    ]


def test_auto_runs_without_a_sandbox_where_none_can_be_made_and_says_why(without_sandbox: str, tmp_path: Path) -> None:
    """The declaration says so before, the result after."""
    tools = workspace_tools(tmp_path)
    assert exec_tool(tools).spec.sandboxed is False
    done = ran(tools)
    assert (done["sandboxed"], done["success"]) == (False, True)
    assert without_sandbox in done["not_sandboxed"]


def test_require_makes_no_tools_where_no_sandbox_can_be_made(without_sandbox: str, tmp_path: Path) -> None:
    """Fails closed, before anything runs, with the reason; by every way of saying it."""
    config = Config(workspace=WorkspaceConfig(root=str(tmp_path), sandbox="require"))
    for make in (
        lambda: workspace_tools(tmp_path, sandbox_mode="require"),
        lambda: Engine(workspace=WorkspaceConfig(root=str(tmp_path), sandbox="require")),
        lambda: Engine.from_config(config, store="ram:"),
        lambda: Engine.from_config(config, store="ram:", workspace=tmp_path),
        lambda: Engine.from_config(Config(), store="ram:", workspace=WorkspaceConfig(root=str(tmp_path), sandbox="require")),
    ):
        with pytest.raises(ConfigError, match=without_sandbox):
            make()


@needs_bwrap
def test_auto_and_require_run_in_a_sandbox_where_it_works(tmp_path: Path) -> None:
    """And say so before and after; off says that it was switched off."""
    for mode in ("auto", "require"):
        tools = workspace_tools(tmp_path, sandbox_mode=mode)  # type: ignore[arg-type]
        assert exec_tool(tools).spec.sandboxed is True
        done = ran(tools)
        assert (done["sandboxed"], done["not_sandboxed"], done["success"]) == (True, "", True), done
    off = workspace_tools(tmp_path, sandbox_mode="off")
    assert exec_tool(off).spec.sandboxed is False
    assert (ran(off)["sandboxed"], ran(off)["not_sandboxed"]) == (False, "the sandbox is switched off")


@needs_bwrap
def test_what_the_declaration_promised_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy allowed the call because it is sandboxed: when bwrap is gone meanwhile, nothing runs, in auto mode too."""
    exec_ = exec_tool(workspace_tools(tmp_path, sandbox_mode="auto"))
    monkeypatch.setenv("PATH", str(tmp_path))
    context = ToolContext(run_id="r", call_id="c", tool=exec_.spec, host=Host(), idempotency_key="k")
    outcome = asyncio.run(exec_.run({"command": "/usr/bin/touch", "args": ["made"]}, context))
    assert (outcome.kind, outcome.error_code) == ("not_executed", "sandbox_failed")
    assert not (tmp_path / "made").exists()


@needs_bwrap
def test_a_workspace_that_would_undo_the_sandbox_has_none(tmp_path: Path) -> None:
    """The whole file system as the workspace, or bwrap itself inside it."""
    for root in ("/", "/usr"):
        sandbox, why = boxes.choose("auto", root, None)
        assert sandbox is None and "workspace" in why
        with pytest.raises(ConfigError, match="workspace"):
            boxes.choose("require", root, None)


def test_wrong_options_are_refused_by_name(tmp_path: Path) -> None:
    """Modes, limits and paths."""
    with pytest.raises(ConfigError, match="sandbox_mode is 'sometimes'"):
        workspace_tools(tmp_path, sandbox_mode="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="processes is 0"):
        SandboxLimits(processes=0)
    for path in ("relative", "/no/such/path"):
        with pytest.raises(ConfigError, match=path):
            Sandbox(readable=(path,))


def test_a_resumed_run_is_told_when_the_sandbox_is_gone() -> None:
    """The digest of a tool covers it; tools without one keep the digest that they had."""
    assert schema_digest(ToolSpec(name="exec", sandboxed=True)) != schema_digest(ToolSpec(name="exec"))
    assert schema_digest(ToolSpec(name="exec")) == "354681853e43b93110eb28e7c4059c1c8f27308412312bb3fd69747d7249ad3a"


# Configuration ----------------------------------------------------------------------------------------------------------------


def test_files_and_environment_say_what_the_sandbox_allows(tmp_path: Path) -> None:
    """`detent.toml` and variables; paths are relative to the file; a wrong mode is named."""
    (tmp_path / "lent").mkdir()
    (tmp_path / "detent.toml").write_text(
        '[workspace]\nroot = "."\nsandbox = "require"\nsandbox_network = true\nsandbox_readable = ["lent"]\nsandbox_processes = 7\n'
    )
    said = load_config(tmp_path / "detent.toml").workspace
    assert (said.sandbox, said.sandbox_network, said.sandbox_readable, said.sandbox_processes) == (
        "require",
        True,
        (str(tmp_path / "lent"),),
        7,
    )
    assert config_from_environment({"DETENT_SANDBOX": "off"}).workspace.sandbox == "off"
    with pytest.raises(ConfigError, match="sandbox"):
        config_from_environment({"DETENT_SANDBOX": "maybe"})


@needs_bwrap
def test_the_options_of_the_file_reach_the_program(tmp_path: Path) -> None:
    """What is lent can be read, what is not cannot; the bound is the file's."""
    (tmp_path / "lent").mkdir()
    (tmp_path / "lent" / "book").write_text("read me")
    (tmp_path / "work").mkdir()
    said = WorkspaceConfig(root=str(tmp_path / "work"), sandbox_readable=(str(tmp_path / "lent"),), sandbox_processes=9)
    engine = Engine.from_config(Config(workspace=said), store="ram:")
    tools: Any = [engine.tools.get("exec")]
    assert ran(tools, "cat", args=[str(tmp_path / "lent" / "book")])["stdout"] == "read me"
    bomb = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)"
    done = ran(tools, "python3", args=["-c", bomb])
    assert done["killed_for"] == "more than 9 processes" or "unavailable" in done["stderr"]


def test_the_stricter_wish_holds() -> None:
    """An agent file may ask for more than the configuration, never for less."""
    assert stricter("auto", "require") == stricter("require", "off") == "require"
    assert stricter("off", "auto") == "auto" and stricter("off", "off") == "off"


def test_an_agent_that_requires_a_sandbox_does_not_start_without_one(tmp_path: Path) -> None:
    """Its file says so; an engine whose exec has none refuses the run before anything is recorded, also to take it on."""
    (tmp_path / "work").mkdir()
    (tmp_path / "agent.toml").write_text('name = "a"\ntools = ["exec"]\nsandbox = "require"\n')
    agent = load_agent(tmp_path / "agent.toml")
    assert agent.meta["sandbox"] == "require"

    async def main() -> None:
        bare = WorkspaceConfig(root=str(tmp_path / "work"), sandbox="off")
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db", workspace=bare, planner=ScriptedPlanner([])) as engine:
            with pytest.raises(ConfigError, match="requires a sandbox"):
                await engine.run(agent, "go", run_id="r")
            assert await engine.list_runs() == []

    asyncio.run(main())


# Governance -------------------------------------------------------------------------------------------------------------------


class AllowsSandboxed:
    """Allows exec where it is sandboxed, and denies it elsewhere."""

    version = "allows-sandboxed-1"

    def decide(self, call: Call, state: Any) -> Verdict:
        """Look at the declaration alone."""
        allowed = call.tool.name != "exec" or call.tool.sandboxed
        return Verdict(decision="allow" if allowed else "deny", rule="sandboxed", reason="" if allowed else "no sandbox")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Never asks."""
        return False


def test_exec_waits_for_approval_unless_a_policy_allows_it(tmp_path: Path) -> None:
    """Sandboxed or not, without a policy it waits and nothing runs; a policy may tell the two apart."""
    plan = [ToolCall(tool="exec", args={"command": "touch", "args": ["made"]}), "done"]

    async def main(mode: Any, policy: Any, store: str) -> tuple[str, bool]:
        planner = ScriptedPlanner([plan[0], ToolCall(tool="done", args={"answer": "done"})])
        (work := tmp_path / store).mkdir()
        there = WorkspaceConfig(root=str(work), sandbox=mode)
        async with Engine(store=f"sqlite:///{tmp_path}/{store}.db", planner=planner, workspace=there, policy=policy) as engine:
            result = await engine.run(Agent(name="a", tools=["exec", "done"]), "go")
            return result.status, (work / "made").exists()

    for mode in ("off", "auto"):
        assert asyncio.run(main(mode, None, f"{mode}-tiers")) == ("waiting_for_approval", False)
    assert asyncio.run(main("off", AllowsSandboxed(), "off-rules")) == ("completed", False)
    if not WHY_NOT:
        assert asyncio.run(main("auto", AllowsSandboxed(), "auto-rules")) == ("completed", True)


def test_a_tool_of_ones_own_may_say_that_it_is_sandboxed() -> None:
    """The declaration is what policies read; it is false unless said."""

    @tool(side_effect="destructive", sandboxed=True)
    def remote(code: str) -> str:
        """Run code on a machine that is thrown away."""
        return code

    @tool(side_effect="destructive")
    def local(code: str) -> str:
        """Run code here."""
        return code

    assert (remote.spec.sandboxed, local.spec.sandboxed) == (True, False)
    with pytest.raises(ConfigError, match="sandboxed is 'yes'"):
        tool(sandboxed="yes")(local.function)  # type: ignore[call-overload]
