"""Tools that bring a JSON Schema: it is checked when the tool is made, decides about arguments, and fetches nothing."""

from __future__ import annotations

import json
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.core.errors import ConfigError, InvalidArguments
from detent.ports import ToolContext
from detent.tools import Tool, schema_digest, tool
from tool_calls import attempt

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def brought(schema: Any = CITY, execute: Any = None, **options: Any) -> Tool[..., Any]:
    """Return a read-only tool with that schema; it returns its arguments."""
    options = {"side_effect": "read", **options}
    return Tool.from_schema(name="lookup", description="Look up.", input_schema=schema, execute=execute or (lambda args: args), **options)


def test_the_schema_and_the_options_stand_in_the_declaration() -> None:
    """As they were given; the tool has its own copy."""
    schema = json.loads(json.dumps(CITY))
    spec = brought(schema, scopes=("geo",), timeout_s=3, sensitive=("city",)).spec
    schema["properties"].clear()
    assert (spec.name, spec.description, spec.input_schema) == ("lookup", "Look up.", CITY)
    assert (spec.side_effect, spec.scopes, spec.timeout_s, spec.sensitive) == ("read", ("geo",), 3, ("city",))
    assert Tool.from_schema(name="x", description="", input_schema={}, execute=lambda args: 1).spec.side_effect == "destructive"


def test_execute_gets_a_fresh_dict_and_the_context_where_it_takes_one() -> None:
    """Sync and async; changing the dict changes nothing."""
    seen: list[Any] = []

    def plain(args: dict[str, Any]) -> str:
        seen.append(("plain", dict(args)))
        args.clear()
        return "a"

    async def contextual(args: dict[str, Any], ctx: ToolContext) -> str:
        seen.append(("async", args, ctx.idempotency_key))
        return "b"

    def optional(args: dict[str, Any], context: Any = None) -> str:
        seen.append(("optional", context is not None))
        return "c"

    def other(args: dict[str, Any], retries: int = 3) -> str:
        seen.append(("other", retries))
        return "d"

    given = {"city": "Paris"}
    results = [attempt(brought(execute=execute), given).result for execute in (plain, contextual, optional, other)]
    assert results == [b'"a"', b'"b"', b'"c"', b'"d"']
    assert seen == [("plain", given), ("async", given, "key-1"), ("optional", True), ("other", 3)]
    assert given == {"city": "Paris"}
    assert brought(execute=contextual).spec.concurrency_safe
    assert not brought(execute=plain).spec.concurrency_safe


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "argument 'city' is missing"),
        ({"city": 5}, "argument 'city': expected string (got integer)"),
        ({"city": "P"}, "argument 'city': does not satisfy minLength 2"),
        ({"city": "Paris", "days": True}, "argument 'days': expected integer (got boolean)"),
        ({"city": "Paris", "days": 0}, "argument 'days': does not satisfy minimum 1"),
        ({"city": "Paris", "unit": "K"}, "argument 'unit': expected one of ['C', 'F']"),
        ({"city": "Paris", "town": 1}, "unknown argument 'town'; known: city, days, unit"),
        ({"city": "Paris", "citi": 1}, "unknown argument 'citi'; did you mean 'city'?"),
    ],
)
def test_arguments_that_do_not_satisfy_the_schema_are_named(args: dict[str, Any], said: str) -> None:
    """Which one, and what was expected."""
    with pytest.raises(InvalidArguments) as caught:
        brought().check(args)
    assert said in str(caught.value)
    assert caught.value.error_code == "schema_validation_failed"


def test_every_problem_is_named_at_once_and_no_value_is_repeated() -> None:
    """Up to eight."""
    with pytest.raises(InvalidArguments) as caught:
        brought().check({"days": "secret" * 10_000, "unit": "secret", "x": 1})
    said = str(caught.value)
    assert [part in said for part in ("'city' is missing", "'days'", "'unit'", "'x'")] == [True] * 4
    assert "secret" not in said
    many = brought({"type": "object", "additionalProperties": {"type": "integer"}})
    with pytest.raises(InvalidArguments, match=r"and [0-9]+ more") as caught:
        many.check({f"k{i}": "secret" for i in range(5000)})
    assert len(str(caught.value)) < 1000


def test_the_schema_decides_about_unknown_arguments() -> None:
    """Without a word about them they are allowed, by a pattern too."""
    assert brought({"type": "object"}).check({"anything": [1]}) == {"anything": [1]}
    patterned = {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False}
    assert brought(patterned).check({"x-a": 1}) == {"x-a": 1}
    with pytest.raises(InvalidArguments, match="unknown argument 'y'") as caught:
        brought(patterned).check({"x-a": 1, "y": 2})
    assert "x-a" not in str(caught.value)


