"""`engine.schedules`: add, list, pause, resume and remove schedules. Workers fire them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.durations import seconds
from detent.core.errors import ConfigError, Explained, ItemConflict, UnknownName
from detent.ports.options import check_fields, check_is
from detent.running import starting
from detent.running.people import me
from detent.running.rules import named
from detent.running.runtime import Runtime
from detent.schedules.firing import alone, following
from detent.schedules.keeping import drop, keep_version, kept_versions, name_in, place_of, progress_of, read_version, tenant_mark
from detent.schedules.schedule import Fired, Overlap, Progress, Schedule


class Scheduled(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A schedule and how far it is: when it fires `next` (None: not any more, or it is paused), how many occurrences wait, and the latest decisions."""

    schedule: Schedule
    next: datetime | None = None
    waiting: int = 0
    recent: tuple[Fired, ...] = ()

    __post_init__ = check_fields


class Schedules:
    """The schedules in an engine's store. A host sees and changes only those of its tenant; without one, the operator those of all."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store

    async def add(
        self,
        name: str,
        *,
        agent: str,
        goal: str,
        cron: str = "",
        every: float | str = 0.0,
        zone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: float | str = 3600.0,
        catch_up_most: int = 1,
        jitter: float | str = 0.0,
        begins: datetime | None = None,
        ends: datetime | None = None,
        enabled: bool = True,
        variables: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        replace: bool = False,
        by: str = "",
        request: str = "",
        host: Host | None = None,
    ) -> Scheduled:
        """Keep a schedule; workers fire it from now on. Its fields are explained at `Schedule`; durations may be texts such as "15m".

        The agent is found by its name when it fires. What `run` would refuse is refused here. The same schedule again changes nothing; another one under
        the name is refused (`ItemConflict`) unless `replace` is set. Raise `ConfigError`.
        """
        check_is(Host, host=host)
        check_is(str, agent=agent, goal=goal)
        await self._runtime.open()
        now = self._runtime.parts.clock.now().replace(microsecond=0)
        made = Schedule(
            name=name, agent=agent, goal=goal, variables=dict(variables or {}), budget=budget, cron=cron, every_s=seconds(every, "every"), zone=zone,
            overlap=overlap, catch_up_s=seconds(catch_up, "catch_up"), catch_up_most=catch_up_most, jitter_s=seconds(jitter, "jitter"),
            begins=(begins or now).replace(microsecond=0), ends=ends, enabled=enabled, host=host, by=named(by or me(), "schedule", what="a schedule"),
            since=now, token=self._runtime.parts.ids.token(6), request=request,
        )  # fmt: skip
        await starting.admitted(self._runtime, agent, goal, host=host, budget=budget, variables=dict(made.variables), turns=0)
        if made.calendar.after(now) is None:
            raise ConfigError(
                f"schedule {name!r} would never fire: {made.cron or made.every_s} from {made.begins} until {made.ends or 'ever'}"
            )
        place = place_of(made.tenant, name)
        async with alone(self._runtime, place, patient=True):
            number = (await kept_versions(self._store)).get(place)
            there = None if number is None else await read_version(self._store, place, number)
            if there is not None and there.schedule is not None:
                if _same(there.schedule, made, begins_given=begins is not None):
                    return await self._shown(there.schedule)
                if not replace:
                    raise ItemConflict(f"there is a schedule {name!r} that says something else; remove it first, or replace it")
                made = msgspec.structs.replace(made, token=there.schedule.token)
            await keep_version(self._store, place, made, number)
        return await self._shown(made)

    async def get(self, name: str, *, host: Host | None = None) -> Scheduled:
        """Return a schedule. The operator names one of a tenant as NAME@TENANT if others have the name too. Raise `UnknownName`."""
        return await self._shown((await self._found(name, host))[2])

    async def list(self, *, host: Host | None = None) -> Sequence[Scheduled]:
        """Return the schedules, by tenant and name."""
        found = [await self._shown(schedule) for _, _, schedule in await self._all(host)]
        return sorted(found, key=lambda one: (one.schedule.tenant, one.schedule.name))

    async def pause(self, name: str, *, host: Host | None = None) -> Scheduled:
        """Fire no more until `resume`. Runs in progress are left alone."""
        return await self._changed(name, host, enabled=False)

    async def resume(self, name: str, *, host: Host | None = None) -> Scheduled:
        """Fire again from now on. Nothing of the pause is made up."""
        return await self._changed(name, host, enabled=True)

    async def remove(self, name: str, *, host: Host | None = None) -> None:
        """Remove a schedule, also one that cannot be read; its runs stay as they are. Raise `UnknownName`."""
        place, number = await self._place(name, host)
        async with alone(self._runtime, place, patient=True):
            await drop(self._store, place, (await kept_versions(self._store)).get(place, number))

    async def _changed(self, name: str, host: Host | None, *, enabled: bool) -> Scheduled:
        place, _, _ = await self._found(name, host)
        async with alone(self._runtime, place, patient=True):
            _, number, there = await self._found(name, host)
            if there.enabled != enabled:
                now = self._runtime.parts.clock.now()
                there = msgspec.structs.replace(there, enabled=enabled, since=now if enabled else there.since)
                await keep_version(self._store, place, there, number)
        return await self._shown(there)

    async def _shown(self, schedule: Schedule) -> Scheduled:
        progress: Progress = await progress_of(self._store, place_of(schedule.tenant, schedule.name))
        due = following(schedule, progress)
        return Scheduled(schedule=schedule, next=due, waiting=len(progress.waiting), recent=progress.recent)

    async def _all(self, host: Host | None) -> Sequence[tuple[str, int, Schedule]]:
        check_is(Host, host=host)
        await self._runtime.open()
        found: list[tuple[str, int, Schedule]] = []
        for place, number in (await kept_versions(self._store)).items():
            if host is None or place.startswith(tenant_mark(host.tenant)):
                kept = await read_version(self._store, place, number)
                if kept is not None and kept.schedule is not None:
                    found.append((place, number, kept.schedule))
        return found

    async def _found(self, name: str, host: Host | None) -> tuple[str, int, Schedule]:
        place, number = await self._place(name, host)
        kept = await read_version(self._store, place, number)
        if kept is None:
            raise UnknownName("schedule", name, ())  # it was removed or replaced just now
        if kept.schedule is None:
            raise ConfigError(f"schedule {name!r} cannot be read (the log says why); remove it, and add it again")
        return place, number, kept.schedule

    async def _place(self, name: str, host: Host | None) -> tuple[str, int]:
        check_is(Host, host=host)
        await self._runtime.open()
        versions = await kept_versions(self._store)
        plain, at, tenant = name.partition("@") if host is None else (name, "", host.tenant)
        if (place := place_of(tenant, plain)) in versions:
            return place, versions[place]
        same = [place for place in versions if host is None and not at and name_in(place) == name]
        if len(same) == 1:
            return same[0], versions[same[0]]
        mine = [name_in(place) for place in versions if host is None or place.startswith(tenant_mark(host.tenant))]
        raise UnknownName("schedule", name, mine)


def _same(there: Schedule, made: Schedule, *, begins_given: bool) -> bool:
    """Whether somebody adds the schedule that is there."""
    kept = {"since": there.since, "token": there.token, "by": there.by, "enabled": there.enabled, "request": there.request}
    if not begins_given:
        kept["begins"] = there.begins
    return msgspec.structs.replace(made, **kept) == there
