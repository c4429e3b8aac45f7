"""Secrets: given to the tool that declared them, and found nowhere else: not in the store, not in the prompt, not in errors, not in logs."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent import Agent, Engine, FatalToolError, FinalAnswer, Host, NotExecuted, ToolCall, ToolContext, ToolFailed, View, tool
from detent.capabilities import EnvironmentSecrets, FileSecrets, FunctionSecrets, SecretSources
from detent.capabilities.secrets import read_secrets
from detent.core.errors import ConfigError
from detent.expressions.spellings import forms_of
from detent.observers.in_memory import InMemoryObserver
from detent.ports import ToolOutcome, ToolSpec
from detent.secrecy.vault import Vault
from detent.testing.scripted import ScriptedPlanner
from detent.tools.functions.settlement import Happened
from kernel.runs import Allow

SECRET = 'tok-"9f\\8/é+=&x7z_Lr'
GIVEN = Host(tenant="acme", credential_refs=("github",))
SPEC = ToolSpec(name="t", credentials=("github",))


def source(value: str | None = SECRET) -> FunctionSecrets:
    return FunctionSecrets(lambda name, host: value, names=("github",))


def opened(value: str = SECRET) -> Vault:
    vault = Vault(source(value), GIVEN)
    assert vault.get("github", SPEC) == value
    return vault


def traces(secret: str = SECRET) -> list[bytes]:
    """Return the ways in which the secret could stand somewhere; written down here anew, not taken from the code."""
    raw = secret.encode()
    texts = [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]]
    texts += [
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        raw.hex(),
        base64.b64encode(raw).decode().rstrip("=")[:-1],
    ]
    texts += [base64.b64encode(b"user:" + raw).decode().rstrip("=")[8:-1], secret[:12]]
    return [text.encode() for text in texts]


# In a run ---------------------------------------------------------------------------------------------------------------------


def leaks(secret: str) -> dict[str, Callable[[ToolContext], Any]]:
    """Return the ways in which a tool may give a secret away."""

    def raising(error: Exception) -> Any:
        raise error

    raw = secret.encode()
    return {
        "result": lambda c: {"token": secret, secret: 1, "list": [f"a {secret} b"]},
        "text": lambda c: f"Authorization: Bearer {secret}",
        "encoded": lambda c: {
            "url": urllib.parse.quote(secret, safe=""), "hex": raw.hex(), "b64": base64.b64encode(raw).decode(), "json": json.dumps({"t": secret}),
            "basic": base64.b64encode(b"user:" + raw).decode(), "json in json": json.dumps(json.dumps(secret, ensure_ascii=False)), "repr": repr(secret),
        },
        "large": lambda c: ["x" * 300, secret * 50, "y" * 3000],
        "cut": lambda c: "z" * 1500 + secret * 40,
        "known failure": lambda c: raising(ToolFailed(f"no: {secret}", details={"sent": secret}, error_code=f"code {secret}")),
        "long failure": lambda c: raising(ToolFailed("x" * 3990 + secret)),
        "not executed": lambda c: raising(NotExecuted(f"no: {secret}")),
        "unknown failure": lambda c: raising(RuntimeError(f"no: {secret}")),
        "fatal": lambda c: raising(FatalToolError(f"no: {secret}")),
        "progress": lambda c: c.progress({"using": secret}),
        "own failure": lambda c: {"success": False, "error": "bad", "message": secret},
        "no json": lambda c: {"x": float("nan"), "t": secret},
    }  # fmt: skip


@pytest.mark.parametrize("way", leaks(""))
def test_a_secret_is_found_nowhere_however_a_tool_gives_it_away(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The whole store, byte by byte, with artifacts; the prompt; what observers are told; the result; Python's log. The tool had it."""
    caplog.set_level(logging.DEBUG)
    had: list[str] = []
    views: list[View] = []

    @tool(side_effect="write", credentials=("github",), max_result_bytes=2000)
    def push(context: ToolContext) -> Any:
        """Push."""
        had.append(context.secret("github"))
        return leaks(had[0])[way](context)

    def look(view: View) -> FinalAnswer:
        views.append(view)
        return FinalAnswer(content="done")

    seen = InMemoryObserver()
    chunks: list[Any] = []

    class Streaming:
        def on_record(self, record: Any, state: Any) -> None:
            """Nothing: `seen` keeps records."""

        def on_chunk(self, chunk: Any) -> None:
            chunks.append(chunk)

    async def main() -> Any:
        planner = ScriptedPlanner([ToolCall(tool="push", args={}), look])
        store = f"sqlite:///{tmp_path}/runs.db"
        async with Engine(store=store, planner=planner, policy=Allow(), secrets=source(), observers=[seen, Streaming()]) as engine:
            result = await engine.run(Agent(name="a", tools=[push]), "go", host=GIVEN)
            blobs = [await engine.store.get_blob(result.run_id, key) for key in await engine.store.list_blobs(result.run_id)]
            return result, await engine.store.read(result.run_id), blobs

    result, lines, blobs = asyncio.run(main())
    assert had == [SECRET]
    places: dict[str, bytes] = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    places |= {
        "log": b"\n".join(lines),
        "blobs": b"\n".join(b or b"" for b in blobs),
        "result": repr(result).encode(),
        "python": caplog.text.encode(),
    }
    places |= {
        "views": repr([(v.transcript[:], v.results[:]) for v in views]).encode(),
        "seen": repr(vars(seen)).encode(),
        "chunks": repr(chunks).encode(),
    }
    for place, data in places.items():
        for trace in traces():
            assert trace not in data, (place, trace)
    assert b"credential:github" in places["log"] or way in ("progress", "no json")
    assert way != "progress" or b"<credential:github>" in places["chunks"]


