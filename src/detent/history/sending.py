"""How a message becomes a run of its session.

Theory of operation. Message n of session S is the run `S.n`. Its first record names the run before it, with that run's sequence and digest, and the
artifact with the conversation so far (`running.conversing`). It is written under the claims of both runs: of two senders one is first, and nothing is
added to the run before in between. Nothing else is kept of a session. Its state is that of its last run, so a sender looks at that run, does what the
run needs first, and looks again, until its message has a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import msgspec

from detent.config.agents import Agent
from detent.config.compaction import compacts, profile_of
from detent.core.agent import Host
from detent.core.budget import FIELDS, Budget, exhausted, remaining
from detent.core.errors import ConfigError, Conflict, NotAllowedNow, RunBusy, SessionBusy
from detent.core.events import InSession, RunStarted
from detent.core.state import RunState
from detent.history.session_waits import naming, question_of, unhidden, waits_for
from detent.history.upkeep import held
from detent.kernel.journal import Journal
from detent.ports import Observer, RunQuery, wait_for_news
from detent.ports.conversing import NO_CONVERSATION, Conversation, Message, Rule
from detent.running import admission, answering, starting
from detent.running.advancing import ADVANCED, Advancing
from detent.running.answering import FIRST_LOOK_S, HEARD_S, LONGEST_LOOK_S
from detent.running.conversing import (
    CONTINUED,
    GAP,
    ID_DIGITS,
    News,
    after,
    conversation_of,
    cut,
    digest_of_id,
    effects_in,
    encoded,
    news_in,
    number_of,
    prefix_of,
    run_of,
    tally,
)
from detent.running.overseeing import waits_of
from detent.running.results import Result
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.secrecy.redact import hidden

replace = msgspec.structs.replace

PAGE = 4
"""How many listing entries are read at a time to find a session's last run."""

MOST_HINTS = 10_000
"""Where an engine last saw the end of its sessions, so that it lists the runs of a session once. A run there is looked at again before it counts."""


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """A session and how this program sends to it. `id` is the stored one; `context` is put before the first message.

    `base` is the run that a forked session continues from, "" for any other. If that run is gone, `context` keeps the words, and `holder` is a run that
    had the same words.
    """

    runtime: Runtime
    agent: Agent[Any] | str | None
    id: str
    host: Host | None = None
    budget: Budget | None = None
    rule: Rule = "reject"
    context: tuple[Message, ...] = ()
    base: str = ""
    holder: str = ""

    def run_id(self, number: int) -> str:
        """Return the id of the run of a message."""
        return run_of(self.id, number)

    def number(self, run_id: str) -> int:
        """Return the number of the message that a run is of, 0 if it is not of this session."""
        return number_of(self.id, run_id)

    def query(self, **more: Any) -> RunQuery:
        """Return the query for the session's runs."""
        tenant = self.host.tenant if self.host is not None else None if "@" in self.id else ""
        return RunQuery(starts_with=(prefix_of(self.id),), tenant=tenant, **more)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its sender gave it. `given`: the sender chose the id, so that sending it again is the same message."""

    text: str
    message_id: str = ""
    given: bool = False
    attachments: tuple[Any, ...] = ()
    variables: dict[str, Any] = {}
    by: str = ""
    rule: Rule = "reject"

    @property
    def whole(self) -> Any:
        """The message as a reply: its text, with the attachments if there are any."""
        return {"text": self.text, "attachments": list(self.attachments)} if self.attachments else self.text


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stands: its last run, what that run knew of the session, and what its log says beside its work."""

    number: int
    run_id: str
    state: RunState
    earlier: Conversation = NO_CONVERSATION
    news: News = News()

    @property
    def tally(self) -> Conversation:
        """What the session has used and sent after this run, and what waits; its messages are those that the run knew."""
        return tally(self.earlier, self.state, self.news)


# Where it stands --------------------------------------------------------------------------------------------------------------


async def stand_of(talk: Talk, *, hint: int = 0) -> Stand | None:
    """Return where a session stands, None before its first message. `hint` is a message that it had.

    Raise `ConfigError` if its runs are not a session's, `RunContextMismatch` for another host's session, `CorruptLog`.
    """
    number = await last_number(talk, hint)
    return await stand_at(talk, talk.run_id(number), number) if number else None


