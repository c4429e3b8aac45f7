"""Webhooks: a receiver of its own on loopback, which checks what it gets as Standard Webhooks say."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.desk import Desk
from detent.core.errors import ConfigError
from detent.server import ServerSettings, Webhook, sending
from detent.server.webhooks import webhooks_in
from server.pages.visiting import Visitor
from server.serving import Client, engine_of, serving
from server.test_shutdown import process

SECRETS = tuple(f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))


class Receiver:
    """What came in: headers and body of each request; `answers` gives the status of each."""

    def __init__(self, answers: Callable[[int], Response] = lambda n: Response(status_code=204)) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers = answers
        self.url = ""

    async def __call__(self, request: Request) -> Response:
        """Take a message."""
        self.got.append((dict(request.headers), await request.body()))
        return self.answers(len(self.got))

    def types(self) -> list[str]:
        """Return what came in, in order."""
        return [json.loads(body)["type"] for _, body in self.got]

    async def has(self, many: int) -> None:
        """Wait until so many messages came in."""
        async with asyncio.timeout(30):
            while len(self.got) < many:
                await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[Receiver]:
        """Serve it."""
        made = Starlette(routes=[Route("/{path:path}", self.__call__, methods=["POST", "GET"])])
        server, listening = Quiet(uvicorn.Config(made, log_level="error")), socket.socket()
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield self
        finally:
            server.should_exit = True
            await task
            listening.close()


class Quiet(uvicorn.Server):
    """A server that leaves signals to pytest."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave them."""
        yield


