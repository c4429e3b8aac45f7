"""The stores on which the inspector is tried in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import in_check


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=in_check)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    url: str = f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return url
