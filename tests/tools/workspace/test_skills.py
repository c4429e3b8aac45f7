"""Skills and result files: ordinary tools that read a SKILL.md folder, and write a stored result to a file as it is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import ConfigError, ToolFailed
from detent.testing import ScriptedPlanner
from detent.tools.workspace.result_files import rendered
from detent.tools.workspace.skills import read_skill, skill_tool, skills_in
from detent.tools.workspace.tools import workspace_tools

ROWS = [{"n": n, "text": f"row {n}"} for n in range(300)]


@tool(side_effect="read", max_result_bytes=1000)
async def rows() -> list[dict[str, Any]]:
    """Give rows."""
    return ROWS


def skill(root: Path, name: str = "refund-letters", *, front: str | None = None, body: str = "Write politely.") -> Path:
    """Write a skill's folder and return it."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    front = f"name: {name}\ndescription: How refund letters are written." if front is None else front
    (folder / "SKILL.md").write_text(f"---\n{front}\n---\n\n{body}\n", encoding="utf-8")
    return folder


def ran(tools: list[Any], *calls: ToolCall, **options: Any) -> Any:
    """Make calls, one a turn; return the observations, and check that the log replays."""

    async def main() -> Any:
        async with Engine(planner=ScriptedPlanner([*calls, FinalAnswer(content="done")]), approver="caller", **options) as engine:
            result = await engine.run(Agent(name="a", tools=tools), "go")
            assert (await engine.replay(result.run_id)).identical
            return result.tool_calls

    return asyncio.run(main())


def test_a_skill_is_listed_by_description_and_read_on_demand(tmp_path: Path) -> None:
    """Instructions and files come with the call; a file of it with another."""
    folder = skill(tmp_path)
    (folder / "examples").mkdir()
    (folder / "examples" / "one.md").write_text("Dear Ms Ito", encoding="utf-8")
    made = skill_tool(tmp_path)
    assert "refund-letters: How refund letters are written." in made.spec.description and "politely" not in made.spec.description
    assert (made.spec.side_effect, made.spec.trust) == ("read", "trusted")  # it is the operator who put the skill there
    first, second = ran(
        [made],
        ToolCall(tool="activate_skill", args={"name": "refund-letters"}),
        ToolCall(tool="activate_skill", args={"name": "refund-letters", "file": "examples/one.md"}),
    )
    assert first.content == {"name": "refund-letters", "instructions": "Write politely.", "files": ["examples/one.md"]}
    assert second.content["content"] == "Dear Ms Ito"


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    """Not by a path, not by a link."""
    folder = skill(tmp_path)
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    made = skill_tool(folder)
    paths = ("../secret.txt", "link.txt", str(tmp_path / "secret.txt"), "missing.txt")
    found = ran([made], *(ToolCall(tool="activate_skill", args={"name": "refund-letters", "file": path}) for path in paths))
    assert all(not item.ok for item in found) and "secret" not in json.dumps([item.content for item in found])
    assert read_skill(folder).files() == []


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("name: Other\ndescription: x", "name"),
        ("name: other\ndescription: x", "not the name of its folder"),
        ("name: refund-letters", "description"),
        ("name: [", "YAML"),
        ("- a", "not a table"),
    ],
)
def test_a_skill_that_is_not_right_names_its_file(tmp_path: Path, front: str, said: str) -> None:
    """Before any run."""
    with pytest.raises(ConfigError, match=said) as caught:
        skills_in(skill(tmp_path, front=front))
    assert "SKILL.md" in str(caught.value)


def test_a_place_without_skills_is_refused(tmp_path: Path) -> None:
    """So is a file without front matter, and a name that exists twice."""
    with pytest.raises(ConfigError, match="no skill"):
        skill_tool(tmp_path)
    (skill(tmp_path) / "SKILL.md").write_text("hello", encoding="utf-8")
    with pytest.raises(ConfigError, match="front matter"):
        skill_tool(tmp_path)
    skill(tmp_path / "a")
    skill(tmp_path / "b")
    with pytest.raises(ConfigError, match="two skills"):
        skill_tool(tmp_path / "a", tmp_path / "b")


def test_a_result_goes_to_a_file_whole(tmp_path: Path) -> None:
    """Also where the model saw only a preview; the receipt counts it as produced."""
    tools = [rows, *(t for t in workspace_tools(tmp_path, sandbox_mode="off") if t.name == "write_result_to_file")]
    found = ran(
        tools,
        ToolCall(tool="rows"),
        ToolCall(tool="write_result_to_file", args={"result": "main.1.0", "path": "out/rows.json", "format": "json"}),
        ToolCall(tool="write_result_to_file", args={"result": "main.9.0", "path": "out/x"}),
        ToolCall(tool="write_result_to_file", args={"result": "main.1.0", "path": "../x"}),
    )
    assert found[0].artifact is not None and json.loads((tmp_path / "out/rows.json").read_text()) == ROWS
    assert [item.error.code if item.error else "" for item in found[1:3]] == ["", "result_not_found"] and not found[3].ok
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("a\nb", "text", "a\nb"),
        ([1, 2], "text", "[\n  1,\n  2\n]\n"),
        (["a", 1], "bullets", "- a\n- 1\n"),
        ("a\nb", "lines", "a\nb\n"),
        ([{"a": 1, "b": "x|y"}, {"a": 2}], "table", "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n| 2 |  |\n"),
        ([{"a": 1, "b": "x,y"}], "csv", 'a,b\n1,"x,y"\n'),
        ([1, 2], "csv", "value\n1\n2\n"),
    ],
)
def test_formats(value: Any, kind: Any, text: str) -> None:
    """Each is what it is called."""
    assert rendered(value, kind) == text


def test_a_list_format_needs_a_list() -> None:
    """The model is told."""
    with pytest.raises(ToolFailed, match="for lists"):
        rendered({"a": 1}, "table")
