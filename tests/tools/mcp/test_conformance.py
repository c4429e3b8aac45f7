"""The client scenarios of the protocol's own conformance suite."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import types

from amounts import in_check
from detent.tools.mcp import elicitation
from detent.tools.mcp.elicitation import defaults_of, give_defaults
from tools.mcp.desks import ROOT, node_tool

SUITE = node_tool("conformance")
CLIENT, LOGIN = (Path(__file__).with_name(name) for name in ("conformance_client.py", "conformance_login.py"))
NODE_OPTIONS = f"--import={(ROOT / 'tests' / 'node' / 'older-node.mjs').as_uri()}"


def checked(scenario: str, place: Path, client: str = f"{CLIENT} decline") -> dict[str, Any]:
    """Run a scenario and return its checks by id, those that only inform left out."""
    command = [SUITE, "client", "--command", f"{sys.executable} {client}", "--scenario", scenario, "--output-dir", str(place)]
    environment = {**os.environ, "NODE_OPTIONS": NODE_OPTIONS}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=place, env=environment)
    (found,) = place.rglob("checks.json") or [None]
    assert found is not None, done.stdout + done.stderr
    checks = json.loads(found.read_text())
    return {check["id"]: check for check in checks if check["status"] != "INFO"}


@pytest.mark.parametrize(  # those that log in begin with the handshake and call, too; the last one waits for seconds
    "scenario", [pytest.param(name, marks=in_check) for name in ("tools_call", "initialize", "sse-retry")]
)
def test_a_scenario_passes(scenario: str, tmp_path: Path) -> None:
    """Handshake, calls, and an event stream that breaks off and is taken up again."""
    checks = checked(scenario, tmp_path)
    assert checks
    assert {name: check.get("errorMessage") for name, check in checks.items() if check["status"] != "SUCCESS"} == {}


AUTHORISATION = [
    "2025-03-26-oauth-endpoint-fallback",
    "2025-03-26-oauth-metadata-backcompat",
    "basic-cimd",
    "client-credentials-basic",
    "client-credentials-jwt",
    "cross-app-access-complete-flow",
    "metadata-default",
    "metadata-var1",
    "metadata-var2",
    "metadata-var3",
    "offline-access-not-supported",
    "offline-access-scope",
    "pre-registration",
    "resource-mismatch",
    "scope-from-scopes-supported",
    "scope-from-www-authenticate",
    "scope-omitted-when-undefined",
    "scope-retry-limit",
    "scope-step-up",
    "token-endpoint-auth-basic",
    "token-endpoint-auth-none",
    "token-endpoint-auth-post",
]


@in_check
@pytest.mark.parametrize("scenario", AUTHORISATION)
def test_an_authorisation_scenario_passes(scenario: str, tmp_path: Path) -> None:
    """A login as `detent mcp login` makes it, or none where this program is the client; then the tools are called."""
    checks = checked(f"auth/{scenario}", tmp_path, str(LOGIN))
    assert checks
    assert {name: check.get("errorMessage") or check["description"] for name, check in checks.items() if check["status"] != "SUCCESS"} == {}


@in_check
def test_every_authorisation_scenario_of_the_suite_is_tried() -> None:
    """A newer suite has more of them."""
    listed = subprocess.run([SUITE, "list"], capture_output=True, text=True, timeout=60, env={**os.environ, "NODE_OPTIONS": NODE_OPTIONS})
    found = {line.split()[1].removeprefix("auth/") for line in listed.stdout.splitlines() if line.startswith("  - auth/")}
    assert found == set(AUTHORISATION)


@in_check
def test_a_question_to_the_user_is_answered_with_its_defaults_where_that_is_allowed(tmp_path: Path) -> None:
    """The scenario wants every form accepted with the defaults that its schema declares."""
    checks = checked("elicitation-sep1034-client-defaults", tmp_path, f"{CLIENT} defaults")
    assert checks
    assert {name: check.get("errorMessage") for name, check in checks.items() if check["status"] != "SUCCESS"} == {}


STRING = {"type": "string", "default": "x"}


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ({"properties": {"a": STRING, "b": {"type": "integer"}}, "required": ["a"]}, {"a": "x"}),
        ({"properties": {"a": STRING, "b": {"type": "integer"}}, "required": ["b"]}, None),
        ({"properties": {"a": {"type": "integer", "default": "x"}}}, None),
        ({"properties": {"a": {"type": "string", "enum": ["y"], "default": "x"}}}, None),
        ({"properties": {"a": {"type": "string", "format": "email", "default": "nobody"}}}, None),
        ({"properties": {"a": {"type": "object", "default": {"b": 1}}}}, None),
        ({"properties": {"ok": {"type": "boolean"}}}, None),
        ({"properties": {}}, None),
        ({"properties": {"a": {**STRING, "$ref": "https://example.com/"}}}, None),
        ({"properties": [1]}, None),
        ({"properties": {"a": {**STRING, "type": 7}}}, None),
        ({"properties": {"a": STRING}, "$schema": "https://json-schema.org/draft/2020-12/schema"}, {"a": "x"}),
        ({"properties": {"a": {"type": "array", "items": {"enum": ["x", "y"]}, "default": ["x"]}}}, {"a": ["x"]}),
        ({"properties": {"a": {**STRING, "format": "date-time"}}}, None),
        ({"properties": {"a": {**STRING, "format": "date-time", "default": "2026-01-02T03:04:05Z"}}}, {"a": "2026-01-02T03:04:05Z"}),
        ({"properties": {"a": {**STRING, "format": "uri"}}}, None),
        ({"properties": {"a": {**STRING, "format": "uri", "default": "https://a.example/b"}}}, {"a": "https://a.example/b"}),
        ({"properties": {"a": {**STRING, "pattern": "^(a+)+$"}}}, None),
    ],
)
def test_only_defaults_that_are_a_whole_answer_are_given(schema: Any, content: Any) -> None:
    """A required field without one, one that does not fit, nothing declared at all, and schemas that are none: declined."""
    assert defaults_of({"type": "object", **schema}) == content


OPTIONS = {"anyOf": [*({"const": n} for n in range(800)), {}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "uniqueItems": True, "default": [{"a": n} for n in range(1000)]}}},
        {"properties": {"a": {"type": "array", "items": OPTIONS, "default": ["x"] * 800}}},
        {"properties": {"a": STRING}, "propertyNames": {"allOf": [{"minLength": 1}] * 10}},
        {"properties": {f"p{n}": STRING for n in range(1000)}},
    ],
    ids=["objects", "choices", "names", "long"],
)
def test_a_form_that_takes_long_to_check_is_declined_unchecked(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is checked nothing else happens, no cancellation either, and a server may ask hundreds of times."""
    monkeypatch.setattr(elicitation, "_fits", lambda *_: pytest.fail("it was checked"))
    monkeypatch.setattr(elicitation.types, "ElicitResult", lambda **_: pytest.fail("it was accepted"))
    assert defaults_of({"type": "object", **schema}) is None


def test_a_url_is_never_accepted() -> None:
    """Nobody is there who could go to it."""
    asked = types.ElicitRequestURLParams(message="log in", url="https://example.com/", elicitation_id="1")
    assert asyncio.run(give_defaults(None, asked)).action == "decline"  # type: ignore[arg-type]


@in_check
def test_a_question_to_the_user_is_declined(tmp_path: Path) -> None:
    """This scenario wants every question accepted with its defaults; where nothing is said all are declined, and nothing else fails."""
    checks = checked("elicitation-sep1034-client-defaults", tmp_path)
    assert checks["client-elicitation-sep1034-general"]["errorMessage"] == "Expected action 'accept', got 'decline'"
