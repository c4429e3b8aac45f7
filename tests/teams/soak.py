"""Trees of runs in processes that are killed (SIGKILL) at random places and moments, and after single writes; then everything is checked.

`hold` takes one tree to its end: with one process at a time, or with several workers beside each other. `complete` is what `scripts/soak --teams` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.budget import NOTHING, Usage
from detent.core.codec import read_log
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.tree_checks import verify_tree
from detent.history.trees import costs
from detent.ports import RunQuery
from laws.places import Effects, Place
from teams.bounds import Prefix, in_order, minus
from teams.trees import ROOT, TEAMS, TOP, Doomed, Tree, below, calls, engine_on, shape

HERE = Path(__file__).resolve().parent
MOST_SECONDS = 600.0
"""How long one process may take that is not killed: a machine may have much else to do."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree came to: everything held, so these are only amounts."""

    runs: int
    records: int
    killed: int
    effects: int
    joined: int
    seconds: float


def start(place: Place, tree: Tree, **how: Any) -> Any:
    """Start a process that advances the tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    words = [str(HERE / "trees.py"), place.url, str(place.directory), json.dumps({"tree": msgspec.to_builtins(tree), **how})]
    from forked import fork

    return fork(words, env=environment, stderr=subprocess.PIPE, imports=["teams.trees", "detent.stores.postgres.store"])


def wait(process: Any, seconds: float = MOST_SECONDS) -> bool:
    """Wait for a process; return whether it was killed. Raise `AssertionError` if it failed or does not end."""
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        raise AssertionError("a process does not come to an end") from None
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode != 0


def death(chance: random.Random, tree: Tree) -> dict[str, Any]:
    """Return where a process is to die: at a write or in a tool, more often early, before or after it."""
    at = int((5 * tree.size) ** chance.random()) + chance.randint(0, 3)
    where = {"call": max(1, at // 4)} if chance.random() < 0.3 else {"write": at}
    return {**where, "when": chance.choice(("before", "after"))}


def killed_at(place: Place, tree: Tree, *, workers: int, write: int, when: str) -> Outcome | None:
    """Kill the first process at one write, take the tree to its end with others, and check it. Return None if there is no such write."""
    if not wait(start(place, tree, do="run", write=write, when=when)):
        return None
    outcome = hold(place, tree, workers=workers, deaths=0, seed=0)
    return msgspec.structs.replace(outcome, killed=1)


def hold(place: Place, tree: Tree, *, workers: int, deaths: int, seed: int, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Take the tree to its end and return what it came to. Raise `AssertionError` if a law is broken. `workers`: 0 is one process at a time."""
    chance, began, killed = random.Random(seed), time.monotonic(), 0
    if workers:
        while wait(start(place, tree, do="submit", **(death(chance, Tree(kind="", seed=0, size=1)) if killed < 2 else {}))):
            killed += 1
    while True:
        dies = killed < deaths
        do = "work" if workers else "run"
        team = [start(place, tree, do=do, **(death(chance, tree) if dies else {})) for _ in range(workers or 1)]
        try:
            while dies and (alive := [one for one in team if one.poll() is None]):
                if chance.random() < 0.2:  # at any moment, and not only at a write
                    _killed_after(chance.choice(alive), chance.expovariate(20))
                else:
                    _killed_after(alive[0], None)
                gone = [one for one in team if one.poll() is not None]
                team = [one for one in team if one not in gone]
                results = [wait(one) for one in gone]
                killed += sum(results)
                if not all(results):
                    dies = False  # it has ended in good order
                if dies and killed < deaths:
                    team += [start(place, tree, do=do, **death(chance, tree)) for _ in gone]
            ends = [wait(one) for one in team]
            killed += sum(ends)
        finally:
            for one in team:
                one.kill()
        if not any(ends) and not dies:
            break
    say(f"{place.kind}, {workers or 'one'}: {tree.size} runs, {killed} killed; checking")
    outcome = asyncio.run(_checked(place, tree))
    return msgspec.structs.replace(outcome, killed=killed, seconds=round(time.monotonic() - began, 1))