def test_references_inside_the_schema_and_to_published_ones_work() -> None:
    """`$defs`, recursion, an `$id` of one's own, and the meta-schema itself."""
    tree = {
        "$id": "https://example.com/tree",
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "same": {"$ref": "https://example.com/tree#/$defs/node"}},
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}, "required": ["n"]}
        },
    }
    made = brought(tree)
    assert made.check({"root": {"n": 1, "next": {"n": 2}}, "same": {"n": 3}})
    with pytest.raises(InvalidArguments, match=r"'root\.next\.n' is missing"):
        made.check({"root": {"n": 1, "next": {}}})
    meta = brought({"type": "object", "properties": {"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}})
    with pytest.raises(InvalidArguments, match="schema"):
        meta.check({"schema": {"type": 5}})


def test_nothing_is_ever_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote reference is refused when the tool is made, without opening a connection."""
    asked: list[Any] = []

    def connect(*args: Any, **options: Any) -> None:
        asked.append(args)
        raise OSError("offline")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    with pytest.raises(ConfigError, match=r"'https://example\.com/other' is not in the schema.*\$defs"):
        brought({"type": "object", "properties": {"a": {"$ref": "https://example.com/other"}}})
    hidden = brought({"type": "object", "properties": {"a": {"$id": "https://example.com/x", "$ref": "https://example.com/other"}}})
    with pytest.raises(InvalidArguments, match="cannot be checked"):
        hidden.check({"a": 1})
    assert asked == []


def test_references_that_multiply_refuse_the_call() -> None:
    """A server's schema of a few lines would be checked for ever; the model is told, and the process goes on."""
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    made = brought({"type": "object", "$ref": "#/$defs/d0", "$defs": {**doubling, "d60": {}}})
    with pytest.raises(InvalidArguments, match="cannot be checked"):
        made.check({"a": 1})


def test_another_draft_is_read_by_its_own_rules() -> None:
    """Servers still send draft 7: `items` as a list is a tuple there and an error in 2020-12."""
    pair = {"type": "object", "properties": {"pair": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}}}
    old = brought({"$schema": "http://json-schema.org/draft-07/schema#", **pair})
    assert old.check({"pair": [1, "a"]})
    with pytest.raises(InvalidArguments, match=r"pair\.0"):
        old.check({"pair": ["a", "a"]})
    with pytest.raises(ConfigError, match="items"):
        brought(pair)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "array"),
        (True, "boolean"),
        (None, "null"),
        ({"type": "string"}, "type is 'string'"),
        ({"type": "objekt"}, "objekt"),
        ({"type": "object", "properties": {"a": {"type": "strng"}}}, r"at properties\.a\.type"),
        ({"type": "object", "required": "a"}, "at required"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "is not in the schema"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, r"properties\.a\.pattern"),
        ({"a": object()}, "not JSON"),
    ],
)
def test_an_unsound_schema_is_refused_when_the_tool_is_made(schema: Any, said: str) -> None:
    """With the place of what is wrong."""
    with pytest.raises(ConfigError, match=said):
        brought(schema)


@pytest.mark.parametrize("execute", [lambda: 1, lambda a, b, c: 1, lambda args, *, key: 1], ids=["none", "three", "keyword"])
def test_execute_must_be_callable_with_arguments_and_context(execute: Any) -> None:
    """At once, not at the first call."""
    with pytest.raises(ConfigError, match="signature does not allow this"):
        brought(execute=execute)


def test_a_sensitive_name_that_the_schema_rules_out_is_refused() -> None:
    """A misspelt one would leave a secret in the log."""
    with pytest.raises(ConfigError, match="sensitive names 'citi'"):
        brought(sensitive=("citi",))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
RICH = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z]"},
        "n": {"type": "number", "multipleOf": 0.01, "exclusiveMaximum": 10},
        "list": {"type": "array", "uniqueItems": True, "contains": {"type": "integer"}, "prefixItems": [{"type": "string"}]},
        "any": {"anyOf": [{"type": "string"}, {"not": {"type": "null"}}]},
        "one": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "deep": {"$ref": "#"},
    },
    "dependentRequired": {"n": ["city"]},
    "if": {"required": ["list"]},
    "then": {"required": ["any"]},
    "unevaluatedProperties": False,
}


