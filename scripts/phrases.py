"""Finds phrases that read like a translation, in the documentation and in every text of the source (docstrings, help, errors, log lines).

    python scripts/phrases.py                    how many there are in each file
    python scripts/phrases.py PATH...            where they are in these files or folders, and what to write instead
    python scripts/phrases.py --write            lower the counts in tests/docs/phrases_left.txt to what is there now

A test fails when a file has more of them than `tests/docs/phrases_left.txt` allows. `--write` never raises the total, so the counts can
only fall, until the file is empty. Text in backticks and identifiers are not prose, so they are not searched.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LEFT = ROOT / "tests" / "docs" / "phrases_left.txt"
TEXTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt")
FOLDERS = ("docs", "examples", "src", "deploy", ".github")
SUFFIXES = (".md", ".py", ".yaml", ".yml", ".toml", ".service", ".svg")

_RUN = r"(?:runs?|it|them|one|ones|this|that|these|those|nothing|any|all|some|answers?|signals?|names?|whatever|what)"

PHRASES: tuple[tuple[str, str], ...] = (
    # Words
    (
        rf"\b(?:take|takes|took|taken|taking) (?:(?:the|a|an|no|its|their|your|another|waiting|one) )?(?:{_RUN} )?(?:on|up)\b(?! to\b)",
        "resume, continue",
    ),
    (r"\b(?:go|goes|going|went|gone) on\b", "continue"),
    (
        r"\b(?:stand|stands|stood|standing) (?:in(?! for\b)|on|at|there|beside|below|above|with|once|twice)\b|\bon record\b",
        "is recorded, the log has",
    ),
    (r"(?<!\bthere )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|better\b|worse\b|doubt\b)[a-z]", "is not a"),
    (r"\bwhat (?:comes|came|has come|becomes|became|has become) of\b", "the result, the outcome"),
    (r"\bat hand\b", "available, pending"),
    (
        r"\bthat there (?:is|are|was|were)(?! (?:a|an|no|any|some|more|nothing|to|not|\d)\b)|\bthere (?:is|are|was) to [a-z]",
        "existing, available",
    ),
    (r"\bnobody knows\b", "may or may not have happened (in doubt)"),
    (r"\b(?:say|says|said|saying) that\b|\b(?:is|are|was|were|be|been|being) said\b", "report, print, state"),
    (r"\bfare[sd]?\b", "end worst: the worst exit code"),
    (r"\bput (?:forth|forward or back|forth or back)\b", "set forward or back"),
    (r"\b(?:the more|the like|as well)(?=\s*(?:[.;:)]|$))", "leave it out"),
    (
        r"\blook(?:s|ed|ing)? (?:whether|nothing|makes?|upgrades?)\b|\b(?:who|whoever|worker|only|\w+body) looks?\b(?! (?:like|alike)\b)",
        "read, list, check",
    ),
    (r"\b(?:which|that|it) looks? (?:for|where|through|the|a)\b(?! same\b)", "read, list, check"),
    (
        r"\bsettl(?:e|es|ed|ing) (?:(?:the|a|an|by|that|this) )?(?:runs?|questions?|approvals?|requests?|names?|bills?|costs?|orders?|budgets?|it first)\b",
        "decide, finish (settle is for a call in doubt)",
    ),
    (r"\bhand(?:s|ed|ing)? (?:(?:a|an|the|it|them|runs?|what|this|that|work) ){0,2}(?:in|over)\b", "submit, pass"),
    (
        r"\b(?:make|makes|made|making) (?:(?:a|an|the|another|no|one|its|new|your) )?(?:runs?|stores?|engines?)\b(?! (?:wait|raise|usable)\b)",
        "start, create",
    ),
    (
        r"\b(?:planner|reconcile|policy|generator)s? (?:is|are|was|were|has been|have been|be) asked\b",
        "is called",
    ),
    # Sentences
    (r"\banswerable for what\b", "runs LLM agents durably"),
    (r"\bno outcome in it\b|\bproduced again\b", "nothing that is recorded runs twice"),
    (r"\bthat no agent can lift\b", "hard limits that the agent cannot raise"),
    (r"\bwhat cannot be promised\b", "one thing nobody can promise"),
    (r"\bprogram of your own\b", "you do not need to write a planner"),
    (r"\blooking (?:makes|upgrades|runs)\b|\blooking at it makes\b", "reading commands create nothing"),
    (r"\bcosts? nothing that is known\b|\bno price is known\b", "no price for NAME: counting tokens, not cost"),
    (r"\bhow much chance\b", "sampling temperature"),
    (r"\bwhat is to be different\b", "change something, and continue from there"),
    (r"\bthat do(?:es)? not only read\b", "side effects"),
    (r"\bgo(?:es)? before (?:what|the)\b", "override"),
    (r"\bneeds none of (?:it|them)\b", "does not need it again"),
    (r"\bstays? so\b", "stays ignored"),
    (r"\bnot known as such\b", "is not recognised"),
    (r"\bprolongs? (?:none|nothing|no)\b|\bends no run\b", "neither ends nor extends a run"),
    (r"\bin the worst moment\b|\bfrom nothing to\b", "at the worst moment"),
    (r"\bcall alone waits\b", "a single call waits"),
    (r"\bwho opens a store at the same moment\b", "concurrent opens are safe"),
    (r"\bnothing internal leaves\b", "no internal markup"),
    (r"\bin vain\b", "made no progress"),
    (r"\bnothing to be had\b|\bto be had from\b", "it returns nothing"),
    (r"\bwithout a program\b", "without writing code"),
    (r"\bhow (?:it|the run|a run|things?) stands?\b", "its status"),
)
"""What reads like a translation, as patterns of lower-case text, and what to write instead."""

_COMPILED = [(re.compile(pattern), instead) for pattern, instead in PHRASES]
_ANY = re.compile(r"\b(?=[a-z])(?:" + "|".join(f"(?:{pattern})" for pattern, _ in PHRASES) + ")")
_NOT_PROSE = re.compile(r"``[^`]+``|`[^`\n]+`|\]\([^)\s]+\)|https?://\S+")


class Found(NamedTuple):
    """A phrase in a file: its line, the words around it, and what to write instead."""

    line: int
    words: str
    instead: str


def in_text(text: str, first_line: int = 1) -> list[Found]:
    """Return the phrases in a text, in order; a phrase may be broken over lines."""
    prose = _NOT_PROSE.sub(lambda code: "\0" * len(code[0]), text)
    flat = re.sub(r"\n[ \t>#|]*", lambda gap: " " + "\1" * (len(gap[0]) - 1), prose).lower()
    kept = [place for place, letter in enumerate(flat) if letter != "\1"] if "\1" in flat else range(len(flat))
    line = flat.replace("\1", "")
    found: list[Found] = []
    at = 0
    while (match := _ANY.search(line, at)) is not None:
        at = match.end()
        instead = next(instead for pattern, instead in _COMPILED if (own := pattern.match(line, match.start())) and own.end() == at)
        number = first_line + text.count("\n", 0, kept[match.start()])
        found.append(Found(number, line[max(0, match.start() - 30) : at + 20].replace("\0", "`").strip(), instead))
    return found


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a Python file with their first lines: each string that has a blank in it, an f-string as one text."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        match node:
            case ast.JoinedStr(values=values, lineno=line):
                yield line, "".join(v.value if isinstance(v, ast.Constant) and isinstance(v.value, str) else "\0" for v in values)
                todo += [v.value for v in values if isinstance(v, ast.FormattedValue)]
            case ast.Constant(value=str() as text, lineno=line):
                if " " in text:
                    yield line, text
            case _:
                todo += ast.iter_child_nodes(node)


def in_file(path: Path) -> list[Found]:
    """Return the phrases in a file: in the texts of a Python file, in all of any other."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return in_text(text)
    return sorted(found for line, said in texts_of(text) for found in in_text(said, line))


