"""When a schedule is due, on days when clocks change, in several zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.errors import ConfigError
from detent.schedules.calendar import Calendar, check_cron, instant

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
FROM, UNTIL = datetime.fromisoformat("2011-01-02"), datetime.fromisoformat("2030-01-01")


def at(text: str) -> datetime:
    """Return a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def shown(calendar: Calendar, start: str, count: int) -> list[str]:
    """Return the next moments as a clock of the zone shows them, with the offset from UTC."""
    found, moment = [], at(start)
    for _ in range(count):
        following = calendar.after(moment)
        assert following is not None and following > moment
        found.append(following.astimezone(ZoneInfo(calendar.zone)).isoformat(timespec="minutes"))
        moment = following
    return found


@pytest.mark.parametrize(
    ("zone", "cron", "start", "expected"),
    [
        # skipped: the time fires at the end of the gap
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("America/New_York", "30 2 * * *", "2026-03-07T12:00", ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00", ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
        ("Pacific/Apia", "0 9 * * *", "2011-12-29T12:00", ["2011-12-29T09:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T09:00+14:00"]),
        # several skipped times are one firing, also with one that is due at the end of the gap
        ("Europe/Berlin", "*/15 2,3 * * *", "2026-03-29T00:30", ["2026-03-29T03:00+02:00", "2026-03-29T03:15+02:00"]),
        # twice: the time fires at the first
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("America/New_York", "30 1 * * *", "2026-10-31T12:00", ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00", ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"]),
        # hourly: the hour that occurs twice fires once, the hour that is skipped is the one at its end
        ("Europe/Berlin", "0 * * * *", "2026-10-24T23:30", ["2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"]),
        ("Europe/Berlin", "0 * * * *", "2026-03-29T00:30", ["2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"]),
    ],
)
def test_a_skipped_time_fires_at_the_end_of_the_gap_and_a_repeated_one_once_at_the_first(
    zone: str, cron: str, start: str, expected: list[str]
) -> None:
    """The rule holds for gaps and folds of an hour, of half an hour, and for a day that was skipped."""
    assert shown(Calendar(cron=cron, zone=zone, begins=LONG_AGO), start, len(expected)) == expected


def test_nothing_fires_in_the_second_pass_of_a_repeated_hour() -> None:
    """A worker that looks in the second pass finds the next time behind it."""
    calendar = Calendar(cron="*/10 * * * *", zone="Europe/Berlin", begins=LONG_AGO)
    assert calendar.after(at("2026-10-25T01:05")) == at("2026-10-25T02:00")  # 02:05 for the second time; 03:00 follows


def test_an_interval_of_days_keeps_its_time_of_day_and_a_shorter_one_its_length() -> None:
    """Days are counted on the clock of the zone, hours in time that passes."""
    begins = at("2026-03-27T08:00")
    daily = Calendar(every_s=86_400, zone="Europe/Berlin", begins=begins)
    assert shown(daily, "2026-03-27T08:00", 3) == ["2026-03-28T09:00+01:00", "2026-03-29T09:00+02:00", "2026-03-30T09:00+02:00"]
    hours = Calendar(every_s=12 * 3600, zone="Europe/Berlin", begins=begins)
    assert shown(hours, "2026-03-28T20:00", 2) == ["2026-03-29T10:00+02:00", "2026-03-29T22:00+02:00"]


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "UTC",
]
CALENDARS = st.one_of(
    st.builds(
        Calendar,
        cron=st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 * * *", "15,45 1-3 * * SUN", "0 */6 L * *", "59 23 31 12 *"]),
        zone=st.sampled_from(ZONES),
        begins=st.just(LONG_AGO),
    ),
    st.builds(
        Calendar,
        every_s=st.sampled_from([1, 90, 3600, 86_400, 7 * 86_400]),
        zone=st.sampled_from(ZONES),
        begins=st.just(at("2011-01-01T07:30")),
    ),
)


@given(CALENDARS, st.datetimes(FROM, UNTIL))
def test_counting_forwards_and_backwards_finds_the_same_moments(calendar: Calendar, naive: datetime) -> None:
    """What is due after a moment, one after the other, is what is due before the last of these."""
    forwards, moment = [], naive.replace(tzinfo=UTC)
    for _ in range(5):
        following = calendar.after(moment)
        assert following is not None and following > moment and following.microsecond == 0
        forwards.append(following)
        moment = following
    assert list(islice(calendar.before(moment), 5)) == forwards[::-1]
    assert next(calendar.before(moment + timedelta(microseconds=1))) == moment


@given(st.sampled_from(ZONES), st.datetimes(FROM, UNTIL))
def test_an_instant_is_the_first_time_that_a_clock_shows_it_or_something_later(zone: str, local: datetime) -> None:
    """Nothing earlier shows the time, and what the clock shows instead of a skipped time is the end of a gap."""
    local, where = local.replace(microsecond=0), ZoneInfo(zone)
    found = instant(local, where)
    shown_then = found.astimezone(where)
    if shown_then.replace(tzinfo=None, fold=0) == local:
        assert shown_then.fold == 0
    else:
        just_before = (found - timedelta(seconds=1)).astimezone(where)
        assert just_before.replace(tzinfo=None) < local < shown_then.replace(tzinfo=None)


def test_an_end_and_a_beginning_count_and_nothing_beyond_them() -> None:
    """Both are included."""
    calendar = Calendar(cron="0 0 * * *", begins=at("2026-01-02T00:00"), ends=at("2026-01-03T00:00"))
    assert calendar.after(LONG_AGO) == at("2026-01-02T00:00")
    assert calendar.after(at("2026-01-03T00:00")) is None
    assert list(calendar.before(at("2027-01-01T00:00"))) == [at("2026-01-03T00:00"), at("2026-01-02T00:00")]


@pytest.mark.parametrize(
    "wrong", ["", "* * * *", "61 * * * *", "0 0 31 2 *", "* * * * * *", "0 9 * * " + "MON," * 100 + "MON", "a b c d e"]
)
def test_what_is_not_a_cron_expression_is_refused_with_an_example(wrong: str) -> None:
    """The message shows one."""
    with pytest.raises(ConfigError, match="MON-FRI"):
        check_cron(wrong)
