"""Listing, finding and searching: rows R40, R42, R43, R44."""

from __future__ import annotations

import fnmatch
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import Cancellation
from detent.tools.workspace import listing, search
from detent.tools.workspace.confine import Limits, Workspace
from detent.tools.workspace.globbing import Glob

TREE = ("a-b/x.py", "a/B.TXT", "a/deep/er/z.py", "a/deep/y.py", "a/x.py", "a.py", "b.txt", ".hidden/h.py", ".env", "a/.git/config")
VISIBLE = ("a-b/x.py", "a.py", "a/B.TXT", "a/deep/er/z.py", "a/deep/y.py", "a/x.py", "b.txt")


@contextmanager
def refused(code: str) -> Iterator[Any]:
    with pytest.raises(ToolFailed) as caught:
        yield caught
    assert caught.value.error_code == code, str(caught.value)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return Workspace(tmp_path)


def test_a_directory_is_listed_by_kind_then_name(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """R42: dir, file, symlink, other; hidden ones only when asked for; sizes and times as in stat."""
    root = Path(workspace.root)
    (root / "link").symlink_to("a")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("0socket")
    entries = listing.list_dir(workspace).entries
    assert [(entry.kind, entry.name) for entry in entries] == [
        ("dir", "a"),
        ("dir", "a-b"),
        ("file", "a.py"),
        ("file", "b.txt"),
        ("symlink", "link"),
        ("other", "0socket"),
    ]
    assert entries[2].size_bytes == 4
    assert entries[2].modified_unix_ms == (root / "a.py").stat().st_mtime_ns // 1_000_000
    hidden = listing.list_dir(workspace, include_hidden=True).entries
    assert {".hidden", ".env"} == {entry.name for entry in hidden} - {entry.name for entry in entries}
    with refused("not_a_directory"):
        listing.list_dir(workspace, "a.py")
    with refused("not_found"):
        listing.list_dir(workspace, "none")


def pages(call: Any, limit: int, **options: Any) -> list[Any]:
    """Every item of every page, with the flags checked on the way."""
    items: list[Any] = []
    cursor = None
    while True:
        page = call(**options, cursor=cursor, **limit_of(call, limit))
        found = page.entries if isinstance(page, listing.DirectoryEntries) else page.paths
        items += found
        assert page.truncated is (page.next_cursor is not None)
        if not page.truncated:
            return items
        assert len(found) == limit
        cursor = page.next_cursor


def limit_of(call: Any, limit: int) -> dict[str, int]:
    return {"max_results": limit} if "glob" in call.__name__ else {"limit": limit}


@pytest.mark.parametrize("limit", range(1, 12))
def test_pages_of_any_size_give_the_same_as_one_page(workspace: Workspace, limit: int) -> None:
    """R42 to R44: nothing twice, nothing left out, sorted; truncated is false when the last page is exactly full."""

    def list_dir(**options: Any) -> Any:
        return listing.list_dir(workspace, include_hidden=True, **options)

    def find(**options: Any) -> Any:
        return listing.find_files(workspace, **options)

    def glob(**options: Any) -> Any:
        return listing.glob(workspace, "**", **options)

    assert pages(list_dir, limit) == list(listing.list_dir(workspace, include_hidden=True).entries)
    assert pages(find, limit) == list(VISIBLE)
    everything = listing.glob(workspace, "**").paths
    assert set(everything) == {*VISIBLE, "a", "a-b", "a/deep", "a/deep/er"}
    assert pages(glob, limit) == list(everything)


@pytest.mark.parametrize(("limit", "truncated"), [(6, True), (7, False), (8, False)])
def test_truncated_is_exact_at_the_limit(workspace: Workspace, limit: int, truncated: bool) -> None:
    """Seven files: a limit of seven is not truncated."""
    found = listing.find_files(workspace, limit=limit)
    assert (found.truncated, len(found.paths)) == (truncated, min(limit, 7))
    matched = listing.glob(workspace, "**", kind="file", max_results=limit)
    assert (matched.truncated, len(matched.paths)) == (truncated, min(limit, 7))


FILTERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "name": ({"name_contains": "B"}, ("a/B.TXT", "b.txt")),
    "path": ({"path_contains": "DEEP/"}, ("a/deep/er/z.py", "a/deep/y.py")),
    "extensions": ({"extensions": ["txt", ".none"]}, ("a/B.TXT", "b.txt")),
    "exclude": ({"exclude_dirs": ["deep", "a-b"]}, ("a.py", "a/B.TXT", "a/x.py", "b.txt")),
    "depth 1": ({"max_depth": 1}, ("a.py", "b.txt")),
    "depth 2": ({"max_depth": 2}, ("a-b/x.py", "a.py", "a/B.TXT", "a/x.py", "b.txt")),
    "below": ({"path": "a/deep"}, ("a/deep/er/z.py", "a/deep/y.py")),
    "hidden": ({"include_hidden": True, "name_contains": "g"}, ("a/.git/config",)),
}


