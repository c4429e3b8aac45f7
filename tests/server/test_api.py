"""The OpenAPI document says what the server answers: to requests that are drawn from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import in_check, times

pytest.importorskip("schemathesis", reason="pip install '.[dev]' brings it")

from server.soak import drawn_requests


@in_check
@pytest.mark.timeout(300)
def test_requests_drawn_from_the_document_are_answered_as_it_says(tmp_path: Path) -> None:
    """No failure of the server, no status, media type or body that the document does not have. `scripts/soak --api` sends 5,000."""
    answers, wrong = drawn_requests(tmp_path, requests=times(300), seed=1)
    assert wrong == []
    assert len({operation for operation, status in answers if 200 <= status < 300}) > 30, answers
