"""Reading the documentation: which pages there are, and the fenced blocks and links in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (?P<name>[\w./-]+\.(?:py|toml|yaml|md|txt))\n")


class Block(NamedTuple):
    """A fenced block: its language, the words after it, its text, and the line of the page on which the text begins."""

    language: str
    options: dict[str, str]
    text: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block is, where its first line is a comment with nothing but a file name; else ""."""
        named = _NAMED.match(self.text)
        return named["name"] if named else ""


class Command(NamedTuple):
    """A command of a `console` block, what is shown below it, and the exit code that it must have."""

    line: str
    shown: list[str]
    code: int


def pages() -> list[Path]:
    """Return README and every page of `docs`, sorted."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return the path of a page as people name it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        options = {name: value for name, _, value in (word.partition("=") for word in words)}
        found.append(Block(language, options, match["text"], text.count("\n", 0, match.start("text")) + 1))
    return found


def commands(block: Block) -> list[Command]:
    r"""Return the commands of a `console` block: lines after `$ `, where `\` at the end goes on; `exit=N` is the code of the last one."""
    found: list[Command] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            assert found, f"a console block begins with a command, not with {line!r}"
            found[-1].shown.append(line)
            continue
        command = line[2:]
        while command.endswith("\\"):
            command = command[:-1] + next(lines).strip()
        found.append(Command(command, [], 0))
    if "exit" in block.options:
        found[-1] = found[-1]._replace(code=int(block.options["exit"]))
    return found


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def generated(page: Path, name: str) -> str:
    """Return the generated part of a page that is called `name`, without its markers."""
    text = page.read_text(encoding="utf-8")
    match = re.search(rf"<!-- generated: {re.escape(name)} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert match is not None, f"{name_of(page)} has no generated part {name!r}"
    return match[1]


def rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page give, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
