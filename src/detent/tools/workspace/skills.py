"""`activate_skill`: folders with a SKILL.md (agentskills.io) become instructions that an agent reads when it needs them.

A skill is a folder whose SKILL.md begins with YAML front matter (`name`, `description`), followed by instructions. Other files in the folder are read
on demand, and nothing outside it. The tool's description lists the skills. Their bodies cost nothing until they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.ports.governing_files import governs
from detent.tools.failures import failed, refused_argument
from detent.tools.functions.function import Tool
from detent.tools.workspace.confine import Workspace

SKILL_FILE = "SKILL.md"
MAX_FILE_BYTES = 262_144
MAX_FILES = 200
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<front>.*?)\r?\n---[ \t]*(?:\r?\n|\Z)(?P<body>.*)\Z", re.DOTALL)


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """One skill: its name, description, instructions and folder."""

    name: str
    description: str
    body: str
    folder: str

    def files(self) -> list[str]:
        """Return the other files of the folder, as paths relative to it. Links are not followed."""
        root = Path(self.folder)
        found = sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p != root / SKILL_FILE)
        names = [p.relative_to(root).as_posix() for p in found]
        return [name for name in names if name.isprintable()][:MAX_FILES]


def read_skill(folder: str | Path) -> Skill:
    """Return the skill in a folder. Raise `ConfigError`, which names the file and the problem."""
    file = Path(folder) / SKILL_FILE
    governs(folder)
    try:
        if not file.resolve().is_relative_to(Path(folder).resolve()):
            raise ConfigError(f"{file} is a link to {str(file.resolve())!r}, outside of its folder; put the file itself there")
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{file} has more than {MAX_FILE_BYTES} bytes; move parts of it to files beside it")
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"failed to read skill {str(file)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"failed to read skill {str(file)!r}: byte {error.start} is not UTF-8 text") from None
    match = _FRONT.match(text)
    if match is None:
        raise ConfigError(f"{file}: there is no front matter; begin with a line ---, then name and description, then a line ---")
    said = _front(match["front"], file)
    name, description = said.get("name"), said.get("description")
    if not isinstance(name, str) or len(name) > 64 or not _NAME.fullmatch(name):
        given = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"  # a value with YAML aliases may be endless as text
        raise ConfigError(
            f"{file}: name: {given} is not a valid name; use 1 to 64 lower-case letters and digits, with single hyphens between them"
        )
    if name != Path(folder).resolve().name:
        raise ConfigError(
            f"{file}: name: {name!r} is not the name of its folder, {Path(folder).resolve().name!r}; use the same name for both"
        )
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        raise ConfigError(f"{file}: description: missing or over 1,024 characters; say what the skill does and when to use it")
    return Skill(name=name, description=" ".join(description.split()), body=match["body"].strip(), folder=str(Path(folder).resolve()))


def _front(text: str, file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        said: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two: invalid dates and numbers, endless nesting
        raise ConfigError(f"{file}: the front matter is not YAML: {error}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{file}: the front matter is not a table; write name and description")
    return said  # pyright: ignore[reportUnknownVariableType]


def skills_in(*places: str | Path) -> dict[str, Skill]:
    """Return the skills of these folders by name. A place is a skill's folder, or a folder of skills. Raise `ConfigError`."""
    found: dict[str, Skill] = {}
    for place in map(Path, places):
        governs(place)
        folders = [place] if (place / SKILL_FILE).is_file() else sorted(p.parent for p in place.glob(f"*/{SKILL_FILE}"))
        if not folders:
            raise ConfigError(f"there is no skill in {str(place)!r}: it has no {SKILL_FILE}, nor does any folder in it")
        for folder in folders:
            skill = read_skill(folder)
            if skill.name in found and found[skill.name].folder != skill.folder:
                raise ConfigError(f"two skills are named {skill.name!r}: {found[skill.name].folder} and {skill.folder}")
            found[skill.name] = skill
    return found


def skill_tool(*places: str | Path) -> Tool[..., Any]:
    """Return the tool `activate_skill` for the skills in these folders. Raise `ConfigError`."""
    skills = skills_in(*places)
    listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills.values())
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": list(skills), "description": "Which skill."},
            "file": {"type": "string", "description": "One of the skill's files, instead of its instructions."},
        },
        "required": ["name"],
        "additionalProperties": False,
    }

    def activate(args: dict[str, Any]) -> dict[str, Any]:
        skill = skills[args["name"]]
        if args.get("file"):
            return {"name": skill.name, "file": args["file"], "content": _content(skill, args["file"])}
        return {"name": skill.name, "instructions": skill.body, "files": skill.files()}

    return Tool.from_schema(
        name="activate_skill",
        description=f"Read the instructions of a skill before you do what it is for.\n{listed}",
        input_schema=schema,
        execute=activate,
        side_effect="read",
        trust="trusted",
        max_result_bytes=2 * MAX_FILE_BYTES,
    )


def _content(skill: Skill, path: str) -> str:
    """Return the text of one of the skill's files. Raise `ToolFailed` if it is outside, missing, too long or not text."""
    with Workspace(Path(skill.folder)).reading(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise failed("too_large", f"{path} has more than {MAX_FILE_BYTES} bytes", path=path)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise refused_argument(f"{path} is not text; a program can use it by its path in {skill.folder}") from None