@pytest.mark.parametrize(("options", "expected"), FILTERS.values(), ids=FILTERS)
def test_every_filter_of_find_files_works(workspace: Workspace, options: dict[str, Any], expected: tuple[str, ...]) -> None:
    """R43: name and path ignore case, extensions with or without dot, depth, excluded and hidden directories."""
    assert listing.find_files(workspace, **options).paths == expected


GLOBS: dict[str, tuple[str, ...]] = {
    "*.py": ("a.py",),
    "*": ("a-b", "a.py", "a", "b.txt"),
    "*/*.py": ("a-b/x.py", "a/x.py"),
    "**/*.py": ("a-b/x.py", "a.py", "a/deep/er/z.py", "a/deep/y.py", "a/x.py"),
    "a/**": ("a/B.TXT", "a/deep", "a/deep/er", "a/deep/er/z.py", "a/deep/y.py", "a/x.py"),
    "a/**/z.py": ("a/deep/er/z.py",),
    "**/deep/**/*.py": ("a/deep/er/z.py", "a/deep/y.py"),
    "?.[pt]*": ("a.py", "b.txt"),
    "[!b]*.??": ("a.py",),
    "[^b]*.??": ("a.py",),
    "./a.py": ("a.py",),
    ".env": (".env",),
    ".hidden/*": (".hidden/h.py",),
    "**/.git/*": ("a/.git/config",),
    "none*": (),
}


@pytest.mark.parametrize(("pattern", "expected"), GLOBS.items())
def test_patterns_match_as_described(workspace: Workspace, pattern: str, expected: tuple[str, ...]) -> None:
    """R44: `*` does not cross `/`, `**` does; hidden ones only when the pattern says so."""
    assert set(listing.glob(workspace, pattern).paths) == set(expected)


def test_glob_chooses_kinds_and_bases(workspace: Workspace) -> None:
    """R44: file, dir, symlink, any; a base directory; hidden ones on request."""
    (Path(workspace.root) / "link").symlink_to("a")
    assert listing.glob(workspace, "*", kind="symlink").paths == ("link",)
    assert listing.glob(workspace, "*", kind="dir").paths == ("a-b", "a")
    assert listing.glob(workspace, "*.py", "a").paths == ("a/x.py",)
    assert listing.glob(workspace, "*", "link", kind="file").paths == ("a/B.TXT", "a/x.py")
    assert listing.glob(workspace, "*", kind="file", include_hidden=True).paths == (".env", "a.py", "b.txt")