def test_another_tool_of_the_run_cannot_give_it_away_either() -> None:
    """What one tool was given is replaced in the results of all, and in what `reconcile` says."""
    kept: list[str] = []

    @tool(side_effect="read", credentials=("github",))
    def log_in(context: ToolContext) -> str:
        """Log in."""
        kept.append(context.secret("github"))
        return "in"

    @tool(side_effect="read")
    def look_around() -> str:
        """Look."""
        return kept[0]

    async def main() -> None:
        planner = ScriptedPlanner([ToolCall(tool="log_in", args={}), ToolCall(tool="look_around", args={}), FinalAnswer(content="done")])
        async with Engine(planner=planner, secrets=source()) as engine:
            result = await engine.run(Agent(name="a", tools=[log_in, look_around]), "go", host=GIVEN)
            assert [call.content for call in result.tool_calls] == ["in", "<credential:github>"]

    asyncio.run(main())


def test_what_reconcile_says_is_kept_clean(tmp_path: Path) -> None:
    """A call in doubt that is settled by the tool itself, which asks with its secret."""

    def reconcile(key: str, context: ToolContext) -> Happened:
        return Happened({"token": context.secret("github")})

    first: list[int] = []

    @tool(side_effect="write", credentials=("github",), reconcile=reconcile)
    async def push() -> str:
        """Push."""
        first.append(1)
        await asyncio.Event().wait()
        return ""

    async def main() -> None:
        planner = ScriptedPlanner([ToolCall(tool="push", args={}), FinalAnswer(content="done")])
        options: dict[str, Any] = {
            "store": f"sqlite:///{tmp_path}/runs.db",
            "planner": planner,
            "policy": Allow(),
            "secrets": source(),
            "tools": [push],
        }
        async with Engine(**options) as engine:
            running = asyncio.create_task(engine.run(Agent(name="a", tools=["push"]), "go", run_id="r", host=GIVEN))
            while not first and not running.done():
                await asyncio.sleep(0)
            engine.suspend("test", drain_s=0)
            await asyncio.gather(running, return_exceptions=True)
        async with Engine(**{**options, "planner": ScriptedPlanner([FinalAnswer(content="done")])}) as engine:
            await engine.resume("r@acme")
            log = b"\n".join(await engine.store.read("r@acme"))
        assert b"credential:github" in log
        assert not any(trace in log for trace in traces())

    asyncio.run(main())


