"""Schedules over HTTP. A caller sees and changes its own tenant's only; their runs are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from detent.core.budget import Budget
from detent.schedules.door import Scheduled
from detent.schedules.schedule import Overlap
from detent.server.keys import alone, another, digest_of, id_of
from detent.server.operations import Call, Operation
from detent.server.shapes import Strict


class AddSchedule(Strict, frozen=True, kw_only=True):
    """A schedule: `cron` or `every` on the clock of `zone`. Durations are seconds or texts such as `15m`; `replace` replaces the one of this name."""

    name: str
    agent: str
    goal: str
    variables: Mapping[str, Any] = {}
    budget: Budget | None = None
    cron: str = ""
    every: float | str = 0.0
    zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: float | str = 3600.0
    catch_up_most: int = 1
    jitter: float | str = 0.0
    begins: datetime | None = None
    ends: datetime | None = None
    enabled: bool = True
    replace: bool = False


class AllScheduled(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules of a tenant, by name."""

    schedules: Sequence[Scheduled]


async def add(call: Call) -> Scheduled:
    """Keep a schedule. The same one again is that one, so a repeated request adds nothing."""
    schedules, host, request = call.served.engine.schedules, call.caller.host, ""
    async with alone(call, "schedules"):
        if call.key:
            begin = f"key-{id_of(call.caller, call.key, 'schedules')}-"
            request = begin + digest_of(call.body)
            for one in await schedules.list(host=host):
                if one.schedule.request.startswith(begin):
                    if one.schedule.request != request:
                        raise another(call.key)
                    return one
        given = {name: getattr(call.body, name) for name in call.body.__struct_fields__}
        return await schedules.add(**given, by=call.caller.principal, host=host, request=request)


async def listed(call: Call) -> AllScheduled:
    """List schedules."""
    return AllScheduled(schedules=await call.served.engine.schedules.list(host=call.caller.host))


async def get(call: Call) -> Scheduled:
    """Return a schedule."""
    return await call.served.engine.schedules.get(call.path["name"], host=call.caller.host)


async def pause(call: Call) -> Scheduled:
    """Fire no more."""
    return await call.served.engine.schedules.pause(call.path["name"], host=call.caller.host)


async def resume(call: Call) -> Scheduled:
    """Fire again."""
    return await call.served.engine.schedules.resume(call.path["name"], host=call.caller.host)


async def remove(call: Call) -> Response:
    """Remove a schedule."""
    await call.served.engine.schedules.remove(call.path["name"], host=call.caller.host)
    return Response(status_code=204)


OPERATIONS = (
    Operation(
        name="addSchedule", method="POST", path="/schedules", role="run", summary="Start runs at set times", handle=add, body=AddSchedule,
        answer=Scheduled, status=201,
    ),
    Operation(name="listSchedules", method="GET", path="/schedules", role="see", summary="List schedules", handle=listed, answer=AllScheduled),
    Operation(name="getSchedule", method="GET", path="/schedules/{name}", role="see", summary="A schedule and how far it is", handle=get, answer=Scheduled),
    Operation(
        name="pauseSchedule", method="POST", path="/schedules/{name}/pause", role="run", summary="Fire no more", handle=pause, body=Strict,
        answer=Scheduled,
    ),
    Operation(
        name="resumeSchedule", method="POST", path="/schedules/{name}/resume", role="run", summary="Fire again, from now on", handle=resume,
        body=Strict, answer=Scheduled,
    ),
    Operation(
        name="removeSchedule", method="DELETE", path="/schedules/{name}", role="run", summary="Remove a schedule; its runs stay", handle=remove,
        answer=None, status=204,
    ),
)  # fmt: skip
