"""apply_patch: row R49, all files or none (L30), preconditions per file (R52)."""

from __future__ import annotations

import difflib
import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amounts import crossed
from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import Cancellation
from detent.tools.workspace import reading
from detent.tools.workspace.confine import Limits, Workspace
from detent.tools.workspace.envelope import Hunk, apply_hunks
from detent.tools.workspace.patch import apply_patch

pytestmark = crossed

FILES = {"a.txt": b"one\ntwo\nthree\n", "b.txt": b"B\n", "c.txt": b"C\n", "sub/d.txt": b"D\n"}
ALL_KINDS = """*** Begin Patch
*** Add File: new/dir/n.txt
+new
*** Update File: a.txt
@@
 one
-two
+TWO
*** Update File: sub/d.txt
*** Move to: sub/e.txt
@@
-D
+E
*** Delete File: b.txt
*** End Patch
"""
AFTER = {"a.txt": b"one\nTWO\nthree\n", "c.txt": b"C\n", "sub/e.txt": b"E\n", "new/dir/n.txt": b"new\n"}


def names(directory: str | Path) -> list[str]:
    """What is directly in a directory, hidden or not."""
    return sorted(path.name for path in Path(directory).iterdir())


@contextmanager
def refused(code: str) -> Iterator[Any]:
    with pytest.raises(ToolFailed) as caught:
        yield caught
    assert caught.value.error_code == code, str(caught.value)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "sub").mkdir()
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return Workspace(tmp_path, allow_delete=True)


def tree(root: str | Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()}


def enveloped(*sections: str) -> str:
    return "\n".join(["*** Begin Patch", *sections, "*** End Patch"])


def test_a_patch_adds_updates_moves_and_deletes(workspace: Workspace) -> None:
    """R49: all kinds in one patch, with their counts; nothing else is left in the tree."""
    done = apply_patch(workspace, ALL_KINDS)
    assert tree(workspace.root) == AFTER
    assert (done.added, done.updated, done.moved, done.deleted) == (1, 1, 1, 1)
    assert done.files == ("new/dir/n.txt", "a.txt", "sub/e.txt")
    assert done.removed == ("sub/d.txt", "b.txt")


STEPS = ("lock", "stage", "sync", "keep", "rename", "remove")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", range(1, 5))
def test_an_error_at_any_step_leaves_all_files_as_they_were(tmp_path: Path, workspace: Workspace, step: str, which: int) -> None:
    """L30: the n-th locking, writing, syncing, keeping, renaming, removing fails: contents, times, modes and names are the former ones."""
    for name in FILES:
        (tmp_path / name).chmod(0o640)
    before = tree(tmp_path), {name: (tmp_path / name).stat() for name in FILES}
    seen = 0

    def fail(at: str, _: str) -> None:
        nonlocal seen
        seen += at == step
        if at == step and seen == which:
            raise OSError(errno.EIO, "injected")

    code = ""
    try:
        apply_patch(Workspace(tmp_path, allow_delete=True, before=fail), ALL_KINDS)
    except ToolFailed as error:
        code = error.error_code
    if seen < which:
        assert (code, tree(tmp_path)) == ("", AFTER)
        return
    assert code == "io_error"
    assert tree(tmp_path) == before[0]
    assert names(tmp_path) == ["a.txt", "b.txt", "c.txt", "sub"]
    for name, found in before[1].items():
        now = (tmp_path / name).stat()
        assert (now.st_mtime_ns, now.st_mode, now.st_size) == (found.st_mtime_ns, found.st_mode, found.st_size)


