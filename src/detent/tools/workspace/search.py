"""search_in_file: finds the lines of a file that contain a text or match a regular expression, reading line by line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from detent.tools.failures import failed, refused_argument, shown, stop_if, translating
from detent.tools.workspace import linesearch
from detent.tools.workspace.confine import Workspace

if TYPE_CHECKING:
    from detent.ports import Cancellation

DEFAULT_MATCHES = 10
MAX_CONTEXT_LINES = 20
MAX_QUERY_CHARS = 10_000
POLL_S = 0.1


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """One matching line (number and column of its first match from 1, text without line end), and the lines around it.

    `cut` is true if only a part of the line is shown.
    """

    line: int
    column: int
    text: str
    cut: bool
    before: tuple[str, ...]
    after: tuple[str, ...]


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """Matching lines in order. `truncated` is true only if more lines match than returned, or if the rest of a very large file was not searched."""

    path: str
    matches: tuple[Match, ...]
    truncated: bool


def search_in_file(
    workspace: Workspace,
    path: str,
    query: str,
    *,
    regex: bool = False,
    case_sensitive: bool = True,
    max_matches: int = DEFAULT_MATCHES,
    before: int = 0,
    after: int = 0,
    cancelled: Cancellation | None = None,
) -> Matches:
    """Return the lines that contain `query`, or match it with `regex` (Python syntax), with `before` and `after` lines around each.

    Raise `ToolFailed` with `invalid_arguments`, `invalid_pattern`, `pattern_too_slow`, `not_text`, `line_too_long`, ...
    """
    _check(workspace, query, regex=regex, max_matches=max_matches, before=before, after=after)
    limits = workspace.limits
    asked = {
        "pattern": query if regex else re.escape(query),
        "ignore_case": not case_sensitive,
        "max_matches": max_matches,
        "before": before,
        "after": after,
        "line_chars": limits.line_chars,
        "line_bytes": limits.line_bytes,
        "answer_chars": limits.read_bytes,
    }
    with workspace.reading(path) as descriptor:
        asked["to_the_end"] = os.fstat(descriptor).st_size <= limits.edit_bytes
        if regex:
            answer = _apart(descriptor, asked, path, limits.pattern_s, cancelled)
        else:
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                answer = linesearch.search_lines(stream, asked, lambda: stop_if(cancelled, doing=f"searching {shown(path)}"))
    if "problem" in answer:
        raise _problem(answer, path, limits.line_bytes)
    return Matches(path=path, matches=msgspec.convert(answer["matches"], tuple[Match, ...]), truncated=answer["truncated"])


def _check(workspace: Workspace, query: str, *, regex: bool, max_matches: int, before: int, after: int) -> None:
    if not query or len(query) > MAX_QUERY_CHARS:
        raise refused_argument(
            "query is empty; give the text to look for" if not query else f"query is longer than {MAX_QUERY_CHARS} characters"
        )
    if any("\ud800" <= c <= "\udfff" or c == "\0" for c in query):
        raise refused_argument("query contains a NUL character or half a surrogate pair, which no searchable text file has; remove it")
    if not regex and ("\n" in query or "\r" in query):
        raise refused_argument(
            "query contains a line break, but lines are searched one by one; search for one of its lines, with before or after"
        )
    if not 1 <= max_matches <= workspace.limits.matches:
        raise refused_argument(f"max_matches is {max_matches}; it must be from 1 to {workspace.limits.matches}")
    for name, value in (("before", before), ("after", after)):
        if not 0 <= value <= MAX_CONTEXT_LINES:
            raise refused_argument(f"{name} is {value}; it must be from 0 to {MAX_CONTEXT_LINES}")
    if regex:
        try:
            re.compile(query)
        except (re.error, RecursionError, OverflowError) as error:
            raise failed(
                "invalid_pattern", f"regular expression {shown(query)} is wrong: {error}; correct it, or search literally with regex=false"
            ) from error


def _apart(descriptor: int, asked: dict[str, Any], path: str, limit_s: float, cancelled: Cancellation | None) -> dict[str, Any]:
    """Search in a process of its own and stop it after `limit_s` seconds."""
    with translating(sys.executable):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", linesearch.__file__, json.dumps(asked)],
            stdin=descriptor,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
        )
    left = limit_s
    with child:
        try:
            while True:
                try:
                    output, _ = child.communicate(timeout=min(POLL_S, left))
                    break
                except subprocess.TimeoutExpired:
                    left -= POLL_S
                    stop_if(cancelled, doing=f"searching {shown(path)}")
                    if left <= 0:
                        raise _too_slow(path, limit_s) from None
        finally:
            child.kill()
    if child.returncode != 0:
        raise failed("search_failed", f"the search in {shown(path)} failed (code {child.returncode}); use a simpler expression", path=path)
    return json.loads(output)


def _too_slow(path: str, limit_s: float) -> Exception:
    message = f"searching {shown(path)} took more than {limit_s:g} s and was stopped; use an expression without nested repetitions, or a smaller file"
    return failed("pattern_too_slow", message, path=path)


def _problem(answer: dict[str, Any], path: str, line_bytes: int) -> Exception:
    line = answer["line"]
    if answer["problem"] == "not_text":
        return failed(
            "not_text", f"{shown(path)} is not UTF-8 text in line {line}; exec can run a program that understands it", path=path, line=line
        )
    return failed(
        "line_too_long", f"line {line} of {shown(path)} is longer than {line_bytes} bytes; search it with exec", path=path, line=line
    )
