"""The client scenarios of the protocol's own conformance suite, those without authorisation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.desks import node_tool

SUITE = node_tool("conformance")
CLIENT = Path(__file__).with_name("conformance_client.py")


def checked(scenario: str, place: Path) -> dict[str, Any]:
    """Run a scenario and return its checks by id, those that only inform left out."""
    command = [SUITE, "client", "--command", f"{sys.executable} {CLIENT}", "--scenario", scenario, "--output-dir", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=place)
    (found,) = place.rglob("checks.json") or [None]
    assert found is not None, done.stdout + done.stderr
    checks = json.loads(found.read_text())
    return {check["id"]: check for check in checks if check["status"] != "INFO"}


@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "sse-retry"])
def test_a_scenario_passes(scenario: str, tmp_path: Path) -> None:
    """Handshake, calls, and an event stream that breaks off and is taken up again."""
    checks = checked(scenario, tmp_path)
    assert checks
    assert {name: check.get("errorMessage") for name, check in checks.items() if check["status"] != "SUCCESS"} == {}


def test_a_question_to_the_user_is_declined(tmp_path: Path) -> None:
    """This scenario wants every question accepted with its defaults; Detent declines them all, on purpose, and nothing else fails."""
    checks = checked("elicitation-sep1034-client-defaults", tmp_path)
    assert checks["client-elicitation-sep1034-general"]["errorMessage"] == "Expected action 'accept', got 'decline'"