# Who gets it ------------------------------------------------------------------------------------------------------------------


def refusal(vault: Vault, name: str = "github", spec: ToolSpec = SPEC) -> str:
    with pytest.raises(ToolFailed) as refused:
        vault.get(name, spec)
    assert SECRET not in str(refused.value)
    return refused.value.error_code


def test_a_tool_gets_only_what_it_declared_the_host_was_given_and_somebody_has() -> None:
    """Each refusal has its code; a source that fails does not say with what."""

    def broken(name: str, host: Host) -> str:
        raise RuntimeError(SECRET)

    assert refusal(Vault(source(), GIVEN), spec=ToolSpec(name="t")) == "credential_not_declared"
    assert refusal(Vault(source(), Host())) == "credential_not_granted"
    assert refusal(Vault(None, GIVEN)) == refusal(Vault(source(None), GIVEN)) == refusal(Vault(source(""), GIVEN)) == "credential_missing"
    assert refusal(Vault(FunctionSecrets(broken, names=("github",)), GIVEN)) == "credential_missing"
    assert refusal(Vault(source("short"), GIVEN)) == "credential_unusable"
    with pytest.raises(ToolFailed, match="no secrets"):
        ToolContext(run_id="r", call_id="c", tool=SPEC, host=GIVEN, idempotency_key="k").secret("github")


@pytest.mark.parametrize(
    ("host", "secrets", "says"),
    [(Host(tenant="acme"), source(), "missing_required_credential:github"), (GIVEN, None, "no source has the secret 'github'")],
)
def test_a_run_whose_tool_could_not_get_its_secret_does_not_start(host: Host, secrets: Any, says: str) -> None:
    """Refused with the tool's and the secret's name, before anything is recorded."""

    @tool(side_effect="read", credentials=("github",))
    def look(context: ToolContext) -> str:
        """Look."""
        return context.secret("github")

    async def main() -> None:
        async with Engine(planner=ScriptedPlanner([]), secrets=secrets) as engine:
            with pytest.raises(ConfigError, match=f"'look'.*{says}"):
                await engine.run(Agent(name="a", tools=[look]), "go", host=host)
            assert await engine.list_runs() == []

    asyncio.run(main())


def test_each_tenant_has_its_own_and_the_operator_has_all() -> None:
    """The source is asked for the run's host; a run without one is given every name, as the log says."""
    had: list[str] = []

    @tool(side_effect="read", credentials=("github",))
    def look(context: ToolContext) -> str:
        """Look."""
        had.append(context.secret("github"))
        return "ok"

    async def main() -> None:
        planner = ScriptedPlanner([ToolCall(tool="look", args={}), FinalAnswer(content="done")])
        secrets = FunctionSecrets(lambda name, host: f"{name} of {host.tenant or 'the operator'}", names=("github",))
        async with Engine(planner=planner, secrets=secrets) as engine:
            for host in (GIVEN, Host(tenant="other", credential_refs=("github",)), None):
                result = await engine.run(Agent(name="a", tools=[look]), "go", host=host)
                assert result.status == "completed" and result.state.host.credential_refs == ("github",)

    asyncio.run(main())
    assert had == ["github of acme", "github of other", "github of the operator"]


# Sources ----------------------------------------------------------------------------------------------------------------------


