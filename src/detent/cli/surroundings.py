"""Finds what this machine offers a run: keys, local model servers, installed extras, programs. Changes nothing.

Of keys, only the names of their variables are reported, never a value. Servers are asked on loopback (Ollama at OLLAMA_BASE_URL), all at once and
for at most a second.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from detent.cli.output import clean
from detent.config import adopting
from detent.planners.providers import EXTRAS, LOCAL, SUGGESTED, VARIABLES

TIMEOUT_S = 1.0
"""How long to wait for a local server."""
MOST_BYTES = 1 << 20

BROUGHT: dict[str, tuple[str, ...]] = {
    "chat": ("prompt_toolkit",),
    "code": ("pydantic-monty",),
    "models": ("pydantic-ai-slim",),
    "openai": ("pydantic-ai-slim", "openai"),
    "anthropic": ("pydantic-ai-slim", "anthropic"),
    "google": ("pydantic-ai-slim", "google-genai"),
    "groq": ("pydantic-ai-slim", "groq"),
    "mistral": ("pydantic-ai-slim", "mistralai"),
    "bedrock": ("pydantic-ai-slim", "boto3"),
    "openrouter": ("pydantic-ai-slim", "openai"),
    "on-device": ("httpx2",),
    "mcp": ("mcp",),
    "http": ("httpx2",),
    "postgres": ("psycopg",),
    "vectors": ("sqlite-vec",),
    "restate": ("uvicorn", "httpx2", "h11", "restate-sdk"),
    "server": ("uvicorn", "sse-starlette", "pyjwt", "mcp", "starlette"),
    "schedules": ("tzdata", "cronsim"),
    "evals": ("jinja2", "pyyaml"),
    "inspect": ("inspect-ai",),
    "otel": ("opentelemetry-api",),
}
"""Extra -> the distributions that it needs; the last one gives its version."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider: the variables that may hold its key, those that are set, whether its client is installed, and a model to start with."""

    name: str
    variables: tuple[str, ...]
    found: tuple[str, ...]
    installed: bool
    model: str

    @property
    def usable(self) -> bool:
        """Whether a run can use it."""
        return bool(self.found) and self.installed


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """An address where a local model server may listen; `models` are its models, `problem` is why it cannot be used."""

    name: str
    url: str
    answers: bool
    models: tuple[str, ...] = ()
    problem: str = ""


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """An extra of this package with the version of its main distribution, "" if it is missing; `install` is the command that installs it."""

    name: str
    version: str
    install: str


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """An external program; `problem` says what is wrong, and what the program is for."""

    name: str
    found: str
    problem: str = ""


def extras() -> list[Extra]:
    """Return every extra, installed or not."""
    found: list[Extra] = []
    for name, distributions in BROUGHT.items():
        versions = [_version(distribution) for distribution in distributions]
        found.append(Extra(name=name, version=versions[-1] if all(versions) else "", install=f'pip install "detent[{name}]"'))
    return found


def providers(environment: Mapping[str, str], installed: list[Extra]) -> list[Provider]:
    """Return the providers that have their own extra; a blank key counts as missing."""
    there = {extra.name for extra in installed if extra.version}
    return [
        Provider(
            name=name,
            variables=VARIABLES[name],
            found=tuple(variable for variable in VARIABLES[name] if environment.get(variable, "").strip()),
            installed=EXTRAS[name] in there,
            model=model,
        )
        for name, model in SUGGESTED.items()
    ]


def places(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each kind of local server."""
    own = environment.get("OLLAMA_BASE_URL", "").rstrip("/").removesuffix("/v1")
    return {**LOCAL, "ollama": own or LOCAL["ollama"]}


def servers(where: Mapping[str, str]) -> list[Server]:
    """Ask all servers at once which models they have."""
    with ThreadPoolExecutor(max_workers=len(where)) as pool:
        return list(pool.map(_server, where.keys(), where.values()))


def _server(name: str, url: str) -> Server:
    """Ask one server for its models in OpenAI's protocol, which all four speak."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/v1/models")
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        refused = isinstance(error, ConnectionRefusedError)
        return Server(name=name, url=url, answers=False, problem="" if refused else f"{type(error).__name__}: {error}")
    finally:
        connection.close()
    if answer.status in (401, 403):
        return Server(name=name, url=url, answers=False, problem="something there wants a key; give it with --base-url and --api-key-env")
    try:
        listed = json.loads(body)["data"]
        models = tuple(str(cast("dict[str, Any]", model)["id"]) for model in listed)
    except (ValueError, KeyError, TypeError):
        return Server(name=name, url=url, answers=False, problem="something listens there, but it is not a model server")
    return Server(name=name, url=url, answers=True, models=models)


def programs() -> list[Program]:
    """Return the programs that some tools need."""
    from detent.tools.workspace.memory_group import why_none
    from detent.tools.workspace.sandbox import probe

    sandbox = probe()
    why = f"{sandbox.why} (without it the exec tool runs programs unconfined)" if sandbox.why else ""
    if not why and (no_group := why_none()):
        bound = "memory of sandboxed programs in pipes and sockets is not bounded, because there is no memory control group"
        why = f"{sandbox.program}; but {bound} ({no_group}); under systemd: systemd-run --user --scope detent ..."
        return [Program(name="bubblewrap", found="", problem=why), _node()]
    return [Program(name="bubblewrap", found=sandbox.program, problem=why), _node()]


def _node() -> Program:
    path = shutil.which("node")
    if path is None:
        return Program(name="node", found="", problem="not installed (only MCP servers that are started with npx need it)")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Program(name="node", found="", problem=f"{path} cannot be used: {error}")
    return Program(name="node", found=said or path)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def version_of_this() -> str:
    """Return the version of this package and of Python."""
    import platform

    from detent import __version__

    return f"detent {__version__}, Python {platform.python_version()} on {platform.system()} {os.uname().machine}"


def unused_stores(here: Path) -> list[str]:
    """Return messages about stores that are not used here, for a command that uses the store in the state directory."""
    lines: list[str] = []
    if (unused := adopting.unused(here)) is not None:
        lines.append(
            f"{clean(str(unused))} is not used, because somebody else may have put it there; `detent where --adopt` moves the store to the state directory"
        )
    for state, whose in adopting.moved(here)[:3]:
        lines.append(
            f"no runs here yet; `detent where --adopt {clean(str(state))}` moves the runs of {clean(whose.path)} here, which is gone"
        )
    return lines
