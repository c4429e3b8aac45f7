"""For whom a run is, said on the command line: tenant, principal, scopes and credentials of its host."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_run_is_charged_to_the_tenant_that_is_named(desk: Desk) -> None:
    """It is listed as the tenant's, and the tenant's budget of `detent.toml` holds for it and for no other run."""
    desk.write("detent.toml", "[tenants.acme]\nmax_runs = 1\n")
    assert desk.detent("run", "Write", "--tenant", "acme", "--run-id", "mine").code == 0
    assert [run["run_id"] for run in desk.detent("list", "--tenant", "acme", "--json").json] == ["mine@acme"]
    refused = desk.detent("run", "Write", "--tenant", "acme")
    assert refused.code == 2
    assert "tenant 'acme' has started 1 of max_runs=1" in refused.err
    assert desk.detent("run", "Write").code == 0
    other = desk.detent("run", "Write", "one", "line", "--run-id", "mine", "--tenant", "other")
    assert other.code == 0, "an id belongs to its tenant"


@pytest.mark.parametrize("words", [("run", "x", "--tenant", ""), ("submit", "x", "--principal", " "), ("worker", "--tenant", "")])
def test_an_empty_name_makes_nobody_the_operator(desk: Desk, words: tuple[str, ...]) -> None:
    """Such as `--tenant "$TENANT"` without the variable: it is refused, and nothing is recorded."""
    done = desk.detent(*words)
    assert (done.code, "is empty; name one, or leave the option out" in done.err) == (2, True), done
    assert not desk.store.exists()


def test_principal_and_scopes_reach_policy_and_tools(desk: Desk) -> None:
    """A policy reads who asks; a tool that needs a scope runs for a run that has it."""
    desk.write(
        "policy.toml",
        '[[rules]]\nid = "ann"\ntool = "note"\nwhen = \'host.principal == "ann" && "desk:write" in host.scopes\'\ndecision = "allow"\n',
    )
    desk.write("detent.toml", 'policy = "policy.toml"\n')
    for words, notes in (((), []), (("--principal", "ann"), []), (("--principal", "ann", "--scope", "desk:write"), ["one"])):
        desk.detent("run", "Write", *words)
        assert desk.notes == notes, words


def test_credentials_are_all_for_the_operator_and_those_that_are_named_for_a_host(desk: Desk) -> None:
    """A run for a tenant has none that was not named."""
    tools = desk.home / "tools.py"
    tools.write_text(
        tools.read_text()
        + '\n\n@tool(side_effect="write", credentials=("desk-key",), name="note")\n'
        + 'async def note(text: str, context: ToolContext) -> str:\n    """Write a line."""\n    leave(context.secret("desk-key")[:3])\n    return "ok"\n'
    )
    desk.write("detent.toml", '[secrets]\ndesk-key = "env:DESK_KEY"\n')
    desk.operator_says('environment = ["DESK_KEY"]\n')
    env = {"DESK_KEY": "s3cret-of-the-desk"}
    assert desk.detent("run", "Write", **env).code == 0
    refused = desk.detent("run", "Write", "--tenant", "acme", **env)
    assert refused.code == 2
    assert "missing_required_credential:desk-key" in refused.err
    assert desk.detent("run", "Write", "--tenant", "acme", "--credential", "desk-key", **env).code == 0
    assert desk.notes == ["s3c", "s3c"]
