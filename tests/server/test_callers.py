"""Who may call: tokens in a file, JSON Web Tokens of others, pages of other origins, and the command that serves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm, HMACAlgorithm
from jwt.utils import base64url_encode

from commands import in_process
from detent.extend import ConfigError
from detent.server import Caller, ServerSettings
from detent.server.callers import Tokens, by_jwt
from forked import fork
from server.serving import ANN, Client, engine_of, serving

SERVED = ("detent.cli.serving", "detent.server.application", "detent.server.mcp", "mcp.server", "uvicorn", "websockets.server")
"""What a process that serves imports besides."""


def test_a_file_keeps_digests_and_a_removed_or_expired_token_is_refused_at_once(tmp_path: Path) -> None:
    """The file does not have the token, nobody else may read it, and another object sees a change at its next look."""
    made, other = Tokens(tmp_path / "tokens.json"), Tokens(tmp_path / "tokens.json")
    token = made.add("ci", ANN)
    assert token not in (tmp_path / "tokens.json").read_text(encoding="utf-8")
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    assert (other(token), other(token + "x"), other("")) == (ANN, None, None)
    with pytest.raises(ConfigError, match="has a token 'ci'"):
        made.add("ci", ANN)
    old = made.add("old", Caller(principal="old", expires=datetime.now(UTC) - timedelta(seconds=1)))
    assert other(old) is None
    made.remove("ci")
    assert other(token) is None
    (tmp_path / "tokens.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read"):
        other(old)


def test_a_caller_is_what_its_token_says(tmp_path: Path) -> None:
    """Names that the log could not show, unknown roles and times without a zone are refused where the token is made."""
    for wrong in (
        {"principal": " "},
        {"principal": "a\x1b[2J"},
        {"principal": "a", "roles": ("root",)},
        {"principal": "a", "expires": datetime.fromisoformat("2026-01-01")},
    ):
        with pytest.raises(ConfigError):
            Caller(**wrong)  # type: ignore[arg-type]


KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
GOOD = {"iss": "https://id.example", "aud": "detent", "sub": "ann", "tenant": "acme", "roles": "see run nonsense", "scope": "a b"}


def signed(key: Any = KEY, *, algorithm: str = "ES256", kid: str = "k", **more: Any) -> str:
    """Return a token of the issuer, or of somebody who would like to be it."""
    claims = GOOD | {"exp": time.time() + 60} | more
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, key, algorithm, headers={"kid": kid})


def test_a_forged_or_expired_web_token_is_nobody_s(tmp_path: Path) -> None:
    """Another key, no signature, a shared secret made of the public key, another audience or issuer, no expiry, an old one: all refused."""
    public = json.loads(ECAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k", "alg": "ES256"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public]}), encoding="utf-8")
    authenticate: Any = by_jwt(issuer=GOOD["iss"], audience="detent", keys=str(tmp_path / "keys.json"))
    found = authenticate(signed())
    assert (found.principal, found.tenant, found.roles, found.scopes) == ("ann", "acme", ("see", "run"), ("a", "b"))
    pem = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head, body, _ = signed().split(".")
    confused = base64url_encode(json.dumps({"alg": "HS256", "kid": "k"}).encode()).decode()
    mac = base64url_encode(HMACAlgorithm(HMACAlgorithm.SHA256).sign(f"{confused}.{body}".encode(), pem)).decode()
    for forged in (
        signed(OTHER), signed(kid="other"), signed(kid="../keys.json"), signed(aud="else"), signed(aud=["else"]), signed(iss="https://evil.example"),
        signed(exp=time.time() - 60), signed(exp=None), signed(exp="never"), signed(nbf=time.time() + 60), signed(sub=None), signed(sub="\x1b[2J"),
        signed(tenant=None), signed(tenant=""), signed(tenant=["acme"]), signed(tenant={"a": 1}), signed(roles=7), f"{head}.{body}.",
        jwt.encode(GOOD | {"exp": time.time() + 60}, "", "none", headers={"kid": "k"}), f"{confused}.{body}.{mac}", "a.b.c", "", "." * 10_000,
    ):  # fmt: skip
        assert authenticate(forged) is None, forged[:80]
    whole: Any = by_jwt(issuer=GOOD["iss"], audience="detent", keys=str(tmp_path / "keys.json"), tenant="")
    assert (whole(signed(tenant=None)).tenant, whole(signed(tenant="acme")).tenant) == ("", "")
    for wrong in (
        {"keys": "http://id.example/keys"},
        {"keys": str(tmp_path / "none")},
        {"keys": str(tmp_path / "keys.json"), "algorithms": ("HS256",)},
    ):
        with pytest.raises(ConfigError):
            by_jwt(issuer="i", audience="a", **wrong)


def test_only_listed_pages_may_call(tmp_path: Path) -> None:
    """A listed origin gets its answer with the header that lets the page read it; another one gets neither."""

    async def run() -> None:
        settings = ServerSettings(origins=("https://chat.example",), grace_s=5)
        async with serving(engine_of(f"sqlite:///{tmp_path}/runs.db"), settings=settings) as url, Client(url, "ann") as client:
            listed = await client.get("/agents", headers={"Origin": "https://chat.example"})
            assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (200, "https://chat.example")
            ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
            for method in ("GET", "POST", "OPTIONS"):
                other = await client.request(method, "/agents", headers=ask)
                assert other.status_code in (400, 403)
                assert "access-control-allow-origin" not in other.headers

    asyncio.run(run())


def test_the_command_serves_and_after_a_stop_everything_is_there(tmp_path: Path) -> None:
    """It prints a token once, stops cleanly at SIGTERM, and what it recorded is there after a restart, under a new token."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/agent.toml").write_text('name = "slow"\n[[rules]]\nname = "say"\nanswer = "done"\n', encoding="utf-8")
    words = ["-m", "detent", "serve", "--listen", "127.0.0.1:0", "--store", f"sqlite:///{tmp_path}/runs.db", "--trust"]

    def served(use: Any) -> None:
        process = fork(words, cwd=tmp_path / "work", stderr=subprocess.PIPE, imports=SERVED)
        assert process.stderr is not None
        try:
            said = ""
            while "#token=" not in said:
                line = process.stderr.readline()
                assert line, f"it ended: {said}"
                said += line
            found = re.search(r"open (http://[^/]+)/#token=(\S+)", said)
            assert found is not None
            with httpx2.Client(base_url=found[1], headers={"Authorization": f"Bearer {found[2]}"}, timeout=30) as client:
                use(client)
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()

    ids: list[str] = []

    def first(client: httpx2.Client) -> None:
        made = client.post("/runs", json={"agent": "slow", "goal": "x", "wait_s": 20})
        assert made.json()["output"] == "done", made.text
        ids.append(made.json()["run_id"])

    def again(client: httpx2.Client) -> None:
        assert client.get(f"/runs/{ids[0]}").json()["status"] == "completed"

    served(first)
    served(again)


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    """And nothing is served, nor is a token printed."""
    (tmp_path / "agent.toml").write_text('name = "a"\n[[rules]]\nname = "say"\nanswer = "done"\n', encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["serve", "--listen", address, "--store", f"sqlite:///{tmp_path}/s/runs.db", "--trust"]
        code, _, said = in_process(words, cwd=tmp_path, env=os.environ)
    assert (code, f"cannot listen on {address}" in said, "token" in said) == (2, True, False), said
