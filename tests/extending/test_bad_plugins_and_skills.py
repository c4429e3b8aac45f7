"""Plug-ins that break while they are imported or are not what they say, and folders of skills that nobody should trust."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Engine, ToolCall
from detent.config.assembly import store_at
from detent.core.errors import ConfigError
from detent.testing import ScriptedPlanner
from detent.tools.workspace import skills
from detent.tools.workspace.skills import read_skill, skill_tool, skills_in
from kernel.runs import END, ran

pytestmark = thinned

POINTS = """
[detent.strategies]
leaves = bad_leaves:thing
breaks = bad_breaks:thing
gone = bad_things:gone
number = bad_things:number
[detent.kernels]
number = bad_things:number
[detent.guards]
number = bad_things:number
[detent.tools]
number = bad_things:number
[detent.stores]
number = bad_things:number
"""


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package of plug-ins of which none is any good."""
    (tmp_path / "bad_leaves.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    (tmp_path / "bad_breaks.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "bad_things.py").write_text("number = 5\n", encoding="utf-8")
    info = tmp_path / "bad_plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-plug\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("bad_leaves", "bad_breaks", "bad_things"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strategy": "leaves"}, "'leaves' of package 'bad-plug' cannot be loaded: SystemExit: 3"),
        ({"strategy": "breaks"}, "cannot be loaded: ZeroDivisionError"),
        ({"strategy": "gone"}, "cannot be loaded: AttributeError"),
        ({"strategy": "number"}, "'number' of package 'bad-plug' is an int; expected"),
        ({"kernel": "number"}, "is an int and has no phases"),
        ({"guards": ["number"]}, "is an int; expected"),
        ({"tools": ["number"]}, "5 is not a tool"),
    ],
)
def test_a_plug_in_that_is_no_good_is_named_before_anything_is_recorded(plug: None, fields: dict[str, Any], said: str) -> None:
    """The package, what is wrong with it, and no run; engines that do not ask for it are not disturbed."""
    engine = Engine(planner=ScriptedPlanner([END]))
    with pytest.raises(ConfigError, match=said):
        engine.run_sync(Agent(name="a", **fields), "go")
    assert asyncio.run(engine.list_runs()) == []
    assert engine.run_sync(Agent(name="a"), "go").output == "the end" and "number" in engine.strategies.names()


def test_a_store_of_a_plug_in_that_is_none_is_refused(plug: None) -> None:
    """By name of the package."""
    with pytest.raises(ConfigError, match="'number' of package 'bad-plug' is a int"):
        store_at("number://x")


# Skills -------------------------------------------------------------------------------------------------------------------------


def skill(place: Path, name: str, text: str = "") -> Path:
    folder = place / name
    folder.mkdir()
    (folder / "SKILL.md").write_text(text or f"---\nname: {name}\ndescription: d\n---\nbody", encoding="utf-8")
    return folder


ALIASES = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("front", "said"),
    [
        (ALIASES + "name: *i\ndescription: d", "name: a list is not a valid name"),
        ("name: odd\ndescription: " + "[" * 5000, "not YAML"),
        ("name: odd\ndescription: d\nsince: 2001-99-99", "not YAML: month must be in 1..12"),
        ("name: odd\ndescription: d\nsize: " + "9" * 5000, "not YAML"),
        ("name: odd\ndescription: !!python/object/apply:os.system ['id']", "not YAML"),
        ("name: odd\ndescription: {}", "description: missing"),
    ],
)
def test_front_matter_that_would_hang_or_break_a_reader_is_refused(tmp_path: Path, front: str, said: str) -> None:
    """Aliases of aliases, nesting without end, dates and numbers that are none."""
    with pytest.raises(ConfigError, match=said):
        read_skill(skill(tmp_path, "odd", f"---\n{front}\n---\nbody"))


def test_a_skill_is_not_read_from_outside_its_folder_nor_without_end(tmp_path: Path) -> None:
    """SKILL.md is a file of at most 262,144 bytes in the folder itself."""
    outside = tmp_path / "secret.md"
    outside.write_text("---\nname: linked\ndescription: d\n---\nsecret", encoding="utf-8")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "SKILL.md").symlink_to(outside)
    with pytest.raises(ConfigError, match=r"is a link to .* outside of its folder"):
        read_skill(tmp_path / "linked")
    with pytest.raises(ConfigError, match="more than 262144 bytes"):
        read_skill(skill(tmp_path, "long", "---\nname: long\ndescription: d\n---\n" + "x" * 300_000))


def test_files_of_a_skill_are_read_in_its_folder_as_text_and_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, pipes, names that are no text and paths that lead out are neither listed nor read."""
    monkeypatch.setattr(skills, "MAX_FILES", 3)
    folder = skill(tmp_path, "good")
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "big").write_bytes(b"x" * 300_000)
    (folder / "0link").symlink_to("/etc/passwd")
    (folder / "0dir").symlink_to("/etc")
    os.mkfifo(folder / "0pipe")
    (Path(os.fsdecode(os.fsencode(folder) + b"/0\xff"))).write_text("odd", encoding="utf-8")

    def read(**args: Any) -> Any:
        (item,) = ran([ToolCall(tool="activate_skill", args={"name": "good", **args}), END], skill_tool(folder)).items
        return item.error.code if item.error else item.content

    assert read() == {"name": "good", "instructions": "body", "files": ["a.txt", "b.txt", "big"]}
    assert read(file="d.txt")["content"] == "d.txt"
    codes = {path: read(file=path) for path in ("../x", "/etc/passwd", "0link", "0dir/passwd", "0pipe", "big", ".", "a\0")}
    assert codes == {
        "../x": "outside_workspace",
        "/etc/passwd": "outside_workspace",
        "0link": "outside_workspace",
        "0dir/passwd": "outside_workspace",
        "0pipe": "not_a_regular_file",
        "big": "too_large",
        ".": "is_a_directory",
        "a\0": "invalid_path",
    }


def test_two_skills_of_one_name_are_refused_and_one_given_twice_is_one(tmp_path: Path) -> None:
    """Which one was meant nobody can say."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = skill(tmp_path / "one", "same"), skill(tmp_path / "two", "same")
    assert list(skills_in(first, tmp_path / "one")) == ["same"]
    with pytest.raises(ConfigError, match="two skills are named 'same'"):
        skills_in(first, second)
