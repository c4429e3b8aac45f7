"""Versions of the code: which one begins a new run, and which runs a process may advance.

A process has one version (`Engine(version=)`), and a run needs the one that it began with, until it is moved. How many of the new runs begin on which
version is kept in the store, as shares that add up to 100. So rolling out is one write, which every process sees.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

from detent.core.errors import ConfigError, CorruptLog, Explained
from detent.core.state import WAITING, RunState
from detent.ports import EventStore, RunQuery
from detent.ports.heads import CODE
from detent.ports.stores import RESERVED

PLACE, SHARES = f"{RESERVED}versions", "shares"
FRESH_S = 1.0
"""How long a process uses the shares that it has read."""
CHECKED_S = 60.0
"""For how long a process submits runs of a version after it has found room for the version (`max_versions`)."""
OPEN = ("running", *WAITING)
MOST_CHARACTERS = 100


class Shares(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How many percent of the new runs begin on each version, and who said so. `stranded`: how many runs could not continue, of so many `checked`."""

    of: dict[str, int] = {}
    by: str = ""
    at: datetime | None = None
    checked: int | None = None
    stranded: int = 0


def routed(run_id: str, shares: Mapping[str, int], own: str) -> str:
    """Return the version on which a new run begins, by a digest of its id; without shares that of the process that starts it."""
    at = int.from_bytes(sha256(run_id.encode(errors="surrogatepass")).digest()[:8], "big") % 100
    for version, share in sorted(shares.items()):
        if at < share:
            return version
        at -= share
    return own


async def shares_in(store: EventStore) -> Shares:
    """Return the shares that the store has. Raise `CorruptLog`."""
    data = await store.get_blob(PLACE, SHARES)
    try:
        return Shares() if data is None else msgspec.json.decode(data, type=Shares)
    except (ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
        why = f"the shares of versions cannot be read ({error}); `detent versions VERSION=100` writes them anew"
        raise CorruptLog(PLACE, 0, why) from error


class Routing:
    """The shares of one store, read again when they are older than `FRESH_S`. `most`: on how many versions there may be unfinished runs."""

    def __init__(self, store: EventStore, own: str, most: int | None = None) -> None:
        self._store, self._own, self._most = store, own, most
        self._has_room: dict[str, float] = {}
        self._shares, self._until = Shares(), 0.0

    async def shares(self) -> Shares:
        """Return the shares."""
        now = asyncio.get_running_loop().time()
        if not now < self._until <= now + FRESH_S:
            self._shares, self._until = await shares_in(self._store), now + FRESH_S
        return self._shares

    async def of_new(self, run_id: str) -> dict[str, str]:
        """Return the entry among the digests of a new run that a worker will begin. Raise `ConfigError` if its version is one too many."""
        version = routed(run_id, (await self.shares()).of, self._own)
        if not version:
            return {}
        now = asyncio.get_running_loop().time()
        if self._most is not None and not now < self._has_room.get(version, 0.0) <= now + CHECKED_S:
            refuse_one_more(await open_by_version(self._store), version, self._most)
            self._has_room[version] = now + CHECKED_S
        return {CODE: version}


async def open_by_version(store: EventStore, tenant: str | None = None) -> Counter[str]:
    """Return how many unfinished runs need each version; "" for those that need none."""
    return Counter(head.version for head in await store.list_runs(RunQuery(status=OPEN, tenant=tenant)))


def refuse_one_more(there: Counter[str], version: str, most: int | None) -> None:
    """Raise `ConfigError` if unfinished runs need so many versions already, and this is one more."""
    others = {name: count for name, count in there.items() if name not in ("", version)}
    if most is not None and len(others) >= most:
        said = ", ".join(f"{name!r} ({count})" for name, count in sorted(others.items()))
        raise ConfigError(
            f"version {version!r} would be number {len(others) + 1} with unfinished runs, and max_versions is {most}. There are: {said}. Wait until the "
            "runs of one of them have ended (`detent versions`), move them (`detent versions OLD=0`), cancel them (`detent cancel --where version=OLD`), "
            "or raise max_versions"
        )


def checked_version(version: str) -> str:
    """Return the name of a version. Raise `ConfigError` for one that cannot be written in a command or a header."""
    if not version.isascii() or not version.isprintable() or len(version) > MOST_CHARACTERS or set(version) & set(" =,\"'\\"):
        most = f"use at most {MOST_CHARACTERS} printable ASCII characters, and no blanks, quotation marks, commas or ="
        raise ConfigError(f"version {version[:80]!r}: {most}")
    return version


def code_of(state: RunState) -> str:
    """Return the version of the code that a run needs, "" if it needs none."""
    return state.digests.get(CODE, "")


def is_other(state: RunState, own: str) -> bool:
    """Whether a run needs another version than a process has. A fork that has not begun may begin anywhere."""
    return code_of(state) not in ("", own) and not (state.seq == 1 and bool(state.ancestors))


def refuse_other(state: RunState, own: str) -> None:
    """Raise `ConfigError` for a run that needs another version than this process has."""
    if is_other(state, own):
        here = f"has version {own!r}" if own else "has none: set `version` of `[worker]`, DETENT_VERSION or Engine(version=)"
        how = f"`detent resume {state.run_id} --upgrade`, where a version is installed with which check-upgrade finds that it can continue"
        raise ConfigError(
            f"run {state.run_id!r} needs version {code_of(state)!r} of the code, and this process {here}; nothing was done. A worker with "
            f"that version continues it, or {how}, moves it"
        )