def told(receiver: Receiver, **options: Any) -> ServerSettings:
    """Return the settings of a server that tells the receiver."""
    return ServerSettings(grace_s=5, webhooks=(Webhook(url=receiver.url, **{"secrets": SECRETS, **options}),))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sender look often."""
    for name, seconds in (("PAUSE_S", 0.02), ("LOOK_S", 0.1), ("TAKE_S", 0.1), ("LONGEST_PAUSE_S", 0.05)):
        monkeypatch.setattr(sending, name, seconds)


async def pays(client: Client, run_id: str = "paying", *, approve: bool = True) -> str:
    """Have a run ask for an approval, decide, and return its id."""
    run = (await client.post("/runs", json={"agent": "payer", "goal": "Pay 7 secretly", "run_id": run_id, "wait_s": 20})).json()
    asked = run["approvals"][0]
    await client.post(
        f"/runs/{run['run_id']}/{'approve' if approve else 'deny'}", json={"call_id": asked["call_id"], "digest": asked["digest"]}
    )
    return run["run_id"]


def test_a_receiver_is_told_that_a_run_waits_and_that_it_has_finished_and_verifies_both(tmp_path: Path) -> None:
    """Each secret verifies, another one and altered bytes do not; nothing that a model or a user wrote is in a message."""

    async def run() -> None:
        async with (
            Receiver().listening() as receiver,
            serving(engine_of(f"sqlite:///{tmp_path}/runs.db"), settings=told(receiver, link="https://agents.example.org/")) as url,
            Client(url, "ann") as client,
        ):
            run_id = await pays(client)
            await receiver.has(2)
            assert receiver.types() == ["run.waiting", "run.finished"]
            for headers, body in receiver.got:
                for secret in SECRETS:
                    message = Verifier(secret).verify(body, headers)
                    assert message["data"]["run_id"] == run_id and b"secretly" not in body and b"7}" not in body
                with pytest.raises(WebhookVerificationError):
                    Verifier(SECRETS[0]).verify(body + b" ", headers)
                with pytest.raises(WebhookVerificationError):
                    Verifier(f"whsec_{base64.b64encode(b'x' * 32).decode()}").verify(body, headers)
            waiting, finished = (json.loads(body)["data"] for _, body in receiver.got)
            assert (waiting["status"], waiting["link"]) == ("waiting_for_approval", "https://agents.example.org/ui/inbox?run=paying")
            assert (finished["status"], finished["reason"]) == ("completed", "final_answer")
            assert finished["link"] == f"https://agents.example.org/ui/runs/{run_id}"
            assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 2

    asyncio.run(run())


def test_the_link_shows_the_call_and_only_a_form_of_that_page_by_an_approver_decides_and_once(tmp_path: Path) -> None:
    """A chat tool carries the link. Whoever opens it signs in; looking decides nothing, nor does a form that is made elsewhere."""

    async def run() -> None:
        async with (
            Receiver().listening() as receiver,
            serving(engine_of(f"sqlite:///{tmp_path}/runs.db"), settings=told(receiver, link="https://agents.example.org")) as url,
            Client(url, "ann") as client,
        ):
            for run_id in ("paying", "other"):
                await client.post("/runs", json={"agent": "payer", "goal": "Pay 7", "run_id": run_id, "wait_s": 20})
            await receiver.has(2)
            links = [json.loads(body)["data"]["link"] for _, body in receiver.got]
            link = next(one for one in links if one.endswith("paying")).removeprefix("https://agents.example.org")
            async with httpx2.AsyncClient(base_url=url, follow_redirects=True, timeout=30) as browser:
                asked = await browser.get(link)
                assert asked.status_code == 401 and "pay" not in asked.text.partition("<main")[2].replace("paying", "")
                shown = await browser.post("/ui/sign-in", data={"token": "ann", "wanted": link})
                assert f"{shown.url.path}?{shown.url.query.decode()}" == link
                assert "<code>pay</code>" in shown.text and ">7<" in shown.text and "other" not in shown.text
                form = dict(re.findall(r'name="(code|call_id|digest)" value="([^"]*)"', shown.text))
                assert (await client.get("/runs/paying")).json()["approvals"]
                for wrong in ({**form, "code": "x"}, {**form, "digest": "0" * len(form["digest"])}):
                    assert (await browser.post("/ui/runs/paying/approve", data=wrong)).status_code in (403, 409)
                async with Visitor(url, "cal") as cal:
                    seen = (await cal.get(link)).text
                    code = re.search(r'name="code" value="([^"]*)"', seen)
                    assert "Deciding needs the role approve" in seen
                    mine = {**form, "code": code[1] if code else form["code"]}
                    assert (await cal.post("/ui/runs/paying/approve", data=mine)).status_code == 403
                assert (await client.get("/runs/paying")).json()["status"] == "waiting_for_approval"
                first, second = await asyncio.gather(
                    browser.post("/ui/runs/paying/approve", data=form), browser.post("/ui/runs/paying/deny", data={**form, "reason": "no"})
                )
                assert {first.status_code, second.status_code} <= {200, 409}
                await receiver.has(3)
            assert (await_result := json.loads(receiver.got[2][1])["data"])["run_id"] == "paying" and await_result["status"] == "completed"

    asyncio.run(run())


def test_a_message_is_sent_again_with_its_id_until_the_receiver_takes_it_and_no_redirect_is_followed(tmp_path: Path) -> None:
    """A redirect is a failed try: whoever has the receiver cannot send the server elsewhere."""

    async def run() -> None:
        async with Receiver().listening() as elsewhere, Receiver().listening() as receiver:
            answers = {1: Response(status_code=500), 2: Response(status_code=307, headers={"location": elsewhere.url})}
            receiver.answers = lambda n: answers.get(n, Response(status_code=200))
            async with serving(engine_of(f"sqlite:///{tmp_path}/runs.db"), settings=told(receiver)) as url, Client(url, "ann") as client:
                await client.post("/runs", json={"agent": "talker", "goal": "hi", "wait_s": 20})
                await receiver.has(3)
                assert receiver.types() == ["run.finished"] * 3 and not elsewhere.got
                assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1

    asyncio.run(run())


def test_what_happened_while_no_server_was_there_is_sent_by_the_next_one(tmp_path: Path) -> None:
    """The log is the queue: nothing is lost in a restart, and of two servers one sends. What was there before the receiver is not sent."""
    store = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        async with Receiver().listening() as receiver:
            async with engine_of(store) as engine:
                await engine.run("talker", "before")
            async with serving(engine_of(store), settings=told(receiver)) as url, Client(url, "ann") as client:
                await client.post("/runs", json={"agent": "talker", "goal": "one", "run_id": "one", "wait_s": 20})
                await receiver.has(1)
            async with engine_of(store) as engine:
                await engine.run("talker", "two", run_id="two")
                await engine.run("payer", "three", run_id="three")
            async with serving(engine_of(store), settings=told(receiver)) as first, serving(engine_of(store), settings=told(receiver)):
                await receiver.has(3)
                async with Client(first, "ann") as client:
                    for n in range(10):
                        await client.post("/runs", json={"agent": "talker", "goal": "x", "run_id": f"n{n}", "wait_s": 20})
                await receiver.has(13)
            ids = [headers["webhook-id"] for headers, _ in receiver.got]
            assert len(set(ids)) == len(ids) == 13
            runs = [json.loads(body)["data"]["run_id"] for _, body in receiver.got]
            assert sorted(runs) == sorted(["one", "two", "three", *(f"n{n}" for n in range(10))])

    asyncio.run(run())


def test_a_killed_server_leaves_its_messages_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`detent serve --webhooks FILE` is killed after a try in vain; the next one sends the message, with the id of the first try."""
    monkeypatch.setenv("HOOK_SECRET", SECRETS[0])
    desk = Desk(tmp_path)
    desk.steps("answer")

    async def run() -> None:
        async with Receiver(lambda n: Response(status_code=503)).listening() as receiver:
            file = desk.write("webhooks.toml", f'[[webhook]]\nurl = "{receiver.url}"\nsecrets_from = ["HOOK_SECRET"]\n')
            async with process(desk, "--webhooks", str(file)) as (served, client):
                run = (await client.post("/runs", json={"agent": "tester", "goal": "x", "wait_s": 20})).json()
                assert run["status"] == "completed", run
                await receiver.has(1)
                served.kill()
            receiver.answers = lambda n: Response(status_code=204)
            tried = len(receiver.got)
            async with process(desk, "--webhooks", str(file)):
                await receiver.has(tried + 1)
            assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
            headers, body = receiver.got[-1]
            assert Verifier(SECRETS[0]).verify(body, headers)["data"]["run_id"] == run["run_id"]

    asyncio.run(run())


