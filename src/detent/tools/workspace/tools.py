"""The workspace tools for agents: `workspace_tools(root)`, with their names, arguments and declared side effects.

    engine = Engine(store="sqlite:///runs.db", tools=workspace_tools("~/project"))

| tools | side effect | after a crash in the middle |
|---|---|---|
| done | none | run again |
| read_file, stat_file, search_in_file, list_dir, find_files, glob | read | run again |
| write_file, create_file, write_result_to_file | write, idempotent | run again: the same content is a success; other content is left alone and reported |
| append_file, replace_in_file | write | in doubt: the text may be there, but somebody else may have written it |
| apply_patch | write; destructive if it may remove files (`allow_delete`) | in doubt |
| exec | destructive; in a sandbox if bubblewrap works | in doubt |

Reading tools return the hash, time and size of what they read. Pass them as a precondition, and a change is refused if somebody else changed the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.core.errors import NotExecuted, ToolFailed
from detent.ports import ToolContext
from detent.ports.options import checked_options
from detent.tools.done import done_tool
from detent.tools.functions.function import Tool, tool
from detent.tools.workspace import files, listing, process, reading, sandbox, search
from detent.tools.workspace import patch as patching
from detent.tools.workspace.confine import Limits, Workspace
from detent.tools.workspace.envelope import parse
from detent.tools.workspace.result_files import Asks, asks_for_path, result_file_tool
from detent.tools.workspace.writing import Precondition

AnyTool = Tool[..., Any]

EXEC_MARGIN_S = 0.5
"""Time reserved for killing and reporting before the call's own deadline, in seconds."""


@checked_options
def workspace_tools(
    root: str | Path | Workspace,
    *,
    allow_delete: bool = False,
    protected: Sequence[str] = (),
    unprotected: Sequence[str] = (),
    limits: Limits | None = None,
    inherit_env: Sequence[str] | None = process.INHERITED,
    sandbox_mode: sandbox.Mode = "auto",
    sandbox_options: sandbox.Sandbox | None = None,
) -> list[AnyTool]:
    """Return all workspace tools, confined to the directory `root`, which must exist.

    `allow_delete` lets apply_patch delete and move files, and makes it destructive. Governing files are not written (see `protection`): `protected`
    adds patterns of more such files, `unprotected` opens paths, and each call that writes to an opened path asks.

    `inherit_env` are the names of the environment variables that programs started by exec get. None passes the whole environment, including secrets.
    `sandbox_mode`: "auto" runs programs in a sandbox if one can be created (tried here, once), "require" refuses to create the tools if not, "off"
    never uses one. The spec of the exec tool tells which it is (`sandboxed`), and exec keeps to it. `sandbox_options` set what the sandbox allows.
    Raise `ConfigError`, also for a root that is not a directory.
    """
    if not isinstance(root, Workspace):
        root = Workspace(Path(root).expanduser(), limits=limits, allow_delete=allow_delete, protected=protected, unprotected=unprotected)
    made: list[AnyTool] = [
        _read_file(root),
        _stat_file(root),
        _search_in_file(root),
        _list_dir(root),
        _find_files(root),
        _glob(root),
        _write_file(root),
        _create_file(root),
        _append_file(root),
        _replace_in_file(root),
        _apply_patch(root),
        result_file_tool(root),
        _exec(root, inherit_env, *sandbox.choose(sandbox_mode, root.root, sandbox_options)),
        done_tool(),
    ]
    for one in made:
        one.options = msgspec.structs.replace(one.options, writes_in=root.root)
    return made


def asks_for_patch(workspace: Workspace) -> Asks:
    """Return a function that tells why a person must approve a patch, as `asks_for_path`. An unreadable patch changes nothing, so it does not ask."""
    if not workspace.protection.unprotected:
        return None

    def asks(args: dict[str, Any]) -> str:
        try:
            return workspace.protection.asks(path for change in parse(args["patch"]) for path in (change.path, change.move_to) if path)
        except ToolFailed:
            return ""

    return asks


