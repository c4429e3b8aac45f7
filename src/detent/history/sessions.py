"""Sessions: conversations whose messages are runs that follow each other. `sending` says how a message becomes a run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from detent.config.adapters import inlined
from detent.config.agents import Agent
from detent.core.agent import Host
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import ConfigError, NotAllowedNow, RunErased, RunNotFound
from detent.core.events import AnyEvent, MessageReceived, SessionEnded
from detent.core.records import RunHead
from detent.core.state import Item
from detent.history import upkeep
from detent.history.sending import Said, Sending, Stand, Talk, known, stand_at, stand_of
from detent.kernel.journal import Journal
from detent.ports import Observer, Signal, unstorable
from detent.ports.conversing import Message, Rule, Waiting
from detent.ports.options import check_is, checked
from detent.running import admission, starting
from detent.running.conversing import digest_of_id, effects_in, said_in, shown
from detent.running.conversing import known as known_before
from detent.running.people import me, poster
from detent.running.results import Result
from detent.running.rules import named
from detent.running.runtime import Runtime
from detent.secrecy.redact import hidden

replace = msgspec.structs.replace

SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,149}")
RULES: tuple[Rule, ...] = ("reject", "enqueue", "steer", "interrupt", "rollback")
Status = Literal["unspecified", "active", "running", "completed", "error"]


class Forking(msgspec.Struct, frozen=True, kw_only=True):
    """A session that continues from before a message of another. `effects` are the calls from that message on that had an effect: they stay.

    `base` is the run that it continues from, "" if it begins anew.
    """

    session: Session
    effects: tuple[Item, ...] = ()
    base: str = ""


class Session:
    """A conversation with an agent, from `engine.session(...)`. Each message is a run of its own.

    It holds nothing that the store does not have: another object with the same id, in any process, is the same session. `usage` and `status` are as of
    this object's last call; `refresh` reads them.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._stand: Stand | None = None
        self._hint = -1

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    @property
    def id(self) -> str:
        """The session's id; a tenant's has the form `ID@TENANT`."""
        return self._talk.id

    @property
    def usage(self) -> Usage:
        """What the runs of the session have used together. Raise `ConfigError` before the session was read: `send`, `refresh` and others read it."""
        if self._hint < 0:
            raise ConfigError(f"session {self.id!r} has not been read yet: `await session.refresh()` reads it")
        return NOTHING if self._stand is None else self._stand.tally.used

    @property
    def status(self) -> Status:
        """`active` takes messages, `running` has a run in progress, `completed` was ended, `error`: the last run failed. `unspecified`: not read yet."""
        if self._stand is None:
            return "unspecified" if self._hint < 0 else "active"
        if self._stand.news.ended:
            return "completed"
        return {"running": "running", "failed": "error"}.get(self._stand.state.status, "active")  # type: ignore[return-value]

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The messages that are recorded and wait for their run, as of this object's last call."""
        return () if self._stand is None else self._stand.tally.waiting

    async def refresh(self) -> Session:
        """Read the session's state from the store; return the session. Raise `ConfigError`, `RunContextMismatch` for a session of another host."""
        await self._talk.runtime.open()
        self._stand = await stand_of(self._talk, hint=max(0, self._hint))
        self._hint = 0 if self._stand is None else self._stand.number
        return self

    # Send -----------------------------------------------------------------------------------------------------------------------

    async def send(
        self,
        text: str,
        *,
        message_id: str | None = None,
        attachments: Sequence[Any] = (),
        variables: Mapping[str, Any] | None = None,
        rule: Rule | None = None,
        budget: Budget | None = None,
        by: str = "",
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Give the agent a message and return the result of its run.

        A run that was killed in the middle is resumed first. If the last run waits for its user's reply, the message is that reply. With `message_id`,
        sending the message again returns the result of the same run. `rule` says what happens while a run of the session is in progress:

        - `reject` (usual): `SessionBusy`.
        - `enqueue`: it is the next run.
        - `steer`: the run in progress sees it at its next turn; it has no run of its own.
        - `interrupt`: the run in progress is cancelled; what it did stays in the conversation. The message is the next run.
        - `rollback`: the run in progress is cancelled and left out of the conversation. `Result.stayed` has its calls with an effect.

        `variables` and `budget` apply where the message has a run of its own. `by`: the sender; the user of this process. Raises `SessionBusy`,
        `SessionWaiting` (it waits for something else than a reply), `NotAllowedNow` (`session_ended`, `session_budget_exhausted`), and what
        `Engine.run` raises; then the message was not recorded.
        """
        talk = self._talk
        check_is(Budget, budget=budget)
        rule = _rule(rule or talk.rule)
        if not isinstance(cast("Any", text), str) or not text.strip():
            raise ConfigError("the message is empty; say something")
        if message_id is not None and (
            not isinstance(cast("Any", message_id), str) or not message_id or unstorable(message_id) or len(message_id) > MOST_ID
        ):
            raise ConfigError(f"message_id {str(message_id)[:80]!r}: use a text of 1 to {MOST_ID} characters, or leave it out")
        admission.refuse_what_is_not_json(text=text, by=by, variables=variables)
        said = Said(
            text=text,
            message_id=message_id or talk.runtime.parts.ids.token(16),
            given=message_id is not None,
            attachments=tuple(inlined(one) for one in attachments),
            variables=dict(variables or {}),
            by=named(by or me(), talk.id, what="a message"),
            rule=rule,
        )
        try:
            result, self._hint = await Sending(talk, said, budget=budget, observers=observers, hint=max(0, self._hint)).result()
        finally:
            self._stand = None
        await self.refresh()
        return result

    async def resume(self, *, observers: Sequence[Observer] = ()) -> Result | None:
        """Continue the last run if it was killed or suspended, or has news, and return its result; None without a run. No message is sent."""
        await self.refresh()
        if self._stand is None:
            return None
        result = await self._talk.runtime.go_on(self._stand.run_id, observers=observers)
        await self.refresh()
        return result

    def send_sync(self, text: str, **options: Any) -> Result:
        """`send` for programs without an event loop; see `Engine.run_sync`."""
        return starting.call_sync(self._talk.runtime, lambda: self.send(text, **options))

    async def inject(self, entries: Iterable[Any], *, by: str = "", message_id: str = "") -> None:
        """Put context before the next message: texts, or tables with `key`, `content` and `content_type`.

        It is recorded with the last run of the session, so every process has it, as what somebody sent with `message_id`. Before the first message this
        object keeps it.
        """
        texts = entry_texts(entries)
        while texts:
            stand = (await self.refresh())._stand
            if stand is None:
                extra = tuple(Message(kind="note", text=text) for text in texts)
                self._talk = replace(self._talk, context=(*self._talk.context, *extra))
                return
            patterns = (*self._talk.runtime.parts.redact, *stand.state.agent.redact)
            who = named(by or me(), stand.run_id, what="context")
            events = [
                MessageReceived(rule="context", text=hidden(text, patterns), message_id=message_id, by=who, via=poster()) for text in texts
            ]
            if await self._noted(stand, *events):
                return

    async def end(self, *, by: str = "") -> None:
        """End the session: it takes no further message, from any process. A session without messages has nothing to end.

        Raises `NotAllowedNow` while its last run is open.
        """
        while (stand := (await self.refresh())._stand) is not None and not stand.news.ended:
            if not stand.state.terminal:
                why = f"run {stand.run_id!r} of session {self.id!r} is {stand.state.status}: cancel it, or let it end, before the session is ended"
                raise NotAllowedNow(stand.run_id, why, reason_code="session_open")
            await self._noted(stand, SessionEnded(by=named(by or me(), stand.run_id, what="the end"), via=poster()))

    async def _noted(self, stand: Stand, *events: AnyEvent) -> bool:
        """Record events in the last run. Return False if the session has moved on."""
        parts, store = self._talk.runtime.parts, self._talk.runtime.store
        async with upkeep.held(parts, stand.run_id, "noted") as claim:
            now = await stand_at(self._talk, stand.run_id, stand.number)
            if now.state.seq != stand.state.seq or await store.head(self._talk.run_id(stand.number + 1)) is not None:
                return False
            journal = Journal(store, now.state, clock=parts.clock, ids=parts.ids, claim=claim)
            journal.record(*events)
            await journal.commit(durable=True)
        await self.refresh()
        return True

    # Read -----------------------------------------------------------------------------------------------------------------------

    async def messages(self) -> list[Message]:
        """Return the conversation, as copies: the user's messages and replies, questions, calls and answers, the oldest first.

        Messages of runs that were deleted or erased are those that the run after them was shown. A run that was rolled back has none.
        """
        await self.refresh()
        found, stand = list[Message](), self._stand
        if stand is None and self._talk.base:
            stand = await stand_at(self._talk, self._talk.base, 0)
        while stand is not None:
            place = stand.state.session
            mine, knew = place.message_id if place is not None else "", known_before(stand.earlier)
            said = said_in(stand.state, calls=True, message_id=mine, earlier=knew)
            found = [*said, *stand.news.context, *found]
            if place is None or not place.before:
                return [*knew, *found]
            try:
                stand = await stand_at(self._talk, place.before, 0)
            except (RunErased, RunNotFound):
                return [*shown(replace(stand.earlier, leaving=0)), *found]
        return found

    async def posted(self) -> list[Waiting]:
        """Return the messages in the inbox of the run in progress, which reads them at its next record boundary."""
        await self.refresh()
        found: list[Waiting] = []
        for signal in await self._inbox():
            if signal.kind == "message" and signal.id.partition(":")[0] in ("message", "queued"):
                with contextlib.suppress(msgspec.ValidationError):  # a payload that somebody else made
                    found.append(msgspec.convert({"by": signal.by, **signal.payload}, Waiting))
        return found

    async def has(self, message_id: str) -> bool:
        """Return whether a message with this id is stored: as a run's, as one that waits for its run, or in the inbox of the run in progress."""
        stand = (await self.refresh())._stand
        if stand is None:
            return False
        known_here = known(stand, Said(text="", message_id=message_id)) > 0 or any(one.message_id == message_id for one in self.waiting)
        return known_here or any(one.id.endswith(f":{digest_of_id(message_id)}") for one in await self._inbox())

    async def _inbox(self) -> Sequence[Signal]:
        """Return what is in the inbox of the last run."""
        store, stand = self._talk.runtime.store, self._stand
        return () if stand is None else (await store.signals([stand.run_id])).get(stand.run_id, ())

    async def runs(self) -> list[RunHead]:
        """Return the listing entries of the session's runs, the oldest first."""
        talk = self._talk
        await talk.runtime.open()
        found = [head for head in await talk.runtime.store.list_runs(talk.query()) if talk.number(head.run_id)]
        return sorted(found, key=lambda head: talk.number(head.run_id))

    # Change ---------------------------------------------------------------------------------------------------------------------

    async def fork(
        self,
        at: Message | int | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - as in `engine.session`
        agent: Agent[Any] | str | None = None,
    ) -> Forking:
        """Return another session that continues from before the message `at`: one of `messages()`, its number or its message id; None: after the last.

        What had an effect from that message on stays, and is listed. The new session has its first run with its first message. `agent` answers there;
        None: the agent of this one.
        """
        await self.refresh()
        if not self._hint and self._talk.base and at is not None:
            return await (await self._based()).fork(at, id=id, agent=agent)
        number, last = await self._number_of(at), self._hint
        effects: list[Item] = []
        for one in range(number, last + 1):
            effects += effects_in((await stand_at(self._talk, self._talk.run_id(one), one)).state)
        host = self._talk.host or (self._stand.state.host if self._stand is not None else None)
        talk = replace(self._talk, id=_kept(self._talk.runtime, id, host), host=host)
        if self._stand is not None:
            talk = replace(talk, base="", context=(), holder="", budget=talk.budget or self._stand.earlier.budget)
        if number > last and last:
            talk = replace(talk, base=self._talk.run_id(last))
        elif last:
            first = await stand_at(self._talk, self._talk.run_id(number), number)
            base = await self._kept_before(first)
            talk = replace(
                talk, base=base, **({} if base else {"context": shown(replace(first.earlier, leaving=0)), "holder": first.run_id})
            )
        if agent is not None:
            talk = replace(talk, agent=_known(self._talk.runtime, agent))
        return Forking(session=Session(talk), effects=tuple(effects), base=talk.base)

    async def _kept_before(self, stand: Stand) -> str:
        """Return the id of the run before, "" if there is none, or no longer."""
        before = stand.state.session.before if stand.state.session is not None else ""
        try:
            return (await stand_at(self._talk, before, 0)).run_id if before else ""
        except (RunErased, RunNotFound):
            return ""

    async def _based(self) -> Session:
        """Return the session that this one continues from, up to where it does."""
        base = (await stand_at(self._talk, self._talk.base, 0)).state.session
        return self if base is None else Session(replace(self._talk, id=base.id, base=""))

    async def _number_of(self, at: Message | int | str | None) -> int:
        """Return the number of a message. Raise `ConfigError` if the session does not have it."""
        last = max(0, self._hint)
        if at is None:
            return last + 1
        if isinstance(at, Message):
            number = self._talk.number(at.run_id)
        elif isinstance(at, str):
            number = known(self._stand, Said(text="", message_id=at)) if self._stand is not None else 0
        else:
            number = at
        if isinstance(number, bool) or not 0 < number <= last:
            raise ConfigError(
                f"session {self.id!r} has no message {at!r}; it has {last} (a Message of messages(), its number, or its message_id)"
            )
        return number

    async def delete(self) -> None:
        """Remove all runs of the session, the last one first. Raise `RunBusy` while one is in progress."""
        for head in reversed(await self.runs()):
            await upkeep.delete(self._talk.runtime, head.run_id)
        self._stand, self._hint = None, 0


MOST_ID = 200
"""The longest message id."""


def session(
    runtime: Runtime,
    agent: Agent[Any] | str | None,
    id: str | None = None,  # noqa: A002 - the name that its users type
    host: Host | None = None,
    *,
    context: Iterable[Any] = (),
    budget: Budget | None = None,
    rule: Rule = "reject",
) -> Session:
    """Return the session with this id, or a new one. Nothing is read or recorded before its first message.

    `agent`: who answers from the next message on, an agent or the name of one of `Engine(agents=[...])`; None: the agent of the last run.

    `context` is put before the first message: texts, or tables with `key`, `content` and `content_type`. `budget` bounds all runs of the session
    together. `rule` says what happens to a message that arrives while a run is in progress (`Session.send`). A session belongs to its host's tenant.
    Raises `ConfigError`.
    """
    check_is(Host, host=host)
    check_is(Budget, budget=budget)
    if budget is not None:
        budget = checked(budget, ceiling=10**9)
        if budget.max_calls_of:
            raise ConfigError("the budget of a session has no max_calls_of: give that to the agent, for each run")
    talk = Talk(
        runtime=runtime,
        agent=None if agent is None else _known(runtime, agent),
        id=_kept(runtime, id, host),
        host=host,
        budget=budget,
        rule=_rule(rule),
        context=tuple(Message(kind="note", text=text) for text in entry_texts(context)),
    )
    return Session(talk)


def _known(runtime: Runtime, agent: Agent[Any] | str) -> Agent[Any]:
    found = starting.known_agent(runtime, agent)
    starting.equip(runtime, found)
    return found


def _kept(runtime: Runtime, session_id: str | None, host: Host | None) -> str:
    """Return the stored id of a session. Raise `ConfigError` for one that cannot be the beginning of a run's id."""
    check_is(str, session_id=session_id)
    named_as = session_id or f"{runtime.parts.clock.now():%Y%m%d-%H%M%S}-{runtime.parts.ids.token(6)}"
    name, at, _ = named_as.partition("@")
    if not SESSION_ID.fullmatch(name):
        raise ConfigError(f"session id {named_as[:80]!r}: use 1 to 150 letters, digits, '_' and '-', and do not begin with '-'")
    if host is None or not host.tenant:
        return named_as
    kept = admission.tenants_id(name, host.tenant)
    if at and kept != named_as:
        raise ConfigError(f"session {named_as[:80]!r} is not one of this host's tenant")
    return kept


def _rule(rule: Any) -> Rule:
    if rule not in RULES:
        raise ConfigError(f"rule {rule!r} is not known: choose one of {', '.join(RULES)}")
    return rule


def entry_texts(entries: Iterable[Any]) -> list[str]:
    """Return the entries of context as texts. Raise `ConfigError` for anything else."""
    if isinstance(entries, str | Mapping) or not isinstance(cast("Any", entries), Iterable):
        raise ConfigError(f"context is {entries!r}; give a list of texts or tables: [{entries!r}]")
    return [entry_text(entry) for entry in entries]


def entry_text(entry: Any) -> str:
    """Return an entry of context as a text. Raise `ConfigError` for one that is neither a text nor such a table."""
    if isinstance(entry, str) and entry.strip():
        return entry
    if isinstance(entry, Mapping):
        fields = dict(cast("Mapping[str, Any]", entry))
        if set(fields) <= {"key", "content", "content_type"} and "content" in fields:
            admission.refuse_what_is_not_json(context=fields)
            said = fields["content"] if isinstance(fields["content"], str) else msgspec.json.encode(fields["content"]).decode()
            return f"{fields['key']}: {said}" if fields.get("key") else said
    raise ConfigError(f'context has the entry {entry!r}; give texts, or tables such as {{"key": "customer", "content": "..."}}')
