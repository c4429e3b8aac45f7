"""The workspace tools as an agent gets them: declared effects, schemas, and calls through `check` and `run`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from detent.core.agent import Host
from detent.core.errors import InvalidArguments
from detent.ports import Cancellation, ToolContext, ToolOutcome
from detent.tools.workspace.tools import workspace_tools

READING = ("read_file", "stat_file", "search_in_file", "list_dir", "find_files", "glob")


def call(
    root: Path, name: str, args: dict[str, Any], *, attempt: int = 1, cancelled: Cancellation | None = None, **options: Any
) -> ToolOutcome:
    tool = {tool.spec.name: tool for tool in workspace_tools(root, **options)}[name]
    context = ToolContext(run_id="r", call_id="c", tool=tool.spec, host=Host(), idempotency_key="k", attempt=attempt, cancelled=cancelled)

    async def run() -> ToolOutcome:
        return await tool.run(tool.check(args), context)

    return asyncio.run(run())


def value(outcome: ToolOutcome) -> Any:
    assert outcome.kind == "ok", outcome
    return json.loads(outcome.result)


def test_effects_are_declared(tmp_path: Path) -> None:
    """Reading is safe beside its like; writing is `write`; exec, and a patch that may remove files, are destructive."""
    specs = {tool.spec.name: tool.spec for tool in workspace_tools(tmp_path)}
    assert set(specs) == {
        *READING,
        "write_file",
        "create_file",
        "append_file",
        "replace_in_file",
        "apply_patch",
        "exec",
        "done",
        "write_result_to_file",
    }
    for name in READING:
        assert (specs[name].side_effect, specs[name].concurrency_safe) == ("read", True)
    for name in ("write_file", "create_file", "append_file", "replace_in_file", "apply_patch"):
        assert (specs[name].side_effect, specs[name].concurrency_safe) == ("write", False)
    assert {name for name in specs if specs[name].idempotent} == {"write_file", "create_file", "write_result_to_file"}
    assert specs["exec"].side_effect == "destructive"
    assert (specs["done"].side_effect, specs["done"].ends_turn) == ("none", True)
    removing = {tool.spec.name: tool.spec for tool in workspace_tools(tmp_path, allow_delete=True)}
    assert removing["apply_patch"].side_effect == "destructive"


def test_every_argument_and_tool_is_described_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    """L29: what the schema says is what is read; a stray `expected_hash` is an error, not no protection."""
    for tool in workspace_tools(tmp_path):
        assert len(tool.spec.description) > 40
        assert tool.spec.input_schema["additionalProperties"] is False
        for name, described in tool.spec.input_schema["properties"].items():
            assert described.get("description"), (tool.spec.name, name)
            assert name != "context"
    arguments = {"path": "f", "content": "x"}
    for stray in ({"expected_hash": "0" * 64}, {"precondition": {"hash": "0" * 64}}):
        with pytest.raises(InvalidArguments, match="hash"):
            call(tmp_path, "write_file", {**arguments, **stray})
    assert list(tmp_path.iterdir()) == []


def test_a_session_of_calls_does_what_it_says(tmp_path: Path) -> None:
    """Every tool once, through its schema, with what one returns given to the next."""
    assert value(call(tmp_path, "create_file", {"path": "d/f", "content": "one\ntwo\n"}))["created"] is True
    read = value(call(tmp_path, "read_file", {"path": "d/f", "start": 2}))
    assert (read["content"], read["lines"], read["total_lines"]) == ("two\n", 1, 2)
    precondition = {
        "expected_hash": read["hash"],
        "expected_mtime_unix_ms": read["mtime_unix_ms"],
        "expected_size_bytes": read["size_bytes"],
    }
    changed = value(call(tmp_path, "replace_in_file", {"path": "d/f", "old": "two", "new": "TWO", "precondition": precondition}))
    assert changed["replacements"] == 1
    stale = call(tmp_path, "append_file", {"path": "d/f", "content": "x", "precondition": precondition})
    assert (stale.kind, stale.error_code) == ("failed", "precondition_failed")
    assert stale.details is not None
    assert stale.details["actual"]["hash"] == changed["hash"]
    assert value(call(tmp_path, "append_file", {"path": "d/f", "content": "three\n"}))["appended_bytes"] == 6
    patch = "*** Begin Patch\n*** Update File: d/f\n@@\n-one\n+ONE\n*** End Patch"
    size = {"d/f": {"expected_size_bytes": 14}}
    assert value(call(tmp_path, "apply_patch", {"patch": patch, "preconditions": size}))["updated"] == 1
    assert [m["line"] for m in value(call(tmp_path, "search_in_file", {"path": "d/f", "query": "T|O", "regex": True}))["matches"]] == [1, 2]
    assert value(call(tmp_path, "find_files", {"extensions": [], "exclude_dirs": ["x"]}))["paths"] == ["d/f"]
    assert value(call(tmp_path, "glob", {"pattern": "*/f"}))["paths"] == ["d/f"]
    assert [e["name"] for e in value(call(tmp_path, "list_dir", {"path": "d"}))["entries"]] == ["f"]
    assert value(call(tmp_path, "stat_file", {"path": "d/f"}))["size_bytes"] == 14
    assert value(call(tmp_path, "write_file", {"path": "d/f", "content": "new", "force": True}))["size_bytes"] == 3
    assert value(call(tmp_path, "exec", {"command": "cat", "args": ["f"], "cwd": "d"}))["stdout"] == "new"


def test_a_program_that_fails_is_a_result_and_one_that_cannot_start_an_error(tmp_path: Path) -> None:
    """R34, through the pipeline."""
    done = value(call(tmp_path, "exec", {"command": "sh", "args": ["-c", "exit 4"]}))
    assert (done["code"], done["success"], done["timed_out"]) == (4, False, False)
    assert value(call(tmp_path, "exec", {"command": "sleep", "args": ["600"], "timeout_s": 0.2}))["timed_out"] is True
    assert call(tmp_path, "exec", {"command": "no-such-program"}).error_code == "command_not_found"


def test_exec_ends_before_the_deadline_of_the_run(tmp_path: Path) -> None:
    """The program is killed in time to report it as timed out; with no time left it is not started. What is asked for is checked as it was said."""

    async def run(seconds: float, asked: float = 500) -> ToolOutcome:
        tool = next(tool for tool in workspace_tools(tmp_path) if tool.spec.name == "exec")
        due = asyncio.get_running_loop().time() + seconds
        context = ToolContext(run_id="r", call_id="c", tool=tool.spec, host=Host(), idempotency_key="k", deadline=due)
        return await tool.run(tool.check({"command": "sleep", "args": ["600"], "timeout_s": asked}), context)

    assert value(asyncio.run(run(0.8)))["timed_out"] is True
    assert asyncio.run(run(0.4)).kind == "not_executed"
    for seconds in (60, 700):
        refused = asyncio.run(run(seconds, asked=99_999))
        assert refused.error_code == "invalid_arguments" and "timeout_s is 99999" in refused.message


def test_a_second_attempt_never_writes_over_other_content(tmp_path: Path) -> None:
    """write_file and create_file are run again after a crash: the same content is success, other content is left alone."""
    for name in ("write_file", "create_file"):
        assert value(call(tmp_path, name, {"path": name, "content": "mine"}, attempt=2))["created"] is True
        assert value(call(tmp_path, name, {"path": name, "content": "mine"}, attempt=2))["created"] is False
        (tmp_path / name).write_text("theirs")
        again = call(tmp_path, name, {"path": name, "content": "mine"}, attempt=2)
        assert (again.kind, again.error_code) == ("failed", "changed_meanwhile")
        assert (tmp_path / name).read_text() == "theirs"


def test_a_cancelled_call_is_not_executed(tmp_path: Path) -> None:
    """The context's flag reaches the functions."""
    cancelled = Cancellation()
    cancelled.set("cancelled")
    for name, args in (("write_file", {"path": "f", "content": "x"}), ("find_files", {}), ("exec", {"command": "true"})):
        (tmp_path / "g").write_text("")
        assert call(tmp_path, name, args, cancelled=cancelled).kind == "not_executed"
    assert not (tmp_path / "f").exists()


def test_done_gives_its_answer_and_refuses_an_empty_one(tmp_path: Path) -> None:
    """R51: status and answer, text or any other JSON."""
    assert value(call(tmp_path, "done", {"answer": "the answer"})) == {"status": "done", "answer": "the answer"}
    assert value(call(tmp_path, "done", {"answer": {"n": 0}}))["answer"] == {"n": 0}
    for empty in ("", " \n", None):
        assert call(tmp_path, "done", {"answer": empty}).error_code == "invalid_arguments"


def test_a_full_page_of_text_is_shown_whole(tmp_path: Path) -> None:
    """What read_file may return is below the tool's own result cap: the model sees no preview of what was not truncated."""
    (tmp_path / "f").write_text("line of text\n" * 20_000)
    outcome = call(tmp_path, "read_file", {"path": "f"})
    assert outcome.full is None
    assert value(outcome)["truncated"] is False
