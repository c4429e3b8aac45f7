"""`detent schedule` at the command line, and the worker that fires."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk whose agent answers at once."""
    desk = Desk(tmp_path)
    desk.steps("answer")
    return desk


def test_a_schedule_is_added_listed_fired_paused_and_removed(desk: Desk) -> None:
    """The worker finds the agent by its name in its own configuration."""
    added = desk.detent("schedule", "add", "often", "--every", "1s", "--overlap", "allow", "Water", "the roses", "--json")
    assert added.code == 0, added.err
    assert (added.json["goal"], added.json["every_s"], added.json["recent"]) == ("Water the roses", 1.0, [])
    again = desk.detent("schedule", "add", "often", "--every", "2s", "Water", "--json")
    assert again.code != 0 and "replace" in again.err + str(again.json)
    fired: list[str] = []
    while not fired:
        assert desk.detent("worker", "--until-idle", "--json").code == 0
        fired = [head["run_id"] for head in desk.detent("list", "--status", "completed", "--json").json]
    assert fired[0].startswith(f"often-{added.json['token']}-")
    paused = desk.detent("schedule", "pause", "often")
    assert paused.code == 0 and "paused" in paused.err
    (listed,) = desk.detent("schedule", "--json").json
    assert (listed["enabled"], listed["next"]) == (False, None)
    assert "paused" in desk.detent("schedule").out
    assert desk.detent("schedule", "resume", "often", "--json").json["next"] is not None
    shown = desk.detent("schedule", "show", "often")
    assert "started" in shown.err
    assert desk.detent("schedule", "remove", "often").code == 0
    assert desk.detent("schedule", "--json").json == []
    assert "no schedules" in desk.detent("schedule").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add",), "name the schedule"),
        (("add", "a", "--cron", "0 9 * *", "Go"), "MON-FRI"),
        (("add", "a", "--cron", "0 9 * * *", "--zone", "Mars/Base", "Go"), "IANA"),
        (("add", "a", "Go"), "either cron or every"),
        (("add", "a", "--every", "0s", "Go"), "at least 1 s"),
        (("list", "a"), "list takes nothing"),
        (("pause", "a", "Go"), "the name of one schedule"),
        (("add", "a b", "--every", "1h", "Go"), "letters"),
        (("add", "a", "--every", "soon", "Go"), "1m30s"),
        (("add", "a", "--every", "1h", "--overlap", "maybe", "Go"), "cancel_other"),
        (("pause", "nothing"), "unknown schedule"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_with_what_to_write(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Nothing is kept."""
    refused = desk.detent("schedule", *words)
    assert refused.code == 2 and said in refused.err