@pytest.mark.parametrize("pattern", ["", "a**", "**b/c", "[a", "[z-a]", "{a,b}", "a/", ".", "x" * 1001])
def test_a_wrong_pattern_is_an_error(workspace: Workspace, pattern: str) -> None:
    """R44: not an empty answer."""
    with refused("invalid_pattern"):
        listing.glob(workspace, pattern)


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a/../../*"])
def test_a_pattern_does_not_leave_the_workspace(workspace: Workspace, pattern: str) -> None:
    """Absolute and parent parts are refused."""
    with refused("outside_workspace"):
        listing.glob(workspace, pattern)


@given(pattern=st.text("ab*?[!-]", min_size=1, max_size=8), name=st.text("ab-!", min_size=1, max_size=6))
def test_one_part_matches_as_in_the_standard_library(pattern: str, name: str) -> None:
    """Against `fnmatch`, for every pattern that both accept."""
    try:
        glob = Glob(pattern)
    except ToolFailed:
        return
    if pattern != "**":
        assert glob.matches(glob.step(glob.start, name)) == fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_cannot_take_for_ever() -> None:
    """Thirty stars against a long name without an end: quadratic at most, where a backtracking matcher would never end."""
    glob = Glob("*a" * 30 + "b")
    assert not glob.matches(glob.step(glob.start, "a" * 250))


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_limits_out_of_range_are_refused(workspace: Workspace, limit: int) -> None:
    """An error, not a silent other limit."""
    for call in (
        lambda: listing.list_dir(workspace, limit=limit),
        lambda: listing.find_files(workspace, limit=limit),
        lambda: listing.glob(workspace, "*", max_results=limit),
    ):
        with refused("invalid_arguments"):
            call()
    with refused("invalid_arguments"):
        listing.find_files(workspace, max_depth=0)
    with refused("invalid_cursor"):
        listing.list_dir(workspace, cursor="a.py")


def test_a_walk_does_not_follow_links_in_circles(workspace: Workspace) -> None:
    """A link to the parent is shown and not entered."""
    (Path(workspace.root) / "a" / "up").symlink_to("..")
    assert listing.find_files(workspace).paths == VISIBLE
    assert "a/up" in listing.glob(workspace, "**").paths


def test_what_is_too_deep_is_named(tmp_path: Path) -> None:
    """A tree of 200 levels is walked as far as the bound, and the rest said to be unsearched."""
    deep = tmp_path
    for _ in range(200):
        deep /= "d"
        deep.mkdir()
    (deep / "f").write_text("")
    found = listing.find_files(Workspace(tmp_path))
    assert found.paths == ()
    assert len(found.not_searched) == 1


def test_names_that_are_not_utf_8_are_shown_not_fatal(tmp_path: Path) -> None:
    """The bytes that do not decode are replaced; the answer can be encoded."""
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.txt"))).write_text("x")
    for names in (listing.find_files(Workspace(tmp_path)).paths, tuple(e.name for e in listing.list_dir(Workspace(tmp_path)).entries)):
        assert names == ("a\ufffd.txt",)


def test_cancelled_walks_and_searches_stop(workspace: Workspace) -> None:
    """They raise instead of going on for nobody."""
    cancelled = Cancellation()
    cancelled.set("cancelled")
    (Path(workspace.root) / "long").write_text("x\n" * 3000)
    for call in (
        lambda: listing.find_files(workspace, cancelled=cancelled),
        lambda: listing.glob(workspace, "**", cancelled=cancelled),
        lambda: listing.list_dir(workspace, cancelled=cancelled),
        lambda: search.search_in_file(workspace, "long", "y", cancelled=cancelled),
    ):
        with pytest.raises(NotExecuted):
            call()


LINES = "alpha\nBeta beta\ngamma (x)\nalpha beta\n\nend"


@pytest.fixture
def text(tmp_path: Path) -> Workspace:
    (tmp_path / "f").write_bytes(LINES.replace("gamma (x)\n", "gamma (x)\r\n").encode())
    return Workspace(tmp_path)


@pytest.mark.parametrize("regex", [False, True])
def test_search_finds_lines_with_number_and_column(text: Workspace, regex: bool) -> None:
    """R40: case counts by default; one entry a line; line ends are not part of it."""
    found = search.search_in_file(text, "f", "beta", regex=regex)
    assert [(match.line, match.column, match.text) for match in found.matches] == [(2, 6, "Beta beta"), (4, 7, "alpha beta")]
    assert found.truncated is False
    insensitive = search.search_in_file(text, "f", "BETA", regex=regex, case_sensitive=False)
    assert [match.column for match in insensitive.matches] == [1, 7]


def test_a_literal_query_is_literal_and_a_regex_is_one(text: Workspace) -> None:
    """R40: metacharacters; anchors are those of the line."""
    assert [m.line for m in search.search_in_file(text, "f", "(x)").matches] == [3]
    assert [m.line for m in search.search_in_file(text, "f", r"\)$", regex=True).matches] == [3]
    assert [m.line for m in search.search_in_file(text, "f", "^$", regex=True).matches] == [5]
    assert search.search_in_file(text, "f", "^alpha").matches == ()


@pytest.mark.parametrize("regex", [False, True])
@pytest.mark.parametrize(("limit", "truncated"), [(1, True), (2, False), (3, False)])
def test_search_is_truncated_only_when_more_lines_match(text: Workspace, limit: int, truncated: bool, regex: bool) -> None:
    """R40: two lines match."""
    found = search.search_in_file(text, "f", "beta", max_matches=limit, regex=regex)
    assert (len(found.matches), found.truncated) == (min(limit, 2), truncated)


def test_context_lines_are_complete_also_for_the_last_match(text: Workspace) -> None:
    """R40: before and after, at the edges of the file, overlapping, and where the limit stops the search."""
    found = search.search_in_file(text, "f", "a", before=1, after=2, max_matches=1)
    assert (found.matches[0].before, found.matches[0].after, found.truncated) == ((), ("Beta beta", "gamma (x)"), True)
    last = search.search_in_file(text, "f", "end", before=20, after=20).matches[0]
    assert (last.line, last.before, last.after) == (6, ("alpha", "Beta beta", "gamma (x)", "alpha beta", ""), ())


@given(
    lines=st.lists(st.sampled_from(["x", "y", "xy", ""]), max_size=15),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    limit=st.integers(1, 6),
)
def test_search_is_what_a_loop_over_the_lines_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], before: int, after: int, limit: int
) -> None:
    """Any lines, any context, any limit, against the obvious reference."""
    root = tmp_path_factory.mktemp("w")
    (root / "f").write_text("\n".join(lines) + "\n")
    found = search.search_in_file(Workspace(root), "f", "x", before=before, after=after, max_matches=limit)
    hits = [i for i, line in enumerate(lines) if "x" in line]
    assert found.truncated == (len(hits) > limit)
    assert [(m.line, m.before, m.after) for m in found.matches] == [
        (i + 1, tuple(lines[max(0, i - before) : i]), tuple(lines[i + 1 : i + 1 + after])) for i in hits[:limit]
    ]


def test_wrong_searches_are_errors(text: Workspace) -> None:
    """R40: empty query, wrong expression, line breaks in a literal, numbers out of range."""
    for query, options in (
        ("", {}),
        ("a\nb", {}),
        ("a", {"max_matches": 0}),
        ("a", {"max_matches": 201}),
        ("a", {"before": 21}),
        ("a", {"after": -1}),
        ("\0", {}),
    ):
        with refused("invalid_arguments"):
            search.search_in_file(text, "f", query, **options)
    for query in ("(", "[z-a]", "*", "(?P<x>a)(?P<x>b)"):
        with refused("invalid_pattern"):
            search.search_in_file(text, "f", query, regex=True)


def test_an_expression_that_never_ends_is_stopped(tmp_path: Path) -> None:
    """It runs in a process of its own, so that it cannot hold up the program; the file is not to blame."""
    (tmp_path / "f").write_text("a" * 60 + "!\n")
    with refused("pattern_too_slow"):
        search.search_in_file(Workspace(tmp_path, limits=Limits(pattern_s=0.05)), "f", "(a+)+$", regex=True)


@pytest.mark.parametrize("regex", [False, True])
def test_long_lines_are_cut_or_refused(tmp_path: Path, regex: bool) -> None:
    """What is shown of a line is capped exactly, and said; a line beyond all bounds is refused, not loaded."""
    workspace = Workspace(tmp_path, limits=Limits(line_chars=5, line_bytes=20))
    (tmp_path / "f").write_text("x2345\nx23456\n" + "x" * 20 + "\n")
    found = search.search_in_file(workspace, "f", "x", regex=regex)
    assert [(m.text, m.cut) for m in found.matches] == [("x2345", False), ("x2345", True), ("xxxxx", True)]
    (tmp_path / "f").write_text("x" * 21 + "\n")
    with refused("line_too_long"):
        search.search_in_file(workspace, "f", "x", regex=regex)
