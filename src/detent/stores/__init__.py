"""Stores: where logs are kept, in memory, in files, in SQLite, in PostgreSQL. `open_store(url)` finds the right one.

Rule: a store keeps bytes and never reads them; an append is one transaction, fenced by the expected sequence (`ports.stores.EventStore`).
Start with `urls`, which knows the schemes, and `ram`, the smallest store. Each of the others has a folder with its class in `store`.
A new store passes `detent.testing.conformance.store`; its tests stand in `tests/stores`.
"""

from detent.stores.urls import open_store

__all__ = ["open_store"]
