"""The command schedule: runs that workers start at set times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, operator
from detent.cli.orders import ForWhom, given_goal
from detent.cli.output import clean, plain
from detent.cli.values import duration, parse_variables
from detent.config.environment import parse_budget
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.running.starting import know
from detent.schedules.door import Scheduled


class Deed(StrEnum):
    """What to do with schedules."""

    ADD = "add"
    LIST = "list"
    SHOW = "show"
    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


def schedule(
    action: Annotated[
        Deed, typer.Argument(metavar="[ACTION]", help="add, list, show, pause, resume or remove.", show_default=False)
    ] = Deed.LIST,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The schedule; NAME@TENANT for one of a tenant.", show_default=False)
    ] = None,
    goal: o.Goal = None,
    *,
    cron: Annotated[
        str, typer.Option("--cron", metavar="EXPRESSION", help="Minute, hour, day, month, day of the week: '0 9 * * MON-FRI'.")
    ] = "",
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Instead of --cron: an interval, 15m or 1d.")] = "",
    zone: Annotated[str, typer.Option("--zone", metavar="NAME", help="The zone whose clock counts, such as Europe/Berlin.")] = "UTC",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="RULE", help="If an earlier run is unfinished: skip, queue, cancel_other or allow.")
    ] = "skip",
    catch_up: Annotated[
        str, typer.Option("--catch-up", metavar="DURATION", help="Make up what was missed within this time, 31d at most.")
    ] = "1h",
    most: Annotated[int, typer.Option("--catch-up-most", metavar="N", help="Make up at most N of these, the latest.", min=0, max=100)] = 1,
    jitter: Annotated[str, typer.Option("--jitter", metavar="DURATION", help="Fire up to so much later, each time differently.")] = "0",
    begins: Annotated[
        datetime | None, typer.Option("--begins", metavar="TIME", help="Not before, in the zone: 2026-12-31T12:00:00.")
    ] = None,
    ends: Annotated[datetime | None, typer.Option("--ends", metavar="TIME", help="Not after, in the zone.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the schedule of this name.")] = False,
    agent: o.AgentFile = None,
    var: Annotated[list[str] | None, typer.Option("--var", metavar="K=V", help="Set a variable of the agent. Repeatable.")] = None,
    budget: o.Bounds = None,
    whom: ForWhom,
    by: o.By = None,
    setup: o.Quiet,
) -> int:
    """Start a run at set times: add, list, show, pause, resume or remove such schedules.

    Workers (`detent worker`, `detent serve`) start the runs; each occurrence starts one, however many workers there are. The agent is found by its name
    in the configuration of the worker. A time that occurs twice when clocks are set back fires once, at the first; one that is skipped fires at the end
    of the gap. While a schedule is paused nothing fires, and nothing of that is made up later.
    """
    invocation = Invocation(setup, agent=agent, changes=action not in (Deed.LIST, Deed.SHOW), bare=action is not Deed.ADD)
    if action is not Deed.ADD and (goal or (action is Deed.LIST and name)):
        raise ConfigError(
            f"{action.value} takes {'nothing' if action is Deed.LIST else 'the name of one schedule'}, and no goal; see `detent schedule --help`"
        )
    if action is Deed.LIST:
        found = invocation.drive(lambda engine: engine.schedules.list(), missing=())
        invocation.output.document([_document(one) for one in found])
        if not found:
            invocation.output.say(f"no schedules in {invocation.engine.store.url}")
            return 0
        head = ("NAME", "WHEN", "ZONE", "NEXT", "LAST", "AGENT", "GOAL")
        invocation.output.table(head, [_row(one) for one in found], spare=("ZONE", "AGENT"))
        return 0
    if name is None:
        raise ConfigError(f"name the schedule: detent schedule {action.value} NAME; `detent schedule` lists them")
    if action is Deed.ADD:
        if invocation.engine.store.url == "ram:":
            raise ConfigError("a store in memory ends with this command, so no worker sees the schedule; give --store URL")
        said: dict[str, Any] = {"cron": cron, "zone": zone, "catch_up_most": most, "every": duration(every, "--every") if every else 0.0}
        said |= {"catch_up": duration(catch_up, "--catch-up"), "jitter": duration(jitter, "--jitter")}
        said |= {
            "overlap": overlap,
            "begins": _moment(begins, zone),
            "ends": _moment(ends, zone),
            "replace": replace,
            "by": by or operator(),
        }
        said |= {"host": whom.host(), "budget": parse_budget(budget) if budget else None}
        return _add(invocation, name, given_goal(goal or ()).strip(), said, var or [])
    if action is Deed.REMOVE:
        invocation.drive(lambda engine: engine.schedules.remove(name))
        invocation.output.document({"name": name, "removed": True})
        invocation.output.say(f"removed schedule {clean(name)}; its runs stay as they are")
        return 0
    doing = {Deed.SHOW: "get", Deed.PAUSE: "pause", Deed.RESUME: "resume"}[action]
    one = invocation.drive(lambda engine: getattr(engine.schedules, doing)(name))
    return _show(invocation, one)


def _add(invocation: Invocation, name: str, goal: str, said: dict[str, Any], var: Sequence[str]) -> int:
    if not goal:
        raise ConfigError(f"no goal was given; write it behind the name: detent schedule add {name} --cron '0 9 * * *' \"Tidy up\"")
    agent = invocation.agent()
    know(invocation.engine.runtime, [agent])
    said["variables"] = parse_variables(list(var), agent)
    invocation.creates = True

    async def work(engine: Engine) -> Scheduled:
        return await engine.schedules.add(name, agent=agent.name, goal=goal, **said)

    code = _show(invocation, invocation.drive(work))
    invocation.output.say(
        f"a worker that has agent {clean(agent.name)} in its configuration starts the runs: {invocation.command('worker')}"
    )
    return code


def _show(invocation: Invocation, one: Scheduled) -> int:
    output = invocation.output
    output.document(_document(one))
    name, when, zone, following, *_ = _row(one)
    waiting = f"; {one.waiting} wait for an earlier run to end" if one.waiting else ""
    output.say(f"{clean(name)}: {clean(when)} in {clean(zone)}, {clean(one.schedule.agent)}: next {following}{waiting}")
    for fired in one.recent:
        output.say(
            f"  {_at(fired.occurrence, one.schedule.zone)} {fired.result} {clean(fired.run_id)}{f': {clean(fired.why)}' if fired.why else ''}"
        )
    return 0


def _document(one: Scheduled) -> dict[str, Any]:
    """Return a schedule as one object."""
    return {**plain(one.schedule), **{key: value for key, value in plain(one).items() if key != "schedule"}}


def _row(one: Scheduled) -> tuple[str, ...]:
    schedule = one.schedule
    name = f"{schedule.name}@{schedule.tenant}" if schedule.tenant else schedule.name
    when = schedule.cron or f"every {schedule.every_s:g} s"
    late = one.next is not None and (datetime.now(UTC) - one.next).total_seconds() > LATE_S
    following = (
        "paused" if not schedule.enabled else "never" if one.next is None else _at(one.next, schedule.zone) + (" (overdue)" if late else "")
    )
    last = one.recent[0].result if one.recent else "-"
    return name, when, schedule.zone, following, last, schedule.agent, schedule.goal


LATE_S = 60.0
"""A firing that is so late has no worker that could start its run."""


def _at(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"


def _moment(local: datetime | None, zone: str) -> datetime | None:
    from detent.schedules.calendar import instant, zone_named

    return None if local is None else instant(local.replace(tzinfo=None, microsecond=0), zone_named(zone))
