"""Seals: the length of each run's log at its last durable append, in `RUN.sealed` beside the log. They reveal a log that was cut.

A seal has two slots, each with a checksum, and a write replaces the older one: a write torn by a crash leaves the other slot. The seal is written
and synced after the log. A seal that is older than the log does not contradict the log.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import msgspec

from detent.core.errors import CorruptLog
from detent.stores.files.parts import write_all

_SLOT = 512
_BLANK = (b" " * (_SLOT - 1) + b"\n") * 2
_DIGEST_BYTES = 256
_decode = msgspec.json.Decoder(tuple[int, str, str]).decode

Seal = tuple[int, str]
"""Number of records, and the digest of the last of them."""


class Seals:
    """The seals in one directory. A run's seal is written under the lock of its log."""

    def __init__(self, directory: Path) -> None:
        self._in = str(directory)  # building a `Path` for each seal would take as long as the rest of an append

    def path(self, run_id: str) -> str:
        """Return the path of a run's seal."""
        return f"{self._in}/{run_id}.sealed"

    def prepare(self, run_id: str) -> bool:
        """Allocate space for a seal if there is none; return whether it was allocated. So sealing itself cannot fail on a full disk."""
        fd = os.open(self.path(run_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size == len(_BLANK):
                return False
            write_all(fd, _BLANK, 0)
            return True
        finally:
            os.close(fd)

    def write(self, run_id: str, seal: Seal, *, over: int | None = None) -> int:
        """Write the seal durably over the older of the two slots, and return which slot is the older one then.

        `over` is the result of the last call, if nobody else has written a seal since.
        """
        fd = os.open(self.path(run_id), os.O_RDWR | os.O_CLOEXEC)
        try:
            if over is None:
                first, second = _slots(os.pread(fd, len(_BLANK), 0))
                over = 1 if first is not None and (second is None or second[0] <= first[0]) else 0
            write_all(fd, _encoded(seal), over * _SLOT)
            os.fsync(fd)
        finally:
            os.close(fd)
        return 1 - over

    def read(self, run_id: str) -> Seal | None:
        """Return the later of the two slots, None if nothing was sealed yet. Raise `CorruptLog` if neither can be read."""
        try:
            data = Path(self.path(run_id)).read_bytes()
        except FileNotFoundError:
            return None
        found = [seal for seal in _slots(data) if seal is not None]
        if not found and data.strip():
            raise CorruptLog(run_id, 0, f"{run_id}.sealed, which has the length of its log, cannot be read")
        return max(found, default=None)

    def remove(self, run_id: str) -> None:
        """Remove the seal. Remove it before the log, which would otherwise look lost."""
        Path(self.path(run_id)).unlink(missing_ok=True)


def _check(records: int, digest: str) -> str:
    return sha256(f"{records} {digest}".encode()).hexdigest()[:16]


def _encoded(seal: Seal) -> bytes:
    records, digest = seal[0], seal[1] if len(seal[1].encode()) <= _DIGEST_BYTES else ""
    return msgspec.json.encode([records, digest, _check(records, digest)]).ljust(_SLOT - 1) + b"\n"


def _slots(data: bytes) -> tuple[Seal | None, Seal | None]:
    return _decoded(data[:_SLOT]), _decoded(data[_SLOT : 2 * _SLOT])


def _decoded(slot: bytes) -> Seal | None:
    try:
        records, digest, check = _decode(slot)
    except ValueError:  # msgspec's errors are ValueErrors
        return None
    return (records, digest) if check == _check(records, digest) else None
