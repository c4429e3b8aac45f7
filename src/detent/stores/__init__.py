"""Stores keep logs: in memory, in files, in SQLite or in PostgreSQL. `open_store(url)` finds the right one.

Rule: a store keeps bytes and never interprets them; an append is one transaction, fenced by the expected sequence (`ports.stores.EventStore`).
Start with `urls`, which knows the schemes, and `ram`, the smallest store. Each other store has a folder; its class is in `store`.
A new store passes `detent.testing.conformance.store`; its tests are in `tests/stores`.
"""

from detent.stores.urls import open_store

__all__ = ["open_store"]
