"""Stores: where logs are kept. `open_store(url)` finds the right one; each class is in a module of its own, loaded when it is used."""

from detent.stores.urls import open_store

__all__ = ["open_store"]
