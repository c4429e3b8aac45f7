"""Finds sessions by what people type, and writes conversations as Markdown and JSON.

Rule: what people, models and tools wrote is quoted line by line, so no message can look like another one, or like a heading of the export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.ids import LAST, LISTED
from detent.cli.invocation import Invocation
from detent.cli.output import as_json, clean, style_of
from detent.config.agents import Agent
from detent.core.agent import AgentSpec
from detent.core.budget import Usage
from detent.core.errors import ConfigError
from detent.core.state import Item, RunState
from detent.engine import Engine
from detent.expressions.display import as_text, counted, plain, shortened
from detent.history.session_list import SessionHead
from detent.history.sessions import Session
from detent.ports.conversing import Message
from detent.running.conversing import session_of_run

ROLES = {"user": "You", "model": "Agent", "tool": "Tool", "note": "Note"}


def sessions(
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="List at most N sessions; 0 lists all.", min=0)] = 50,
    setup: o.Looking,
) -> int:
    """List sessions, the one with the newest message first. `detent chat --session ID` continues one."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> list[SessionHead]:
        return await engine.sessions(limit=limit or None)

    found, where = invocation.drive(work, missing=[]), invocation.engine.store.url
    invocation.output.document(found)
    if not found:
        invocation.output.say(f"no sessions in {where}" if invocation.there else f"no sessions yet: {where} does not exist")
        return 0
    rows = [
        (
            one.id,
            one.status,
            one.last_status.replace("_", " "),
            str(one.messages),
            f"{one.cost_usd:.4f}" if one.cost_usd else "-",
            f"{one.updated_at:%Y-%m-%d %H:%M:%S}",
            one.agent,
            one.goal or "(erased)",
        )
        for one in found
    ]
    head = ("SESSION", "STATUS", "LAST RUN", "MESSAGES", "COST (USD)", "LAST (UTC)", "AGENT", "FIRST MESSAGE")
    spare = ("LAST (UTC)", "COST (USD)", "AGENT", "MESSAGES", "LAST RUN")
    invocation.output.table(head, rows, [style_of(one.last_status) for one in found], spare=spare)
    if limit and len(found) == limit:
        invocation.output.say(f"the newest {limit}; --limit 0 shows all")
    return 0


async def find_session(invocation: Invocation, asked: str) -> SessionHead:
    """Return the session that `asked` names: a whole id, a unique beginning, `last` for the newest one, or `last-1` for the one before it.

    Raise `ConfigError`.
    """
    engine, where = invocation.engine, invocation.engine.store.url
    if not invocation.there:
        raise ConfigError(f"no session {shortened(asked, 80)!r}: {where} does not exist (is the URL right? the first message creates it)")
    if back := LAST.fullmatch(asked):
        number = int(back[1] or 0)
        found = (await engine.sessions(limit=number + 1))[number:]
    else:
        found = await engine.sessions(starts_with=asked) if asked.isprintable() else []
        found = [one for one in found if one.id == asked] or found
    if not found:
        raise ConfigError(f"no session {shortened(asked, 80)!r} in {where}; `{invocation.command('sessions')}` lists the sessions")
    if len(found) > 1:
        some = "".join(f"\n  {one.id}  {shortened(one.goal, 40)}" for one in found[:LISTED])
        raise ConfigError(f"{asked!r} matches several sessions; write more of the id:{some}" + "\n  ... and more" * (len(found) > LISTED))
    return found[0]


def agent_of(spec: AgentSpec) -> Agent:
    """Return the agent that a run recorded. Its tools are names."""
    return Agent(**{name: getattr(spec, name) for name in spec.__struct_fields__})


def session_of(engine: Engine, last: RunState) -> Session:
    """Return the session of a run."""
    return engine.session(None, last.session.id if last.session is not None else None)


async def exported(session: Session, *, as_data: bool) -> bytes:
    """Return a conversation as Markdown, or as a JSON document."""
    messages = await session.messages()
    return (as_json(document_of(session, messages)) + "\n" if as_data else markdown_of(session.id, messages)).encode()


def document_of(session: Session, messages: Sequence[Message]) -> dict[str, Any]:
    """Return a conversation as data."""
    return {"session": session.id, "status": session.status, "usage": session.usage, "messages": [plain(one) for one in messages]}


def used(usage: Usage) -> str:
    """Return what was used in a few characters: the cost if it is known, else the tokens, "" without model calls."""
    if usage.cost_usd is not None:
        return f"{usage.cost_usd:.4f} USD"
    return f"{usage.total_tokens:,} tokens" if usage.total_tokens else ""


def effect_lines(effects: Sequence[Item]) -> list[str]:
    """Return a line for each call whose effect stays when a session continues from an earlier message."""
    calls = [f"  {clean(item.tool)} {shortened(as_text(item.args), 100)}  (call {item.call_id})" for item in effects]
    return [f"{counted(len(calls), 'effect')} after that message {'stays' if len(calls) == 1 else 'stay'}:", *calls] if calls else []


def markdown_of(session: str, messages: Sequence[Message]) -> str:
    """Return a conversation as Markdown: a heading for each entry, and its text quoted. Messages from before a fork have no number."""
    parts = [f"# Session {clean(session)}"]
    for message in messages:
        own = session_of_run(message.run_id) == session
        parts += [f"## {f'{message.number}. ' if own else ''}{_heading(message)}", "\n".join(_quoted(message))]
    return "\n\n".join(parts) + "\n"


def _heading(message: Message) -> str:
    if message.kind == "tool":
        return f"Tool {clean(message.tool)}{'' if message.ok is not False else ' failed'}"
    return ROLES[message.kind]


def _quoted(message: Message) -> Iterator[str]:
    text = message.text
    if message.kind == "tool":
        text = f"{as_json(message.args, indent=None)}\n\n{as_text(message.content)}"
    for line in clean(text, lines=True).split("\n"):
        yield f"> {line}".rstrip()
    for attached in message.attachments:
        yield f"> [{clean(str(getattr(attached, 'media_type', '') or 'attachment'))}]"
