"""A test that needs a Node program is never left out without a word: it is skipped, saying so, and fails with `NODE_TOOLS_REQUIRED`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_servers.desks import node_tool


@pytest.mark.parametrize(("given", "loud"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_a_missing_node_program_is_a_failure_where_they_are_required_and_a_skip_elsewhere(
    given: str, loud: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the program and what installs it."""
    monkeypatch.setenv("NODE_TOOLS", str(tmp_path))
    monkeypatch.setenv("NODE_TOOLS_REQUIRED", given)
    with pytest.raises(pytest.fail.Exception if loud else pytest.skip.Exception, match=r"llmock is not installed.*scripts/node-tools"):
        node_tool("llmock")