def _killed_after(process: Any, seconds: float | None) -> None:
    """Wait for a process; kill it when the time is over (None: a long time, after which it is a failure)."""
    try:
        process.wait(seconds or MOST_SECONDS)
    except subprocess.TimeoutExpired:
        assert seconds is not None, "a process does not come to an end"
        process.kill()
        process.wait(10)


async def _checked(place: Place, tree: Tree) -> Outcome:
    """Check everything that must hold of a tree, and return what its logs have."""
    effects = Effects(place.directory / "effects")
    store = place.store()
    async with engine_on(store, tree, Doomed(effects)) as engine:
        await store.open()
        if tree.kind == "wild":
            await engine.work(until_idle=True)  # those that their parents left
        heads = {head.run_id: head for head in await store.list_runs(RunQuery())}
        assert {head.status for head in heads.values()} <= {"completed", "failed", "stopped"}, {h.run_id: h.status for h in heads.values()}
        waiting = [signal for signals in (await store.signals(list(heads))).values() for signal in signals]
        late = [signal for signal in waiting if signal.via != "parent"]  # a parent may cancel a child that just ends
        assert not late, f"signals were not taken: {late}"
        logs = {run_id: list(read_log(run_id, await store.read(run_id))) for run_id in heads}
        prefix = Prefix()
        for record in in_order(logs.values()):
            prefix.add(record)
        states = prefix.states
        _check_family(logs, states)
        _check_effects(logs, effects, states)
        for run_id in heads:
            again = await engine.replay(run_id)
            assert again.identical, (run_id, again.divergence)
        wrong = [one for one in await verify_tree(engine.runtime, ROOT) if not one.ok]
        assert not wrong, wrong
        root = states[ROOT]
        if not any(child.status in ("left", "lost") for state in states.values() for child in state.children.values()):
            _check_sums(logs, prefix, root)
            parts = [one.own for one in await costs(engine.runtime, ROOT)]
            assert _same(_sum(parts), root.usage), (_sum(parts), root.usage)
            spent = await engine.tenants.spent("acme")
            assert (spent.runs, spent.tool_calls) == (1, root.usage.tool_calls), (spent, root.usage)
            assert abs(spent.cost_usd - (root.usage.cost_usd or 0)) < 1e-6, (spent, root.usage)
        if tree.kind != "wild":
            _check_exact(tree, logs, states, effects)
    await place.close()
    return Outcome(
        runs=len(heads),
        records=sum(map(len, logs.values())),
        killed=0,
        effects=len(effects.all()),
        joined=sum(len(state.children) for state in states.values()),
        seconds=0.0,
    )


def _check_family(logs: dict[str, list[Record]], states: dict[str, RunState]) -> None:
    """Each child was started once, after its parent had recorded it, and joined once, at the end of its log."""
    spawned = Counter[str]()
    for run_id, log in logs.items():
        events = [record.event for record in log]
        assert sum(isinstance(event, e.RunStarted) for event in events) == 1, run_id
        known = [event.child for event in events if isinstance(event, e.SubagentSpawned)]
        spawned.update(known)
        joined = [event for event in events if isinstance(event, e.SubagentJoined)]
        assert sorted(event.child for event in joined) == sorted(known), (run_id, known, joined)
        for event in joined:
            if event.outcome in ("completed", "failed", "cancelled", "bound_reached") and event.sequence:
                assert (event.sequence, event.digest) == (states[event.child].seq, states[event.child].digest), event
        assert states[run_id].held == NOTHING, run_id
    assert set(spawned.values()) <= {1}, spawned
    assert set(logs) - {ROOT} <= set(spawned), "a run that nobody has started"