async def stand_at(talk: Talk, run_id: str, number: int) -> Stand:
    """Return the state of a session at this run of it."""
    store = talk.runtime.store
    state = await load_run(store, run_id)
    if talk.host is not None:
        admission.same_host(run_id, state.host, talk.host)
    if (place := state.session) is None or run_of(place.id, place.number) != run_id:  # a fork of a run that has such an id
        raise ConfigError(f"run {run_id!r} exists and belongs to no session; give the session another id than {talk.id!r}")
    return Stand(
        number=number, run_id=run_id, state=state, earlier=await conversation_of(store, state), news=news_in(await store.read(run_id))
    )


async def last_number(talk: Talk, hint: int = 0) -> int:
    """Return the number of the session's last message, 0 without one.

    Where the first runs are gone, the listing names the newest one. If a clock was set back, or messages came meanwhile, the later ones are found one
    by one.
    """
    hints = talk.runtime.session_ends
    store, number = talk.runtime.store, hint or hints.get(talk.id, 0)
    if not number or await store.head(talk.run_id(number)) is None:
        number = await _reached(talk) or await _listed(talk)
    while number:
        while await store.head(talk.run_id(number + 1)) is not None:
            number += 1
        if await store.get_blob(talk.run_id(number), GAP) is None or (listed := await _listed(talk)) <= number:
            break
        number = listed
    if len(hints) >= MOST_HINTS:
        hints.clear()
    hints[talk.id] = number
    return number


async def _reached(talk: Talk) -> int:
    """Return the number of a run after which there is none, 0 if there is no first run. The looks grow with the number of its digits: a listing would
    read an entry for each message.
    """
    there, gone = 0, 1
    while await talk.runtime.store.head(talk.run_id(gone)) is not None:
        there, gone = gone, 4 * gone
    while gone - there > 1:
        middle = (there + gone) // 2
        there, gone = (middle, gone) if await talk.runtime.store.head(talk.run_id(middle)) is not None else (there, middle)
    return there


async def _listed(talk: Talk) -> int:
    """Return the number of the session's newest run in the listing, 0 without one."""
    last = None
    while page := await talk.runtime.store.list_runs(talk.query(limit=PAGE, after=last)):
        if number := max(talk.number(head.run_id) for head in page):
            return number
        last = page[-1].run_id
    return 0


# Send -------------------------------------------------------------------------------------------------------------------------


