"""Schedules over HTTP, fired by the server's own worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from detent.engine import Engine
from detent.schedules import firing
from server.serving import Client, engine_of, serving
from server.test_runs import served

DAILY = {"name": "nightly", "agent": "talker", "goal": "Tidy", "cron": "0 2 * * *", "zone": "Europe/Berlin"}


def test_a_schedule_is_added_once_seen_by_its_tenant_only_paused_and_removed(tmp_path: Path) -> None:
    """The same key with another body is refused; a token that may only see changes nothing."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        key = {"Idempotency-Key": "k1"}
        first = await client.post("/schedules", json=DAILY, headers=key)
        assert first.status_code == 201, first.text
        assert (await client.post("/schedules", json=DAILY, headers=key)).json() == first.json()
        reused = await client.post("/schedules", json={**DAILY, "name": "other"}, headers=key)
        assert (reused.status_code, reused.json()["code"]) == (409, "key_reused")
        other = await client.post("/schedules", json={**DAILY, "goal": "Else"})
        assert (other.status_code, other.json()["code"]) == (409, "item_conflict")
        wrong = await client.post("/schedules", json={**DAILY, "name": "x", "cron": "never"})
        assert wrong.status_code == 422 and "MON-FRI" in wrong.json()["detail"]
        async with Client(url, "eve") as eve, Client(url, "bob") as bob:
            assert (await eve.get("/schedules")).json() == {"schedules": []}
            assert (await eve.get("/schedules/nightly")).status_code == 404
            assert (await eve.delete("/schedules/nightly")).status_code == 404
            assert (await eve.post("/schedules/nightly/pause", json={})).status_code == 404
            assert len((await bob.get("/schedules")).json()["schedules"]) == 1
            assert (await bob.post("/schedules/nightly/pause", json={})).status_code == 403
        paused = (await client.post("/schedules/nightly/pause", json={})).json()
        assert (paused["schedule"]["enabled"], paused["next"]) == (False, None)
        assert (await client.post("/schedules/nightly/resume", json={})).json()["next"]
        assert (await client.delete("/schedules/nightly")).status_code == 204
        assert (await client.get("/schedules/nightly")).status_code == 404

    served(tmp_path, body)


def test_of_schedules_at_once_under_one_key_one_is_added(tmp_path: Path) -> None:
    """At two servers of the store. Another tenant's key is its own."""

    async def body(engine: Engine, url: str, client: Client) -> None:
        key = {"Idempotency-Key": "k1"}
        async with serving(engine_of(engine.store.url)) as elsewhere, Client(elsewhere, "ann") as there, Client(url, "eve") as eve:
            adding = [one.post("/schedules", json={**DAILY, "name": f"n{n}"}, headers=key) for n, one in enumerate([client, there] * 3)]
            *answers, hers = await asyncio.gather(*adding, eve.post("/schedules", json=DAILY, headers=key))
        assert sorted(one.status_code for one in answers) == [201] + 5 * [409], [one.text for one in answers]
        assert {one.json()["code"] for one in answers if one.status_code == 409} == {"key_reused"}
        assert hers.status_code == 201
        assert len((await client.get("/schedules")).json()["schedules"]) == 1

    served(tmp_path, body)


def test_the_server_fires_what_is_due_and_the_run_belongs_to_who_added_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's host is the caller's."""
    monkeypatch.setattr(firing, "LOOK_S", 0.2)

    async def body(engine: Engine, url: str, client: Client) -> None:
        added = await client.post("/schedules", json={"name": "often", "agent": "talker", "goal": "Go", "every": 1, "overlap": "allow"})
        assert added.status_code == 201, added.text
        async with asyncio.timeout(30):
            while not (runs := (await client.get("/runs")).json()["runs"]):
                await asyncio.sleep(0.1)
        assert runs[0]["run_id"].startswith("often-")
        assert (await engine.load(runs[0]["run_id"])).state.host.principal == "ann"

    served(tmp_path, body)