def test_a_failure_while_taking_back_names_what_is_changed(tmp_path: Path, workspace: Workspace) -> None:
    """Both directions fail: the error is `partly_applied`, names the file, and its old content is beside it."""

    def fail(at: str, path: str) -> None:
        if at == "remove" or (at == "take_back" and path == "a.txt"):
            raise OSError(errno.EIO, "injected")

    with refused("partly_applied") as caught:
        apply_patch(Workspace(tmp_path, allow_delete=True, before=fail), ALL_KINDS)
    assert caught.value.details == {"paths": ["a.txt"]}
    kept = [name for name in names(tmp_path) if name.startswith(".detent-")]
    assert len(kept) == 1
    assert (tmp_path / kept[0]).read_bytes() == FILES["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == AFTER["a.txt"]


def test_a_bad_section_anywhere_changes_no_file(workspace: Workspace) -> None:
    """The last of three sections is wrong: the first two are not applied."""
    good = "*** Update File: a.txt\n@@\n-two\n+2", "*** Add File: n/n.txt\n+n"
    bad = {
        "*** Update File: c.txt\n@@\n-none\n+x": "hunk_not_found",
        "*** Add File: c.txt\n+x": "already_exists",
        "*** Delete File: none": "not_found",
        "*** Update File: none\n@@\n-a\n+b": "not_found",
        "*** Update File: b.txt\n*** Move to: c.txt": "already_exists",
        "*** Add File: ../out\n+x": "outside_workspace",
        "*** Add File: /out\n+x": "outside_workspace",
        "*** Update File: ./a.txt\n@@\n-one\n+1": "invalid_patch",
        "*** Update File: c.txt": "invalid_patch",
        "*** Update File: c.txt\n@@\n C": "invalid_patch",
        "*** Rename File: c.txt": "invalid_patch",
        "*** Add File: x\nno plus": "invalid_patch",
        "*** Add File:": "invalid_patch",
        "*** Delete File: sub": "is_a_directory",
        "*** Update File: c.txt\n@@\n+only added": "hunk_ambiguous",
    }
    for section, code in bad.items():
        with refused(code):
            apply_patch(workspace, enveloped(*good, section))
        assert tree(workspace.root) == FILES
        assert "n" not in names(workspace.root)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Delete File: a.txt",
        enveloped("*** Delete File: a.txt") + "\nmore",
    ],
)
def test_what_is_no_patch_is_refused(workspace: Workspace, text: str) -> None:
    """Without begin, end or content; text after the end."""
    with refused("invalid_patch"):
        apply_patch(workspace, text)
    assert tree(workspace.root) == FILES


def test_removal_must_be_allowed(workspace: Workspace) -> None:
    """Deleting and moving are refused in a workspace that was not made for it; nothing of the patch is applied."""
    careful = Workspace(workspace.root)
    for section in ("*** Delete File: b.txt", "*** Update File: b.txt\n*** Move to: z.txt"):
        with refused("removal_not_allowed"):
            apply_patch(careful, enveloped("*** Update File: a.txt\n@@\n-two\n+2", section))
    assert tree(workspace.root) == FILES


@pytest.mark.parametrize("field", ["expected_hash", "expected_mtime_unix_ms", "expected_size_bytes"])
def test_preconditions_hold_per_file(workspace: Workspace, field: str) -> None:
    """R52: one stale file refuses the whole patch; a path that the patch does not change is refused too, not ignored."""
    read = reading.read_file(workspace, "b.txt")
    right: Any = {"expected_hash": read.hash, "expected_mtime_unix_ms": read.mtime_unix_ms, "expected_size_bytes": read.size_bytes}
    wrong = {**right, field: "0" * 64 if field == "expected_hash" else right[field] + 1}
    with refused("precondition_failed") as caught:
        apply_patch(workspace, ALL_KINDS, preconditions={"b.txt": wrong})
    assert caught.value.details is not None
    assert caught.value.details["path"] == "b.txt"
    with refused("invalid_arguments"):
        apply_patch(workspace, ALL_KINDS, preconditions={"c.txt": right})
    with refused("precondition_failed"):
        apply_patch(workspace, ALL_KINDS, preconditions={"new/dir/n.txt": {"expected_size_bytes": 0}})
    assert tree(workspace.root) == FILES
    apply_patch(workspace, ALL_KINDS, preconditions={"b.txt": right})
    assert tree(workspace.root) == AFTER


def test_a_cancelled_patch_changes_nothing(tmp_path: Path, workspace: Workspace) -> None:
    """Cancelled while staging: not executed."""
    cancelled = Cancellation()
    stopping = Workspace(tmp_path, allow_delete=True, before=lambda step, _: cancelled.set("timeout") if step == "sync" else None)
    with pytest.raises(NotExecuted):
        apply_patch(stopping, ALL_KINDS, cancelled=cancelled)
    assert tree(workspace.root) == FILES


