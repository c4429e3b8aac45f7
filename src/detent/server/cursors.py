"""Event ids of streams over many runs: how far a reader has come in each of them, in an id that stays small.

An id has what came since the last checkpoint. A checkpoint is a blob in the store, so every server of the store can read it, and it is written before an
id names it. Rule: an id gives nobody anything. It says where to begin among the runs that the reader may see anyway, so a forged one skips or repeats
records for its sender alone.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
import zlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated

import msgspec

from detent.ports import EventStore
from detent.ports.stores import RESERVED
from detent.server.problems import Refused

MOST_FRESH = 48
"""How many runs an id has before a checkpoint takes them."""
MOST_IN_ID, MOST_KEPT_BYTES = 256 * 1024, 256 * 1024 * 1024
"""How large what is compressed in an id, and in a checkpoint, may be."""
KEPT_S, RENEWED_S, MOST_KEPT = 14 * 86_400.0, 86_400.0, 10_000
"""How long and how many checkpoints are kept of one place; one that is still used is written again after `RENEWED_S`."""


class _Id(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    base: str
    fresh: dict[str, Annotated[int, msgspec.Meta(ge=1, lt=2**53)]]


class _Kept(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    before: str
    runs: dict[str, int]


class Cursor:
    """How far one reader has come. `place` is what the stream is about: the same tenant and the same run have the same place."""

    def __init__(self, store: EventStore, *place: str) -> None:
        self._store = store
        self._place = f"{RESERVED}stream-{sha256(chr(0).join(place).encode()).hexdigest()[:32]}"
        self.reached: dict[str, int] = {}
        self._base, self._fresh = "", dict[str, int]()
        self._since_whole, self._whole_at = 0, 0.0

    async def read(self, event_id: str) -> None:
        """Take over an event id; raise `Refused` for one that this API did not give (400), or whose checkpoint is gone (410)."""
        try:
            if not event_id.startswith("t") or len(event_id) > 100_000:
                raise ValueError("it is of another kind of stream")
            packed = base64.urlsafe_b64decode(event_id[1:] + "=" * (-len(event_id[1:]) % 4))
            said = msgspec.json.decode(_unpacked(packed, MOST_IN_ID), type=_Id)
        except (ValueError, zlib.error, msgspec.DecodeError) as error:
            why = f"{event_id[:80]!r} is not an event id of this stream; leave it out to begin with the first record"
            raise Refused(400, "bad_event_id", why) from error
        for kept in reversed(await self._chain(said.base)):
            self.reached |= kept.runs
        self.reached |= said.fresh
        self._base, self._fresh = said.base, dict(said.fresh)

    async def _chain(self, base: str) -> list[_Kept]:
        """Return a checkpoint and those that it continues, the newest first."""
        found: list[_Kept] = []
        while base:
            data = await self._store.get_blob(self._place, base) if _named(base) else None
            if data is None:
                raise Refused(
                    410,
                    "event_id_expired",
                    "this event id is too old, or is of another stream; leave it out to begin with the first record",
                )
            found.append(msgspec.json.decode(_unpacked(data, MOST_KEPT_BYTES), type=_Kept))
            self._since_whole += len(found[-1].runs)
            self._whole_at = int(base[:14], 16) / 1000
            base = found[-1].before
        self._since_whole -= len(found[-1].runs) if found else 0
        return found

    async def moved(self, run_id: str, seq: int) -> str:
        """Note that a record goes out now, and return its event id."""
        self.reached[run_id] = self._fresh[run_id] = seq
        return await self.event_id()

    async def event_id(self) -> str:
        """Return the id of where the reader is."""
        if len(self._fresh) > MOST_FRESH or (self._base and time.time() - self._whole_at > RENEWED_S):
            await self._keep()
        packed = zlib.compress(msgspec.json.encode(_Id(base=self._base, fresh=self._fresh)), 1)
        return "t" + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def begin_at(self, reached: Mapping[str, int]) -> None:
        """Begin behind these records."""
        self.reached = dict(reached)
        self._fresh = dict(reached)

    async def _keep(self) -> None:
        """Write a checkpoint: what came since the last one, or (so that reading stays cheap) the whole."""
        now = time.time()
        whole = not self._base or self._since_whole > max(2_000, len(self.reached)) or now - self._whole_at > RENEWED_S
        kept = _Kept(before="" if whole else self._base, runs=self.reached if whole else self._fresh)
        name = f"{int(now * 1000):014x}-{secrets.token_hex(16)}"
        await self._store.put_blob(self._place, name, await asyncio.to_thread(lambda: zlib.compress(msgspec.json.encode(kept), 1)))
        self._since_whole = 0 if whole else self._since_whole + len(self._fresh)
        self._base, self._fresh = name, {}
        if whole:
            self._whole_at = now
            await self._forget(now)

    async def _forget(self, now: float) -> None:
        names = sorted(name for name in await self._store.list_blobs(self._place) if _named(name))
        oldest = f"{max(0, int((now - KEPT_S) * 1000)):014x}"
        for index, name in enumerate(names):
            if name < oldest or index < len(names) - MOST_KEPT:
                await self._store.delete_blob(self._place, name)


def _named(name: str) -> bool:
    moment, _, rest = name.partition("-")
    return len(moment) == 14 and len(rest) == 32 and all(one in "0123456789abcdef" for one in moment + rest)


def _unpacked(data: bytes, most: int) -> bytes:
    """Return what was compressed, within bounds; raise `ValueError` if it is larger."""
    opened = zlib.decompressobj()
    found = opened.decompress(data, most)
    if opened.unconsumed_tail or not opened.eof:
        raise ValueError("it is cut off or too large")
    return found
