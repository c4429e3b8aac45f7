"""Servers whose answers and schemas are meant to hang who reads them, or to carry a secret out: nothing hangs, nothing gets out."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.types import jsonrpc_message_adapter

from detent.expressions.patterns import is_quick
from detent.tools.mcp.transport import UNREADABLE_ANSWER, WatchedStream, Wire
from tools.mcp.desks import TOKEN, call, effects, ran, rude


def test_an_answer_that_cannot_be_read_fails_its_call_at_once(tmp_path: Path) -> None:
    """Half a surrogate pair is no JSON to most readers: the line is lost, but not the call that waits for it."""
    result = ran(rude(tmp_path, "odd"), call("mumble"), call("echo", text="still there"))
    lost, after = result.tool_calls
    assert lost.error is not None and "no answer that can be read" in lost.error.message
    assert after.content == "still there" and result.status == "completed"


class Sent:
    """A stream on which one line came, as the SDK hands it on."""

    def __init__(self, line: str) -> None:
        self.line = line

    async def receive(self) -> Any:
        """Return what became of the line."""
        try:
            return jsonrpc_message_adapter.validate_json(self.line, by_name=False)
        except ValueError as error:
            return error


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ('{"jsonrpc": "2.0", "id": 5, "result": "\\ud83d"}', 5),
        ('{"jsonrpc": "2.0", "id": 5, "result": "no object"}', 5),
        ('{"id": 5, "result": {}}', 5),
        ('{"jsonrpc": "2.0", "id": 5, "result": {"deep": ' + "[" * 5_000, 5),
        ('{"jsonrpc": "2.0", "id": 5, "method": "roots/list", "params": "\\ud83d"}', None),
        ('{"id": 5, "method": "roots/list"}', None),
        ('{"id": true, "result": {}}', None),
        ('{"id": "5", "result": {}}', None),
        ("Welcome!", None),
    ],
)
def test_a_line_that_is_no_message_ends_the_call_that_it_answers_and_no_other(line: str, number: int | None) -> None:
    """Only an answer has an id of ours: what asks, and what has another id, ends nothing. Each is counted as garbage."""
    wire = Wire(lambda: None, asyncio.Event())
    item = asyncio.run(WatchedStream(Sent(line), wire).receive())
    assert wire.garbage == 1
    if number is None:
        assert isinstance(item, ValueError)
    else:
        assert (item.message.id, item.message.error.message) == (number, UNREADABLE_ANSWER)


def test_a_writing_call_whose_answer_cannot_be_read_is_in_doubt(tmp_path: Path) -> None:
    """It may have been carried out."""
    result = ran(rude(tmp_path, "odd"), call("mumble_writing"))
    assert result.status == "waiting_for_reconciliation"


@pytest.mark.timeout(60)
def test_a_pattern_that_would_never_end_is_not_matched_here(tmp_path: Path) -> None:
    """Neither against what a model sends nor against what the server itself returns: nothing could interrupt the match."""
    server = rude(tmp_path, "odd")
    result = ran(server, call("slow", s="a" * 60 + "!", pattern="x"), call("slow", s=5), call("slow", s="a" * 60), call("slow_result"))
    *wrong, sent, got = result.tool_calls
    assert sent.ok and got.error is not None and got.error.code == "output_schema_failed"
    assert [item.error.code for item in wrong if item.error is not None] == ["schema_validation_failed"] * 2
    assert effects(tmp_path) == []


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        ("^[a-z][a-z0-9_-]*$", True),
        (r"^\d{4}-\d{2}-\d{2}$", True),
        ("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", True),
        ("^(red|green|blue)$", True),
        (r"\Av\d+(\.\d)?$", True),
        ("needle", True),
        ("^(a+)+$", True),
        ("^(a|a)*$", True),
        ("^(a{1,30}){1,30}$", False),
        ("^a*a*a*a*$", True),
        ("a*$", True),
        ("^(?=a*$)a*$", False),
        (r"^(a*)\1$", False),
        ("^" + "a?" * 40 + "a" * 40 + "$", True),
        ("^" + "(a|a)" * 40 + "$", True),
        ("^(", False),
        ("", True),
        (r"[\pL]{300}", False),
    ],
)
def test_a_pattern_is_kept_only_where_it_cannot_take_long(pattern: str, *, quick: bool) -> None:
    """What RE2 cannot match, or only with a large program, is dropped and checked by the server alone."""
    assert is_quick(pattern) is quick


def test_a_secret_hides_in_no_field_name_and_in_no_encoded_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of resources are encoded as data only after the secret was taken out of them."""
    monkeypatch.setenv("TOKEN_OF_IT", TOKEN)
    resource = {"type": "resource", "resource": {"uri": "file:///note", "text": f"the token is {TOKEN}"}}
    told: dict[str, Any] = {"content": [resource], "structuredContent": {TOKEN: {"deep": [{TOKEN: 1}]}}}
    result = ran(rude(tmp_path, env={"TOKEN": "${TOKEN_OF_IT}"}), call("show", result=told))
    content = result.tool_calls[0].content
    assert content["structured"] == {"***": {"deep": [{"***": 1}]}}
    assert base64.b64decode(content["attachments"][0]["data"]) == b"the token is ***"
    assert TOKEN not in json.dumps(content)
