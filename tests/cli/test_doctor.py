"""`detent doctor` finds what there is, says what is broken and what to do, and shows no key."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk
from cli.test_models import FILE, NO_KEYS
from detent.cli import invocation, surroundings
from detent.cli.main import run
from detent.planners.providers import EXTRAS, LOCAL, SUGGESTED, VARIABLES

SECRET = "sk-very-secret-0123456789"


@contextmanager
def listing(body: str, status: int = 200) -> Iterator[str]:
    """Serve this as the list of models, at the address that is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


MODELS = json.dumps({"object": "list", "data": [{"id": "qwen3:4b"}, {"id": "tiny"}]})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A directory without an agent file."""
    made = Desk(tmp_path)
    (tmp_path / "agent.toml").unlink()
    return made


def doctor(desk: Desk, *words: str, **environment: str) -> Any:
    """Return the exit code and the document."""
    done = desk.detent("doctor", "--json", *words, **{**NO_KEYS, "OLLAMA_BASE_URL": "http://127.0.0.1:9/v1", **environment})
    return done.code, done.json


def test_with_nothing_at_hand_it_fails_and_says_what_would_help(desk: Desk) -> None:
    """A key, a local server, or rules."""
    code, found = doctor(desk)
    if any(server["answers"] for server in found["servers"]):
        pytest.skip("a model server is running on this machine")
    assert (code, found["ok"]) == (1, False)
    assert any("OPENAI_API_KEY" in step for step in found["next"]) and any("detent init" in step for step in found["next"])
    assert not desk.store.parent.exists(), "nothing is made by looking"


def test_a_key_is_found_by_its_variable_and_never_shown(desk: Desk) -> None:
    """Neither in the document nor in the lines."""
    code, found = doctor(desk, ANTHROPIC_API_KEY=SECRET, GROQ_API_KEY="  ")
    assert code == 0
    ready = {provider["name"]: provider["found"] for provider in found["providers"] if provider["found"]}
    assert ready == {"anthropic": ["ANTHROPIC_API_KEY"]}
    assert any(f"detent run --model {SUGGESTED['anthropic']}" in step for step in found["next"])
    lines = desk.detent("doctor", "--all", **{**NO_KEYS, "ANTHROPIC_API_KEY": SECRET})
    assert "key in ANTHROPIC_API_KEY" in lines.out
    assert SECRET not in lines.out + lines.err + json.dumps(found)


def test_a_local_server_that_answers_is_named_with_its_models(desk: Desk) -> None:
    """And the command that asks one of them."""
    with listing(MODELS) as url:
        code, found = doctor(desk, OLLAMA_BASE_URL=f"{url}/v1")
    (ollama,) = [server for server in found["servers"] if server["name"] == "ollama"]
    assert (code, ollama["answers"], ollama["models"]) == (0, True, ["qwen3:4b", "tiny"])
    assert "use a model of this machine: detent run --model ollama:qwen3:4b GOAL" in found["next"]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ("<html>hello</html>", 200, "not a model server"),
        ('{"data": 3}', 200, "not a model server"),
        ("{}", 404, "not a model server"),
        ("no", 401, "wants a key"),
    ],
)
def test_whatever_else_listens_there_is_not_taken_for_a_model(body: str, status: int, problem: str) -> None:
    """A web server on the same port is said to be one."""
    with listing(body, status) as url:
        (found,) = surroundings.servers({"vllm": url})
    assert not found.answers
    assert problem in found.problem


def test_where_nothing_listens_nothing_is_wrong() -> None:
    """A server that is not running is no problem."""
    found = surroundings.servers(dict.fromkeys(LOCAL, "http://127.0.0.1:9"))
    assert [(server.answers, server.problem) for server in found] == [(False, "")] * len(LOCAL)


def test_files_that_are_broken_are_named_with_what_is_wrong(desk: Desk) -> None:
    """An agent whose model has no key is as broken as a file that cannot be read; one that plans by rules can run."""
    desk.write("detent.toml", 'agents = {good = "good.toml", bad = "bad.toml", keyless = "keyless.toml"}\n')
    desk.write("good.toml", 'name = "g"\ntools = ["./tools.py:note"]\nrules = "rules.yaml"\n')
    desk.write("bad.toml", 'name = "b"\ntoolz = []\n')
    desk.write("keyless.toml", FILE.replace("filed-model", "mistral:mistral-large-latest"))
    code, found = doctor(desk)
    files = {file["path"]: file for file in found["files"]}
    assert code == 1
    assert files["good.toml"]["plans_by"] == "rules" and not files["good.toml"]["problem"]
    assert "did you mean 'tools'" in files["bad.toml"]["problem"]
    assert "MISTRAL_API_KEY" in files["keyless.toml"]["problem"]
    assert not files["detent.toml"]["problem"]
    assert found["next"][0].startswith("fix bad.toml")
    desk.write("detent.toml", "storre = 3\n")
    code, found = doctor(desk)
    assert code == 1 and "did you mean 'store'" in found["files"][0]["problem"]


def test_a_store_that_is_not_looked_at_is_named_without_its_password(desk: Desk) -> None:
    """A broken configuration keeps it from being opened; its URL is shown all the same."""
    desk.write("bad.toml", "x = = 1")
    words = ("doctor", "--config", "bad.toml")
    for more in ((), ("--json",)):
        done = desk.detent(*words, *more, DETENT_STORE="postgresql://ann:s3cret@db/runs")
        assert (done.code, "postgresql://ann@db/runs" in done.out) == (1, True), done.out
        assert "s3cret" not in done.out + done.err


def test_rules_alone_are_enough(desk: Desk) -> None:
    """An agent file that needs no model makes everything well."""
    desk.write("agent.toml", 'name = "g"\ntools = ["./tools.py:note"]\nrules = "rules.yaml"\n')
    code, found = doctor(desk)
    assert code == 0
    assert "run the agent: detent run --agent agent.toml GOAL" in found["next"]


def test_a_store_that_cannot_be_opened_is_a_finding(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is wrong, and without a password of its URL."""
    desk.write("broken.db", "this is no database, but text that is long enough to be looked at as one" * 20)
    code, found = doctor(desk, DETENT_STORE="sqlite:///broken.db", OPENAI_API_KEY="k")
    assert (code, found["store"]["exists"]) == (1, False)
    assert found["store"]["problem"]
    monkeypatch.setattr(invocation, "REFUSED_S", 0.05)
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.chdir(desk.home)
    monkeypatch.setenv("DETENT_STORE", "postgresql://ann:hush@127.0.0.1:9/runs")
    code = run(["doctor", "--json"])
    said = capsys.readouterr().out
    assert code == 1 and json.loads(said)["store"]["problem"] and "hush" not in said


def test_every_extra_and_provider_is_looked_at() -> None:
    """The tables here are those of the package: no extra is forgotten, each provider has its variables, its client and an example."""
    root = Path(__file__).resolve().parents[2]
    declared = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(surroundings.BROUGHT) == declared - {"dev", "docs", "testing"}
    assert all(provider in VARIABLES and provider in EXTRAS for provider in SUGGESTED)
    assert set(EXTRAS.values()) == set(SUGGESTED)
    assert [extra.version for extra in surroundings.extras() if extra.name == "mcp"] != [""]
