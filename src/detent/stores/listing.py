"""Listing entries: decoding the stored JSON, and selecting the entries of a page for stores that hold them in memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from detent.core.errors import ConfigError, CorruptLog, RunNotFound
from detent.core.records import RunHead
from detent.ports import RunQuery, unstorable

_decode_head = msgspec.json.Decoder(RunHead).decode


def entry_of(run_id: str, entry: bytes) -> RunHead:
    """Decode a listing entry from JSON; raise `CorruptLog`."""
    try:
        return _decode_head(entry)
    except (ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
        raise CorruptLog(run_id, 0, f"its listing entry cannot be read ({error})") from error


def unsealed(head: RunHead) -> RunHead:
    """Return a listing entry without its stored digest, which `sealed` returns."""
    return msgspec.structs.replace(head, digest="") if head.digest else head


def check_query(query: RunQuery) -> None:
    """Raise `ConfigError` for a query that cannot be answered."""
    if query.limit is not None and query.limit < 0:
        raise ConfigError(f"RunQuery(limit={query.limit}): a page cannot have fewer than 0 runs; leave limit out for all of them")
    for text in (*query.starts_with, *query.ends_with):
        if problem := unstorable(text) or ("" if text else "is empty: leave it out for all runs"):
            raise ConfigError(f"RunQuery: {text[:80]!r}, with which ids start or end, {problem}")
    for name, text in (
        ("tenant", query.tenant),
        ("goal_id", query.goal_id),
        ("agent", query.agent),
        ("after", query.after),
        ("dedupe_key", query.dedupe_key),
        ("version", query.version),
    ):
        if text is not None and (problem := unstorable(text)):
            raise ConfigError(f"RunQuery({name}={text[:80]!r}) {problem}")
    for name, at in (("since", query.since), ("until", query.until), ("rested_since", query.rested_since)):
        if at is not None and at.tzinfo is None:
            raise ConfigError(f"RunQuery({name}={at.isoformat()}): the time has no zone; give one, such as {at.isoformat()}+00:00")


def named(run_id: str, query: RunQuery) -> bool:
    """Whether the run's id matches the query's beginning or end."""
    asks = query.starts_with or query.ends_with
    return not asks or run_id.startswith(query.starts_with) or run_id.endswith(query.ends_with)


def named_in_sql(query: RunQuery, *, mark: str, end: str) -> list[tuple[str, list[str]]]:
    """Return the same condition as an SQL clause with its values; empty if the query asks for every run.

    `mark` is the placeholder of a value, `end` is SQL for the last `{}` characters of an id. A beginning becomes a range of ids, which an index finds.
    """
    clauses = [f"run_id>={mark} AND run_id<{mark}"] * len(query.starts_with)
    clauses += [f"{end.format(len(text))}={mark}" for text in query.ends_with]
    values = [*(bound for text in query.starts_with for bound in (text, text + LAST)), *query.ends_with]
    return [(f"({' OR '.join(clauses)})", values)] if clauses else []


SOME_VERSION = b'"version":"'
"""A listing entry in JSON has this if and only if the run needs a version: inside of a text, quotation marks are escaped."""


def version_mark(version: str) -> bytes:
    """Return what a listing entry in JSON has if and only if the run needs this version. No entry has the mark of "", because it is the default."""
    return b'"version":' + msgspec.json.encode(version)


def needing_in_sql(query: RunQuery, has: str) -> list[tuple[str, list[bytes]]]:
    """Return the condition on the version that runs need, as an SQL clause with its values. `has` is SQL for where an entry has some bytes, 0 for nowhere."""
    if query.version is None:
        return []
    return [(f"{has}>0", [version_mark(query.version)]) if query.version else (f"{has}=0", [SOME_VERSION])]


RESTED_MARK = '"updated_at":"'
"""A listing entry in JSON has this once, before the time of the run's last record: inside of a text, quotation marks are escaped."""


def to_the_second(at: datetime) -> str:
    """Return the first part of a time in a listing entry: UTC, to the second, so that it sorts by time."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def rested(head: RunHead, query: RunQuery) -> bool:
    """Whether the run waits or has ended since the time that the query names."""
    return query.rested_since is None or (head.status != "running" and head.updated_at >= query.rested_since)


LAST = "\U0010ffff"
"""Sorts after every other character, in UTF-8 too; no id contains it."""


def matches(head: RunHead, query: RunQuery) -> bool:
    """Whether the query matches this run; `since` is included, `until` is not."""
    return (
        (not query.status or head.status in query.status)
        and named(head.run_id, query)
        and (query.tenant is None or head.tenant == query.tenant)
        and (query.goal_id is None or head.goal_id == query.goal_id)
        and (query.agent is None or head.agent == query.agent)
        and (query.dedupe_key is None or (head.queued is not None and head.queued.dedupe_key == query.dedupe_key))
        and query.version in (None, head.version)
        and (query.since is None or head.created_at >= query.since)
        and (query.until is None or head.created_at < query.until)
        and rested(head, query)
    )


def select(heads: Iterable[RunHead], query: RunQuery, *, after: RunHead | None) -> list[RunHead]:
    """Return the page that the query asks for, newest first; `after` is the head of `query.after`.

    Raise `RunNotFound` if `query.after` names a run that does not exist.
    """
    check_query(query)
    if query.after is not None and after is None:
        raise RunNotFound(query.after)
    found = sorted((head for head in heads if matches(head, query)), key=_age, reverse=True)
    if after is not None:
        found = [head for head in found if _age(head) < _age(after)]
    return found if query.limit is None else found[: query.limit]


def _age(head: RunHead) -> tuple[object, str]:
    return head.created_at, head.run_id