def _check_effects(logs: dict[str, list[Record]], effects: Effects, states: dict[str, RunState]) -> None:
    """What is not idempotent happened once, and what a log calls done happened."""
    happened = Counter((line.split("|")[0], line.split("|")[2]) for line in effects.all())
    good: set[tuple[str, str]] = set()
    keys: dict[tuple[str, str], tuple[str, str]] = {}
    for run_id, log in logs.items():
        for record in log:
            match record.event:
                case e.ToolStarted(call=call, tool=name, key=key):
                    keys[run_id, call] = name, key
                case e.ToolFinished(call=call, error=None) | e.ToolReconciled(call=call, outcome="happened", error=None):
                    if (run_id, call) in keys:
                        good.add(keys[run_id, call])
                case _:
                    pass
    for (name, key), count in happened.items():
        assert count == 1 or name == "mark", f"{name} {key} had its effect {count} times"
    missing = {one for one in good if one[0] in ("put", "mark")} - set(happened)
    assert not missing, f"the logs say that this was done, and it was not: {missing}"


def _check_sums(logs: dict[str, list[Record]], prefix: Prefix, root: RunState) -> None:
    """What all runs used themselves is what the root counts; and it is what the logs have of calls and plans."""
    assert _same(_sum(prefix.own.values()), root.usage), (_sum(prefix.own.values()), root.usage)
    events = [record.event for log in logs.values() for record in log]
    planned = _sum(event.usage for event in events if isinstance(event, e.Planned))
    used = root.usage.model_calls, root.usage.input_tokens, root.usage.output_tokens
    assert used == (planned.model_calls, planned.input_tokens, planned.output_tokens), (used, planned)
    begun = {(record.envelope.run, record.event.call) for log in logs.values() for record in log if isinstance(record.event, e.ToolStarted)}
    assert root.usage.tool_calls >= len(begun), (root.usage, len(begun))
    paid = sum(event.cost_usd or 0 for event in events if isinstance(event, e.ToolStarted))
    assert abs((root.usage.cost_usd or 0) - paid) < 1e-6, (root.usage, paid)


def _check_exact(tree: Tree, logs: dict[str, list[Record]], states: dict[str, RunState], effects: Effects) -> None:
    """The tree is the one that was planned, and gave the answer that it would have given undisturbed."""
    root = states[ROOT]
    assert root.status == "completed", (root.status, root.reason, root.error)
    puts = Counter(line.split("|")[1] for line in effects.all() if line.startswith("put|"))
    keys = Counter(line.split("|")[2] for line in effects.all() if line.startswith("put|"))
    if tree.kind in TEAMS:
        assert len(logs) == tree.size + 1 and len(keys) == tree.size and set(keys.values()) == {1}, (len(logs), keys)
        assert len(puts) == (1 if tree.kind == "vote" else tree.size), puts
        return
    runs = shape(tree.seed, tree.size)
    assert sorted(state.goal for state in states.values()) == sorted(runs)
    assert root.output == len(calls(TOP, runs, "put", "mark", "look")), root.output
    wanted = Counter(calls(TOP, runs, "put"))
    assert puts == wanted, (wanted - puts, puts - wanted)
    assert {line.split("|")[1] for line in effects.all() if line.startswith("mark|")} == set(calls(TOP, runs, "mark"))
    for state in states.values():
        assert len(state.children) == sum(name in ("agent_next", "spawn_agent") for turn in runs[state.goal] for name, _ in turn)
        assert state.usage.tool_calls == len(calls(state.goal, runs)), (state.run_id, state.usage)
        assert state.usage.iterations == sum(len(runs[one]) + 1 for one in below(state.goal, runs)), (state.run_id, state.usage)


def _sum(parts: Any) -> Usage:
    total = Usage()
    for part in parts:
        total = total.plus(part)
    return total


def _same(one: Usage, other: Usage) -> bool:
    """Whether two usages have equal sums; cost is money in binary fractions."""
    since = minus(one, other)
    return abs(since.cost_usd or 0) < 1e-6 and minus(one, other).plus(Usage(cost_usd=-(since.cost_usd or 0))) == Usage(cost_usd=0.0)


# The complete one ------------------------------------------------------------------------------------------------------------------