def test_a_receiver_hears_of_its_tenant_and_its_kinds_only(tmp_path: Path) -> None:
    """Another tenant's runs are not told, and neither are kinds that it did not ask for."""

    async def run() -> None:
        async with Receiver().listening() as receiver:
            settings = told(receiver, tenant="other", events=("finished",))
            async with serving(engine_of(f"sqlite:///{tmp_path}/runs.db"), settings=settings) as url:
                async with Client(url, "ann") as ann, Client(url, "eve") as eve:
                    await ann.post("/runs", json={"agent": "talker", "goal": "x", "wait_s": 20})
                    await pays(eve, approve=False)
                    await receiver.has(1)
                    await eve.post("/runs", json={"agent": "talker", "goal": "x", "wait_s": 20})
                    await receiver.has(2)
                assert [json.loads(body)["data"]["tenant"] for _, body in receiver.got] == ["other", "other"]
                assert set(receiver.types()) == {"run.finished"}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "http://example.org/x"}, "https"),
        ({"url": "https://user:pw@example.org"}, "password"),
        ({"url": "file:///etc/passwd"}, "https"),
        ({"secrets": ("whsec_short",)}, "24 to 64"),
        ({"secrets": ("not-a-secret",)}, "24 to 64"),
        ({"secrets": ()}, "secrets_from"),
        ({"events": ("everything",)}, "everything"),
        ({"link": "javascript:alert(1)"}, "https"),
    ],
)
def test_a_receiver_that_cannot_be_told_safely_is_refused(fields: dict[str, Any], said: str) -> None:
    """No message shows a secret."""
    with pytest.raises(ConfigError, match=said) as refused:
        Webhook(**{"url": "https://example.org/hook", "secrets": SECRETS, **fields})
    assert "not-a-secret" not in str(refused.value)


def test_receivers_are_read_from_a_file_with_secrets_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing variable and an unknown key are named."""
    file = tmp_path / "webhooks.toml"
    file.write_text('[[webhook]]\nurl = "https://example.org/hook"\nsecrets_from = ["HOOK_SECRET"]\nevents = ["waiting"]\n')
    with pytest.raises(ConfigError, match="HOOK_SECRET"):
        webhooks_in(file)
    monkeypatch.setenv("HOOK_SECRET", SECRETS[0])
    (hook,) = webhooks_in(file)
    assert (hook.events, hook.keys()) == (("waiting",), [bytes([1]) * 32])
    file.write_text(file.read_text().replace("events", "event"))
    with pytest.raises(ConfigError, match="did you mean 'events'"):
        webhooks_in(file)