class Sending:
    """One message on its way to its session."""

    def __init__(self, talk: Talk, said: Said, *, budget: Budget | None, observers: Sequence[Observer], hint: int) -> None:
        self._talk, self._runtime, self._said = talk, talk.runtime, said
        self._budget, self._observers, self._hint = budget, observers, hint
        self._lost = 0
        self._recorded = self._begun = False
        self._rolled_back = ""
        self._pauses = _Pauses(talk)

    async def result(self) -> tuple[Result, int]:
        """Return the result of the message's run, with its number. Raise as `Session.send`."""
        await self._runtime.open()
        while True:
            stand = await stand_of(self._talk, hint=self._hint)
            self._hint = stand.number if stand is not None else 0
            if (found := await self._step(stand)) is not None:
                result, number = found
                if self._rolled_back:
                    result = replace(result, stayed=effects_in(await load_run(self._runtime.store, self._rolled_back)))
                return result, number

    async def _step(self, stand: Stand | None) -> tuple[Result, int] | None:
        """Do the next thing that the message needs. Return the result once there is one."""
        if stand is not None and (found := known(stand, self._said)):
            return await followed(self._talk, found, self._observers), found
        if self._lost and stand is not None and stand.number >= self._lost and self._said.rule == "reject":
            raise SessionBusy(self._talk.id, stand.run_id, "another sender")
        if stand is None or stand.state.terminal:
            return await self._next(stand)
        if stand.state.status == "running":
            return await self._resumed(stand)
        return await self._waits(stand)

    async def _next(self, stand: Stand | None) -> tuple[Result, int] | None:
        """Start the next run: of this message, or of one that came before it and waits."""
        if stand is not None and stand.news.ended:
            why = f"session {self._talk.id!r} was ended: it takes no further message. Fork it, or start another session"
            raise NotAllowedNow(stand.run_id, why, reason_code="session_ended")
        number, first = (stand.number + 1 if stand is not None else 1), self._said
        if stand is not None and (waiting := stand.tally.waiting):
            first = Said(**msgspec.structs.asdict(waiting[0]), given=True)  # the rule of one that others overtook is `enqueue`
        elif stand is not None and not self._recorded:
            first = replace(first, rule="reject")  # nothing is in progress that it could interrupt
        try:
            with naming(first.message_id, first.by) if first.message_id != self._said.message_id else contextlib.nullcontext():
                result = await self._start(stand, number, first)
        except (RunBusy, Conflict) as error:
            if self._begun:
                raise
            self._lost = number
            if isinstance(error, RunBusy) and error.run_id == self._talk.run_id(number) and self._said.rule == "reject" and not first.given:
                raise SessionBusy(self._talk.id, error.run_id, error.holder) from error
            await self._pauses.next(error)
            return None
        return (result, number) if first.message_id == self._said.message_id else None

    async def _start(self, stand: Stand | None, number: int, said: Said) -> Result:
        talk, runtime = self._talk, self._runtime
        mine, self._begun = said.message_id == self._said.message_id, False
        if stand is not None and stand.tally.waiting:  # it came to an earlier run, which has hidden values in it
            runs = [talk.run_id(one) for one in range(stand.number, 0, -1)]
            patterns = (*runtime.parts.redact, *starting.known_agent(runtime, agent_of(talk, stand)).redact)
            text, attachments, variables = await unhidden(
                runtime.store, runs, [said.text, list(said.attachments), said.variables], patterns
            )
            said = replace(said, text=text, attachments=tuple(attachments), variables=variables)
        started = await self._admitted(stand, said, budget=self._budget if mine else None)
        started = replace(started, budget=left_of(talk, stand, started.budget))
        await runtime.tenants.refuse_start(started.host.tenant)
        task = runtime.take_on(
            talk.run_id(number), partial(self._begin, stand=stand, number=number, said=said, started=started), self._observers
        )
        return await runtime.answered(await runtime.reached(task), self._observers, turns=None)

    async def _admitted(self, stand: Stand | None, said: Said, budget: Budget | None = None) -> RunStarted:
        """Return the event that starts the run of a message. Raise as `starting.admitted`."""
        talk = self._talk
        host = talk.host or (stand.state.host if stand is not None else None)  # an operator's message is one to that tenant's session
        if host is None and "@" in talk.id:
            raise ConfigError(f"session {talk.id!r} has no message yet, and its id is a tenant's: give engine.session the host")
        variables, attachments = dict(said.variables), said.attachments
        who = agent_of(talk, stand)
        return await starting.admitted(
            self._runtime, who, said.text, host=host, budget=budget, variables=variables, attachments=attachments
        )

    async def _begin(
        self, advancing: Advancing, *, stand: Stand | None, number: int, said: Said, started: RunStarted
    ) -> Journal | RunState:
        """Write the artifact with the conversation, then the first record, under the claims of this run and the one before."""
        talk, runtime = self._talk, self._runtime
        store, run_id = runtime.store, advancing.run_id
        base = stand if stand is not None or not talk.base else await stand_at(talk, talk.base, 0)
        async with _let_alone(runtime, stand):
            if (there := await store.head(run_id)) is not None:
                raise Conflict(run_id, 0, there.records)
            if stand is not None and ((last := await store.head(stand.run_id)) is None or last.records != stand.state.seq):
                raise Conflict(stand.run_id, stand.state.seq, last.records if last is not None else 0)
            place = InSession(id=talk.id, number=number, message_id=said.message_id if said.given or self._recorded else "", by=said.by)
            if base is not None:
                place = replace(place, before=base.run_id, sequence=base.state.seq, digest=base.state.digest)
                if rolled_back(base, said) and (before := base.state.session) is not None:
                    place = replace(place, before=before.before, sequence=before.sequence, digest=before.digest)
            if stand is None and (holder := talk.base or talk.holder):
                key = f"{CONTINUED}{digest_of_id(run_id)[:16]}"  # before the first record: whoever erases these words finds this run
                await store.put_blob(holder, key, run_id.encode())
            conversation = conversation_for(talk, base, said, started, forked=stand is None and base is not None)
            if conversation != NO_CONVERSATION:
                data, ref = encoded(conversation)
                await store.put_blob(run_id, ref.key, data)
                advancing.conversation = conversation
                place = replace(place, conversation=ref)
            begun = await starting.record_start(runtime, advancing, started=replace(started, session=place), turns=None)
        self._begun = True
        return begun

    async def _resumed(self, stand: Stand) -> tuple[Result, int] | None:
        """Resume a run that was killed in the middle. If somebody advances it, the message's rule says what happens."""
        try:
            await self._runtime.go_on(stand.run_id)
        except RunBusy as busy:
            if self._recorded:
                await self._pauses.next()
                return None
            if self._said.rule == "reject" or ADVANCED.get() == stand.run_id:  # from inside that run: it would wait for itself
                raise SessionBusy(self._talk.id, stand.run_id, busy.holder) from busy
            return await self._tell(stand)
        return None

    async def _tell(self, stand: Stand) -> tuple[Result, int] | None:
        """Put the message into the inbox of the run in progress, and wait until that run has recorded it."""
        runtime, said, run_id = self._runtime, self._said, stand.run_id
        await self._admitted(stand, said, self._budget)  # what cannot be a run would keep all later messages from theirs
        payload = {
            "rule": said.rule,
            "text": said.text if said.rule != "steer" or not said.attachments else msgspec.json.encode(said.whole).decode(),
            "message_id": said.message_id,
            "attachments": list(said.attachments),
            "variables": said.variables,
        }
        kind = "message" if said.rule == "steer" else "queued"
        signal = replace(runtime.signal("message", payload, by=said.by), id=f"{kind}:{digest_of_id(said.message_id)}")
        await answering.post(runtime, stand.state, signal)
        if said.rule in ("interrupt", "rollback"):
            await answering.cancel(runtime, run_id, by=said.by, why="a message of its session interrupts it")
        while (answer := await answering.decided(runtime, run_id, signal.id)).outcome == "posted":
            with contextlib.suppress(RunBusy):
                await runtime.go_on(run_id)
        if answer.outcome == "refused":
            if answer.code != "run_finished":
                raise NotAllowedNow(run_id, answer.why, reason_code=answer.code)
            return None
        self._recorded = True
        if said.rule == "rollback":
            self._rolled_back = run_id
        return (await followed(self._talk, stand.number, self._observers), stand.number) if said.rule == "steer" else None

    async def _waits(self, stand: Stand) -> tuple[Result, int] | None:
        """Answer the question that the run asks. Raise `SessionWaiting` if it waits for something else, and nothing has come since."""
        runtime, said = self._runtime, self._said
        asked = await question_of(runtime, stand.state)
        if asked is None or self._recorded:
            try:
                result = await runtime.go_on(stand.run_id)
            except RunBusy:
                return await self._resumed(stand)
            if result.state.seq != stand.state.seq:
                return None
            raise waits_for(self._talk.id, result, await waits_of(runtime.store, result.state), queued=self._recorded)
        run, ask_id = asked
        try:
            result = await answering.answered_with(
                runtime, run, {"ask_id": ask_id, "reply": said.whole}, by=said.by, of=f"message:{digest_of_id(said.message_id)}"
            )
        except NotAllowedNow as error:
            if error.reason_code in ("already_replied", "not_asked", "run_finished"):
                raise SessionBusy(self._talk.id, run.run_id, "another sender, who has answered its question") from error
            raise
        if run.run_id != stand.run_id:
            return await followed(self._talk, stand.number, self._observers), stand.number
        return result, stand.number


