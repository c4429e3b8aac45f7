"""A client for the authorisation scenarios of the conformance suite: it logs in as a person would, and calls every tool.

The suite says in the environment which scenario it is, and what its operator would have written down.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx2

from detent import Agent, Engine, FinalAnswer, McpServer, ToolCall, ToolPins
from detent.core.errors import ConfigError
from detent.testing import ScriptedPlanner
from detent.tools.mcp.kept import Kept
from detent.tools.mcp.login import log_in
from detent.tools.mcp.settings import OAuth

ARGUMENTS: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
LOGINS = 2
SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"].removeprefix("auth/")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def operators(url: str) -> OAuth | None:
    """Return what an operator who knows the scenario writes into `[mcp.it.oauth]`."""
    said = {name: CONTEXT[name] for name in ("client_id", "client_secret") if name in CONTEXT}
    match SCENARIO:
        case "basic-cimd":
            return OAuth(client_metadata_url="https://conformance-test.local/client-metadata.json")
        case "2025-03-26-oauth-metadata-backcompat":  # its metadata name another issuer than RFC 8414 allows, unless the operator names it
            return OAuth(issuer=f"{httpx2.URL(url).copy_with(path='/oauth')}")
        case "pre-registration":
            return OAuth(**said)
        case "client-credentials-basic":
            return OAuth(grant="client_credentials", issuer=issuer_of(url), **said)
        case "client-credentials-jwt":
            return OAuth(grant="client_credentials", issuer=issuer_of(url), private_key=CONTEXT["private_key_pem"], **said)
        case "cross-app-access-complete-flow":
            provider = {"id_token": CONTEXT["idp_id_token"], "id_token_endpoint": CONTEXT["idp_token_endpoint"]}
            return OAuth(grant="identity_assertion", issuer=issuer_of(url), id_client_id=CONTEXT["idp_client_id"], **provider, **said)
        case _:
            return None


def issuer_of(url: str) -> str:
    """Return the authorisation server, which the suite does not tell."""
    base = httpx2.URL(url)
    metadata = httpx2.get(base.copy_with(path=f"/.well-known/oauth-protected-resource{base.path}"))
    return str(metadata.json()["authorization_servers"][0])


def visit(url: str) -> None:
    """Be the browser of a person who says yes."""
    task = asyncio.create_task(asyncio.to_thread(httpx2.get, url, follow_redirects=True))
    visits.append(task)


visits: list[asyncio.Task[Any]] = []


async def attempt(servers: dict[str, McpServer]) -> str:
    """Call every tool once; return what went wrong, in words."""
    calls: tuple[ToolCall, ...] = ()
    planner = ScriptedPlanner([lambda _: calls or FinalAnswer(content="done"), FinalAnswer(content="done")])
    async with Engine(planner=planner, mcp=servers, approver=lambda _: True) as engine:
        found, problems = await engine.servers.survey()
        if problems:
            return str(problems)
        calls = tuple(ToolCall(tool=tool.name, args=ARGUMENTS.get(tool.own_name, {})) for tool in found)
        done = await engine.run(Agent(name="client", tools=[tool.name for tool in found]), "call every tool")
        return "; ".join(str(item.error) for item in done.tool_calls if not item.ok)


async def main(url: str) -> int:
    """Try; log in where that is the advice; try again."""
    home = Path(tempfile.mkdtemp())
    os.environ["XDG_STATE_HOME"] = str(home)
    server = McpServer(url=url, oauth=operators(url), tools={"*": ToolPins(side_effect="read")})
    for _ in range(LOGINS + 1):
        wrong = await attempt({"it": server})
        print(wrong or "done")
        if "detent mcp login it" not in wrong:
            return 1 if wrong else 0
        try:
            await log_in("it", server, Kept(lambda: home / "detent"), visit=visit, timeout_s=20)
        except ConfigError as error:
            print(error)
            return 1
    return 1


sys.exit(asyncio.run(main(sys.argv[-1])))
