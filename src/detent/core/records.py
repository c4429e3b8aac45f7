"""One entry of the log: an envelope, an event, and a digest that binds both to everything before them.

A record is stored as one JSON object, and stores keep its bytes as they are:

    {"envelope": {...}, "salt": "...", "body": {...}, "digest": "..."}       a record
    {"envelope": {...}, "erased": "H(salt, body)", "digest": "..."}          the same record after `erase`

    digest = H(previous digest, envelope, H(salt, body))

The hash covers the exact bytes of envelope and body. Erasing keeps H(salt, body), so the chain verifies and the content is gone; the
salt keeps a guessed body from being confirmed (DESIGN 4).
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from detent.core.brief import brief
from detent.core.events import AnyEvent, Queued

VERSION = 1
"""The version of the record format that this code writes."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The position of a record. `seq` counts from 1 without gaps. `goal` is the root run's id, left out if that is `run` itself.

    `scope` is the pass ("" for the run). `status` is the run's status after the record, left out while it is running; a terminal status comes
    with a `reason`. The first record has `tenant` and `agent`, so that they survive erasure.
    """

    run: str
    seq: int
    at: datetime
    v: int = VERSION
    goal: str = ""
    scope: str = ""
    iteration: int = 0
    status: str = ""
    reason: str = ""
    tenant: str = ""
    agent: str = ""
    parent: str = ""

    @property
    def goal_id(self) -> str:
        """The id of the goal, which is the root run's id."""
        return self.goal or self.run


class Record(msgspec.Struct, frozen=True, gc=False):
    """A decoded record; `event` is None once it was erased."""

    envelope: Envelope
    event: AnyEvent | None
    digest: str

    __repr__ = brief


class RunHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run's entry in a store's listing, taken from its first and last record. `title` is a model's title for it, or "".

    `digest` is the last record's digest, for `append`. A store need not return it here (see `EventStore.sealed`).
    `cost_usd` is exact once the run has ended or waits; before, a store may leave it behind. 0 means nothing with a price, or not known.
    `wake_at` is when the run can move by itself, also if that is in the past; None: not before a signal reaches it. `version` is that of the code
    that it needs, "" if any code may advance it.
    """

    run_id: str
    goal_id: str
    goal: str = ""
    title: str = ""
    agent: str = ""
    tenant: str = ""
    parent: str = ""
    status: str = "running"
    reason: str = ""
    iterations: int = 0
    records: int = 0
    cost_usd: float = 0.0
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None = None
    queued: Queued | None = None
    version: str = ""
    digest: str = ""