@contextmanager
def places(kinds: list[str]) -> Iterator[Callable[[str], Place]]:
    """Yield what makes a new, empty place of a kind; a PostgreSQL server is started if one is wanted."""
    cluster = None
    if "postgres" in kinds:
        from stores.postgres.cluster import Cluster, programs

        found = programs()
        assert found is not None, "there is no PostgreSQL here"
        cluster = Cluster(found)
        cluster.create()
    try:
        with tempfile.TemporaryDirectory(prefix="detent-soak-") as directory:
            made = 0

            def place(kind: str) -> Place:
                nonlocal made
                made += 1
                own = Path(directory) / str(made)
                own.mkdir()
                return Place(kind, own, database=cluster.database() if cluster is not None and kind == "postgres" else "")

            yield place
    finally:
        if cluster is not None:
            cluster.remove()


PARTS = ("writes", "large", "random")
"""The parts of the complete soak: a death at each write of a small tree, trees of nearly 200 runs, and trees of any size."""
LARGE = (("exact", 200), ("wild", 190), ("task-graph", 190))


def complete(
    *, minutes: float, seed: int, kinds: list[str], say: Callable[[str], None], parts: Sequence[str] = PARTS, first: int = 1, every: int = 1
) -> Counter[str]:
    """Kill trees at each write, large ones and random ones until the time is over; return how many of what held.

    `parts` are those of `PARTS`, `first` is the write to begin with, and one write in `every` is tried. The first broken law raises `AssertionError`
    with a note that says which tree it was.
    """
    until, held = time.monotonic() + minutes * 60, Counter[str]()

    def count(kind: str, outcome: Outcome) -> None:
        held.update({"trees": 1, f"trees on {kind}": 1, "runs": outcome.runs, "records": outcome.records, "killed": outcome.killed})
        held["largest"] = max(held["largest"], outcome.runs)

    with places(kinds) as place:
        if "writes" in parts:
            _at_each_write(place, kinds, Tree(kind="exact", seed=seed, size=7), count, say, range(first, 10**6, every))
        for name, size in LARGE if "large" in parts else ():
            for kind in kinds:
                for workers in (0, 3):
                    tree = Tree(kind=name, seed=seed, size=size)
                    count(kind, _told(hold, place(kind), tree, workers=workers, deaths=12, seed=seed, say=say))
                    say(f"{kind}, {workers or 'one process'}: {name} of {size} held; {dict(held)}")
        number = 0
        while "random" in parts and time.monotonic() < until:
            chance = random.Random(seed + number)
            tree = Tree(kind=chance.choice(("exact", "exact", "wild", *TEAMS)), seed=seed + number, size=round(200.0 ** chance.random()))
            for kind in kinds:
                for workers in (0, 3):
                    count(kind, _told(hold, place(kind), tree, workers=workers, deaths=chance.randint(3, 25), seed=seed + number))
            number += 1
            say(f"{number} trees everywhere, the last {tree.kind} of {tree.size}: {dict(held)}")
    return held


def _at_each_write(
    place: Callable[[str], Place],
    kinds: list[str],
    tree: Tree,
    count: Callable[[str, Outcome], None],
    say: Callable[[str], None],
    writes: Sequence[int],
) -> None:
    """Kill the first process of a tree before and after each of its writes, with one process and with three workers."""
    for kind in kinds:
        for workers in (0, 3):
            for when in ("before", "after"):
                tried = 0
                for write in writes:
                    if (done := _told(killed_at, place(kind), tree, workers=workers, write=write, when=when)) is None:
                        break
                    count(kind, done)
                    tried += 1
                    if tried % 20 == 0:
                        say(f"{kind}, {workers or 'one process'}: a death {when} each of {tried} writes so far, the last {write}")
                say(f"{kind}, {workers or 'one process'}: a death {when} each of {tried} writes")


def _told(work: Callable[..., Any], place: Place, *given: Any, **how: Any) -> Any:
    """Do the work and remove what it left; if a law is broken, keep that, and say how to repeat it."""
    try:
        found = work(place, *given, **how)
    except BaseException as error:
        kept = tempfile.mkdtemp(prefix="detent-broken-")
        shutil.copytree(place.directory, kept, dirs_exist_ok=True)
        error.add_note(f"{work.__name__} on {place.kind}: {given} {how}; its files are in {kept}")
        raise
    shutil.rmtree(place.directory)
    return found
