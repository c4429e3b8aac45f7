"""No path leaves the workspace, and nothing but regular files and directories is opened."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from amounts import crossed
from detent.core.errors import ConfigError, DetentError, NotExecuted, ToolFailed, ToolRaised
from detent.tools.failures import translated
from detent.tools.workspace import files, listing, patch, reading, search
from detent.tools.workspace.confine import Workspace

Use = Callable[[Workspace, str], object]

ON_FILES: dict[str, Use] = {
    "read_file": reading.read_file,
    "search_in_file": lambda w, path: search.search_in_file(w, path, "secret"),
    "write_file": lambda w, path: files.write_file(w, path, "mine", force=True),
    "create_file": lambda w, path: files.create_file(w, path, "mine"),
    "append_file": lambda w, path: files.append_file(w, path, "mine"),
    "replace_in_file": lambda w, path: files.replace_in_file(w, path, "secret", "mine"),
    "patch_add": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Add File: {path}\n+mine\n*** End Patch"),
    "patch_update": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Update File: {path}\n@@\n-secret\n+mine\n*** End Patch"),
    "patch_delete": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch"),
    "patch_move": lambda w, path: patch.apply_patch(w, f"*** Begin Patch\n*** Update File: here.txt\n*** Move to: {path}\n*** End Patch"),
}
ON_DIRECTORIES: dict[str, Use] = {
    "list_dir": listing.list_dir,
    "find_files": listing.find_files,
    "glob": lambda w, path: listing.glob(w, "**", path),
}
ALL = {**ON_FILES, "stat_file": reading.stat_file, **ON_DIRECTORIES}


def names(directory: str | Path) -> list[str]:
    """What is directly in a directory, hidden or not."""
    return sorted(path.name for path in Path(directory).iterdir())


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret.txt").write_text("secret\n")
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "root"
    root.mkdir()
    (root / "here.txt").write_text("here\n")
    return Workspace(root, allow_delete=True)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()}


@crossed
@pytest.mark.parametrize("use", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", "/etc/passwd", "a/../../outside/secret.txt", "here.txt/..", "./../outside", "//etc/passwd"]
)
def test_parent_and_absolute_paths_are_refused_by_every_tool(workspace: Workspace, outside: Path, use: Use, path: str) -> None:
    """The error is `outside_workspace`, names the rule, and nothing outside changes."""
    before = contents(outside)
    with pytest.raises(ToolFailed) as caught:
        use(workspace, path)
    assert caught.value.error_code == "outside_workspace"
    assert "relative" in str(caught.value) or "'..' is not allowed" in str(caught.value)
    assert contents(outside) == before


@crossed
@pytest.mark.parametrize("use", ON_FILES.values(), ids=ON_FILES)
@pytest.mark.parametrize("link", ["file", "directory/secret.txt", "relative", "chain", "directory/new.txt"])
def test_a_link_that_leads_outside_is_never_followed(workspace: Workspace, outside: Path, use: Use, link: str) -> None:
    """Links to files and directories, absolute, relative and through another link: outside stays as it was and is not read."""
    root = Path(workspace.root)
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "directory").symlink_to(outside)
    (root / "relative").symlink_to("../outside/secret.txt")
    (root / "chain").symlink_to("relative")
    before = contents(outside)
    with pytest.raises(ToolFailed) as caught:
        use(workspace, link)
    assert caught.value.error_code in ("outside_workspace", "is_a_symlink")
    assert contents(outside) == before
    assert names(outside) == ["secret.txt"]


@pytest.mark.parametrize("use", ON_DIRECTORIES.values(), ids=ON_DIRECTORIES)
def test_a_linked_directory_outside_is_not_listed(workspace: Workspace, outside: Path, use: Use) -> None:
    """Asking for it is refused; a walk that meets it shows the link at most and does not enter."""
    (Path(workspace.root) / "directory").symlink_to(outside)
    with pytest.raises(ToolFailed, match="leads outside"):
        use(workspace, "directory")
    assert "secret" not in repr(use(workspace, "."))


def test_links_that_stay_inside_are_followed(workspace: Workspace) -> None:
    """Relative with `..`, absolute, and to a directory; writing changes the target and keeps the link."""
    root = Path(workspace.root)
    (root / "deep").mkdir()
    (root / "deep" / "up").symlink_to("../here.txt")
    (root / "absolute").symlink_to(root / "here.txt")
    (root / "folder").symlink_to("deep/../deep")
    assert reading.read_file(workspace, "deep/up").content == "here\n"
    assert reading.read_file(workspace, "absolute").content == "here\n"
    files.write_file(workspace, "folder/up", "there\n")
    assert (root / "here.txt").read_text() == "there\n"
    assert (root / "deep" / "up").is_symlink()


@pytest.mark.parametrize("target", ["loop", "/proc/self/root/etc/passwd", "..", "/"])
def test_hostile_links_end_in_a_typed_error(workspace: Workspace, target: str) -> None:
    """A loop, the root of the system and the parent are refused, not followed for ever."""
    (Path(workspace.root) / "loop").symlink_to(target)
    with pytest.raises(ToolFailed) as caught:
        reading.read_file(workspace, "loop")
    assert caught.value.error_code in ("symlink_loop", "outside_workspace")


def test_a_directory_swapped_for_a_link_while_writing_redirects_nothing(tmp_path: Path, outside: Path) -> None:
    """The write lands in the directory that was checked, wherever it is now; nothing appears outside."""
    root = tmp_path / "root"
    (root / "dir").mkdir(parents=True)

    def swap(step: str, _: str) -> None:
        if step == "rename":
            (root / "dir").rename(root / "moved")
            (root / "dir").symlink_to(outside)

    files.write_file(Workspace(root, before=swap), "dir/new.txt", "mine")
    assert names(outside) == ["secret.txt"]
    assert (root / "moved" / "new.txt").read_text() == "mine"


def test_a_file_swapped_for_a_link_before_the_append_is_not_followed(tmp_path: Path, outside: Path) -> None:
    """Looked at as a file, then swapped for a link outside while the lock is taken: the append is refused."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "log").write_text("x\n")

    def swap(step: str, _: str) -> None:
        if step == "lock":
            (root / "log").unlink()
            (root / "log").symlink_to(outside / "secret.txt")

    with pytest.raises(ToolFailed) as caught:
        files.append_file(Workspace(root, before=swap), "log", "mine")
    assert caught.value.error_code == "is_a_symlink"
    assert (outside / "secret.txt").read_text() == "secret\n"


