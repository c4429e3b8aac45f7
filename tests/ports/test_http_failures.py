"""What a server's refusal means: one reading of statuses and waits for every adapter over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detent.ports.http_failures import kind_of_status, seconds_asked

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (401, "", "auth"),
        (403, "", "auth"),
        (402, "", "quota"),
        (404, "", "unknown_model"),
        (408, "", "timeout"),
        (504, "", "timeout"),
        (524, "", "timeout"),
        (409, "", "server"),
        (425, "", "server"),
        (502, "<html>", "server"),
        (529, "overloaded", "server"),
        (429, "", "rate_limited"),
        (400, "bad schema", "bad_request"),
        (418, "", "bad_request"),
        (413, "", "context_overflow"),
        (400, "the request exceeds the available context size", "context_overflow"),
        (422, "maximum context length is 8192 tokens", "context_overflow"),
        (500, "prompt is too long", "context_overflow"),
        (500, "context deadline exceeded", "server"),
        (429, "too many tokens in a minute", "rate_limited"),
    ],
)
def test_each_status_has_one_class(status: int, said: str, kind: str) -> None:
    """The text counts only where a status says nothing else: a prompt that is too long is never sent again."""
    assert kind_of_status(status, said) == kind


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("2.5", 2.5),
        ("-1", 0.0),
        ("Thu, 01 Jan 2026 12:00:07 GMT", 7.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:07", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_a_wait_is_read_as_seconds_or_as_a_date(asked: str | None, seconds: float | None) -> None:
    """What cannot be read asks for no wait."""
    assert seconds_asked(asked, NOW) == seconds