def files(*places: Path) -> list[Path]:
    """Return the files to search below `places` (default: all of them), sorted."""
    chosen = places or tuple(ROOT / name for name in (*TEXTS, *FOLDERS))
    found = {p for place in chosen for p in ([place] if place.is_file() else place.rglob("*"))}
    return sorted(p for p in found if p.suffix in (*SUFFIXES, ".txt") and p.is_file() and "__pycache__" not in p.parts)


def counts() -> dict[str, int]:
    """Return how many phrases each file has, without the files that have none."""
    every = {path.relative_to(ROOT).as_posix(): len(in_file(path)) for path in files()}
    return {name: count for name, count in every.items() if count}


def allowed() -> dict[str, int]:
    """Return how many phrases each file may still have: the smaller count, where a merge has left two lines for one file."""
    lines = [line.split(" ", 1) for line in LEFT.read_text(encoding="utf-8").splitlines()]
    return {name: int(count) for count, name in sorted(lines, key=lambda line: -int(line[0]))}


def main(arguments: list[str]) -> int:
    """Print or write what the docstring of this file says; return the exit code."""
    if arguments == ["--write"]:
        now, before = counts(), allowed()
        if sum(now.values()) > sum(before.values()):
            print(f"there are {sum(now.values())} phrases now, and there were {sum(before.values())}: rewrite the new ones first")
            return 1
        LEFT.write_text("".join(f"{count} {name}\n" for name, count in now.items()), encoding="utf-8")
        print(f"{sum(before.values())} -> {sum(now.values())}")
    elif arguments:
        for path in files(*(Path(name).resolve() for name in arguments)):
            for found in in_file(path):
                print(f"{path.relative_to(ROOT)}:{found.line}: {found.words!r} -> {found.instead}")
    else:
        now = counts()
        for name, count in now.items():
            print(f"{count:5} {name}")
        print(f"{sum(now.values()):5} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