def test_a_link_is_not_deleted_for_its_target(workspace: Workspace) -> None:
    """Deleting or moving through a link would remove another file than the one named."""
    (Path(workspace.root) / "link").symlink_to("b.txt")
    for section in ("*** Delete File: link", "*** Update File: link\n*** Move to: z"):
        with refused("is_a_symlink"):
            apply_patch(workspace, enveloped(section))
    with refused("invalid_patch"):
        apply_patch(workspace, enveloped("*** Update File: link\n@@\n-B\n+X", "*** Update File: b.txt\n@@\n-B\n+Y"))
    apply_patch(workspace, enveloped("*** Update File: link\n@@\n-B\n+X"))
    assert tree(workspace.root)["b.txt"] == b"X\n"


def test_modes_are_kept_also_by_a_move(workspace: Workspace) -> None:
    """An executable stays one."""
    for name in ("a.txt", "sub/d.txt"):
        (Path(workspace.root) / name).chmod(0o755)
    apply_patch(workspace, ALL_KINDS)
    for name in ("a.txt", "sub/e.txt"):
        assert (Path(workspace.root) / name).stat().st_mode & 0o777 == 0o755


PATCHES = {
    "anchor": ("x\nf\nx\ng\nx\n", "@@ g\n-x\n+y", "x\nf\nx\ng\ny\n"),
    "anchor with other spaces": ("x\n  g\nx\n", "@@ g\n-x\n+y", "x\n  g\ny\n"),
    "anchor and only added": ("f\ng\n", "@@ f\n+y", "f\ny\ng\n"),
    "numbers are ignored": ("x\n", "@@ -1,1 +1,1 @@\n-x\n+y", "y\n"),
    "numbers and anchor": ("x\ng\nx\n", "@@ -3,1 +3,1 @@ g\n-x\n+y", "x\ng\ny\n"),
    "end of file": ("x\nx\n", "@@\n-x\n+y\n*** End of File", "x\ny\n"),
    "append at the end": ("x\n", "@@\n+y\n*** End of File", "x\ny\n"),
    "into an empty file": ("", "@@\n+y", "y\n"),
    "two hunks": ("a\nb\nc\n", "@@\n-a\n+A\n@@\n-c\n+C", "A\nb\nC\n"),
    "without @@": ("a\nb\n", " a\n-b\n+B", "a\nB\n"),
    "empty line that stays": ("a\n\nb\n", "@@\n a\n\n-b\n+B", "a\n\nB\n"),
    "cr lf": ("a\r\nb\r\n", "@@\n a\n-b\n+B\n+C", "a\r\nB\r\nC\r\n"),
    "no line feed at the end": ("a\nb", "@@\n-b\n+B\n+C", "a\nB\nC"),
    "all lines go": ("a\n", "@@\n-a", ""),
    "blank line before the end": ("a\nb\n", "@@\n-a\n+A\n", "A\nb\n"),
}


@pytest.mark.parametrize(("before", "hunks", "after"), PATCHES.values(), ids=PATCHES)
def test_hunks_do_what_they_say(workspace: Workspace, before: str, hunks: str, after: str) -> None:
    """R49: anchors, end of file, line ends, several hunks."""
    path = Path(workspace.root) / "a.txt"
    path.write_bytes(before.encode())
    apply_patch(workspace, enveloped("*** Update File: a.txt", hunks))
    assert path.read_bytes() == after.encode()


REFUSED = {
    "fits twice": ("x\ny\nx\n", "@@\n-x\n+z", "hunk_ambiguous"),
    "not at the end": ("x\ny\n", "@@\n-x\n+z\n*** End of File", "hunk_not_found"),
    "anchor missing": ("x\n", "@@ none\n-x\n+z", "hunk_not_found"),
    "wrong order": ("a\nb\n", "@@\n-b\n+B\n@@\n-a\n+A", "hunk_not_found"),
    "other spaces": ("  x\n", "@@\n-x\n+z", "hunk_not_found"),
}


@pytest.mark.parametrize(("before", "hunks", "code"), REFUSED.values(), ids=REFUSED)
def test_hunks_that_do_not_fit_exactly_once_change_nothing(workspace: Workspace, before: str, hunks: str, code: str) -> None:
    """R49: not found or ambiguous is an error that names file and hunk."""
    path = Path(workspace.root) / "a.txt"
    path.write_bytes(before.encode())
    with refused(code) as caught:
        apply_patch(workspace, enveloped("*** Update File: a.txt", hunks))
    assert "a.txt" in str(caught.value)
    assert "hunk " in str(caught.value)
    assert path.read_bytes() == before.encode()


