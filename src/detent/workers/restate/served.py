"""What a host asks of a Restate server over HTTP: to tick runs (its ingress), to know a worker's URL, and which runs have a tick (its admin API)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import getproxies

from detent.core.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

    from detent.workers.restate.pushing import Answer, Pushing

TIMEOUT_S = 10.0
LOCAL = ("http://127.0.0.1", "http://localhost", "http://[::1]")
ASKED, IN_PROGRESS = 1000, ("running", "backing-off")
"""About how many runs the server is asked at once, and what it calls a tick that it has passed to a worker."""
SOON_S = 60
"""A tick that begins within so many seconds counts for the sweep: its run is not ticked once more."""


class Unreachable(ConfigError):
    """No Restate server answers, or it refuses. What the caller wanted was not done."""

    retryable = True


class Served:
    """A Restate server: `ingress` takes ticks, `admin` is told about workers and asked about ticks. `service` is the virtual object."""

    def __init__(self, *, ingress: str, admin: str, service: str) -> None:
        self.ingress, self.admin, self.service = ingress.rstrip("/"), admin.rstrip("/"), service
        self._client: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None
        self._pushing: tuple[asyncio.AbstractEventLoop, Pushing] | None = None

    async def tick(self, run_id: str, *, through: bool = False) -> bool:
        """Have the run ticked, after its tick in progress, if any, and with `through` wait until that tick is over. Raise `Unreachable`.

        Return whether the server knows of workers; if not, nothing was done, and the first worker finds the run.
        """
        path = f"/{self.service}/{quote(run_id, safe='')}/tick"
        if through:
            answer = await self._ask("POST", f"{self.ingress}{path}", json={}, timeout=None)
        else:
            answer = await self._push(f"{path}/send")
        if answer.status_code == 404 and "not found" in answer.text:
            return False
        self._refuse(answer, "to tick a run")
        return True

    async def register(self, url: str) -> None:
        """Have the server call the workers at this URL, also those that come later. Raise `Unreachable`, `ConfigError`."""
        body = {"uri": url, "use_http_11": True, "force": False}
        answer = await self._ask("POST", f"{self.admin}/deployments", json=body)
        if answer.status_code < 300 and self.service in [one["name"] for one in answer.json()["services"]]:
            return
        if answer.status_code == 409 or answer.status_code < 300:
            why = f"it knows that URL as workers of another version of Detent or of another service than {self.service!r}"
            raise ConfigError(
                f"Restate at {self.admin} does not take the worker at {url}: {why}; set [worker.restate] bind (and url) to another one"
            )
        self._refuse(answer, f"to call the worker at {url}")

    async def ticked(self, run_ids: Sequence[str]) -> dict[str, bool]:
        """Return those of the runs that have a tick in progress, waiting, or soon, and whether a worker has it now. Raise `Unreachable`."""
        found: dict[str, bool] = {}
        soon = f"AND (status <> 'scheduled' OR scheduled_start_at <= now() + INTERVAL '{SOON_S} seconds')"  # by the server's clock
        for first in range(0, len(run_ids), ASKED):
            for row in await self._ticks(f"IN ({', '.join(_text(run_id) for run_id in run_ids[first : first + ASKED])}) {soon}"):
                found[row["key"]] = found.get(row["key"], False) or row["status"] in IN_PROGRESS
        return found

    async def broke(self, run_id: str) -> bool:
        """Whether the run's tick in progress is a repeated one: Restate lost the connection to the worker that had it before. Raise `Unreachable`."""
        return any((row.get("attempts") or 0) > 1 for row in await self._ticks(f"= {_text(run_id)}"))

    async def _ticks(self, keys: str) -> list[dict[str, Any]]:
        columns = "target_service_key AS key, status, retry_count AS attempts"
        where = f"target_service_name = {_text(self.service)} AND status <> 'completed' AND target_service_key {keys}"
        query = {"query": f"SELECT {columns} FROM sys_invocation WHERE {where}"}
        answer = await self._ask("POST", f"{self.admin}/query", json=query, headers={"accept": "application/json"})
        self._refuse(answer, "to list ticks")
        return answer.json()["rows"]

    async def check(self) -> str:
        """Return in words what answers. Raise `Unreachable` if the ingress or the admin API does not."""
        version = await self._ask("GET", f"{self.admin}/version")
        self._refuse(version, "to say its version")
        self._refuse(await self._ask("GET", f"{self.ingress}/restate/health"), "a health check")
        known = await self._ask("GET", f"{self.admin}/services/{self.service}")
        if known.status_code != 404:
            self._refuse(known, f"to say what it knows of {self.service}")
        workers = "no worker has registered yet" if known.status_code == 404 else f"workers have registered as {self.service}"
        return f"Restate {version.json().get('version', '?')} at {self.admin}: {workers}"

    async def close(self) -> None:
        """Close the connections that belong to this event loop."""
        if self._pushing is not None and self._pushing[0] is asyncio.get_running_loop():
            await self._pushing[1].close()
        self._pushing = None
        if self._client is not None and self._client[0] is asyncio.get_running_loop():
            await self._client[1].aclose()
        self._client = None

    async def _push(self, path: str) -> Answer | httpx2.Response:
        """Pass a tick to the ingress. TLS and proxies are the business of the general client."""
        url = f"{self.ingress}{path}"
        if not self.ingress.startswith("http://") or (not self.ingress.startswith(LOCAL) and getproxies()):
            return await self._ask("POST", url, json={})
        import h11

        from detent.workers.restate.pushing import Pushing

        loop = asyncio.get_running_loop()
        if self._pushing is None or self._pushing[0] is not loop:
            self._pushing = loop, Pushing(self.ingress)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._pushing[1].post(path, b"{}")
        except (OSError, h11.RemoteProtocolError) as error:  # TimeoutError is an OSError
            raise _unreachable(url, error) from error

    async def _ask(self, method: str, url: str, **options: Any) -> httpx2.Response:
        import httpx2  # slow to import, and most commands pass no run on

        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            places = (self.ingress, self.admin)
            local = all(place.startswith(LOCAL) for place in places)
            plain = all(place.startswith("http://") for place in places)  # reading the certificates takes a tenth of a second
            self._client = loop, httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=not local, verify=not plain)
        try:
            try:
                return await self._client[1].request(method, url, **options)
            except httpx2.RemoteProtocolError:  # the server closed a kept connection meanwhile; whatever is asked here may be asked twice
                return await self._client[1].request(method, url, **options)
        except httpx2.HTTPError as error:
            raise _unreachable(url, error) from error

    def _refuse(self, answer: Answer | httpx2.Response, what: str) -> None:
        if answer.status_code >= 300:
            raise Unreachable(f"Restate refuses {what}: {answer.status_code} {answer.text[:300]}")


def _unreachable(url: str, error: Exception) -> Unreachable:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Unreachable(f"no Restate server answers at {url} ({said}): start it, or set [worker.restate] ingress and admin")


def token_for(run_id: str, at: float, *, exact: bool) -> str:
    """Return the token of a tick at a time. There is one tick with it at most. Exact times are those of a log, others are when to look again."""
    return f"{run_id} {'at' if exact else 'look'} {at:.6f}"


def _text(value: str) -> str:
    """Return a value as a literal of SQL."""
    return "'" + value.replace("'", "''") + "'"