def test_sources_read_the_environment_files_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is None; files are read anew, so that a rotated secret is the new one."""
    monkeypatch.setenv("TOKEN_HERE", "from the environment")
    monkeypatch.delenv("NOT_SET", raising=False)
    (tmp_path / "key").write_text("from a file\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    files = FileSecrets({"file": tmp_path / "key", "gone": tmp_path / "gone", "bytes": tmp_path / "bytes"})
    both = SecretSources(EnvironmentSecrets({"env": "TOKEN_HERE", "unset": "NOT_SET", "file": "TOKEN_HERE"}), files)
    names = ("env", "unset", "file", "gone", "bytes", "other")
    assert {name: both.get(name, Host()) for name in names} == {
        "env": "from the environment",
        "unset": None,
        "file": "from the environment",
        "gone": None,
        "bytes": None,
        "other": None,
    }
    assert both.names() == ("env", "unset", "file", "gone", "bytes")
    assert files.get("file", Host()) == "from a file"
    (tmp_path / "key").write_text("rotated")
    assert files.get("file", Host()) == "rotated"
    assert source().get("other", Host()) is None


def test_configuration_names_where_secrets_are_and_never_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`[secrets]` of detent.toml; a value itself is refused, and not repeated."""
    monkeypatch.setenv("TOKEN_HERE", SECRET)
    (tmp_path / "detent.toml").write_text('store = "ram:"\n[secrets]\ngithub = "env:TOKEN_HERE"\n')
    read = read_secrets({"github": "env:TOKEN_HERE"})
    assert read is not None and read.get("github", Host()) == SECRET and read_secrets({}) is None
    engine = Engine.from_config(tmp_path / "detent.toml", trust=True)
    assert engine.runtime.parts.secrets is not None and tuple(engine.runtime.parts.secrets.names()) == ("github",)
    for said in (SECRET, "env:", "vault:x"):
        with pytest.raises(ConfigError, match=r"secrets\.github") as refused:
            read_secrets({"github": said})
        assert SECRET not in str(refused.value)


# What is replaced -------------------------------------------------------------------------------------------------------------


@given(
    secret=st.text(min_size=8, max_size=40).filter(lambda s: s.isprintable() and s == s.strip()),
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
)
def test_no_form_of_a_secret_is_left_in_any_text(secret: str, before: bytes, after: bytes) -> None:
    """As it is, in JSON, in a URL, in hexadecimal, and in Base64 wherever it stands in it."""
    vault = opened(secret)
    raw = secret.encode()
    encoded = base64.b64encode(before + raw + after).decode()
    first, last = -(-len(before) * 8 // 6), (len(before) + len(raw)) * 8 // 6
    inner = encoded[first:last]
    for text in (
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        urllib.parse.quote(secret, safe=""),
        raw.hex(),
    ):
        assert vault.text(f"\x00{text}\x00") == "\x00<credential:github>\x00"
    assert inner not in vault.text(encoded)


def test_a_secret_that_was_cut_is_replaced_at_the_end() -> None:
    """With and without an ellipsis; what only resembles it stays."""
    vault = opened("abcdefghijklmnop")
    assert vault.text("is abcdefghijkl…") == "is <credential:github>…"
    assert vault.text("is abcdefghijkl") == "is <credential:github>"
    assert vault.text("is abcde") == "is abcde"
    assert vault.text("abcdefghijkl is it") == "abcdefghijkl is it"


def test_a_key_of_several_lines_is_replaced_line_by_line() -> None:
    """A private key that a program prints with other line ends."""
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7\nq83jf92ksl10slf93k\n-----END KEY-----"
    assert "q83jf92ksl" not in opened(key).text("line: q83jf92ksl10slf93k\r\n")


def test_outcomes_without_secrets_are_not_touched() -> None:
    """Nothing is decoded or copied until a secret was given out."""
    outcome = ToolOutcome(kind="ok", result=b'{ "spaced": 1 }')
    assert Vault(source(), GIVEN).outcome(outcome) is outcome


def test_a_number_that_is_the_secret_is_replaced() -> None:
    """A secret of digits may come back as a number."""
    assert opened("1234567890").data({"n": 1234567890, "m": 5, "b": True}) == {"n": "<credential:github>", "m": 5, "b": True}


def test_every_form_is_long_enough_to_be_told_from_ordinary_text() -> None:
    """A form of few characters would replace what is no secret."""
    assert all(len(form) >= 8 for form in forms_of(SECRET))
