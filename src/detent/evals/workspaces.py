"""The workspace of a trial whose case has files: a directory of its own, which a process that takes the trial over finds again where it can.

Rule: a run continues only in the directory that it wrote to. Where that is gone, because the trial ran on another host, an unfinished run is cancelled and the
trial is begun anew, counted; a finished one is graded without its files, which their graders then do not know.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from detent.evals.suites import Case
from detent.ports import EventStore

_KEY = "files-"
_MARK, _FILES = "trial", "files"


async def found(store: EventStore, place: str, run_id: str) -> Path | None:
    """Return the workspace of a run, None if it is not on this host. What the store says counts only where the directory says the same."""
    data = await store.get_blob(place, _KEY + run_id)
    if data is None:
        return None
    base = Path(data.decode(errors="replace"))
    with contextlib.suppress(OSError, ValueError):
        if (base / _MARK).read_text(encoding="utf-8") == run_id and (base / _FILES).is_dir():
            return base / _FILES
    return None


async def made(store: EventStore, place: str, run_id: str, case: Case) -> Path:
    """Return a fresh workspace with the files of a case, and keep where it is."""
    base = Path(tempfile.mkdtemp(prefix="detent-eval-"))
    for path, text in case.files.items():
        (base / _FILES / path).parent.mkdir(parents=True, exist_ok=True)
        (base / _FILES / path).write_text(text, encoding="utf-8")
    (base / _MARK).write_text(run_id, encoding="utf-8")
    await store.put_blob(place, _KEY + run_id, str(base).encode())
    return base / _FILES


async def removed(store: EventStore, place: str, run_id: str) -> None:
    """Remove the workspace of a run that was graded."""
    if (workspace := await found(store, place, run_id)) is not None:
        shutil.rmtree(workspace.parent, ignore_errors=True)
    await store.delete_blob(place, _KEY + run_id)
