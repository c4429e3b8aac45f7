"""Logging in at servers over HTTP, and what becomes of tokens in runs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from mcp.client.auth import OAuthClientProvider

from detent import Agent, Engine, McpServer
from detent.cli.main import run
from detent.config.state_directory import state_directory, state_home
from detent.core.errors import ConfigError
from detent.testing import ScriptedPlanner
from detent.tools.mcp.kept import Authorisation, Kept
from detent.tools.mcp.login import log_in
from detent.tools.mcp.settings import OAuth
from forked import fork
from tools.mcp.desks import END, call, one, ran, within
from tools.mcp.guarded import Guarded


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """A server that wants a login, and a user with a home of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DETENT_TRUST", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Guarded() as server:
        yield server


KEPT = Kept(state_home, state_directory)


def logged_in(server: McpServer, *, first: str = "") -> Path | None:
    """Log in as a person who says yes; `first` is requested of the port that the browser comes back to, before that."""
    visits: list[Any] = []

    def visit(url: str) -> None:
        back = httpx2.QueryParams(httpx2.URL(url).query)["redirect_uri"]

        def go() -> None:
            if first:
                assert httpx2.get(f"{back}?{first}").status_code == 404
            httpx2.get(url, follow_redirects=True)

        visits.append(asyncio.get_running_loop().run_in_executor(None, go))

    async def work() -> Path | None:
        try:
            return await log_in("it", server, KEPT, visit=visit, timeout_s=20)
        finally:
            await asyncio.gather(*visits)

    return within(work)


def change(server: McpServer, **changes: Any) -> None:
    """Change what is kept of a login."""
    found = KEPT.authorisation(server, server.url)
    assert found is not None
    KEPT.authorise(server, msgspec.structs.replace(found, **changes))


def test_a_run_says_how_to_log_in_and_asks_nobody(guarded: Guarded) -> None:
    """Nothing is discovered and nobody is registered in a run; the error names the command."""
    with pytest.raises(ConfigError, match="it answered HTTP 401: log in with `detent mcp login it`"):
        ran(McpServer(url=guarded.url, trust_hints=True), call("look"))
    assert {path for path, _, _ in guarded.seen} == {"/mcp"}


def test_what_a_login_left_is_used_by_the_next_run(guarded: Guarded) -> None:
    """The token is in a file for this user alone, and in no record."""
    server = McpServer(url=guarded.url, trust_hints=True)
    place = logged_in(server)
    assert place is not None and place.parent == state_home() / "mcp"
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert one(ran(server, call("look"))).content == "seen"
    (asked,) = guarded.forms("/token")
    assert asked["resource"] == guarded.url and asked["code_verifier"]


def test_a_server_that_wants_no_login_keeps_nothing(guarded: Guarded) -> None:
    """It answers anybody."""
    guarded.tokens.add("")
    assert logged_in(McpServer(url=guarded.url, trust_hints=True)) is None
    assert not (state_home() / "mcp").exists()


def test_only_the_answer_with_the_state_of_this_login_is_taken(guarded: Guarded) -> None:
    """Another page of the browser may come to the port first; the login waits on."""
    assert logged_in(McpServer(url=guarded.url, trust_hints=True), first="code=theirs&state=guessed") is not None
    assert [form["code"] for form in guarded.forms("/token")] == ["code"]


