"""Each test of teams counts for itself what its tools did."""

from __future__ import annotations

import pytest

from teams.family import SENT


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    """Each test counts for itself."""
    SENT.clear()
