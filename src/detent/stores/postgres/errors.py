"""Translates the errors of PostgreSQL and its driver. No message contains a password."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolTimeout

from detent.core.errors import ConfigError, DetentError, StoreBusy, StoreError, StoreFull

_WAITS = (
    "53300",  # too_many_connections
    "53200",  # out_of_memory
    "55P03",  # lock_not_available
    "57014",  # query_canceled
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now
    "40P01",  # deadlock_detected
    "40001",  # serialization_failure
)
_OWN_CLASSES = ("21", "22", "23", "40", "54", "P0")
"""Error classes that concern one operation of a group: cardinality, data, integrity, rollback, limits, raised by a trigger."""

_FULL = ("53100", "53400")
_FOR_GOOD = (
    ("connection is bad: invalid ", "correct the URL"),
    ("password authentication failed", "check user and password"),
    ("no password supplied", "give a password in the URL, in PGPASSWORD or in a password file"),
    ("no pg_hba.conf entry", "let the server's pg_hba.conf allow this user, database and address"),
    ("authentication failed", "check how the server lets this user in"),
    ("not permitted to log in", "let the role log in (`ALTER ROLE NAME LOGIN`) or name another user in the URL"),
    ("not currently accepting connections", "let the database be connected to (`ALTER DATABASE NAME ALLOW_CONNECTIONS true`)"),
    ("permission denied for database", "grant the user CONNECT on the database"),
    ("database", "create it (`createdb NAME`) or correct the URL"),
    ("role", "create the role or correct the user in the URL"),
)
"""Texts of permanent refusals: waiting would not help. A server with messages in another language is tried until the timeout."""


_NOBODY = ("Connection refused", "No such file or directory", "resolve host", "Name or service not known")
_NO_WAY = ("Network is unreachable", "Cannot assign requested address", "Address family not supported")
"""Texts for addresses that this host cannot reach, such as IPv6 addresses without IPv6: they reveal nothing about the server."""


def nobody_listens(error: BaseException) -> bool:
    """Whether no address of the URL has a server. A server that starts, stops, hangs or is full is worth waiting for."""
    said = str(error)
    tried = said.partition("All failures were:")[2].split("\n- host: ")[1:] or [said]  # the driver's list of several addresses
    tried = [one for one in tried if not any(text in one for text in _NO_WAY)]
    return bool(tried) and all(any(text in one for text in _NOBODY) for one in tried)


def is_lost(error: BaseException, db: psycopg.AsyncConnection[object] | None = None) -> bool:
    """Whether the connection is gone, so that a running statement may or may not have taken effect.

    A connection whose session was reset by a pooler counts as gone: it has lost its prepared statements and its settings.
    """
    if isinstance(error, psycopg.errors.InvalidSqlStatementName):
        return True
    if isinstance(error, (psycopg.InterfaceError, psycopg.OperationalError)):
        return db is None or db.closed or (error.sqlstate or "")[:3] in ("57P", "080")
    return False


def concerns_all(error: psycopg.Error) -> bool:
    """Whether the error concerns the server, not only one operation."""
    state = error.sqlstate or ""
    return bool(state) and state[:2] not in _OWN_CLASSES


def refuses_for_good(error: psycopg.Error) -> str:
    """Return what to do about a permanently refused connection; "" if waiting may help."""
    said = str(error)
    if "does not exist" not in said:
        return next((advice for text, advice in _FOR_GOOD[:-2] if text in said), "")
    return next((advice for text, advice in _FOR_GOOD[-2:] if text in said), "")


def in_one_line(error: BaseException) -> str:
    """Return the driver's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def unreachable(where: str, error: BaseException | None, waited_s: float) -> StoreBusy:
    """Return the error for a server that gave no connection or no answer for this time."""
    said = in_one_line(error) if error is not None else "no answer"
    if "too many" in said or "remaining connection slots" in said:
        return StoreBusy(
            f"{where} has had no connection free for {waited_s:g} s ({said}); nothing was recorded. Raise max_connections, start fewer"
            " workers, or lower their `connections`, and resume"
        )
    return StoreBusy(
        f"{where} could not be reached for {waited_s:g} s ({said}). Pending operations may or may not be recorded; resuming reads"
        " the actual log. Check the server and the network, and resume"
    )


def absent(where: str, error: BaseException) -> StoreBusy:
    """Return the error for a store with no server at its address."""
    return StoreBusy(
        f"no server listens at the address of the store {where} ({in_one_line(error)}); nothing was started. Start the server, or correct host and port"
    )


def translate(error: BaseException, where: str) -> BaseException:
    """Translate an error of PostgreSQL into one of Detent. Return any other error unchanged."""
    if isinstance(error, DetentError) or not isinstance(error, psycopg.Error):
        return error
    state, said = error.sqlstate or "", in_one_line(error)
    if state in _FULL:
        return StoreFull(
            f"no room left on the server of {where} ({said}); nothing was recorded, earlier records are intact. Free some space and resume"
        )
    if state in _WAITS or isinstance(error, PoolTimeout) or is_lost(error):
        return StoreBusy(f"{where} could not execute this ({said}); it is not confirmed as recorded. Resume when the server answers again")
    if state == "42501":
        return StoreError(f"{where}: the user lacks a privilege ({said}); grant it the schema and its tables")
    if state == "25006":
        return StoreError(f"{where} is read-only ({said}); is it a standby? Give the URL of the primary server")
    if state in ("3D000", "3F000", "42P01", "42703"):
        return ConfigError(f"{where} has changed since it was opened ({said}); check the database and its schema, and open it again")
    if state[:2] in ("XX", "58"):
        return StoreError(f"{where} is damaged or its disk fails ({said}); read the server's log first")
    return StoreError(f"{where}: PostgreSQL reported {said} ({state or type(error).__name__})")