@pytest.mark.parametrize(
    "step", ["_initialize", "_select_authorization_server", "_expected_issuer", "_perform_authorization", "_handle_token_response"]
)
def test_nobody_is_logged_in_by_an_sdk_without_a_step_that_is_ours(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The SDK calls a step by another name, and ours, which holds the rules, is not called any more."""
    for kind in [kind for kind in OAuthClientProvider.__mro__ if step in vars(kind)]:
        monkeypatch.delattr(kind, step)
    with pytest.raises(ConfigError, match=rf"mcp [\d.]+ has no OAuthClientProvider\.{step}.*nothing was sent"):
        logged_in(McpServer(url=guarded.url, trust_hints=True))


@pytest.mark.parametrize("step", ["_auth_flow", "_refresh_token", "_handle_refresh_response"])
def test_no_login_is_used_with_an_sdk_without_a_step_that_is_ours(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The same in a run, where the token would go to whatever address the SDK is led to."""
    logged_in(McpServer(url=guarded.url, trust_hints=True))
    for kind in [kind for kind in OAuthClientProvider.__mro__ if step in vars(kind)]:
        monkeypatch.delattr(kind, step)
    with pytest.raises(ConfigError, match=rf"has no OAuthClientProvider\.{step}"):
        ran(McpServer(url=guarded.url, trust_hints=True), call("look"))


def test_an_expired_token_is_refreshed_without_anybody(guarded: Guarded) -> None:
    """By the clock before it is sent; by the server's word where the clock says nothing. The new one is kept."""
    server = McpServer(url=guarded.url, trust_hints=True)
    logged_in(server)
    change(server, expires_at=1.0)
    assert one(ran(server, call("look"))).content == "seen"
    guarded.tokens.clear()  # revoked
    assert one(ran(server, call("look"))).content == "seen"
    assert [form["grant_type"] for form in guarded.forms("/token")] == ["authorization_code", "refresh_token", "refresh_token"]
    assert ran(server, call("look")).status == "completed" and len(guarded.forms("/token")) == 3


def test_engines_that_need_a_new_token_at_once_refresh_it_once(guarded: Guarded) -> None:
    """A refresh token counts once: whoever comes second takes what the first one got."""
    server = McpServer(url=guarded.url, trust_hints=True)
    logged_in(server)
    change(server, expires_at=1.0)

    async def connect() -> None:
        async with Engine(mcp={"it": server}) as engine:
            assert (await engine.servers.survey())[1] == {}

    async def work() -> None:
        await asyncio.gather(*(connect() for _ in range(4)))

    within(work)
    assert len(guarded.forms("/token")) == 2


def test_a_refresh_that_is_refused_needs_a_login(guarded: Guarded) -> None:
    """The error names the command."""
    server = McpServer(url=guarded.url, trust_hints=True)
    logged_in(server)
    change(server, expires_at=1.0)
    guarded.refresh_tokens.clear()
    guarded.tokens.clear()
    with pytest.raises(ConfigError, match="log in with `detent mcp login it`"):
        ran(server, call("look"))


def test_a_token_that_a_server_hands_back_is_hidden(guarded: Guarded) -> None:
    """Like any other secret of a connection."""
    server = McpServer(url=guarded.url, trust_hints=True)
    logged_in(server)
    (token,) = guarded.tokens
    guarded.answer = lambda message, answer=guarded.answer: (
        (200, {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": f"it is {token}"}]}})
        if message["method"] == "tools/call"
        else answer(message)
    )
    assert one(ran(server, call("look"))).content == "it is ***"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"grant": "client_credentials"}, "needs client_id, issuer"),
        ({"grant": "client_credentials", "client_id": "a", "issuer": "https://b"}, "needs either client_secret or private_key"),
        ({"grant": "identity_assertion", "client_id": "a"}, "needs client_secret, issuer, id_token"),
        ({"private_key": "x"}, "private_key is for grant = 'client_credentials'"),
    ],
)
def test_settings_that_do_not_fit_together_are_named(said: Any, says: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigError, match=says):
        McpServer(url="https://a.example/mcp", oauth=OAuth(**said))


def test_a_kept_login_of_another_url_is_not_found(guarded: Guarded) -> None:
    """Whatever the file is called."""
    server = McpServer(url=guarded.url, trust_hints=True)
    logged_in(server)
    other = McpServer(url=guarded.url.replace("127.0.0.1", "localhost"))
    assert KEPT.authorisation(other, other.url) is None
    KEPT.authorise(other, Authorisation(url=other.url))
    assert KEPT.authorisation(server, server.url) is not None


# Command line -----------------------------------------------------------------------------------------------------------------


def test_the_command_logs_in_and_out(guarded: Guarded, tmp_path: Path) -> None:
    """It prints the address, waits for the browser, and says when it is done."""
    Path("detent.toml").write_text(f'[mcp.it]\nurl = "{guarded.url}"\n')
    process = fork(["-m", "detent", "mcp", "login", "it"], cwd=tmp_path, stderr=subprocess.PIPE, imports=["mcp"])
    assert process.stderr is not None
    line = next(line for line in iter(process.stderr.readline, "") if "/authorization?" in line)
    page = httpx2.get(line.strip(), follow_redirects=True)
    assert "You are logged in" in page.text
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "logged in at it\n")
    assert run(["mcp", "logout", "it"]) == 0
    assert KEPT.authorisation(McpServer(url=guarded.url, trust_hints=True), guarded.url) is None


def test_a_login_needs_a_server_that_can_be_logged_in_at(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake in one line, exit code 2."""
    Path("detent.toml").write_text(
        f'[mcp.it]\nurl = "{guarded.url}"\nheaders = {{ Authorization = "Bearer x" }}\n[mcp.here]\ncommand = "{sys.executable}"\n'
    )
    for words, says in (
        (["login"], "name the server; known: it, here"),
        (["login", "hare"], "unknown MCP server 'hare'; did you mean 'here'?"),
        (["login", "it"], "its headers have Authorization"),
        (["login", "here"], "is a program, which does not use a login"),
    ):
        assert run(["mcp", *words]) == 2
        assert re.search(re.escape(says), capsys.readouterr().err)


def test_nothing_is_guessed_without_a_home(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that needs no login is reached all the same."""
    guarded.tokens.add("")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", os.devnull)

    async def work() -> Any:
        server = {"it": McpServer(url=guarded.url, trust_hints=True)}
        async with Engine(mcp=server, planner=ScriptedPlanner([call("look"), END]), approver=lambda _: True, store="ram:") as engine:
            return await engine.run(Agent(name="a", tools=["it__look"]), "look")

    assert one(within(work)).content == "seen"
