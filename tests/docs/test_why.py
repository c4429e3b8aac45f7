"""The pages for people who decide, and for people who are stuck: every code has its row, and every claim its date."""

from __future__ import annotations

import ast
import re

import pytest

from docs.pages import DOCS, ROOT, generated, rows
from source_code import modules, of_type

TROUBLE = DOCS / "why" / "troubleshooting.md"
ERRORS = DOCS / "reference" / "errors.md"


def tables(page: str) -> dict[str, list[str]]:
    """Return the codes in the first cells of the tables below each heading of a page."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    listed = {head: [row[0] for row in rows(body[body.find("\n|") :])] for head, body in zip(parts[1::2], parts[2::2], strict=True)}
    return {head: [code for cell in cells for code in re.findall(r"`(\w+)`", cell)] for head, cells in listed.items()}


FOUND = tables(TROUBLE.read_text(encoding="utf-8"))
OF_ERRORS = (
    "Before the run starts",
    "Somebody else is there",
    "The store",
    "Your code and the log disagree",
    "What tools and planners raise",
)


def codes(kind: str) -> list[str]:
    """Return the codes that the reference has: of errors, of ends, of calls."""
    if kind == "errors":
        return [row[1].strip("`") for row in rows(generated(ERRORS, "errors"))]
    if kind == "ends":
        return [row[0].strip("`") for row in rows(generated(ERRORS, "reasons"))]
    return [row[0].strip("`") for row in rows(ERRORS.read_text(encoding="utf-8").split("## How a call fails")[1])]


@pytest.mark.parametrize(
    ("kind", "heads"),
    [("errors", OF_ERRORS), ("ends", ("How a run ended",)), ("calls", ("Why a call failed",))],
    ids=lambda value: str(value)[:6],
)
def test_every_code_has_a_row_in_troubleshooting(kind: str, heads: tuple[str, ...]) -> None:
    """Who searches the page for a code finds it once, with its cause and what to do; no row is about a code that does not exist."""
    assert sorted(code for head in heads for code in FOUND[head]) == sorted(codes(kind))


def test_every_reason_code_has_a_row_in_troubleshooting() -> None:
    """`not_allowed_now` says which case it is by a reason code: each that the source gives is explained."""
    given = {
        keyword.value.value
        for path in modules()
        if "reason_code" in path.read_text(encoding="utf-8")
        for keyword in of_type(path, ast.keyword)
        if keyword.arg == "reason_code" and isinstance(keyword.value, ast.Constant) and keyword.value.value
    }
    assert sorted(FOUND["Not allowed now"]) == sorted(given)


def test_every_row_of_troubleshooting_says_what_to_do() -> None:
    """A code without advice is what the reference has already."""
    text = TROUBLE.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if re.search(r"\|\s*\|", line)] == []


def test_the_comparison_names_versions_and_when_it_was_measured() -> None:
    """A figure without date and version is a rumour."""
    text = (DOCS / "why" / "comparison.md").read_text(encoding="utf-8")
    assert re.search(r"measured in \w+ 20\d\d", text)
    for name in ("Temporal", "Restate", "DBOS", "LangGraph", "Pydantic AI", "OpenAI Agents"):
        assert re.search(rf"^\| {name} \| [^|]*\d+\.\d+\.\d+", text, re.MULTILINE), name
        assert f"## From {name}" in (DOCS / "why" / "moving-over.md").read_text(encoding="utf-8")
    assert (ROOT / "benchmarks" / "overhead.py").exists()
