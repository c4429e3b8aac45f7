"""apply_patch: several files changed together, all or none.

Own code: patch-ng (11 ms to import) writes file after file by its path; if one fails, the files before it stay changed.

First everything is computed: the patch is read, all directories are locked, preconditions are checked, and every hunk is applied in memory. Then
all new content is written into temporary files and synced, and every old file is kept under a second name. Only then come the renames. If one fails,
the earlier ones are undone from the kept files, including permissions and times. Two limits remain. Between two renames, other programs may see some
files new and others old. A process that is killed between two renames leaves the patch partly applied, with the old files next to the new ones as
`.detent-*.old`; the call is then in doubt, and a person or the model compares.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from detent.tools.failures import failed, refused_argument, shown, stop_if, translated, translating
from detent.tools.workspace.confine import Place, Workspace
from detent.tools.workspace.envelope import FileChange, apply_hunks, parse
from detent.tools.workspace.writing import (
    Precondition,
    Version,
    checked_precondition,
    current,
    discard,
    encoded,
    locked,
    put,
    require,
    stage,
    sync_directories,
    temporary,
    write_all,
)

if TYPE_CHECKING:
    from detent.ports import Cancellation


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of files that a patch added, changed in place, deleted and moved (changed or not). `files` are new paths, `removed` old ones."""

    added: int
    updated: int
    deleted: int
    moved: int
    files: tuple[str, ...]
    removed: tuple[str, ...]


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one directory entry. `data` is its new content (None: remove it), `old` the existing file, `mode_of` the source of its permissions."""

    place: Place
    data: bytes | None
    old: Version
    mode_of: Version


def apply_patch(
    workspace: Workspace,
    patch: str,
    *,
    preconditions: Mapping[str, Precondition] | None = None,
    cancelled: Cancellation | None = None,
) -> Patched:
    """Apply a patch in the envelope format (see `envelope`), to all its files or to none.

    `preconditions` maps paths of the patch to the required state of those files. Deleting and moving files needs a workspace with
    `allow_delete` (a move removes the old path). Raise `ToolFailed` with `invalid_patch`, `removal_not_allowed`, `precondition_failed`,
    `hunk_not_found`, `hunk_ambiguous`, `already_exists`, `not_found`, ... Only `partly_applied` (an error, and then another one during the undo)
    and `not_durable` leave changes.
    """
    encoded(workspace, patch, "the patch")
    changes = parse(patch)
    _refuse_removal(workspace, changes)
    given = _preconditions(changes, preconditions)
    with ExitStack() as held:
        places = _places(workspace, changes, held)
        distinct = list({place.key: place for place in places.values()}.values())
        with _named(changes), locked(workspace, distinct, cancelled):
            steps = [step for change in changes for step in _steps(workspace, change, places, given)]
            _commit(workspace, steps, cancelled)
            sync_directories(workspace, [step.place for step in steps])
    return _counted(changes)


@contextmanager
def _named(changes: Sequence[FileChange]) -> Generator[None, None, None]:
    with translating(changes[0].path):
        yield


def _refuse_removal(workspace: Workspace, changes: Sequence[FileChange]) -> None:
    for change in changes:
        if (change.kind == "delete" or change.move_to) and not workspace.allow_delete:
            does = f"delete {shown(change.path)}" if change.kind == "delete" else f"move {shown(change.path)}, which removes it"
            message = (
                f"the patch would {does}, but this workspace was set up without removal of files; leave it out, or ask a person to allow it"
            )
            raise failed("removal_not_allowed", message, path=change.path)


def _preconditions(changes: Sequence[FileChange], preconditions: Mapping[str, Precondition] | None) -> dict[str, dict[str, Any]]:
    known = {change.path for change in changes}
    for path in preconditions or {}:
        if path not in known:
            raise refused_argument(
                f"preconditions names {shown(path)}, which the patch does not change; its files: {', '.join(sorted(known))[:500]}"
            )
    return {path: checked_precondition(condition) for path, condition in (preconditions or {}).items()}


def _places(workspace: Workspace, changes: Sequence[FileChange], held: ExitStack) -> dict[str, Place]:
    """Hold every entry that the patch names. Raise `ToolFailed` if two names lead to the same entry."""
    places: dict[str, Place] = {}
    seen: dict[tuple[int, int, str], str] = {}
    for change in changes:
        for path in filter(None, (change.path, change.move_to)):
            is_new = change.kind == "add" or path == change.move_to
            removed = path == change.path and (change.kind == "delete" or bool(change.move_to))
            place = held.enter_context(workspace.place(path, make_parents=is_new, follow=not removed, writing=True))
            if not place.name:
                raise failed("is_a_directory", f"{shown(path)} is the workspace root, not a file", path=path)
            if place.key in seen:
                raise failed(
                    "invalid_patch",
                    f"the patch names one file twice, as {shown(seen[place.key])} and {shown(path)}; combine its changes",
                    path=path,
                )
            places[path] = place
            seen[place.key] = path
    return places


def _steps(workspace: Workspace, change: FileChange, places: Mapping[str, Place], given: Mapping[str, dict[str, Any]]) -> list[_Step]:
    """Return the entry changes of one change. All its possible errors are found here."""
    place = places[change.path]
    with translating(change.path):
        old = current(workspace, place, need_data=change.kind == "update")
        require(place, given.get(change.path, {}))
    if change.kind == "add":
        if old.found is not None:
            raise translated(FileExistsError(errno.EEXIST, ""), change.path)
        return [_Step(place=place, data=encoded(workspace, change.content, change.path), old=old, mode_of=old)]
    if old.found is None:
        raise translated(FileNotFoundError(errno.ENOENT, ""), change.path)
    if change.kind == "delete":
        return [_Step(place=place, data=None, old=old, mode_of=old)]
    data = _updated(workspace, change, old)
    if not change.move_to:
        return [_Step(place=place, data=data, old=old, mode_of=old)]
    target = places[change.move_to]
    with translating(change.move_to):
        there = current(workspace, target, need_data=False)
    if there.found is not None:
        raise translated(FileExistsError(errno.EEXIST, ""), change.move_to)
    return [_Step(place=target, data=data, old=there, mode_of=old), _Step(place=place, data=None, old=old, mode_of=old)]


def _updated(workspace: Workspace, change: FileChange, old: Version) -> bytes:
    data = old.data or b""
    if not change.hunks:
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise failed(
            "not_text", f"{shown(change.path)} ({len(data)} bytes) is not UTF-8 text; edit it with exec", path=change.path
        ) from error
    return encoded(workspace, apply_hunks(text, change.hunks, change.path), change.path)


def _commit(workspace: Workspace, steps: Sequence[_Step], cancelled: Cancellation | None) -> None:
    """Stage all, keep all, then rename all. An exception before the last rename leaves the files unchanged."""
    staged: list[tuple[_Step, str]] = []
    kept: list[tuple[_Step, str]] = []
    done: list[_Step] = []
    try:
        for step in steps:
            with translating(step.place.asked):
                if step.data is not None:
                    staged.append((step, stage(workspace, step.place, step.data, step.mode_of)))
                if step.old.found is not None:
                    kept.append((step, _keep(workspace, step)))
        names = {id(step): name for step, name in staged}
        stop_if(cancelled, doing="applying the patch")
        for step in steps:
            with translating(step.place.asked):
                _do(workspace, step, names.get(id(step)))
            done.append(step)
    except BaseException as error:
        _take_back(workspace, done, kept, error)
        raise
    finally:
        finished = {id(step) for step in done}
        for step, name in staged:
            if id(step) not in finished:
                discard(step.place, name)
    for step, name in kept:
        discard(step.place, name)


def _do(workspace: Workspace, step: _Step, name: str | None) -> None:
    if name is None:
        workspace.before("remove", step.place.path)
        os.unlink(step.place.name, dir_fd=step.place.directory)
    else:
        workspace.before("rename", step.place.path)
        put(step.place, name, new=step.old.found is None)


def _keep(workspace: Workspace, step: _Step) -> str:
    """Give the old file a second name, or copy it if the file system has no hard links. Return that name."""
    place, name = step.place, temporary(step.place, "old")
    workspace.before("keep", place.path)
    discard(place, name)
    try:
        os.link(place.name, name, src_dir_fd=place.directory, dst_dir_fd=place.directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        _copy(workspace, place, name, step.old)
    return name


def _copy(workspace: Workspace, place: Place, name: str, old: Version) -> None:
    data = current(workspace, place).data or b""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place.directory)
    try:
        write_all(descriptor, data)
        os.fchmod(descriptor, old.found.st_mode & 0o777)
        os.utime(descriptor, ns=(old.found.st_atime_ns, old.found.st_mtime_ns))
        os.fsync(descriptor)
    except BaseException:
        discard(place, name)
        raise
    finally:
        os.close(descriptor)


def _take_back(workspace: Workspace, done: Sequence[_Step], kept: Sequence[tuple[_Step, str]], error: BaseException) -> None:
    """Undo the changes, last first. If that fails too, raise `ToolFailed` (`partly_applied`), which names the files that stay changed."""
    names = {id(step): name for step, name in kept}
    stuck: list[str] = []
    for step in reversed(done):
        place, name = step.place, names.get(id(step))
        try:
            workspace.before("take_back", place.path)
            if name is None:
                os.unlink(place.name, dir_fd=place.directory)
            else:
                os.rename(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
        except OSError:
            stuck.append(place.path)
    for step, name in kept:
        if step.place.path not in stuck:
            discard(step.place, name)
    if stuck:
        message = f"the patch failed ({error}), and these files could not be put back: {', '.join(stuck)}; their old content is beside them as .detent-*.old"
        raise failed("partly_applied", message, paths=stuck) from error
    if done:
        sync_directories(workspace, [step.place for step in done])


def _counted(changes: Sequence[FileChange]) -> Patched:
    moved = [change for change in changes if change.move_to]
    return Patched(
        added=sum(change.kind == "add" for change in changes),
        updated=sum(change.kind == "update" and not change.move_to for change in changes),
        deleted=sum(change.kind == "delete" for change in changes),
        moved=len(moved),
        files=tuple(change.move_to or change.path for change in changes if change.kind != "delete"),
        removed=tuple(change.path for change in changes if change.kind == "delete" or change.move_to),
    )
