"""`detent chat`: a conversation with an agent, message by message.

Theory of operation. Each message is a run of the session, so a turn is shown as `run` shows one, and what the run waits for is answered with the
functions of `approve`, `deny` and `reply`. The chat keeps nothing itself: killed anywhere, `detent chat --session last` continues from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.asked import Asked
from detent.cli.chat_commands import COMMANDS, candidates, help_lines, read_line
from detent.cli.conversations import agent_of, effect_lines, exported, find_session, used
from detent.cli.drawing import show_answer
from detent.cli.invocation import Invocation, operator
from detent.cli.looking import traced
from detent.cli.memory import item_table
from detent.cli.option_sets import Without
from detent.cli.orders import ForWhom
from detent.cli.output import Output, as_json, clean, code_of_error, code_of_status, style_of
from detent.cli.progress import Progress
from detent.cli.prompting import Editor, Lines, Prompt, Reader
from detent.cli.questions import Unfit, meant, offered, question_lines
from detent.cli.rendering import render
from detent.cli.running import approve_call, continued, shown
from detent.cli.standing import headline, next_commands, waits_for
from detent.cli.trusting import attended
from detent.cli.values import json_object
from detent.config.agents import Agent
from detent.config.environment import parse_budget
from detent.config.state_directory import made_state_directory
from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.errors import ConfigError, DetentError, Suspended
from detent.core.state import Ask, RunState
from detent.engine import Engine
from detent.expressions.display import counted, shortened
from detent.history.model_calls import spent
from detent.history.sessions import Forking, Session
from detent.ports.private_files import private_file
from detent.running.conversing import number_of, run_of, session_of_run
from detent.running.results import Answered, Approval, Result, approvals_of
from detent.secrecy.redact import Redactor

HISTORY = "chat-history"
"""The file of a state directory with what was typed."""
MARKS = {"waiting_for_user": "reply> ", "waiting_for_approval": "waiting> "}
SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help=f"Continue this session: {o.SESSION_HELP}. Default: a new one.",
        autocompletion=o.complete_session,
    ),
]


def chat(
    *,
    agent: o.AgentFile = None,
    session: SessionOption = None,
    asked: Asked,
    budget: o.Bounds = None,
    whom: ForWhom,
    setup: Annotated[o.Setup, Without("json_wanted")],
) -> int:
    """Talk to an agent. Each message is a run; the session is kept, and `--session last` continues it, even after a crash.

    At a terminal /help lists the commands, and Tab completes them and file names. Ctrl-C stops a turn as it stops a run, and ends the chat. Without
    a terminal each line of stdin is a message or a command, answers go to stdout, and the exit code is that of the last turn.
    """
    invocation = Invocation(setup, agent=agent, changes=True)
    invocation.output = Flowing()
    invocation.begins = session is None
    host, bounds = whom.host(), parse_budget(budget or ()).over(invocation.budget)

    async def work(engine: Engine) -> int:
        last = await invocation.state((await find_session(invocation, session)).last) if session is not None else None
        who = _agent(invocation, asked, last, named=agent is not None)
        known = last.session.id if last is not None and last.session is not None else None
        talk = Chat(invocation, engine, who, known=known, host=host, bounds=bounds)
        return await talk.through(last)

    return invocation.drive(work)


def _agent(invocation: Invocation, asked: Asked, last: RunState | None, *, named: bool) -> Agent:
    """Return the agent of the next messages, with its tools registered: the `named` one, else that of the session's last run.

    Its file is read again, so changes to it count; a file that is gone, or an agent without one, is as the last run recorded it.
    """
    if last is None or named:
        who = invocation.agent(asked)
    elif Path(file := str(last.agent.meta.get("agent_file") or "")).is_file():
        invocation.config = msgspec.structs.replace(invocation.config, agent=file)
        who = invocation.agent(asked)
    else:
        invocation.equip(last)
        return asked.over(agent_of(last.agent))
    if last is not None and not last.terminal:
        invocation.equip(last)
    return who


class Flowing(Output):
    """Output that never stops to ask for the next screen: a terminal keeps the lines that have gone."""

    def page(self, lines: Sequence[str]) -> bool:
        """Write all lines to stderr."""
        for line in lines:
            self.say(line)
        return True


class Leave(Exception):
    """The person ends the chat."""


class Chat:
    """One chat with a session: the `known` one, or a new one. A command is the method of its name, with what was typed after it."""

    def __init__(
        self,
        invocation: Invocation,
        engine: Engine,
        agent: Agent,
        *,
        known: str | None,
        host: Host | None,
        bounds: Budget,
    ) -> None:
        self.invocation, self.engine, self.agent, self.host, self.bounds = invocation, engine, agent, host, bounds
        self.output = invocation.output
        self.session = engine.session(agent, known, host)
        self.last: RunState | None = None
        self._person, self._code, self._text = attended(self.output), 0, ""
        self._base = ""
        self._saved: Path | None = None
        self._reader = self._made_reader()
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {name: getattr(self, f"_{name}") for name in COMMANDS}

    def _made_reader(self) -> Reader:
        if not self._person:
            return Lines(self.output, attended=False)
        hidden = Redactor((*self.agent.redact, *(self.invocation.config.redact or ())), b"")
        root = Path(self.agent.meta.get("workspace") or ".")
        calls: dict[str, Callable[[], list[str]]] = dict.fromkeys(("approve", "deny", "edit"), self._call_ids)
        calls["reply"] = lambda: [one.ask_id for one in asks] if len(asks := self._asks()) > 1 else []
        try:
            history = made_state_directory() / HISTORY
        except (ConfigError, OSError):
            history = None
        try:
            return Editor(history=history, keep=hidden.without, complete=partial(candidates, root=root, words=calls))
        except ImportError:
            self.output.say('an editor with history and completion comes with: pip install "detent[chat]"', "dim")
            return Lines(self.output, attended=True)

    def _call_ids(self) -> list[str]:
        return [one.call_id for one in self._waiting()]

    # Lines ----------------------------------------------------------------------------------------------------------------------

    async def through(self, last: RunState | None) -> int:
        """Continue the last run if it was stopped in the middle, then take line after line; return the exit code."""
        await self._greet(last)
        while not self.invocation.stops.by:
            try:
                await self._take(await self._read())
            except (Leave, EOFError):
                break
            except (DetentError, OSError) as error:
                self._refused(error)
        if self.last is not None:
            self.output.say(f"the session is kept\n  next: {self._again()}", "dim")
        return 0 if self._person else self._code

    async def _greet(self, last: RunState | None) -> None:
        self.last = last
        model = f" · {clean(self.agent.model)}" if self.agent.model else ""
        self.output.say(f"agent {clean(self.agent.name)}{model} · session {self.session.id}", "bold")
        if self._person:
            self.output.say("/help lists the commands. Ctrl-D ends the chat; the session is kept.", "dim")
        if last is None:
            return
        await self.session.refresh()
        self.output.say(f"the last message: {shortened(last.goal, 60)}", "dim")
        if last.terminal:
            if self._person:  # a program has it already
                self._show_result(last)
            return
        try:
            await self._answered(None)
        except (DetentError, OSError) as error:
            self._refused(error)

    def _costs(self) -> str:
        """Return what the last turn and the session used, "" before the first model call."""
        turn = used(self.last.usage) if self.last is not None else ""
        return f"turn {turn} · session {used(self.session.usage)}" if turn else ""

    def _again(self) -> str:
        return self.invocation.command("chat", "--session", self.session.id)

    async def _read(self) -> str:
        """Return the next line. Raise `EOFError` at the end, or if a signal ended the chat."""
        mark = MARKS.get(self.last.status if self.last is not None else "", "> ")
        prompt, self._text = Prompt(mark=mark, costs=self._costs(), text=self._text), ""
        try:
            return await self._reader.read(prompt)
        except asyncio.CancelledError:
            if not self.invocation.stops.by:
                raise
            raise EOFError from None

    async def _take(self, line: str) -> None:
        said = read_line(line)
        if said.command:
            await self._commands[said.command](said.text)
        elif said.text:
            await self._send(said.text)

    def _refused(self, error: Exception) -> None:
        """Show an error, and stay. A suspended turn ends the chat."""
        if isinstance(error, Suspended):
            error.add_note(self._again())
            raise error
        self.output.say(f"error: {error}", "red")
        self._code = code_of_error(error)

    # Turns ----------------------------------------------------------------------------------------------------------------------

    async def _send(self, text: str) -> None:
        asks = self._asks()
        if len(asks) > 1:
            raise ConfigError(
                f"several questions are open; answer each: /reply ASK TEXT, where ASK is {' or '.join(ask.ask_id for ask in asks)}"
            )
        if asks:
            value = _meant(asks[0], text)
            text = value if isinstance(value, str) else as_json(value, indent=None)
        if self._waiting():
            raise ConfigError("the message was not sent, because the call above waits: /approve, /deny REASON or /edit comes first")
        await self._turn(lambda progress: self.session.send(text, budget=self.bounds, by=operator(), observers=[progress]))

    async def _turn(self, work: Callable[[Progress], Awaitable[Result]]) -> None:
        """Do `work` with live lines, and show its result."""
        with shown(self.invocation, names=False) as progress:
            result = await work(progress)
        self.last, self._code = result.state, code_of_status(result.status)
        await self.session.refresh()
        self._show_result(result.state)

    async def _answered(self, told: Answered | None) -> None:
        """Continue the last run, which may have been answered."""
        last = self._last()
        self.invocation.run_id = last.run_id
        await self._turn(lambda progress: continued(self.invocation, self.engine, progress, told))

    def _show_result(self, state: RunState) -> None:
        """Write the answer to stdout; say what the run waits for, or why it has no answer."""
        if state.output is not None:
            show_answer(self.output, state.output, by_model=state.usage.model_calls > 0)
        if state.status == "completed":
            return
        self.output.say(headline(state), style_of(state.status))
        if state.partial:
            self.output.say(f"  best text so far: {shortened(state.partial, 200)}")
        for ask in (asks := self._asks(state)):
            if len(asks) > 1:
                self.output.say(f"/reply {clean(ask.ask_id)} TEXT answers:", "bold")
            for line in [*question_lines(ask), *offered(ask.expected)]:
                self.output.say(line)
        if asks:
            return
        for line in waits_for(state):
            self.output.say(f"  {line}")
        if approvals_of(state):
            self.output.say("  /approve, /deny REASON, or /edit to change the arguments")
        elif not state.terminal:
            for command in next_commands(state, self.invocation):
                self.output.say(f"  next: {command}")

    def _asks(self, state: RunState | None = None) -> list[Ask]:
        """Return the open questions of the last run."""
        found = state or self.last
        return [] if found is None or found.terminal else list(found.asks.values())

    def _last(self) -> RunState:
        if self.last is None:
            raise ConfigError("there is no message yet")
        return self.last

    # Commands -------------------------------------------------------------------------------------------------------------------

    async def _help(self, _: str) -> None:
        for line in help_lines():
            self.output.say(line)

    async def _exit(self, _: str) -> None:
        raise Leave

    async def _reply(self, text: str) -> None:
        if not self._asks():
            raise ConfigError("no question is open")
        name, _, rest = text.partition(" ")
        ask = next((one for one in self._asks() if one.ask_id == name), None)
        said = rest.strip() if ask is not None else text
        if not said:
            raise ConfigError("write the reply after it: /reply TEXT")
        if ask is None:
            await self._send(said)
            return
        given = await self.engine.reply(self._last().run_id, _meant(ask, said), by=operator(), ask_id=ask.ask_id, resume=False)
        await self._answered(given.answered)

    async def _approve(self, text: str) -> None:
        call, digest = self._waiting_call(text)
        given = await approve_call(self.invocation, self.engine, self._last(), call.call_id, digest=digest)
        await self._answered(given.answered)

    async def _deny(self, text: str) -> None:
        call, reason = self._waiting_call(text)
        given = await self.engine.deny(call.run_id, call.call_id, by=operator(), reason=reason, resume=False)
        await self._answered(given.answered)

    async def _edit(self, text: str) -> None:
        call, said = self._waiting_call(text)
        if not said:
            if not self._reader.edits or call.too_long:
                raise ConfigError(f"write the arguments after it: /edit {call.call_id} JSON")
            with contextlib.suppress(EOFError):
                said = (await self._reader.read(Prompt(mark="arguments> ", text=as_json(call.args)))).strip()
            if not said:
                self.output.say("nothing was changed")
                return
        args = json_object(said, "/edit")
        given = await approve_call(self.invocation, self.engine, self._last(), call.call_id, args=args)
        await self._answered(given.answered)

    def _waiting(self) -> list[Approval]:
        return [] if self.last is None else list(approvals_of(self.last))

    def _waiting_call(self, text: str) -> tuple[Approval, str]:
        """Return the waiting call that the first word names, else the only one, and the rest of the text."""
        waiting = self._waiting()
        first, _, rest = text.partition(" ")
        if found := next((one for one in waiting if one.call_id == first), None):
            return found, rest.strip()
        if not waiting:
            raise ConfigError("no call waits for approval")
        if len(waiting) > 1:
            raise ConfigError(f"several calls wait; name one: {', '.join(one.call_id for one in waiting)}")
        return waiting[0], text

    async def _undo(self, _: str) -> None:
        session, number = self._place()
        own = [one for one in await session.messages() if session_of_run(one.run_id) == session.id]
        goal = next((one.text for one in own if one.number == number and one.kind == "user"), "")
        self._continue_in(await session.fork(at=number))
        self._text = goal
        if not self._person or not self._reader.edits:
            self.output.say(f"taken back: {shortened(goal, 60)}")

    async def _fork(self, text: str) -> None:
        session, last = self._place()
        number = _number(text, last)
        self._continue_in(await (self.session.fork() if number == last else session.fork(at=number + 1)))

    def _continue_in(self, forked: Forking) -> None:
        before, self.session, self.last, self._base = self.session.id, forked.session, None, forked.base
        self.output.say(f"continues in session {self.session.id}; {before} is kept")
        for line in effect_lines(forked.effects):
            self.output.say(line, "yellow")

    def _place(self) -> tuple[Session, int]:
        """Return the number of the last message and the session that it is of: after /undo and /fork, an earlier one. Raise `ConfigError` without any."""
        run_id = self.last.run_id if self.last is not None else self._base
        if not run_id:
            raise ConfigError("this session has no message yet")
        name = session_of_run(run_id)
        session = self.session if name == self.session.id else self.engine.session(self.agent, name, self.host)
        return session, number_of(name, run_id)

    async def _model(self, text: str) -> None:
        if text:
            self.agent = Asked(model=text).over(self.agent)
            if self.last is None:
                self.session = (await self.session.fork(id=self.session.id, agent=self.agent)).session
            else:
                self.session = await self.engine.session(self.agent, self.session.id, self.host).refresh()
        self.output.show(self.agent.model or "no model: the agent plans by rules")

    async def _tools(self, _: str) -> None:
        _show_tools(self.engine, self.output, self.agent.tool_names())

    async def _cost(self, _: str) -> None:
        await _show_costs(self.session, self.output)

    async def _show(self, text: str) -> None:
        session, last = self._place()
        run_id = run_of(session.id, _number(text, last))
        trace, state = await traced(self.engine, run_id)
        await self.invocation.name(run_id)
        render(trace, state, self.invocation, full=False)

    async def _save(self, text: str) -> None:
        if not text:
            raise ConfigError("name a file: /save FILE.md, or /save FILE.json")
        data = await exported(self.session, as_data=text.lower().endswith(".json"))
        self._saved = _saved(text, data, again=self._saved)
        self.output.say(f"wrote the conversation to {self._saved}")

    async def _memory(self, text: str) -> None:
        await _show_memory(self.engine, self.output, text, self.host)


def _show_tools(engine: Engine, output: Output, names: Collection[str]) -> None:
    """List the tools of these names."""
    rows = [(one.name, one.side_effect, one.description.strip().split("\n")[0]) for one in engine.tools.list() if one.name in names]
    output.table(("TOOL", "SIDE EFFECT", "WHAT IT DOES"), rows)


async def _show_costs(session: Session, output: Output) -> None:
    """List what each message of a session used, and what the session did."""
    rows = [
        (str(number), head.status, str(head.iterations), f"{head.cost_usd:.4f}" if head.cost_usd else "-", head.goal)
        for number, head in enumerate(await session.runs(), 1)
    ]
    output.table(("MESSAGE", "STATUS", "TURNS", "COST (USD)", "TEXT"), rows)
    usage = (await session.refresh()).usage
    output.show(f"session: {counted(usage.model_calls, 'model call')}, {spent(usage)}" if usage.model_calls else "no model calls")


async def _show_memory(engine: Engine, output: Output, text: str, host: Host | None) -> None:
    """List what is remembered, or what fits the text. Raise `ConfigError` without a memory."""
    memory = engine.memory
    if not memory:
        raise ConfigError('there is no memory; write [memory] with url = "sqlite:///memory.db" into detent.toml')
    found = [(one.item, "; ".join(one.reasons)) for one in await memory.search(text, host=host)] if text else []
    items = found if text else [(item, "") for item in await memory.list(standings=("current", "proposed"), host=host)]
    if items:
        item_table(output, items)
    else:
        output.say("nothing was found" if text else "nothing is remembered")


def _meant(ask: Ask, text: str) -> Any:
    """Return the reply to a question that `text` means. Raise `ConfigError` if it does not fit."""
    try:
        return meant(ask.expected, text)
    except Unfit as error:
        raise ConfigError(f"the reply does not fit the question: {error}") from None


def _number(text: str, last: int) -> int:
    """Return the number of the message that was typed, `last` without text. Raise `ConfigError` for one that does not exist."""
    if not text:
        return last
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= last):
        raise ConfigError(f"{shortened(text, 40)!r} is not the number of a message; the last one is {last}")
    return int(text)


def _saved(name: str, data: bytes, *, again: Path | None) -> Path:
    """Write a file that does not exist yet, or that was written here before (`again`); return its path. Raise `ConfigError`."""
    file = Path(name).expanduser()
    if file.exists() and file != again:
        raise ConfigError(f"{file} exists; name another file, or remove it")
    try:
        with private_file(file) as out:
            out.write(data)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return file
