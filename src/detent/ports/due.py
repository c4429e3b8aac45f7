"""Looking for work: what a worker asks a store, and what the store answers."""

from __future__ import annotations

from datetime import datetime

import msgspec

from detent.core.errors import Explained
from detent.core.records import RunHead
from detent.ports.options import check_fields


class DueQuery(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Which runs somebody may advance now: those whose `wake_at` is not after `now`, and those with a signal that wakes them (`wakes`).

    A store with a clock of its own compares by that one instead. `waiting`: only runs with a status other than running. `version`: only runs that
    need this version of the code, or none. `limit` is about how many runs are returned at most. `after` continues an answer that had `more`. `counts`
    asks for `DueRuns.active`. Somebody has paused the agents and tenants in `held_agents` and `held_tenants`: of their runs, only those with a
    cancellation are due.
    """

    now: datetime
    tenant: str | None = None
    waiting: bool = False
    version: str | None = None
    limit: int = 100
    after: str = ""
    counts: bool = False
    held_agents: tuple[str, ...] = ()
    held_tenants: tuple[str, ...] = ()

    __post_init__ = check_fields

    @property
    def holds_some(self) -> bool:
        """Whether anything is held."""
        return bool(self.held_agents or self.held_tenants)

    def holds(self, head: RunHead) -> bool:
        """Whether a run's agent or tenant is held."""
        return head.agent in self.held_agents or head.tenant in self.held_tenants


class DueRuns(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The runs that are due, and that no living holder has claimed.

    In how many seconds the next run is due, None if there is none. `held`: how many runs other holders have claimed, alive or dead. `more` is ""
    if all due runs are here. Otherwise the runs are the first ones of some keys in the order of keys (see `Queued`), the keys after `DueQuery.after`, and
    `more` is where to continue; after the last key it starts again with the first. `active`: how many runs of each key living holders have claimed,
    this store included.
    """

    runs: tuple[RunHead, ...] = ()
    next_s: float | None = None
    held: int = 0
    more: str = ""
    active: dict[str, int] = {}