@given(args=st.dictionaries(st.sampled_from([*RICH["properties"], "other"]) | st.text(), json_values, max_size=5))
def test_any_json_is_accepted_or_refused_and_nothing_else(args: dict[str, Any]) -> None:
    """Whatever a model sends: accepted data passes again unchanged, all else is `InvalidArguments`."""
    for made in (RICH_TOOL, CITY_TOOL, TYPED_TOOL):
        checked = accepted(made, args)
        if checked is not None:
            assert made.check(checked) == checked
            assert msgspec.json.decode(msgspec.json.encode(checked)) == checked


def accepted(made: Tool[..., Any], args: dict[str, Any]) -> dict[str, Any] | None:
    """Return the checked arguments, None when they were refused as they should be; anything else fails the test."""
    try:
        return made.check(args)
    except InvalidArguments as error:
        problem = error
    assert problem.error_code == "schema_validation_failed"
    assert len(str(problem)) < 4000
    return None


RICH_TOOL, CITY_TOOL = brought(RICH), brought()


@tool(side_effect="read")
async def TYPED_TOOL(city: str, n: float = 0, list: list[int] | None = None, deep: dict[str, Any] | None = None) -> None:  # noqa: A002
    """Take many types."""


def nested(depth: int) -> dict[str, Any]:
    """Return objects inside of objects."""
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"deep": inner}
    return inner


@pytest.mark.parametrize("made", [RICH_TOOL, TYPED_TOOL], ids=["schema", "function"])
def test_arguments_nested_without_end_are_refused(made: Tool[..., Any]) -> None:
    """A recursion limit is no crash."""
    with pytest.raises(InvalidArguments):
        made.check(nested(20_000) if made is RICH_TOOL else {"city": "A", "deep": nested(20_000)})


def test_the_digest_changes_with_what_a_recorded_call_relies_on() -> None:
    """Name, schemas, side effect and idempotency; not with the order of keys, the description or the time limit."""
    same = dict(reversed(CITY.items()))
    base = schema_digest(brought().spec)
    assert schema_digest(brought(same, timeout_s=5).spec) == base
    others = [
        brought({**CITY, "required": []}),
        brought(side_effect="write"),
        brought(idempotent=True),
        brought(result_schema={"type": "string"}),
        Tool.from_schema(name="other", description="Look up.", input_schema=CITY, execute=lambda args: args, side_effect="read"),
    ]
    digests = {base, *(schema_digest(made.spec) for made in others)}
    assert len(digests) == 6
    assert all(len(digest) == 64 for digest in digests)


WHOLE: list[tuple[dict[str, Any], Any, Any]] = [
    ({"properties": {"n": {"type": "integer"}}}, {"n": 5.0}, {"n": 5}),
    ({"properties": {"n": {"type": ["integer", "null"]}}}, {"n": -0.0}, {"n": 0}),
    ({"properties": {"n": {"type": "number"}}}, {"n": 5.0}, {"n": 5.0}),
    ({"properties": {"n": {}}}, {"n": 5.0}, {"n": 5.0}),
    ({"properties": {"n": {"type": "integer"}}}, {"n": 1e300}, {"n": 1e300}),
    ({"properties": {"l": {"items": {"type": "integer"}}}}, {"l": [1.0, 2]}, {"l": [1, 2]}),
    ({"properties": {"l": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False}}}, {"l": ["a", 2.0]}, {"l": ["a", 2]}),
    ({"additionalProperties": {"type": "integer"}}, {"a": 1.0}, {"a": 1}),
    ({"patternProperties": {"^n": {"type": "integer"}}}, {"n1": 1.0, "m": 1.0}, {"n1": 1, "m": 1.0}),
    (
        {"properties": {"n": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}}, "$defs": {"n": {"type": "integer"}}},
        {"n": 3.0},
        {"n": 3},
    ),
    ({"properties": {"n": {"allOf": [{"type": "integer"}, {"minimum": 2}]}}}, {"n": 3.0}, {"n": 3}),
    ({"properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}, {"next": {"next": {"n": 7.0}}}, {"next": {"next": {"n": 7}}}),
]


@pytest.mark.parametrize(("schema", "sent", "passed"), WHOLE)
def test_an_integer_of_a_brought_schema_is_passed_on_as_one(schema: dict[str, Any], sent: Any, passed: Any) -> None:
    """JSON Schema takes 5.0 for an integer, and so it arrived as a float: an index, a page, a count of rows."""
    seen: list[Any] = []
    looks = brought({"type": "object", **schema}, execute=seen.append)
    assert attempt(looks, sent).kind == "ok"
    assert repr(seen) == repr([passed])
