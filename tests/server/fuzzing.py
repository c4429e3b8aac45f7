"""Requests drawn from the OpenAPI document of a server, and what is wrong with its answers: a failure of the server, or one that is not documented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

CHECKED = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EVENTS = "text/event-stream"
READ_S = 2.0
"""How long a stream is read: what it says until then must be right, and it need not end."""


def fuzzed(
    url: str, token: str, *, requests: int, known: Mapping[str, Sequence[Any]], seed: int = 0
) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send so many requests. Return how many answers each operation gave by status, and what was wrong.

    `known` has values that exist, by the name of a parameter or field of a body: they stand in for drawn ones half of the time, so that requests get
    behind the first check.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    answers: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    for operation in operations:
        each = max(1, requests // len(operations) // (10 if EVENTS in str(operation.definition.raw) else 1))

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=each,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(), data=st.data())
        def send(case: Any, data: Any) -> None:
            for part in (case.path_parameters, case.query, case.body):
                for name in list(part) if isinstance(part, dict) else ():
                    if name in known and data.draw(st.booleans()):
                        part[name] = data.draw(st.sampled_from(known[name]))
            if isinstance(case.body, dict) and "wait_s" in case.body and data.draw(st.booleans()):
                case.body["wait_s"] = 0
            case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token}"}
            try:
                answer = case.call(base_url=url, timeout=READ_S if EVENTS in str(case.operation.definition.raw) else 60)
            except Exception as error:  # noqa: BLE001 - a stream that goes on, or a header that no client can send
                if type(error).__name__ not in ("ReadTimeout", "ConnectionError", "InvalidHeader", "ChunkedEncodingError"):
                    wrong.append(f"{case.operation.label}: {type(error).__name__}: {error}")
                answers[case.operation.label, 0] += 1
                return
            answers[case.operation.label, answer.status_code] += 1
            try:
                case.validate_response(answer, checks=CHECKED)
            except FailureGroup as error:
                wrong.append(f"{case.operation.label}: {answer.status_code}: {'; '.join(str(one) for one in error.exceptions)[:1500]}")

        send()
    return answers, wrong
