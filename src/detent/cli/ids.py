"""Run ids as people read and type them: the shortest unique prefix, `last`, `last-1`, and the last word of an id.

An id such as 20260301-120000-find-the-error-burst-7k3f9q is printed as 20260301-120000. Two rules keep a printed prefix usable:

- It always includes the second in which the run started. A run that starts later has another second, so it cannot take the name.
- It ends at the end of a word. No word is cut.

Runs that start in the same second need more words. If that becomes long, the last word is printed instead (7k3f9q, one of two thousand million).
An id that somebody chose stays whole up to `CHOSEN` characters, because such ids often differ only at the end, like nightly-1 and nightly-2.
A prefix that matches several runs is never guessed: the error lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from detent.core.errors import ConfigError, CorruptLog, DetentError, RunNotFound
from detent.core.records import RunHead
from detent.expressions.display import shortened
from detent.history.trees import without_children
from detent.ports import EventStore, RunQuery

SECOND = len("20260301-120000")
CHOSEN = 32
LONG = 30
"""Instead of a prefix longer than this, the last word of the id is printed."""
LISTED = 5
"""How many runs the error lists if a prefix matches several."""
MOST = 200
"""For more runs than this, the whole listing is read instead of one range of ids per run."""
BESIDE = 5_000
"""If more runs than this have the same prefix, ids stay whole."""
GENERATED = re.compile(r"\d{8}-\d{6}-(?:.*-)?(?P<token>[a-z0-9]{6}(?:@.+)?)")
LAST = re.compile(r"last(?:-([0-9]{1,6}))?")
TOKEN = re.compile(r"[a-z0-9]{6}(?:@.+)?")


def shortest(run_id: str, others: Iterable[str]) -> str:
    """Return the shortest unique name of a run; `others` are at least all ids with the same `beginning`."""
    beside = [other for other in others if other != run_id]
    least = len(beginning(run_id))
    ends = [at.start() for at in re.finditer("[-@]", run_id) if at.start() >= least]
    found = next((run_id[:end] for end in ends if not any(other.startswith(run_id[:end]) for other in beside)), run_id)
    made = GENERATED.fullmatch(run_id)
    if made and len(found) > LONG and not any(other.endswith(f"-{made['token']}") for other in beside):
        return made["token"]
    return found


def beginning(run_id: str) -> str:
    """Return the shortest prefix of an id that may be printed."""
    return run_id[: SECOND if GENERATED.fullmatch(run_id) else CHOSEN]


async def short_names(store: EventStore, ids: Sequence[str]) -> dict[str, str]:
    """Return the shortest name of each run, from one query; nothing if the store cannot answer it."""
    alike = {run_id: beginning(run_id) for run_id in ids}
    wanted = tuple(dict.fromkeys(alike.values()))
    if not wanted:
        return {}
    query = RunQuery(starts_with=wanted, limit=BESIDE) if len(wanted) <= MOST else RunQuery()
    try:
        there = [head.run_id for head in await store.list_runs(query)]
    except DetentError:  # a damaged entry of another run; whole ids work, too
        return {}
    if query.limit is not None and len(there) >= query.limit:
        return {}
    beside: dict[str, list[str]] = {}
    for run_id in there:
        for length in (SECOND, CHOSEN):
            beside.setdefault(run_id[:length], []).append(run_id)
    return {run_id: shortest(run_id, beside.get(start, ())) for run_id, start in alike.items()}


async def find_run(store: EventStore, asked: str, *, there: bool) -> str:
    """Return the id of the run that `asked` names; `there` says whether the store exists. Raise `RunNotFound`, `ConfigError`.

    It is a whole id, a unique beginning, the last word of an id that Detent made, `last` for the newest run that no
    other run started, or `last-1` for the one before it.
    """
    if not there:
        raise RunNotFound(asked, f"{store.url}, which does not exist (is the URL right? the first run creates it)")
    if not asked or any("\ud800" <= c <= "\udfff" or c == "\0" for c in asked):  # bytes that are not text cannot be a run id
        raise RunNotFound(asked, store.url)
    if back := LAST.fullmatch(asked):
        number = int(back[1] or 0)
        newest = await without_children(store.list_runs, RunQuery(), number + 1)
        if len(newest) <= number:
            raise RunNotFound(asked, store.url)
        return newest[number].run_id
    if await _known(store, asked):
        return asked
    ends = (f"-{asked}",) if TOKEN.fullmatch(asked) else ()
    found = await store.list_runs(RunQuery(starts_with=(asked,), ends_with=ends, limit=LISTED + 1))
    if not found:
        raise RunNotFound(asked, store.url)
    if len(found) > 1:
        raise ConfigError(f"{asked!r} matches several runs; write more of the id:{''.join(map(_candidate, found[:LISTED]))}{_more(found)}")
    return found[0].run_id


def _candidate(head: RunHead) -> str:
    return f"\n  {head.run_id}  {head.status}  {shortened(head.title or head.goal, 40)}".rstrip()


def _more(found: Sequence[RunHead]) -> str:
    return "\n  ... and more" if len(found) > LISTED else ""


async def _known(store: EventStore, run_id: str) -> bool:
    try:
        return await store.head(run_id) is not None
    except CorruptLog:
        return True
