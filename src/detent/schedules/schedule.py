"""What a schedule is, what it has decided so far, and which of its occurrences are fired now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained
from detent.ports.options import check_fields
from detent.schedules.calendar import DAY_S, Calendar, check_cron, zone_named

Overlap = Literal["skip", "queue", "cancel_other", "allow"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
ON_TIME_S = 60.0
"""A firing that is at most so late is on time; a later one is made up."""
MOST_MADE_UP, LONGEST_CATCH_UP_S, LONGEST_JITTER_S, MOST_WAITING = 100, 31 * DAY_S, DAY_S, 100
RECENT = 10
"""How many decisions are kept."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


class Schedule(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Starts a run of `agent` on `goal` at each time of `cron`, or every `every_s` seconds from `begins` on, until `ends`.

    Times are those of a clock in `zone`. `overlap` says what happens while an earlier run of the schedule is unfinished: the occurrence is skipped, it
    waits until that has ended, that is cancelled, or both run. When no worker was there, occurrences of the last `catch_up_s` seconds are made up, the
    latest `catch_up_most` of them. Each firing is late by up to `jitter_s`, which follows from schedule and occurrence. `host` is for whom the runs are,
    None for the operator. `since`: only later occurrences count. `token` tells it from an earlier schedule with this name,
    `request` is the digest of what somebody asked for.
    """

    name: str
    agent: str
    goal: str
    variables: Mapping[str, Any] = {}
    budget: Budget | None = None
    cron: str = ""
    every_s: Seconds[float] = usually(0.0)
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up_s: Seconds[float] = usually(3600.0)
    catch_up_most: int = 1
    jitter_s: Seconds[float] = usually(0.0)
    begins: datetime
    ends: datetime | None = None
    enabled: bool = True
    host: Host | None = None
    by: str = ""
    since: datetime
    token: str = ""
    request: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"schedule name {self.name[:80]!r}: write 1 to 60 letters, digits, '.', '_' or '-', a letter or digit first")
        if bool(self.cron) == bool(self.every_s):
            raise ConfigError(f"schedule {self.name!r}: give either cron or every, an interval of at least 1 s")
        if self.cron:
            check_cron(self.cron)
        elif not (1 <= self.every_s < 10**9 and self.every_s == int(self.every_s)):
            raise ConfigError(f"schedule {self.name!r}: every is {self.every_s:g} s; give whole seconds, at least 1")
        zone_named(self.zone)
        for name, most in (("catch_up_s", LONGEST_CATCH_UP_S), ("catch_up_most", MOST_MADE_UP), ("jitter_s", LONGEST_JITTER_S)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"schedule {self.name!r}: {name} is {getattr(self, name)}; give 0 to {most:,}")
        for name in ("begins", "ends"):
            if (at := getattr(self, name)) is not None and at.tzinfo is None:
                raise ConfigError(f"schedule {self.name!r}: {name} {at} has no zone; write 2026-12-31T00:00:00Z")
        if self.ends is not None and self.ends < self.begins:
            raise ConfigError(f"schedule {self.name!r} ends ({self.ends}) before it begins ({self.begins})")

    @property
    def tenant(self) -> str:
        """Whose it is; "" for the operator's own."""
        return self.host.tenant if self.host is not None else ""

    @property
    def calendar(self) -> Calendar:
        """When it is due."""
        return Calendar(cron=self.cron, every_s=int(self.every_s), zone=self.zone, begins=self.begins, ends=self.ends)

    @property
    def group(self) -> str:
        """What the runs of the schedule have in common, their `dedupe_key`."""
        return f"schedule {self.name} {self.token}"

    def run_of(self, occurrence: datetime) -> str:
        """Return the id of the run of an occurrence."""
        return f"{self.name}-{self.token}-{occurrence:%Y%m%dT%H%M%SZ}"

    def fires_at(self, occurrence: datetime) -> datetime:
        """Return when an occurrence is fired: with its jitter, and before the next one. Every process returns the same."""
        if not self.jitter_s or (following := self.calendar.after(occurrence)) is None:
            span = self.jitter_s
        else:
            span = min(self.jitter_s, (following - occurrence).total_seconds())
        drawn = int.from_bytes(sha256(f"{self.tenant}\0{self.group}\0{occurrence.isoformat()}".encode()).digest()[:8], "big") / 2**64
        return occurrence + timedelta(seconds=int(drawn * span))

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first occurrence after this moment, None if there is none or the schedule is paused."""
        return self.calendar.after(max(moment, self.since)) if self.enabled else None


class Fired(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What was decided about an occurrence, and when. `missed` is the latest of those that nobody makes up; `why` explains all but `started`."""

    occurrence: datetime
    result: Literal["started", "skipped", "queued", "missed", "failed"]
    run_id: str = ""
    why: str = ""
    at: datetime


class Progress(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How far a schedule is: the latest decided occurrence, those that wait for an earlier run to end, and the latest decisions, newest first."""

    last: datetime | None = None
    waiting: tuple[datetime, ...] = ()
    recent: tuple[Fired, ...] = ()

    def noted(self, *fired: Fired) -> Progress:
        """Return it with these decisions."""
        last = max((*(one.occurrence for one in fired), *([self.last] if self.last else [])), default=None)
        return msgspec.structs.replace(self, last=last, recent=(*reversed(fired), *self.recent)[:RECENT])


def pending(schedule: Schedule, last: datetime | None, now: datetime) -> tuple[Sequence[datetime], datetime | None]:
    """Return the occurrences to fire now, oldest first, and the latest of those that are missed for good.

    `last` is the latest decided one. The latest occurrence is fired if it is on time; others are made up within the catch-up window.
    """
    since = max(last or schedule.since, schedule.since)
    found: list[datetime] = []
    for occurrence in schedule.calendar.before(now) if schedule.enabled else ():
        if occurrence <= since:
            return list(reversed(found)), None
        due = schedule.fires_at(occurrence)
        if due > now:
            continue
        late_s, first = (now - due).total_seconds(), not found
        if not (first and late_s <= ON_TIME_S):
            made_up = len(found) - (bool(found) and (now - schedule.fires_at(found[0])).total_seconds() <= ON_TIME_S)
            if late_s > schedule.catch_up_s or made_up >= schedule.catch_up_most:
                return list(reversed(found)), occurrence
        found.append(occurrence)
    return list(reversed(found)), None