class _Pauses:
    """The pauses between two looks at a session that somebody else changes."""

    def __init__(self, talk: Talk) -> None:
        self._talk, self._pause_s, self._waited_s = talk, FIRST_LOOK_S, 0.0

    async def next(self, error: RunBusy | Conflict | None = None) -> None:
        """Wait a little. With an error that stays too long, raise `SessionBusy`."""
        if isinstance(error, RunBusy) and self._waited_s > HEARD_S:
            raise SessionBusy(self._talk.id, error.run_id, error.holder) from error
        await wait_for_news(self._talk.runtime.store, self._pause_s, records=True)
        self._waited_s += self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_LOOK_S)


def known(stand: Stand, said: Said) -> int:
    """Return the number of the run that has this message, 0 if none has it."""
    if not said.message_id:
        return 0
    digest, place = digest_of_id(said.message_id), stand.state.session
    if (place is not None and place.message_id == said.message_id) or digest in stand.news.sent:
        return stand.number
    return stand.earlier.sent.get(digest[:ID_DIGITS], 0)


async def followed(talk: Talk, number: int, observers: Sequence[Observer] = ()) -> Result:
    """Return the result of a run, once it rests; this process advances it if nobody does."""
    pauses = _Pauses(talk)
    while True:
        try:
            return await talk.runtime.go_on(talk.run_id(number), observers=observers)
        except RunBusy:
            await pauses.next()


