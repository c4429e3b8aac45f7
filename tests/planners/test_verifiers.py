"""The checks of a final answer (row K126)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import ToolCall
from detent.core.errors import ConfigError
from detent.core.events import ArtifactRef
from detent.core.state import Item
from detent.planners.verifiers import (
    Verifier,
    all_verifiers,
    answer_equals_tool_result,
    answer_is_integer,
    answer_matches,
    grounded,
    require_tool_used,
    verify,
)
from detent.ports import View
from planners.raw_text.texts import turn, view

SEEN = view(
    *turn(1, ToolCall(tool="add", args={}), {"sum": 1234567.5, "parts": [3, "12,345"]}),
    *turn(2, ToolCall(tool="read_file", args={}), error="timeout"),
    Item(kind="user", text="make it 77"),
    goal="Count from 10",
    variables={"year": 2024},
)


def said(verifier: Verifier, answer: Any, seen: View = SEEN) -> str:
    return asyncio.run(verify(verifier, answer, seen))


@pytest.mark.parametrize(
    "answer",
    ["no number", "1234567.5", "1,234,567.5", "1 234 567.5", "It is 12345, from 3", "12,345", "10 to 77 in 2024", {"n": 3}, "v2 and file4"],
)
def test_numbers_that_occur_somewhere_are_grounded(answer: Any) -> None:
    """In an observation, the goal, a reply or the variables, whatever separates their thousands."""
    assert said(grounded(), answer) == ""


@pytest.mark.parametrize(("answer", "strange"), [("It is 99", "99"), ("1234567", "1234567"), (-3, "-3"), ({"n": [3, 4]}, "4")])
def test_numbers_that_occur_nowhere_are_named(answer: Any, strange: str) -> None:
    """A model that invents a figure is asked again."""
    assert strange in said(grounded(), answer)


def test_grounding_and_equality_look_at_whole_results() -> None:
    """Where the transcript shows a preview, the kept result counts."""
    preview = Item(kind="tool", tool="add", ok=True, result=msgspec.Raw(b'"1..."'), artifact=ArtifactRef(key="k", size_bytes=9))

    async def full(_: Item) -> Any:
        return "1 and 555"

    seen = msgspec.structs.replace(SEEN, results=(preview,), full=full)
    assert said(grounded(), "555", seen) == ""
    assert said(answer_equals_tool_result("add"), "1 and 555", seen) == ""


def test_tools_must_have_been_used_successfully() -> None:
    """A call that failed is none."""
    assert said(require_tool_used("add"), "x") == ""
    assert "read_file" in said(require_tool_used("add", "read_file"), "x")
    assert said(require_tool_used(), "x") == ""
    assert "any tool" in said(require_tool_used(), "x", view())


def test_an_answer_can_have_to_be_a_tools_result() -> None:
    """The last one, as value or as text."""
    value = {"sum": 1234567.5, "parts": [3, "12,345"]}
    assert said(answer_equals_tool_result("add"), value) == ""
    assert said(answer_equals_tool_result("add"), msgspec.json.encode(value).decode() + "\n") == ""
    assert "exactly" in said(answer_equals_tool_result("add"), "1234567.5")
    assert "no result" in said(answer_equals_tool_result("read_file"), "x")


@pytest.mark.parametrize(
    ("answer", "fits"),
    [(4, True), ("4", True), (" -12\n", True), ("4.0", False), (4.5, False), (True, False), ("four", False), ("4 apples", False)],
)
def test_an_answer_can_have_to_be_a_whole_number(answer: Any, fits: bool) -> None:
    """And nothing else."""
    assert (said(answer_is_integer(), answer) == "") == fits


def test_an_answer_can_have_to_match() -> None:
    """All of it; a pattern that is none is refused when the verifier is made."""
    assert said(answer_matches(r"\d{4}-\d\d"), " 2024-05 ") == ""
    assert said(answer_matches(r"\d{4}-\d\d"), "2024-05-01") != ""
    with pytest.raises(ConfigError, match="regular expression"):
        answer_matches("(")


@pytest.mark.parametrize("check", [grounded(), answer_is_integer(), answer_matches("[0-9]+")])
def test_files_that_a_model_made_beside_its_answer_are_no_part_of_its_text(check: Verifier) -> None:
    """The size of a picture is no number that the model said: an agent with this check could never make one."""
    made = {"type": "image", "media_type": "image/png", "artifact": {"key": "c2ede57740e1", "size_bytes": 38}}
    assert said(check, {"text": "77", "attachments": [made]}) == ""
    assert said(check, {"text": "99.5 pieces", "attachments": [made]}) and said(check, {"text": "77", "attachments": [38]})


def test_several_checks_say_all_that_is_wrong() -> None:
    """Plain and coroutine functions alike."""
    both = all_verifiers(answer_is_integer(), grounded(), lambda _answer, _view: "")
    assert said(both, 3) == ""
    assert said(both, "9.5").count(";") == 1
