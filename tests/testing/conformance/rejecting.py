"""Which checks of a suite an adapter fails: a broken one must fail those that are about what is broken in it, and no other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def checks_of(suite: type) -> list[str]:
    """Return the names of all checks of a suite."""
    return sorted(name for name in dir(suite) if name.startswith("test_"))


def failing(suite: type, make: Callable[[], Any]) -> set[str]:
    """Return the checks that fail for what `make` makes, a new one for each check; those that skip do not fail."""
    failed = set[str]()
    for name in checks_of(suite):
        check = getattr(suite(), name)
        try:
            check(*[make() for _ in inspect.signature(check).parameters])
        except pytest.skip.Exception:  # this maker has no such adapter
            continue
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - what a check raises is that it failed
            notes = "\n".join(getattr(error, "__notes__", []))
            assert "promised: " in notes and "documented: docs/" in notes, f"{name} fails and does not say what is promised: {error!r}"  # noqa: PT017
            failed.add(name)
    return failed
