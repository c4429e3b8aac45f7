"""Requests that are sent again: what an `Idempotency-Key` stands for.

Rule: keys have no table. The id of the run or signal is a hash of tenant and key, so the log itself says what was done under a key. A request that
leaves nothing in a log is marked beside what it is about: an empty blob has the request's id for its name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from hashlib import sha256
from typing import Any

from detent.core.codec import encode
from detent.ports import EventStore
from detent.schedules import firing
from detent.server.callers import Caller
from detent.server.operations import Call
from detent.server.problems import Refused

LONGEST = 200
_MARK = "request-"


def read_key(given: str) -> str:
    """Return the key of a request; raise `Refused` for one that is none."""
    if given and (len(given) > LONGEST or not given.isprintable()):
        raise Refused(400, "bad_idempotency_key", f"Idempotency-Key must be at most {LONGEST} printable characters")
    return given.strip()


def id_of(caller: Caller, key: str, *about: str) -> str:
    """Return the id that a key of a tenant stands for."""
    return sha256("\0".join((caller.tenant, key, *about)).encode()).hexdigest()[:40]


def digest_of(body: Any) -> str:
    """Return the digest of a request's body, to tell another body under the same key."""
    return sha256(encode(body)).hexdigest()[:16]


def request_id(caller: Caller, key: str, body: Any, *about: str, known: Iterable[bytes]) -> tuple[str, bool]:
    """Return the id of a request with a key, and whether it was done already. `known` are the records of what it is about.

    Raise `Refused` (409) if they have a request with this key and another body.
    """
    begin = f"key-{id_of(caller, key, *about)}-"
    mine = begin + digest_of(body)
    found = {
        text.decode() for line in known if begin.encode() in line for text in re.findall(re.escape(begin).encode() + rb"[0-9a-f]{16}", line)
    }
    if found - {mine}:
        raise another(key)
    return mine, mine in found


@contextlib.asynccontextmanager
async def alone(call: Call, *about: str) -> AsyncGenerator[None]:
    """Keep other requests with the same key waiting, in every process; a request without a key waits for none."""
    async with contextlib.AsyncExitStack() as stack:
        if call.key:
            place = f"key-{id_of(call.caller, call.key, *about)}"
            await stack.enter_async_context(firing.alone(call.served.engine.runtime, place, patient=True, what="this Idempotency-Key"))
        yield


async def marks(store: EventStore, place: str) -> Sequence[bytes]:
    """Return the ids of the requests that are marked at a place: a run, or a name that is kept for no run."""
    return [name.encode() for name in await store.list_blobs(place) if name.startswith(_MARK)]


async def mark(store: EventStore, place: str, request: str) -> None:
    """Mark a request as done; one without a key is not."""
    if request:
        await store.put_blob(place, f"{_MARK}{request}", b"")


def another(key: str) -> Refused:
    """Return the refusal of a key that was used with another body."""
    return Refused(409, "key_reused", f"Idempotency-Key {key!r} was used for a request with another body; nothing was done. Use a new key")
