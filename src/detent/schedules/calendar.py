"""When a schedule is due: cron expressions and intervals, on the clock of a zone.

Rule: a local time that occurs twice counts once, at the first; a skipped one counts at the end of the gap. The cron library counts on a clock without
a zone, and only `instant` turns what that shows into a moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from detent.core.errors import ConfigError

DAY_S = 86_400
INSTALL = "cron expressions need the extra `schedules`: pip install 'detent[schedules]'; intervals need nothing"
_SECOND = timedelta(seconds=1)
_LONGEST = 200


def zone_named(name: str) -> ZoneInfo:
    """Return the zone of this IANA name. Raise `ConfigError`."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ConfigError(f"zone {name[:80]!r} is not known here; write an IANA name such as Europe/Berlin or UTC") from error


def instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return when a clock of the zone shows `local`, in UTC: for the first time, or at the end of the gap if it never does."""
    later = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if later.astimezone(zone).replace(tzinfo=None, fold=0) == local:
        return later
    earlier = local.replace(tzinfo=zone, fold=1).astimezone(UTC)  # in a gap this lies before the change, and `later` behind it
    before = earlier.astimezone(zone).utcoffset()
    while later - earlier > _SECOND:
        middle = earlier + timedelta(seconds=(later - earlier) // _SECOND // 2)
        if middle.astimezone(zone).utcoffset() == before:
            earlier = middle
        else:
            later = middle
    return later


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """The moments at which something is due, in UTC. Exactly one of `cron` and `every_s` is set; `begins` is where an interval is counted from.

    An interval of whole days is counted in days on the clock of the zone; a shorter one is counted in time that passes.
    """

    cron: str = ""
    every_s: int = 0
    zone: str = "UTC"
    begins: datetime
    ends: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """Return the first moment after this one; None if there is none."""
        zone = zone_named(self.zone)
        moment = max(moment, self.begins - timedelta(microseconds=1))
        if self.cron:
            found = next((at for local in _cron(self.cron, _local(moment, zone)) if (at := instant(local, zone)) > moment), None)
        else:
            number = max(0, self._number(moment, zone))
            while (found := self._at(number, zone)) <= moment:
                number += 1
        return found if found is not None and (self.ends is None or found <= self.ends) else None

    def before(self, moment: datetime) -> Iterator[datetime]:
        """Yield this moment, if something is due then, and those before it, the latest first."""
        zone = zone_named(self.zone)
        moment = moment if self.ends is None else min(moment, self.ends)
        last = None
        for at in self._backwards(moment, zone):
            if at < self.begins:
                return
            if at <= moment and at != last:  # all times in a gap are one moment
                last = at
                yield at

    def _backwards(self, moment: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        if self.cron:
            here = moment.astimezone(zone)
            shown = here.replace(tzinfo=None, fold=0, microsecond=0) + _SECOND
            if here.fold:  # the clock showed later times already
                shown += (here.replace(fold=0).utcoffset() or timedelta()) - (here.utcoffset() or timedelta())
            for local in _cron(self.cron, shown, reverse=True):
                yield instant(local, zone)
        else:
            for number in range(self._number(moment, zone) + 2, -1, -1):
                yield self._at(number, zone)

    def _number(self, moment: datetime, zone: ZoneInfo) -> int:
        """Return about how many intervals have passed; at most one too few."""
        passed = moment - self.begins if self.every_s % DAY_S else _local(moment, zone) - _local(self.begins, zone)
        return int(passed.total_seconds() // self.every_s) - 1

    def _at(self, number: int, zone: ZoneInfo) -> datetime:
        passed = timedelta(seconds=number * self.every_s)
        return self.begins + passed if self.every_s % DAY_S else instant(_local(self.begins, zone) + passed, zone)


def check_cron(expression: str) -> None:
    """Raise `ConfigError` unless this is a cron expression of five fields."""
    if len(expression) > _LONGEST or len(expression.split()) != 5:
        raise ConfigError(
            f"cron {expression[:80]!r} has not five fields; write minute, hour, day, month and day of the week, as in '0 9 * * MON-FRI'"
        )
    next(_cron(expression, datetime(2024, 1, 1)), None)  # noqa: DTZ001 - a clock without a zone


def _cron(expression: str, local: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield the times after `local` (`reverse`: before it) that the expression means, on a clock without a zone."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    try:
        found: Any = CronSim(expression, local, reverse=reverse)
    except CronSimError as error:
        raise ConfigError(f"cron {expression[:80]!r} is not an expression: {error}; write one such as '0 9 * * MON-FRI'") from error
    try:
        yield from found
    except OverflowError:  # the end of the calendar
        return


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)
