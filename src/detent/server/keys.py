"""Requests that are sent again: what an `Idempotency-Key` stands for.

Rule: keys have no table. The id of the run or signal is a hash of tenant and key, so the log itself says what was done under a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from detent.core.codec import encode
from detent.server.callers import Caller
from detent.server.problems import Refused

LONGEST = 200


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


def another(key: str) -> Refused:
    """Return the refusal of a key that was used with another body."""
    return Refused(409, "key_reused", f"Idempotency-Key {key!r} was used for a request with another body; nothing was done. Use a new key")
