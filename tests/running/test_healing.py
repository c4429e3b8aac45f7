"""Healing: a call is repaired before it is checked, each repair on record, and never into something that was not meant."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Agent, ToolCall, tool
from detent.core import events as e
from detent.ports import ToolSpec
from detent.running.healing import distance, mended
from kernel.runs import END, Decide, call, ran


@tool(side_effect="read")
async def search_notes(query: str, limit: int = 3, tags: list[str] | None = None, exact: bool = False) -> dict[str, Any]:
    """Search."""
    return {"query": query, "limit": limit, "tags": tags, "exact": exact}


@tool(side_effect="write")
async def write_note(path: str, content: str) -> str:
    """Write."""
    return f"{path}: {content}"


@tool(side_effect="destructive")
async def delete_note(path: str) -> str:
    """Delete."""
    return path


@tool(side_effect="write", sensitive=["password"])
async def log_in(user: str, password: str) -> str:
    """Log in."""
    return user


TOOLS = {t.name: t.spec for t in (search_notes, write_note, delete_note, log_in)}


@pytest.mark.parametrize(
    ("said", "args", "tool", "healed", "repairs"),
    [
        ("Search-Notes", {"query": "a"}, "search_notes", {"query": "a"}, ["name"]),
        ("functions.search_notes", {"query": "a"}, "search_notes", {"query": "a"}, ["name"]),
        ("serach_notes", {"query": "a"}, "search_notes", {"query": "a"}, ["name"]),
        ("search_notes", {"input": {"query": "a"}}, "search_notes", {"query": "a"}, ["wrapper"]),
        ("search_notes", {"arguments": '{"query": "a"}'}, "search_notes", {"query": "a"}, ["wrapper"]),
        ("search_notes", '```json\n{"query": "a"}\n```', "search_notes", {"query": "a"}, ["wrapper"]),
        ("search_notes", '"{\\"query\\": \\"a\\"}"', "search_notes", {"query": "a"}, ["wrapper"]),
        ("search_notes", {"Query": "a", "limits": 2}, "search_notes", {"query": "a", "limit": 2}, ["parameter", "parameter"]),
        ("write_note", {"path": "a", "body": "b"}, "write_note", {"path": "a", "content": "b"}, ["remap"]),
        ("write_note", {"path": "/work/a.md", "content": "b"}, "write_note", {"path": "a.md", "content": "b"}, ["path"]),
        ("write_note", {"path": "/work/", "content": "b"}, "write_note", {"path": ".", "content": "b"}, ["path"]),
        ("write_note", {"path": "/work", "content": "b"}, "write_note", {"path": ".", "content": "b"}, ["path"]),
        ("search_notes", {"query": 7, "limit": "5"}, "search_notes", {"query": "7", "limit": 5}, ["type", "type"]),
        ("search_notes", {"query": "a", "tags": '["x"]'}, "search_notes", {"query": "a", "tags": ["x"]}, ["type"]),
        ("search_notes", {"query": "a", "exact": "True"}, "search_notes", {"query": "a", "exact": True}, ["type"]),
        (
            "searchNotes",
            {"params": {"Query": "a", "limit": "2"}},
            "search_notes",
            {"query": "a", "limit": 2},
            ["name", "wrapper", "parameter", "type"],
        ),
    ],
)
def test_what_was_meant_is_clear(said: str, args: Any, tool: str, healed: Any, repairs: list[str]) -> None:
    """Name, wrapper, parameter, remap, path, type, in this order."""
    found = mended(said, args, TOOLS, root="/work")
    assert (found.tool, found.args, [r.partition(":")[0] for r in found.repairs]) == (tool, healed, repairs)
    assert mended(found.tool, found.args, TOOLS, root="/work").repairs == ()  # nothing is left to repair


@pytest.mark.parametrize(
    ("said", "args"),
    [
        ("delete_notes", {"path": "a"}),  # a slip, but of a tool that destroys
        ("wrote_note", {"path": "a", "content": "b"}),  # or writes
        ("find_notes", {"query": "a"}),  # another word
        ("undelete_note", {"path": "a"}),
        ("search_notes", {"qury": "a", "querys": "b"}),  # two things it can have meant
        ("search_notes", {"query": "a", "limit": "five"}),
        ("write_note", {"path": "a", "body": 3}),  # another type
        ("write_note", {"path": "/etc/passwd", "content": "b"}),  # outside stays outside
        ("write_note", {"path": "/work/../etc/x", "content": "b"}),
        ("log_in", {"user": "a", "pasword": "b"}),  # its values are hidden by name
        ("search_notes", {"query": ["a"]}),  # a list, and yes, say nothing in words
        ("search_notes", {"query": True}),
        ("search_notes", "not json"),
        ("search_notes", [1]),
        ("search_notes", {"query": "a"}),
    ],
)
def test_what_is_not_clear_stays_as_it_is(said: str, args: Any) -> None:
    """It is then refused with its own error, or runs as it was asked for."""
    found = mended(said, args, TOOLS, root="/work")
    assert (found.tool, found.args, found.repairs) == (said, args, ())


@pytest.mark.parametrize(
    ("schema", "said", "meant"),
    [
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Amount"}]}, "5", "5"),
        ({"type": "integer"}, "null", "null"),
        ({"type": "boolean"}, 1, 1),
        ({"type": "number"}, "many", "many"),
        ({}, "5", "5"),
    ],
)
def test_a_value_is_brought_into_a_type_that_is_said_plainly(schema: dict[str, Any], said: Any, meant: Any) -> None:
    """A union with a part that is not said here may take it as it is."""
    spec = ToolSpec(name="pay", side_effect="write", input_schema={"type": "object", "properties": {"sum": schema}})
    assert mended("pay", {"sum": said}, {"pay": spec}).args == {"sum": meant}


@pytest.mark.parametrize(
    ("said", "meant"),
    [("get_usser", "get_user"), ("saerhc_notes", "search_notes"), ("search_nteso", ""), ("gets_user", ""), ("get_user_notes", "")],
)
def test_a_slip_is_one_letter_in_a_word_and_two_in_a_long_one(said: str, meant: str) -> None:
    """Short words must be as they are, and none may be missing or too many."""
    tools = {name: ToolSpec(name=name, side_effect="read") for name in ("get_user", "search_notes")}
    assert mended(said, {}, tools).tool == (meant or said)


def test_a_parameter_that_is_called_like_a_wrapper_is_none() -> None:
    """The tool says that it has it."""
    spec = ToolSpec(name="start", side_effect="read", input_schema={"type": "object", "properties": {"args": {"type": "object"}}})
    assert mended("start", {"args": {"n": 1}}, {"start": spec}).args == {"args": {"n": 1}}


def test_two_tools_that_fit_are_none() -> None:
    """Nothing is guessed."""
    twins = {name: ToolSpec(name=name, side_effect="read") for name in ("get_user", "getUser")}
    assert mended("get-user", {}, twins).repairs == ()


def test_a_run_heals_and_records_each_repair() -> None:
    """The call runs under the name and arguments that were meant; the log says what was repaired, and replays."""
    script = [ToolCall(tool="Search_Notes", args={"input": {"qeury": "a", "limit": "2"}}), END]
    done = ran(script, search_notes, agent={"healing": True})
    assert done.items[0].content == {"query": "a", "limit": 2, "tags": None, "exact": False}
    (healed,) = done.all(e.CallHealed)
    assert [r.partition(":")[0] for r in healed.repairs] == ["name", "wrapper", "parameter", "type"] and healed.tool == "search_notes"


def test_paths_are_healed_below_the_workspace_of_the_agent() -> None:
    """Which its specification names."""
    agent = {"healing": True, "meta": {"workspace": "/srv/desk"}}
    done = ran([call("write_note", path="/srv/desk/a.md", content="b"), END], write_note, agent=agent)
    assert done.items[0].content == "a.md: b" and len(done.all(e.CallHealed)) == 1


def test_the_policy_decides_about_what_was_healed() -> None:
    """Not about what was said."""
    seen: list[Any] = []

    def decide(asked: Any) -> str:
        seen.append((asked.tool.name, asked.args))
        return "deny"

    ran([ToolCall(tool="Delete-Note", args={"args": {"path": "a"}}), END], delete_note, agent={"healing": True}, policy=Decide(decide))
    assert seen[0] == ("delete_note", {"path": "a"})


def test_each_call_of_a_batch_is_healed() -> None:
    """Single calls and batches alike."""
    batch = (ToolCall(tool="searchNotes", args={"query": "a"}), ToolCall(tool="search-notes", args={"query": "b"}))
    done = ran([batch, END], search_notes, agent={"healing": True})
    assert done.codes == ["", ""] and len(done.all(e.CallHealed)) == 2


def test_without_healing_a_wrong_call_is_a_failed_observation() -> None:
    """Off for scripts and rules unless asked for; on for agents with a model; either can be said."""
    assert ran([call("Search_Notes", query="a"), END], search_notes).codes == ["tool_not_found"]
    scripted, asked = Agent(name="a"), Agent(name="a", model="test:m")
    assert (scripted.spec().healing, asked.spec().healing) == (False, True)
    assert Agent(name="a", model="test:m", healing=False).spec().healing is False


@pytest.mark.parametrize(
    ("one", "other", "far"), [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "abxc", 1), ("kitten", "sitting", 3)]
)
def test_distance_counts_slips(one: str, other: str, far: int) -> None:
    """A swap of neighbours is one."""
    assert distance(one, other) == distance(other, one) == far