def _plain(result: msgspec.Struct) -> dict[str, Any]:
    """Return a result as plain data."""
    return msgspec.to_builtins(result)


def _read_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True, max_result_bytes=workspace.limits.read_bytes * 2 + 8_192)
    def read_file(
        path: str,
        *,
        context: ToolContext,
        start: int | None = None,
        end: int | None = None,
        head: int | None = None,
        tail: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Read a UTF-8 text file, or lines of it; returns content, total_lines and truncated, and hash, mtime_unix_ms and size_bytes of the whole file.

        Of a very large file only what is wanted is read: hash and total_lines are then null.

        Args:
            path: relative to the workspace root.
            start: first line wanted, counted from 1.
            end: last line wanted, inclusive; without it, to the end.
            head: only the first so many lines; not with start, end or tail.
            tail: only the last so many lines; not with start, end or head.
            max_bytes: return at most so many bytes; truncated says when there was more.
        """
        options = {"start": start, "end": end, "head": head, "tail": tail, "max_bytes": max_bytes}
        text = reading.read_file(workspace, path, **options, cancelled=context.cancelled)
        return {**_plain(text), "lines": text.lines}

    return read_file


def _stat_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True)
    def stat_file(path: str) -> dict[str, Any]:
        """Say whether a path exists, and its kind (dir, file, symlink, other), size_bytes and modified_unix_ms. A missing path is not an error.

        Args:
            path: relative to the workspace root.
        """
        return _plain(reading.stat_file(workspace, path))

    return stat_file


def _search_in_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True, max_result_bytes=workspace.limits.read_bytes * 2 + 8_192)
    def search_in_file(
        path: str,
        query: str,
        *,
        context: ToolContext,
        regex: bool = False,
        case_sensitive: bool = True,
        max_matches: int = search.DEFAULT_MATCHES,
        before: int = 0,
        after: int = 0,
    ) -> dict[str, Any]:
        """Find the lines of a file that hold a text; returns their numbers, columns and text. truncated: more lines match.

        Args:
            path: relative to the workspace root.
            query: the text, or a regular expression with regex.
            regex: read query as a regular expression (Python syntax), line by line.
            case_sensitive: false ignores case.
            max_matches: return at most so many lines.
            before: lines to show before each match, up to 20.
            after: lines to show after each match, up to 20.
        """
        options = {"regex": regex, "case_sensitive": case_sensitive, "max_matches": max_matches, "before": before, "after": after}
        return _plain(search.search_in_file(workspace, path, query, **options, cancelled=context.cancelled))  # type: ignore[arg-type]

    return search_in_file


def _list_dir(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True, max_result_bytes=1_048_576)
    def list_dir(
        *,
        context: ToolContext,
        path: str = ".",
        include_hidden: bool = False,
        limit: int = listing.DEFAULT_ENTRIES,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """List what is directly in a directory: directories, files, links, others, by name, with size_bytes and modified_unix_ms.

        Args:
            path: the directory, relative to the workspace root.
            include_hidden: also names that begin with a dot.
            limit: return at most so many entries.
            cursor: next_cursor of the page before.
        """
        found = listing.list_dir(workspace, path, include_hidden=include_hidden, limit=limit, cursor=cursor, cancelled=context.cancelled)
        return _plain(found)

    return list_dir


def _find_files(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True, max_result_bytes=1_048_576)
    def find_files(
        *,
        context: ToolContext,
        path: str = ".",
        name_contains: str = "",
        path_contains: str = "",
        extensions: tuple[str, ...] = (),
        exclude_dirs: tuple[str, ...] = (),
        max_depth: int | None = None,
        include_hidden: bool = False,
        limit: int = listing.DEFAULT_ENTRIES,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """Find files in a directory and everything below it; returns paths relative to the workspace root, sorted.

        Args:
            path: the directory, relative to the workspace root.
            name_contains: text in the file's name, whatever its case.
            path_contains: text in the whole path, whatever its case.
            extensions: endings such as "py" or ".py"; empty for all.
            exclude_dirs: names of directories not to enter.
            max_depth: 1 is the directory's own files.
            include_hidden: also names that begin with a dot, and what is below them.
            limit: return at most so many paths.
            cursor: next_cursor of the page before.
        """
        found = listing.find_files(
            workspace,
            path,
            name_contains=name_contains,
            path_contains=path_contains,
            extensions=extensions,
            exclude_dirs=exclude_dirs,
            max_depth=max_depth,
            include_hidden=include_hidden,
            limit=limit,
            cursor=cursor,
            cancelled=context.cancelled,
        )
        return _plain(found)

    return find_files


def _glob(workspace: Workspace) -> AnyTool:
    @tool(side_effect="read", concurrency_safe=True, max_result_bytes=1_048_576)
    def glob(
        pattern: str,
        *,
        context: ToolContext,
        path: str = ".",
        kind: Literal["file", "dir", "symlink", "any"] = "any",
        include_hidden: bool = False,
        max_results: int = listing.DEFAULT_ENTRIES,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """Find files and directories by pattern; returns paths relative to the workspace root, sorted.

        Args:
            pattern: such as "src/**/*.py"; * and ? stay within a name, ** is any number of directories, [a-z] one character.
            path: the directory that the pattern begins in, relative to the workspace root.
            kind: only this kind of entry.
            include_hidden: let * and ** match names that begin with a dot.
            max_results: return at most so many paths.
            cursor: next_cursor of the page before.
        """
        options = {"include_hidden": include_hidden, "max_results": max_results, "cursor": cursor}
        return _plain(listing.glob(workspace, pattern, path, kind=kind, **options, cancelled=context.cancelled))  # type: ignore[arg-type]

    return glob


def _write_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="write", idempotent=True, asks=asks_for_path(workspace))
    def write_file(
        path: str,
        content: str,
        *,
        context: ToolContext,
        mode: Literal["overwrite", "create"] = "overwrite",
        precondition: Precondition | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """Write a whole text file, atomically; missing directories are created. Refuses placeholders for left-out text, and less than 60 % of the old size.

        Args:
            path: relative to the workspace root.
            content: the whole new content.
            mode: create refuses when the file exists.
            precondition: what the file must be (values that read_file returned); otherwise nothing is written.
            force: write also what looks like a mistake: placeholders, much smaller content.
        """
        again = context.attempt > 1
        options = {"mode": mode, "precondition": precondition, "force": force, "again": again}
        return _plain(files.write_file(workspace, path, content, **options, cancelled=context.cancelled))  # type: ignore[arg-type]

    return write_file


def _create_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="write", idempotent=True, asks=asks_for_path(workspace))
    def create_file(path: str, *, context: ToolContext, content: str = "", precondition: Precondition | None = None) -> dict[str, Any]:
        """Create a text file; refuses when anything is there. Missing directories are created.

        Args:
            path: relative to the workspace root.
            content: its content.
            precondition: as for write_file; a new file meets none, so leave it out.
        """
        again = context.attempt > 1
        return _plain(files.create_file(workspace, path, content, precondition=precondition, again=again, cancelled=context.cancelled))

    return create_file


def _append_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="write", asks=asks_for_path(workspace))
    def append_file(path: str, content: str, *, context: ToolContext, precondition: Precondition | None = None) -> dict[str, Any]:
        """Add text to the end of a file, which is created when missing. Not atomic; returns appended_bytes.

        Args:
            path: relative to the workspace root.
            content: what to add; begin it with a line feed where the file does not end with one.
            precondition: what the file must be (values that read_file returned); otherwise nothing is written.
        """
        return _plain(files.append_file(workspace, path, content, precondition=precondition, cancelled=context.cancelled))

    return append_file


def _replace_in_file(workspace: Workspace) -> AnyTool:
    @tool(side_effect="write", asks=asks_for_path(workspace))
    def replace_in_file(
        path: str, old: str, new: str, *, context: ToolContext, expected_matches: int = 1, precondition: Precondition | None = None
    ) -> dict[str, Any]:
        """Replace an exact text in a file, everywhere it occurs; nothing is written unless it occurs expected_matches times.

        Args:
            path: relative to the workspace root.
            old: the exact text, with its spaces and line ends.
            new: what comes in its place.
            expected_matches: how often old occurs.
            precondition: what the file must be (values that read_file returned); otherwise nothing is written.
        """
        options = {"expected_matches": expected_matches, "precondition": precondition}
        return _plain(files.replace_in_file(workspace, path, old, new, **options, cancelled=context.cancelled))  # type: ignore[arg-type]

    return replace_in_file


def _apply_patch(workspace: Workspace) -> AnyTool:
    @tool(side_effect="destructive" if workspace.allow_delete else "write", asks=asks_for_patch(workspace))
    def apply_patch(patch: str, *, context: ToolContext, preconditions: dict[str, Precondition] | None = None) -> dict[str, Any]:
        """Change several files together, all or none, with a patch in this format.

        *** Begin Patch
        *** Add File: notes/new.txt
        +a line
        *** Update File: src/app.py
        @@ def main():
         a line that stays
        -a line that goes
        +a line that comes
        *** End Patch

        Lines that stay and go must be exactly those of the file and fit in one place; the text after @@ is a line of the file to look
        after. Also: "*** Delete File: path", "*** Move to: path" under an update (both only where removal is allowed), "*** End of File".

        Args:
            patch: the patch, from Begin Patch to End Patch; paths relative to the workspace root.
            preconditions: for paths in the patch, what the file must be (values that read_file returned); otherwise nothing is changed.
        """
        return _plain(patching.apply_patch(workspace, patch, preconditions=preconditions, cancelled=context.cancelled))

    return apply_patch


def _exec(workspace: Workspace, inherit: Sequence[str] | None, box: sandbox.Sandbox | None, why_not: str) -> AnyTool:
    limits = workspace.limits

    @tool(
        name="exec",
        side_effect="destructive",
        sandboxed=box is not None,
        confinement=sandbox.told(box, why_not),
        timeout_s=limits.exec_timeout_s + 15.0,
        max_result_bytes=2 * (limits.stdout_bytes + limits.stderr_bytes) + 8_192,
    )
    async def execute(
        command: str,
        *,
        context: ToolContext,
        args: tuple[str, ...] = (),
        cwd: str = ".",
        timeout_s: float = process.DEFAULT_TIMEOUT_S,
        stdin: str | None = None,
        env: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a program, without a shell; returns stdout, stderr, code, timed_out and duration_ms. A code other than 0 is a result, not an error.

        Whatever the program leaves running is killed when it ends. sandboxed says whether it saw only the workspace and the system's programs.

        Args:
            command: the program: a name on PATH, or a path.
            args: its arguments, one element each; nothing is expanded.
            cwd: the directory to run in, relative to the workspace root.
            timeout_s: seconds until it is killed; timed_out says so.
            stdin: text for its standard input.
            env: environment variables beside the usual few (PATH, HOME, LANG, ...).
        """
        left = context.remaining_s()
        if left is not None:
            if left <= EXEC_MARGIN_S:
                raise NotExecuted(f"{command!r} was not started: the run's time is used up", error_code="timeout")
            if timeout_s <= limits.exec_timeout_s:  # a value that is too long is refused, even if little time is left
                timeout_s = min(timeout_s, left - EXEC_MARGIN_S)
        options = {"cwd": cwd, "timeout_s": timeout_s, "stdin": stdin, "env": env, "inherit": inherit, "sandbox": box}
        done = await process.execute(workspace, command, args, **options, cancelled=context.cancelled)  # type: ignore[arg-type]
        return {**_plain(done), "not_sandboxed": why_not}

    return execute
