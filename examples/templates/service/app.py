"""A web service whose agent asks before it acts.

Set TOKEN to a secret of yours, then start it:

    TOKEN=... uvicorn app:app --timeout-graceful-shutdown 3

    POST /runs                   {"agent": "support", "goal": "Close the account of bob"} starts a run
    GET  /runs/{run_id}/events   streams what happens in it (server-sent events) until the run has ended
    GET  /approvals              lists the calls that wait for a person, and those that may or may not have happened
    POST /runs/{run_id}/approve  {"call_id": "...", "digest": "..."} approves exactly what was shown; /deny refuses it
    GET  /                       has pages for people; /openapi.json describes everything else

Each request carries `Authorization: Bearer TOKEN`. Runs are in runs.db. Stop or kill the service whenever you like: the next start continues every run
from the end of its log. Without the option, uvicorn waits for open streams.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

from detent import Agent, Bounds, Engine
from detent.server import Caller
from detent.server import app as served
from tools import close_account, find_account

HERE = Path(__file__).resolve().parent
TOOLS = [find_account, close_account]
RULES = [  # stand in for a model until the environment variable MODEL names one, such as openai:gpt-5
    {"name": "find", "call": {"tool": "find_account", "args": {"name": r"${find(goal, '\\w+$')}"}}, "as": "account", "on_error": "stop"},
    {
        "name": "close",
        "call": {"tool": "close_account", "args": {"address": "${results.account.value}"}},
        "as": "closed",
        "on_error": "stop",
    },
    {"name": "say", "answer": "${results.closed.value}"},
]
PLAN: dict[str, Any] = {"model": os.environ["MODEL"]} if os.environ.get("MODEL") else {"rules": RULES}
AGENT = Agent(name="support", instructions="Close the account that the goal names, and say which.", tools=TOOLS, **PLAN)
TOKEN = os.environ.get("TOKEN", "")
if not TOKEN:
    raise SystemExit("set TOKEN to a secret: whoever knows it may start runs and approve calls here")


def who(token: str) -> Caller | None:
    """Return who a token belongs to. Ask your own users and tenants here; `detent.server.callers` has tokens in a file and by_jwt."""
    known = hmac.compare_digest(token.encode(), TOKEN.encode())
    return Caller(principal="ann", roles=("see", "run", "approve", "operate")) if known else None


bounds = Bounds(goal_words_in_ids=False)  # goals name people, and ids are in addresses and logs
engine = Engine(store=f"sqlite:///{HERE / 'runs.db'}", agents=[AGENT], approver="caller", bounds=bounds)
app = served(engine, tokens=who)