LINES = st.lists(st.sampled_from(["a", "b", "", " ", "é"]), max_size=12)


@given(old=LINES, new=LINES, crlf=st.booleans(), ended=st.booleans())
def test_the_difference_of_two_texts_patches_one_into_the_other(old: list[str], new: list[str], crlf: bool, ended: bool) -> None:
    """For any two texts with the same line ends, one hunk with every line leads from the first exactly to the second."""
    old, new = [*old, "end"], [*new, "end"]
    lines = [(line[0], line[2:]) for line in difflib.ndiff(old, new) if line[0] != "?"]
    if not any(sign != " " for sign, _ in lines):
        return
    end = "\r\n" if crlf else "\n"
    close = end if ended else ""
    hunk = Hunk(number=1, lines=tuple(lines))
    if crlf and len(old) + ended < 2:
        return
    assert apply_hunks(end.join(old) + close, [hunk], "f") == end.join(new) + close


@given(texts=st.dictionaries(st.sampled_from(["a", "b", "d/c"]), LINES, min_size=1))
def test_adding_files_writes_exactly_their_lines(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, list[str]]) -> None:
    """Any files, also empty ones and ones with empty lines."""
    workspace = Workspace(tmp_path_factory.mktemp("w"))
    sections = ["\n".join([f"*** Add File: {path}", *("+" + line for line in lines)]) for path, lines in texts.items()]
    apply_patch(workspace, enveloped(*sections))
    assert tree(workspace.root) == {path: "".join(line + "\n" for line in lines).encode() for path, lines in texts.items()}


def test_locks_are_taken_in_one_order_whatever_the_order_of_the_patch(tmp_path: Path, workspace: Workspace) -> None:
    """Two patches over the same directories, named in opposite order, cannot each hold what the other waits for."""
    orders: list[list[str]] = []
    for names in (("a.txt", "sub/d.txt"), ("sub/d.txt", "a.txt")):
        locks: list[str] = []
        hooked = Workspace(tmp_path, before=lambda step, path, locks=locks: locks.append(path) if step == "lock" else None)
        apply_patch(hooked, enveloped(*(f"*** Update File: {name}\n@@\n+x\n*** End of File" for name in names)))
        orders.append(locks)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == ["a.txt", "sub/d.txt"]


def test_two_processes_patching_in_opposite_order_do_not_block_each_other(tmp_path: Path, workspace: Workspace) -> None:
    """Locks are taken in one order for everybody: 2 x 30 patches over the same two directories all arrive, none waits in vain."""
    program = (
        "import sys; from detent.tools.workspace.patch import apply_patch; from detent.tools.workspace.confine import Limits, Workspace\n"
        "w = Workspace(sys.argv[1], limits=Limits(lock_wait_s=60)); paths = ['a.txt', 'sub/d.txt'][::int(sys.argv[2])]\n"
        "for _ in range(30):\n"
        "    apply_patch(w, '*** Begin Patch\\n' + ''.join(f'*** Update File: {p}\\n@@\\n+x\\n*** End of File\\n' for p in paths) + '*** End Patch')\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), order]) for order in ("1", "-1")]
    assert [process.wait() for process in both] == [0, 0]
    assert (tmp_path / "a.txt").read_bytes().count(b"x") == 60
    assert (tmp_path / "sub/d.txt").read_bytes().count(b"x") == 60
    assert names(tmp_path) == ["a.txt", "b.txt", "c.txt", "sub"]


def test_the_size_cap_holds_for_patched_files(tmp_path: Path) -> None:
    """A result over the cap is refused like any other content."""
    workspace = Workspace(tmp_path, limits=Limits(edit_bytes=80))
    (tmp_path / "f").write_bytes(b"y\n" * 40)
    with refused("too_large"):
        apply_patch(workspace, enveloped("*** Update File: f\n@@\n+x\n*** End of File"))
    assert (tmp_path / "f").read_bytes() == b"y\n" * 40