@crossed
@pytest.mark.parametrize("use", ON_FILES.values(), ids=ON_FILES)
@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_what_is_no_regular_file_is_refused_without_hanging(
    workspace: Workspace, use: Use, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe would wait for its other end; it is refused by its kind."""
    root = Path(workspace.root)
    monkeypatch.chdir(root)
    if kind == "fifo":
        os.mkfifo("special")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("special")
    else:
        (root / "special").mkdir()
    with pytest.raises(ToolFailed) as caught:
        use(workspace, "special")
    assert caught.value.error_code in ("not_a_regular_file", "is_a_directory", "already_exists")
    assert "special" in str(caught.value)


def test_a_device_is_refused(workspace: Workspace) -> None:
    """A link to a device outside is outside; inside, a device is no regular file."""
    device = Path(workspace.root) / "null"
    try:
        os.mknod(device, 0o20666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device needs root")
    with pytest.raises(ToolFailed) as caught:
        reading.read_file(workspace, "null")
    assert caught.value.error_code == "not_a_regular_file"


@crossed
@pytest.mark.parametrize("use", ALL.values(), ids=ALL)
@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 300, "x" * 5000, "d/" * 200 + "x", "", "here.txt/x", "."])
def test_impossible_names_end_in_a_typed_error_or_an_answer(workspace: Workspace, use: Use, path: str) -> None:
    """NUL, broken Unicode, too long, too deep, empty, through a file: a `ToolFailed`, never another exception; the message stays short."""
    before = contents(Path(workspace.root))
    try:
        use(workspace, path)
    except ToolFailed as raised:
        error = raised
    else:
        error = None
    assert error is None or (len(str(error)) < 700 and error.error_code != "io_error")
    assert contents(Path(workspace.root)) == before


def test_the_root_must_be_a_directory(tmp_path: Path) -> None:
    """A missing root is a configuration error that names it."""
    with pytest.raises(ConfigError, match="nowhere"):
        Workspace(tmp_path / "nowhere")


@pytest.mark.parametrize("number", sorted(errno.errorcode), ids=errno.errorcode.get)
def test_every_error_of_the_system_is_translated(number: int) -> None:
    """Each errno becomes `ToolFailed`, or `NotExecuted` where trying again may help; with a code, the path and what to do."""
    error = translated(OSError(number, os.strerror(number)), "some/path")
    assert isinstance(error, ToolFailed | NotExecuted)
    assert error.error_code
    assert error.error_code != "handler_error"
    assert "some/path" in str(error)
    assert isinstance(error, DetentError)


@crossed
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EMFILE, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("step", ["stage", "sync", "rename"])
def test_an_error_at_any_step_of_a_write_leaves_the_old_content(tmp_path: Path, step: str, number: int) -> None:
    """The error is typed, the old content intact, and no temporary file is left (R53)."""

    def fail(at: str, _: str) -> None:
        if at == step:
            raise OSError(number, os.strerror(number))

    (tmp_path / "f").write_text("old")
    with pytest.raises(ToolRaised) as caught:
        files.write_file(Workspace(tmp_path, before=fail), "f", "new content")
    assert caught.value.error_code == translated(OSError(number, ""), "f").error_code
    assert contents(tmp_path) == {"f": b"old"}
    with pytest.raises(ToolRaised):
        files.write_file(Workspace(tmp_path, before=fail), "new/deep/f", "new content")
    assert names(tmp_path) == ["f"]
