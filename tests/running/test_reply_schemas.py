"""What a question expects is written by a planner: no schema of it keeps the check of a reply busy, and none keeps a person from being told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, AskUser, Engine, FinalAnswer
from detent.core.errors import NotAllowedNow
from detent.expressions.patterns import drop_foreign_patterns
from detent.running.admission import fitting_reply
from laws.places import PurePlanner

pytestmark = thinned

SLOW = "^(?=a)(a+)+$"
NEVER = "a" * 64 + "!"


def refused(reply: Any, schema: dict[str, Any]) -> str:
    with pytest.raises(NotAllowedNow) as caught:
        fitting_reply("r", reply, schema)
    return caught.value.reason_code


def test_a_pattern_that_would_never_end_is_not_matched_against_a_reply() -> None:
    """The rest of the schema holds; a quick pattern holds too."""
    assert fitting_reply("r", NEVER, {"type": "string", "pattern": SLOW}) == NEVER
    assert refused(NEVER, {"type": "string", "pattern": "^(a+)+$"}) == "reply_not_as_expected"
    assert refused(5, {"type": "string", "pattern": SLOW}) == "reply_not_as_expected"
    assert refused("b", {"type": "string", "pattern": "^a+$"}) == "reply_not_as_expected"
    assert fitting_reply("r", "aa", {"type": "string", "pattern": "^a+$"}) == "aa"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"default": {"pattern": SLOW}}},
        {"patternProperties": {SLOW: {"type": "string"}}},
        {"$ref": "#/const", "const": {"properties": {"default": {"pattern": SLOW}}}},
        {"$defs": {"enum": {"properties": {"default": {"pattern": SLOW}}}}, "$ref": "#/$defs/enum"},
        {"allOf": [{"additionalProperties": {"anyOf": [{"pattern": SLOW}]}}]},
    ],
)
def test_a_slow_pattern_is_found_wherever_it_stands(schema: dict[str, Any]) -> None:
    """Also under names that are words of the schema elsewhere, and where only a reference leads."""
    reply = {"default": NEVER, NEVER: "x"}
    if "const" in schema:
        assert refused(reply, schema) == "reply_not_as_expected"
    else:
        assert fitting_reply("r", reply, schema) == reply


def test_dropping_patterns_leaves_everything_else() -> None:
    """A property that is called `pattern` is no pattern."""
    schema = {"properties": {"pattern": {"type": "string", "pattern": "^x"}, "b": {"pattern": SLOW, "type": "string"}}}
    drop_foreign_patterns(schema)
    assert schema == {"properties": {"pattern": {"type": "string", "pattern": "^x"}, "b": {"type": "string"}}}


DOUBLING = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d60": {}}},
        {"$ref": "#/$defs/d0", "unevaluatedProperties": False, "$defs": {**DOUBLING, "d60": {}}},
        {"$ref": "#"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/$defs/d0", "$defs": {**DOUBLING, "d60": {}}},
        {"allOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/$defs/d0"}], "$defs": {**DOUBLING, "d60": {}}},
    ],
)
def test_references_that_multiply_are_given_up(schema: dict[str, Any]) -> None:
    """A schema of a few lines that would be checked for ever cannot be used; the refusal says how to go on."""
    with pytest.raises(NotAllowedNow, match="cancel the run, or resume it with another agent") as caught:
        fitting_reply("r", {"a": 1}, schema)
    assert caught.value.reason_code == "unusable_schema"


def test_references_that_are_used_as_they_are_meant_work() -> None:
    """A tree of nodes, each by reference."""
    tree = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    assert fitting_reply("r", "[[], [[]]]", tree) == [[], [[]]]
    assert refused([[], [5]], tree) == "reply_not_as_expected"


def test_a_run_whose_question_has_a_slow_pattern_can_be_answered() -> None:
    """From the plan of a model to the end of the run."""

    async def main() -> None:
        ask = AskUser(question="Which?", expected={"type": "string", "pattern": SLOW})
        made = Engine(
            store="ram:", planner=PurePlanner(lambda view: ask if view.iteration == 1 else FinalAnswer(content="done")), approver="caller"
        )
        waiting = await made.run(Agent(name="w"), "go")
        assert waiting.status == "waiting_for_user"
        with pytest.raises(NotAllowedNow):
            await made.reply(waiting.run_id, 5)
        assert (await made.reply(waiting.run_id, NEVER)).status == "completed"

    asyncio.run(main())
