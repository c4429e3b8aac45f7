"""A conversation with long runs that are compacted, in processes that are killed (SIGKILL) at random places, one after the other.

`python soak.py URL DIRECTORY HOW` is one of the processes. It sends what is left of the messages, says after each one how many are done, and dies
at a write of the store, in a model call (one for a summary, too), or around a payment, as HOW says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from detent import Agent, Budget, Engine, View, tool
from detent.core import events as e
from detent.running.conversing import conversation_of
from detent.testing import FakeModel, calls, says
from detent.testing.faults import CrashingStore
from laws.places import Effects, Place

HERE = Path(__file__).resolve().parent
TALK = "trip"
WINDOW, PAGES = 2_000, 40
LONG = "lorem ipsum dolor sit amet " * 30
WRITES = ("append", "claim", "put_blob", "release")
WRITES_OF_A_MESSAGE = 5
"""At least."""
MOST_SECONDS = 600.0
"""How long one process may take."""


class Outcome(msgspec.Struct, kw_only=True):
    """What a soak found: everything held, so these are only amounts."""

    messages: int
    killed: int
    compactions: int
    summaries: int
    dropped: int
    payments: int
    seconds: float


def text_of(n: int, messages: int) -> str:
    """Return message `n`: four of them ask for long work, each of which is compacted more than once."""
    return f"read {n}" if n % max(1, messages // 4) == 1 else f"message {n}"


class Doomed:
    """A model and a tool whose process dies at call number `call` (0: never), before or after it."""

    def __init__(self, effects: Effects, call: int, when: str) -> None:
        self.effects, self.call, self.when, self.calls = effects, call, when, 0

    def around(self, work: Callable[[], Any]) -> Any:
        """Do the work, or die before or after it."""
        self.calls += 1
        if self.calls == self.call and self.when == "before":
            die()
        done = work()
        if self.calls == self.call:
            die()
        return done

    def answer(self, view: View) -> Any:
        """Return the model's next answer: work for a `read`, else an answer at once."""
        return self.around(lambda: self._answer(view))

    def _answer(self, view: View) -> Any:
        if view.small:
            return says(f"the pages are alike, {len(view.goal)} characters were summed up")
        if not view.goal.startswith("read ") or view.iteration > PAGES + 1:
            return says(f"answer to {view.goal}")
        return calls(("page", {"n": view.iteration})) if view.iteration <= PAGES else calls(("pay", {"who": view.goal.replace(" ", "-")}))

    def agent(self) -> Agent:
        """Return an agent with a tool that reads and one that pays."""

        @tool(side_effect="read")
        def page(n: int) -> str:
            """Read a page."""
            return f"page {n}: {LONG}"

        @tool(side_effect="write", idempotent=True)
        def pay(who: str) -> str:
            """Pay somebody."""
            self.around(lambda: who in {what.removeprefix("paid-") for what in self.effects.all()} or self.effects.add(f"paid-{who}"))
            return f"paid {who}"

        return Agent(
            name="clerk",
            model="function:fake-model",
            tools=[page, pay],
            budget=Budget(max_iterations=100),
            profile={"window_tokens": WINDOW},
            compaction={"use": "summary"},
        )


def die() -> BaseException:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


async def talk(url: str, directory: Path, *, first: int, messages: int, write: int = 0, call: int = 0, when: Any = "before") -> None:
    """Send the messages from `first` on, and say after each one how many are done."""
    doomed = Doomed(Effects(directory / "effects"), call, when)
    store = CrashingStore(_place(url, directory).store(), at=write, when=when, operations=WRITES, error=die)
    async with Engine(planner=FakeModel(doomed.answer), store=store, approver="caller") as engine:
        session = engine.session(doomed.agent(), TALK)
        for n in range(first, messages):
            result = await session.send(text_of(n, messages), message_id=f"m{n}")
            assert (result.run_id, result.output) == (f"{TALK}.{n + 1}", f"answer to {text_of(n, messages)}"), (result.run_id, result.error)
            print(n + 1, flush=True)


def _place(url: str, directory: Path) -> Place:
    return Place("file" if url.startswith("file:") else "sqlite", directory)


def hold(
    directory: Path, *, messages: int, deaths: int, seed: int, kind: str = "sqlite", say: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Hold the conversation and return what it came to. Raise `AssertionError` if anything was lost, doubled, or did not fit."""
    from forked import fork

    place, chance, began = Place(kind, directory), random.Random(seed), time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    done = killed = 0
    while done < messages:
        how: dict[str, Any] = {"first": done, "messages": messages, "when": chance.choice(("before", "after"))}
        if killed < deaths:
            most = max(1, (messages - done) // (deaths - killed))  # so that it is certain to die
            how |= {"call": chance.randint(1, most)} if chance.random() < 0.5 else {"write": chance.randint(1, WRITES_OF_A_MESSAGE * most)}
        words = [str(HERE / "soak.py"), place.url, str(directory), json.dumps(how)]
        imports = ["sessions.soak", "pydantic_ai.models.function"]
        child = fork(words, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, imports=imports)
        out, err = child.communicate(timeout=MOST_SECONDS)
        assert child.returncode in (0, -signal.SIGKILL), err
        done = max([done, *map(int, out.split())])
        killed += child.returncode != 0
        say(f"{done} messages, {killed} killed")
    outcome = asyncio.run(_checked(place, messages))
    return msgspec.structs.replace(outcome, killed=killed, seconds=round(time.monotonic() - began, 1))


async def _checked(place: Place, messages: int) -> Outcome:
    """Check everything that must hold, and return what the logs have."""
    texts, effects = [text_of(n, messages) for n in range(messages)], Effects(place.directory / "effects")
    long = [n for n, text in enumerate(texts) if text.startswith("read ")]
    assert effects.all() == [f"paid-{texts[n].replace(' ', '-')}" for n in long], effects.all()
    store = place.store()
    async with Engine(store=store, planner=FakeModel([]), approver="caller") as engine:
        session = engine.session(Doomed(effects, 0, "").agent(), TALK)
        heads = await session.runs()
        assert [head.run_id for head in heads] == [f"{TALK}.{n}" for n in range(1, messages + 1)]
        said = [(m.kind, m.text) for m in await session.messages() if m.kind != "tool"]
        assert said == [pair for text in texts for pair in (("user", text), ("model", f"answer to {text}"))]
        compacted: list[e.ContextCompacted] = []
        for n in sorted({*long, *range(0, messages, max(1, messages // 20)), messages - 1}):
            again = await engine.replay(heads[n].run_id)
            assert again.identical, again.divergence
            found = await engine.verify(heads[n].run_id)
            assert found.ok, found
            events = [record.event for record in await place.records(heads[n].run_id)]
            compacted += [event for event in events if isinstance(event, e.ContextCompacted)]
            assert max(event.usage.input_tokens for event in events if isinstance(event, e.ModelCallFinished)) <= WINDOW
        last = (await engine.load(heads[-1].run_id)).state
        assert last.session is not None
        conversation = await conversation_of(store, last)
        assert not conversation.waiting
        assert len(conversation.sent) == messages - 1, "each message is known by its id, once"
    await place.close()
    return Outcome(
        messages=messages,
        killed=0,
        compactions=len(compacted),
        summaries=sum(event.compactor == "summary" for event in compacted),
        dropped=conversation.dropped,
        payments=len(long),
        seconds=0.0,
    )


if __name__ == "__main__":
    asyncio.run(talk(sys.argv[1], Path(sys.argv[2]), **json.loads(sys.argv[3])))
