"""A worker's care for versions of the code: it moves runs here from versions that are drained, as long as it works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from detent.core.errors import DetentError, RunBusy
from detent.core.records import RunHead
from detent.ports import RunQuery
from detent.running.runtime import Runtime
from detent.running.versions import OPEN, open_by_version, refuse_one_more

log = logging.getLogger("detent")

LOOK_S = 5.0
"""How often a worker checks whether a version is drained."""
_REMEMBERED = 10_000


class Moving:
    """The runs of drained versions, which a worker moves to its own. It tries a run again only when its log has grown.

    `hand_for` returns, by id, what moves a run here.
    """

    def __init__(self, runtime: Runtime, hand_for: Callable[[str], Awaitable[Any]], tenant: str | None) -> None:
        self._runtime, self._hand_for, self._tenant = runtime, hand_for, tenant
        self._stay: dict[str, int] = {}

    async def begin(self) -> None:
        """Check that this version may work here. Raise `ConfigError` for one version too many."""
        version, runtime = self._runtime.parts.version, self._runtime
        if not version:
            return
        if runtime.max_versions is not None:
            refuse_one_more(await open_by_version(runtime.store), version, runtime.max_versions)
        shares = (await runtime.routing.shares()).of
        if shares and not shares.get(version):
            log.warning("no new run begins on version %s: `detent versions %s=100` rolls it out", version, version)

    async def keep_on(self) -> None:
        """Move runs from drained versions while the worker works. A failure there does not block any run."""
        while self._runtime.parts.version:
            try:
                await self.look()
            except DetentError as error:
                log.warning("runs of other versions could not be looked at now (%s); trying again later", error)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Move the unfinished runs of drained versions that can continue here, if new runs begin on this version."""
        runtime, version = self._runtime, self._runtime.parts.version
        shares = (await runtime.routing.shares()).of if version else {}
        if not shares.get(version):
            return
        for other in [other for other, share in shares.items() if not share]:
            for head in reversed(await runtime.store.list_runs(RunQuery(status=OPEN, tenant=self._tenant, version=other))):
                if self._stay.get(head.run_id) != head.records:
                    await self._move(head)

    async def _move(self, head: RunHead) -> None:
        try:
            moved = await (await self._hand_for(head.run_id)).move(head.run_id)
        except RunBusy:
            return  # a worker of its version has it
        except DetentError as error:
            log.info("run %s stays on version %s: %s", head.run_id, head.version, error)
            moved = False
        if not moved:
            if len(self._stay) > _REMEMBERED:
                self._stay.clear()
            self._stay[head.run_id] = head.records