@contextlib.asynccontextmanager
async def _let_alone(runtime: Runtime, stand: Stand | None) -> AsyncGenerator[None]:
    """Hold the run before, so that nothing is added to it and no other message follows it meanwhile."""
    if stand is None:
        yield
        return
    async with held(runtime.parts, stand.run_id, "followed by the next message"):
        yield


def conversation_for(talk: Talk, stand: Stand | None, said: Said, started: RunStarted, *, forked: bool) -> Conversation:
    """Return what the next run knows of its session, cut to its agent's profile."""
    agent = started.agent
    patterns = (*talk.runtime.parts.redact, *agent.redact)
    context = tuple(replace(one, text=hidden(one.text, patterns)) for one in talk.context)
    if stand is None:
        found = Conversation(messages=context, budget=talk.budget)
    else:
        found = after(stand.earlier, stand.state, stand.news, calls=agent.conversation == "calls")
        if rolled_back(stand, said):
            found = replace(found, messages=(*stand.earlier.messages, *stand.news.context), size=0, dropped=stand.earlier.dropped)
        left = tuple(replace(one, rule="enqueue") for one in found.waiting if one.message_id != said.message_id)
        found = replace(found, waiting=left, budget=talk.budget or found.budget)
    if forked:
        told, messages = found.summary, (*found.messages, *context)
        found = Conversation(messages=messages, dropped=found.dropped, summary=told, budget=talk.budget)
    planner = talk.runtime.planners.of(agent, check=False)
    return cut(found, profile_of(agent).window_tokens, compacts=compacts(agent, planner) is not None)


def rolled_back(stand: Stand, said: Said) -> bool:
    """Whether the next run leaves this one out: a sender rolled it back, even if another message overtook that one."""
    return said.rule == "rollback" or any(one.rule == "rollback" for one in stand.news.waiting)


def agent_of(talk: Talk, stand: Stand | None) -> Agent[Any] | str:
    """Return the agent of the next run: the one that was given, else that of the last run as its log has it."""
    if talk.agent is not None:
        return talk.agent
    if stand is None:
        raise ConfigError(f"session {talk.id!r} has no message yet: give engine.session the agent that answers it")
    spec = stand.state.agent
    return Agent(**{name: getattr(spec, name) for name in spec.__struct_fields__})


def left_of(talk: Talk, stand: Stand | None, asked: Budget) -> Budget:
    """Return the bounds of the next run: the asked ones, and what the session's budget leaves. Raise `NotAllowedNow` if it leaves nothing."""
    before = stand.tally if stand is not None else NO_CONVERSATION
    bounds = talk.budget or before.budget
    if bounds is None:
        return asked
    running_s, total_s = before.running_ms / 1000, before.total_ms / 1000
    if (bound := exhausted(bounds, before.used, running_s=running_s, total_s=total_s)) is not None:
        why = (
            f"session {talk.id!r} has used {bound.used:g} of {bound.option}={bound.limit:g} over all its runs; "
            f"engine.session(..., budget=Budget({bound.option}=...)) raises it"
        )
        raise NotAllowedNow(stand.run_id if stand is not None else talk.run_id(1), why, reason_code="session_budget_exhausted")
    left, both = remaining(bounds, before.used, running_s=running_s, total_s=total_s), dict[str, Any]()
    for field in FIELDS:
        most, mine = getattr(left, field), getattr(asked, field)
        if most is not None and (mine is None or most < mine):
            both[field] = most
    return replace(asked, **both)
