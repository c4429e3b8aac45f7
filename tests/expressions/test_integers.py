"""Which numbers a schema means: whole ones where it wants integers, wherever in the value and the schema they are, and none that would change."""

from __future__ import annotations

from typing import Any

import pytest

from detent import Tool, tool
from detent.core.errors import InvalidArguments
from detent.expressions.integers import inexact, with_integers

INTEGER, NUMBER = {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "whole"),
    [
        (INTEGER, True),
        ({"type": ["integer", "null"]}, True),
        ({"type": ["integer", "number"]}, False),
        (NUMBER, False),
        ({}, False),
        (True, False),
        ({"enum": [5]}, False),
        ({"anyOf": [{"type": "string"}, INTEGER]}, True),
        ({"anyOf": [NUMBER, INTEGER]}, False),
        ({"oneOf": [INTEGER]}, True),
        ({"allOf": [{"minimum": 1}, {"anyOf": [INTEGER]}]}, True),
        ({"if": {}, "then": INTEGER}, True),
        ({"if": {}, "else": INTEGER}, True),
        ({"not": INTEGER}, False),
        ({"$ref": "#/$defs/N"}, True),
        ({"$ref": "#/$defs/a~1b~0c%25"}, True),
        ({"$ref": "#/$defs/list/1"}, True),
        ({"$ref": "#/$defs/list/9"}, False),
        ({"$ref": "#/$defs/list/2"}, False),
        ({"$ref": "#/$defs/list/x"}, False),
        ({"$ref": "#/$defs/nowhere/n"}, False),
        ({"$ref": "https://example.com/N"}, False),
        ({"$ref": 5}, False),
        ({"$ref": "#/$defs/Loop"}, True),
    ],
)
def test_a_whole_number_is_an_integer_where_the_schema_wants_one(schema: Any, whole: bool) -> None:
    """And where it takes numbers, too, it stays as it was written."""
    defs = {"N": INTEGER, "a/b~c%": INTEGER, "list": [{}, INTEGER], "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, INTEGER]}}
    root = {"type": "object", "properties": {"n": schema}, "$defs": defs}
    changed: list[str] = []
    assert str(with_integers({"n": 5.0}, root, changed)) == ("{'n': 5}" if whole else "{'n': 5.0}")
    assert changed == (["n"] if whole else [])
    for kept in (5.5, 2.0**53, -(2.0**53), 1e300, True, "5.0", None, 5):
        assert with_integers({"n": kept}, root) == {"n": kept} and type(with_integers({"n": kept}, root)["n"]) is type(kept)
    assert with_integers({"n": 2.0**53 - 1}, root)["n"] == 2**53 - 1


@pytest.mark.parametrize(
    ("schema", "value", "meant"),
    [
        ({"additionalProperties": INTEGER}, {"a": 1.0, "b": {"c": 1.0}}, {"a": 1, "b": {"c": 1.0}}),
        ({"properties": {"a": {}}, "additionalProperties": INTEGER}, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1}),
        ({"patternProperties": {"^n_": INTEGER}}, {"n_1": 1.0}, {"n_1": 1}),
        ({"properties": {"n_1": {}}, "patternProperties": {"^n_": INTEGER}}, {"n_1": 1.0}, {"n_1": 1}),
        ({"items": INTEGER}, [1.0, 2.5, 3], [1, 2.5, 3]),
        ({"items": {"items": INTEGER}}, [[1.0], 2.0], [[1], 2.0]),
        ({"prefixItems": [{}, INTEGER], "items": NUMBER}, [1.0, 1.0, 1.0], [1.0, 1, 1.0]),
        ({"prefixItems": [NUMBER], "items": INTEGER}, [1.0, 1.0], [1.0, 1]),
        ({"items": [NUMBER, INTEGER], "additionalItems": INTEGER}, [1.0, 1.0, 1.0], [1.0, 1, 1]),
        ({"$ref": "#"}, [1.0], [1.0]),
        ({"properties": {"next": {"$ref": "#"}, "n": INTEGER}}, {"next": {"next": {"n": 1.0}}}, {"next": {"next": {"n": 1}}}),
    ],
)
def test_it_is_found_wherever_it_is(schema: dict[str, Any], value: Any, meant: Any) -> None:
    """In lists, under names that are not declared, and in what refers to itself."""
    assert str(with_integers(value, schema)) == str(meant)
    assert str(value) != str(meant) or value == meant


def test_the_place_of_each_is_told() -> None:
    """From the outside in."""
    changed: list[str] = []
    with_integers({"a": {"b": [1.5, 1.0]}}, {"properties": {"a": {"properties": {"b": {"items": INTEGER}}}}}, changed)
    assert changed == ["a.b.1"]


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        (2**53 - 1, False),
        (2**53, False),
        (2**53 + 1, True),
        (-(2**53) - 1, True),
        (2**70, False),
        (2**1022, False),
        (10**22, False),
        (10**23, True),
        (10**400, True),
    ],
)
def test_a_large_integer_that_is_no_float_is_told(value: int, lost: bool) -> None:
    """Where floats alone are taken; an integer that a float holds is none the worse for it."""
    schema: dict[str, Any] = {
        "properties": {
            "n": {"type": ["number", "null"]},
            "i": {"type": ["integer", "number"]},
            "t": {},
            "d": {"anyOf": [NUMBER, {"type": "string"}]},
        }
    }
    assert inexact({"n": value, "i": value, "t": value, "d": value}, schema) == (["n"] if lost else [])
    assert inexact({"n": float(2**60)}, schema) == []


# Tools --------------------------------------------------------------------------------------------------------------------------


def brought(schema: Any) -> Any:
    """Return a tool that brings its schema, with one argument."""
    schema = {"type": "object", "properties": {"n": schema}, "$defs": {"N": INTEGER}}
    return Tool.from_schema(name="take", description="", input_schema=schema, execute=lambda args: args, side_effect="read")


@pytest.mark.parametrize(
    "schema", [INTEGER, {"type": ["integer", "null"]}, {"$ref": "#/$defs/N"}, {"anyOf": [INTEGER, {"type": "string"}]}]
)
def test_a_brought_schema_gets_integers_and_nothing_like_them(schema: Any) -> None:
    """5.0 arrives as 5; a fraction, and what is too large to be exact, are refused."""
    for given in (5.0, 5):
        checked = brought(schema).check({"n": given})
        assert str(checked) == "{'n': 5}" and brought(schema).check(checked) == checked
    for given in (5.5, 1e16, 2.0**53, True, -0.5):
        with pytest.raises(InvalidArguments, match="argument 'n'"):
            brought(schema).check({"n": given})


def test_a_typed_function_gets_integers_and_nothing_like_them() -> None:
    """Nested, too; a float stays one, and a number that it cannot hold is refused by name."""

    @tool(side_effect="read")
    def take(n: int, many: dict[str, list[int]] | None = None, f: float = 0.0) -> str:
        """Take them."""
        return ""

    assert str(take.check({"n": 5.0, "many": {"a": [1.0]}, "f": 2.0})) == "{'n': 5, 'many': {'a': [1]}, 'f': 2.0}"
    assert take.check({"n": 2**53 + 1, "f": 2**53})["n"] == 2**53 + 1
    for wrong in ({"n": 5.5}, {"n": 5, "many": {"a": [True]}}, {"n": 1e16}):
        with pytest.raises(InvalidArguments):
            take.check(wrong)
    with pytest.raises(InvalidArguments, match=r"take: argument 'f': the number is too large to be kept exactly. Nothing was executed"):
        take.check({"n": 5, "f": 2**53 + 1})
