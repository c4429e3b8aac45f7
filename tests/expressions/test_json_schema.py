"""Checks of values against JSON Schemas, whoever wrote them: nothing is fetched, and none keeps the process busy."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from amounts import crossed, thinned
from detent.core.errors import NotAllowedNow
from detent.expressions import json_schema
from detent.expressions.json_schema import MOST_REFERENCES, UnusableSchema, check_schema, errors_of, misfit
from detent.running.admission import fitting_reply

pytestmark = [crossed, thinned]

DOUBLING = {**{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}, "d60": {}}


def test_nothing_is_fetched_to_check_a_reply() -> None:
    """Nobody is asked for what a question refers to: the one who is named there hears nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        schema = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/x"}
        with pytest.raises(NotAllowedNow, match="which is not in it; schemas are never fetched"):
            fitting_reply("r", {"a": 1}, schema)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/d0"},
        {"unevaluatedProperties": False, "$ref": "#/$defs/d0"},
        {"unevaluatedProperties": False, "anyOf": [{}, {"$ref": "#/$defs/d0"}]},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "unevaluatedProperties": False, "$ref": "#/$defs/d0"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/$defs/d0"},
    ],
)
def test_references_that_multiply_are_given_up(schema: dict[str, Any], *, foreign: bool) -> None:
    """In whatever draft, and whatever keyword follows them."""
    with pytest.raises(UnusableSchema, match=f"follows more than {MOST_REFERENCES} references"):
        list(errors_of({**schema, "$defs": DOUBLING}, foreign=foreign)({"a": 1}))


@pytest.mark.parametrize("foreign", [False, True])
def test_a_large_value_may_ask_for_as_many_references_as_it_has_parts(*, foreign: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many, each by reference."""
    monkeypatch.setattr(json_schema, "MOST_REFERENCES", 100)
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    value = [*range(500), "x"]
    (error,) = errors_of(schema, foreign=foreign)(value)
    assert error.message == "'x' is not of type 'integer'"


def test_published_schemas_are_at_hand() -> None:
    """They are fetched from nowhere either."""
    (error,) = errors_of({"$ref": "https://json-schema.org/draft/2020-12/schema"})({"type": "x"})
    assert "is not valid under any" in error.message


def test_a_schema_that_is_none_says_where() -> None:
    """And what is wrong there."""
    with pytest.raises(UnusableSchema, match="is not a JSON Schema: 5 is not") as caught:
        check_schema({"properties": {"a": {"type": 5}}})
    assert caught.value.where == "properties.a.type"
    with pytest.raises(UnusableSchema, match="is not a JSON Schema"):
        misfit(1, {"type": 5})
