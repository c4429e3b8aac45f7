"""A test that needs a Node program is never left out without a word: it is skipped, saying so, and fails with `NODE_TOOLS_REQUIRED`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from source_code import ROOT
from tools.mcp.desks import node_tool


@pytest.mark.parametrize(("given", "loud"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_a_missing_node_program_is_a_failure_where_they_are_required_and_a_skip_elsewhere(
    given: str, loud: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the program and what installs it."""
    monkeypatch.setenv("NODE_TOOLS", str(tmp_path))
    monkeypatch.setenv("NODE_TOOLS_REQUIRED", given)
    with pytest.raises(pytest.fail.Exception if loud else pytest.skip.Exception, match=r"llmock is not installed.*scripts/node-tools"):
        node_tool("llmock")


@pytest.mark.parametrize(
    ("version", "taken"), [("v18.20.4", False), ("v9.1.0", False), ("", False), ("v20.15.0", True), ("v100.0.0", True)]
)
def test_a_node_that_is_too_old_for_the_programs_is_refused_before_they_are_installed(version: str, taken: bool, tmp_path: Path) -> None:
    """The package of an older system is such a one; npm would install them, and they would fail amid the tests."""
    for name, does in (("node", f"echo {version}"), ("npm", f"touch {tmp_path}/asked")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_TOOLS": str(tmp_path / "tools")}
    done = subprocess.run(["bash", ROOT / "scripts" / "node-tools"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, (tmp_path / "asked").exists()) == (0 if taken else 2, taken), done.stderr
    assert taken or f"node is {version}; these programs need Node.js 20 or newer" in done.stderr
