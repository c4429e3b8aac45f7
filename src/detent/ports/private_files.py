"""Files that only their owner may read: archives, exports, trust decisions, tokens."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def private_file(path: Path) -> Generator[BinaryIO]:
    """Write a file atomically and durably, readable only by its owner (0600) from the first byte. A link at `path` is replaced, not followed."""
    partly = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        partly.unlink(missing_ok=True)  # an existing file or link of this name is not written to
        with os.fdopen(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as raw:
            os.fchmod(raw.fileno(), 0o600)
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        partly.replace(path)
        _sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            partly.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
