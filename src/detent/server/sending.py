"""Sending webhooks: what happens to runs is told to the receivers that the configuration names.

Rule: the log is the queue. How far a receiver has a run is kept beside the run, so nothing is lost in a restart, and the next server continues. A message
is sent again until its receiver takes it, so it may come twice, with the same `webhook-id`; after a day it is given up. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

from detent.config.planners import NoPlanner
from detent.core import events as e
from detent.core.codec import read_record
from detent.core.errors import DetentError, RunBusy
from detent.core.records import Record, RunHead
from detent.engine import Engine
from detent.ports import RunQuery, wait_for_news
from detent.ports.http_failures import seconds_asked
from detent.ports.stores import RESERVED
from detent.running.advancing import Advancing
from detent.server.webhooks import Kind, Webhook

log = logging.getLogger("detent.server")
LOOK_S, PAUSE_S, TAKE_S, SLICE_S = 2.0, 0.5, 2.0, 0.2
"""How often a sender looks without news, how long it rests between two looks, how often it tries to be the one that sends, and how soon it hears of a stop."""
LATE_S, WHOLE_S, SOON_S = 300.0, 30.0, 5.0
"""A record may be committed so much later than its time says, by another clock: so far back a look begins every `WHOLE_S`, and the others so far."""
SEND_S, LONGEST_PAUSE_S, GIVE_UP_S = 15.0, 300.0, 86_400.0
"""How long a receiver may take, the longest pause between two tries, and how old a message becomes."""
AT_ONCE, PAGE, LISTED = 8, 500, 2_000


class _Reached(msgspec.Struct, frozen=True, kw_only=True):
    """`since`: only later records are sent. `cursor`: everything that came to rest before was sent."""

    since: datetime
    cursor: datetime


class _Try(msgspec.Struct, frozen=True, kw_only=True):
    """When a run is tried again, and how many tries it gets."""

    at: datetime
    tries: int


class Sender:
    """Sends to one receiver. Of all servers of a store, the one that has the receiver's claim sends."""

    def __init__(self, engine: Engine, hook: Webhook, stopping: asyncio.Event) -> None:
        self._hook, self._parts, self._stopping = hook, engine.runtime.parts, stopping
        self._store = self._parts.store
        self._place, self._mark = f"{RESERVED}webhook-{hook.id}", f"webhook-{hook.id}"
        self._seen: dict[str, int] = {}
        self._left: dict[str, RunHead] = {}
        self._later: dict[str, _Try] = {}
        self._looked_at, self._whole_at = datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)

    async def work(self) -> None:
        """Send until the server stops."""
        while not self._stopping.is_set():
            try:
                async with Advancing(self._parts, self._place, NoPlanner):
                    await self._sending()
            except RunBusy:
                await self._rest(TAKE_S)
            except DetentError as error:
                log.warning("webhooks to %s are not sent now (%s); trying again", self._hook.url, error)
                await self._rest(TAKE_S)

    async def _rest(self, seconds: float) -> None:
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({stopped}, timeout=seconds)
        stopped.cancel()

    async def _sending(self) -> None:
        import httpx2

        self._seen, self._left, self._later, self._whole_at = {}, {}, {}, datetime.min.replace(tzinfo=UTC)
        self._hook.keys()  # a variable that is gone is named before anything is sent
        async with httpx2.AsyncClient(follow_redirects=False, timeout=SEND_S) as client:
            while not self._stopping.is_set():
                reached = await self._read()
                looked_at = self._parts.clock.now()
                await self._look(reached)
                await self._send_all(client, reached.since)
                oldest = min((head.updated_at for head in self._left.values()), default=looked_at)
                if oldest - reached.cursor > timedelta(seconds=LATE_S / 10):
                    await self._keep(msgspec.structs.replace(reached, cursor=oldest))
                await self._rest(PAUSE_S)
                await self._news()

    async def _news(self) -> None:
        """Wait for news or the stop in this task: a store knows what was recorded since a task last waited."""
        until = time.monotonic() + LOOK_S
        while not self._stopping.is_set() and (left_s := min(SLICE_S, until - time.monotonic())) > 0:
            began = time.monotonic()
            await wait_for_news(self._store, left_s, records=True)
            if time.monotonic() - began < left_s:
                return

    async def _read(self) -> _Reached:
        data = await self._store.get_blob(self._place, "reached")
        try:
            if data is not None:
                return msgspec.json.decode(data, type=_Reached)
        except msgspec.DecodeError as error:
            log.warning("how far webhooks to %s are cannot be read (%s); they begin again now", self._hook.url, error)
        now = self._parts.clock.now()
        return await self._keep(_Reached(since=now, cursor=now))

    async def _keep(self, reached: _Reached) -> _Reached:
        await self._store.put_blob(self._place, "reached", msgspec.json.encode(reached))
        return reached

    async def _look(self, reached: _Reached) -> None:
        """Note the runs that have come to rest and that the receiver may not know of yet."""
        now = self._parts.clock.now()
        whole = now - self._whole_at >= timedelta(seconds=WHOLE_S)
        begin = reached.cursor - timedelta(seconds=LATE_S) if whole else self._looked_at - timedelta(seconds=SOON_S)
        query, known = RunQuery(rested_since=max(reached.since, begin), tenant=self._hook.tenant, limit=LISTED), set[str]()
        while page := await self._store.list_runs(query):
            known.update(head.run_id for head in page)
            self._left |= {head.run_id: head for head in page if self._seen.get(head.run_id) != head.records}
            query = msgspec.structs.replace(query, after=page[-1].run_id)
        self._looked_at = now
        if whole:
            self._whole_at = now
            self._seen = {run_id: records for run_id, records in self._seen.items() if run_id in known}

    async def _send_all(self, client: Any, since: datetime) -> None:
        now, turns = self._parts.clock.now(), asyncio.Semaphore(AT_ONCE)

        async def one(head: RunHead) -> None:
            async with turns:
                if not self._stopping.is_set() and await self._send_run(client, head, since):
                    self._seen[head.run_id] = head.records
                    del self._left[head.run_id]
                    self._later.pop(head.run_id, None)

        due = [head for head in self._left.values() if (later := self._later.get(head.run_id)) is None or later.at <= now]
        tasks = [asyncio.create_task(one(head)) for head in sorted(due, key=lambda head: head.updated_at)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_run(self, client: Any, head: RunHead, since: datetime) -> bool:
        """Send what the receiver does not have of a run, in order. Return whether it has all of it now."""
        data = await self._store.get_blob(head.run_id, self._mark)
        after = int(data) if data is not None and data.isdigit() else 0
        while lines := await self._store.read(head.run_id, after=after, limit=PAGE):
            for kind, record in _told(lines):
                sequence = record.envelope.seq
                if sequence > after and record.envelope.at >= since and kind in self._hook.events:
                    if not await self._send(client, head, kind, record):
                        return False
                    await self._store.put_blob(head.run_id, self._mark, str(sequence).encode())
            after += len(lines)
        return True

    async def _send(self, client: Any, head: RunHead, kind: Kind, record: Record) -> bool:
        """Send one message. Return whether the receiver has it, or it is given up; note when to try again otherwise."""
        now, message_id = self._parts.clock.now(), message_of(record)
        body = msgspec.json.encode(payload(head, kind, record, link=self._hook.link))
        asked = None
        try:
            async with (
                asyncio.timeout(SEND_S),
                client.stream("POST", self._hook.url, content=body, headers=self._hook.signed(message_id, body, now)) as answer,
            ):
                if 200 <= answer.status_code < 300:
                    return True
                problem, asked = f"it answered {answer.status_code}", seconds_asked(answer.headers.get("retry-after"), now)
        except Exception as error:  # noqa: BLE001 - whatever a network does is one failed try
            problem = f"{type(error).__name__}: {error}"
        if (now - record.envelope.at).total_seconds() > GIVE_UP_S:
            log.warning("webhook %s about run %s to %s is given up after a day: %s", message_id, head.run_id, self._hook.url, problem)
            return True
        tries = self._later[head.run_id].tries + 1 if head.run_id in self._later else 1
        pause_s = min(LONGEST_PAUSE_S, max(asked or 0.0, 2.0 ** min(tries, 20) * random.uniform(0.5, 1.0)))
        self._later[head.run_id] = _Try(at=now + timedelta(seconds=pause_s), tries=tries)
        log.info("webhook %s about run %s to %s failed (%s); again in %.1f s", message_id, head.run_id, self._hook.url, problem, pause_s)
        return False


def message_of(record: Record) -> str:
    """Return the id of the message about a record: the same at every try, and from every server."""
    return f"msg_{sha256(f'{record.envelope.run} {record.envelope.seq}'.encode()).hexdigest()[:32]}"


def payload(head: RunHead, kind: Kind, record: Record, *, link: str) -> dict[str, Any]:
    """Return what is sent: which run, and where to see it. Neither arguments nor answers are in it: the link shows them to who may see them."""
    event, base = record.event, link.rstrip("/")
    data: dict[str, Any] = {
        "run_id": head.run_id,
        "goal_id": head.goal_id,
        "agent": head.agent,
        "tenant": head.tenant,
        "sequence": record.envelope.seq,
        "status": record.envelope.status or head.status,
        "reason": record.envelope.reason,
    }
    if isinstance(event, e.RunWaiting):
        data["status"] = event.status
    if isinstance(event, e.DeadLettered):
        data["status"] = "waiting_for_operator"
    if base:
        name = quote(head.run_id, safe="")
        data["link"] = f"{base}/ui/inbox?run={name}" if kind == "waiting" else f"{base}/ui/runs/{name}"
    return {"type": f"run.{kind}", "timestamp": record.envelope.at, "data": data}


def _told(lines: Sequence[bytes]) -> Iterator[tuple[Kind, Record]]:
    """Yield the records that are told, with what they are."""
    for line in lines:
        if not any(tag in line for tag in _TAGS):
            continue
        try:
            record = read_record(line)
        except (ValueError, LookupError, TypeError, DetentError):  # damage: `verify` names it
            continue
        match record.event:
            case e.RunWaiting() | e.DeadLettered():
                yield "waiting", record
            case e.RunFinished(status=status):
                yield "failed" if status == "failed" else "finished", record
            case _:
                pass


_TAGS = (b'"run_waiting"', b'"run_finished"', b'"dead_lettered"')
