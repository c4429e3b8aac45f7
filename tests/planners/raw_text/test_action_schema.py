"""The schema for constrained decoding: exactly the calls and actions that are offered."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from detent.planners.raw_text.action_schema import SchemaChecks, action_schema, compiled
from detent.planners.text.offers import ACTIONS
from detent.ports import ToolSpec
from planners.raw_text.texts import ADD, READ

TREE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "self": {"$ref": "#"}}, "additionalProperties": False}
    },
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}},
    "additionalProperties": False,
}


def fits(schema: dict[str, Any], value: Any) -> bool:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid(value)


def test_a_call_has_the_arguments_of_its_own_tool() -> None:
    """Another tool's arguments, an unknown tool, or something beside fit nothing."""
    schema = action_schema((READ, ADD))
    assert fits(schema, {"type": "tool_call", "tool": "add", "args": {"a": 1, "b": 2}})
    for bad in (
        {"type": "tool_call", "tool": "add", "args": {"path": "x"}},
        {"type": "tool_call", "tool": "gone", "args": {}},
        {"type": "tool_call", "tool": "add"},
        {"type": "tool_call", "tool": "add", "args": {"a": 1, "b": 2}, "more": 1},
        {"type": "final_answer", "content": ""},
        {"type": "push_goal", "goal": "x"},
    ):
        assert not fits(schema, bad), bad


def test_references_inside_a_tools_schema_still_lead_where_they_did() -> None:
    """Recursive ones too, and the tool's own schema is not changed."""
    tree = ToolSpec(name="tree", input_schema=TREE)
    schema = action_schema((tree, ADD))
    deep = {"node": {"next": {"next": {"self": {"node": {}}}}}}
    assert fits(schema, {"type": "tool_call", "tool": "tree", "args": deep})
    assert not fits(schema, {"type": "tool_call", "tool": "tree", "args": {"node": {"next": {"other": 1}}}})
    assert tree.input_schema["properties"]["node"] == {"$ref": "#/$defs/node"}


def test_every_action_has_a_shape() -> None:
    """One for each action that may be offered; an answer follows the output schema."""
    schema = action_schema((), actions=ACTIONS, output_schema=TREE)
    assert len(schema["anyOf"]) == len(ACTIONS) - 1
    assert fits(schema, {"type": "final_answer", "content": {"node": {}}})
    assert not fits(schema, {"type": "final_answer", "content": "x"})
    assert fits(schema, {"type": "schedule", "delay_s": 5})


def test_problems_are_short_and_few() -> None:
    """At most three places, no long values; a schema that allows all has none."""
    said = compiled({"type": "array", "items": {"type": "integer"}})(["x" * 1000] * 50)
    assert len(said) < 600
    assert compiled({})(5) == ""
    assert SchemaChecks((READ,), None).arguments({"path": 1}, "read_file").startswith("path:")


@pytest.mark.parametrize("schema", [{"$ref": "https://example.com/x.json"}, {"pattern": "("}])
def test_a_schema_that_cannot_be_used_accepts_nothing(schema: dict[str, Any]) -> None:
    """Nothing is fetched; what cannot be checked is said not to fit."""
    assert "cannot be checked" in compiled({"type": "string", **schema})("x")


def test_what_does_not_fit_shows_no_value_of_a_sensitive_field() -> None:
    """It stands in the log as the problem that was repaired; what is wrong with other fields is said in full."""
    secret, fields = "hunter2", {"password": {"type": "string", "minLength": 9}, "n": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": fields,
        "required": ["n"],
        "additionalProperties": False,
        "not": {"required": ["password", "n"]},
    }
    spec = ToolSpec(name="login", input_schema=schema, sensitive=("password",))
    said = SchemaChecks((spec,), None).arguments
    assert said({"password": secret}, "login") == "password: does not meet 'minLength'; 'n' is a required property"
    assert said({"password": f"{secret} {secret}", "n": 1}, "login") == "does not meet 'not'"
    assert "'x' is not of type 'integer'" in said({"n": "x", secret: 1}, "login")
