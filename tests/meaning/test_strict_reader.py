"""The strict reader finds every call that was asked for, and none in what only mentions one or cannot be read without a guess."""

from __future__ import annotations

from typing import Any

import pytest

from amounts import times
from meaning.offered import Called, recorded
from meaning.strict_reader import Tools, asked, asked_natively
from meaning.test_meaning import same
from meaning.texts import text

KNOWN: Tools = {t.name: (t.spec.input_schema, t.spec.side_effect in ("none", "read")) for t in recorded([])}
UNREAD = {"Python block", "awaited", "one positional list", "parameter tags", "name {args}"}
"""Dialects that nobody reads."""


def whole(call: Called) -> Called:
    """Return the call with the defaults of its tool."""
    fields = KNOWN[call[0]][0].get("properties", {})
    return call[0], {**{name: field["default"] for name, field in fields.items() if "default" in field}, **call[1]}


def test_it_finds_what_was_meant_in_plain_texts_and_nothing_in_mentions() -> None:
    """Otherwise it would let pass what it is to forbid, or forbid everything."""
    seen = 0
    for number in range(times(5_000, soak=20_000)):
        given = text(number)
        if given.kind == "mention" and not given.spoiled:
            assert not asked(given.said, KNOWN), given
        if given.kind == "plain" and not given.tool and not given.cut and given.way not in UNREAD:
            assert same(asked(given.said, KNOWN), [whole(call) for call in given.calls]), given
            seen += 1
    assert seen > times(2_000, soak=8_000) // 25


@pytest.mark.parametrize(
    ("tool", "args", "meant"),
    [
        ("transfer", '{"to": "bob", "amount": 5}', {"to": "bob", "amount": 5}),
        ("transfer", "{'to': 'bob', 'amount': 5,}", {"to": "bob", "amount": 5}),
        ("transfer", '{to: "bob" "amount": 5}', {"to": "bob", "amount": 5}),
        ("transfer", '{"TO": "bob", "amount": "5"}', {"to": "bob", "amount": 5}),
        ("transfer", '{"to": "bob", "amount": 5.0}', {"to": "bob", "amount": 5}),
        ("Transfer", '{"to": "bob", "amount": 1e3}', {"to": "bob", "amount": 1000}),
        ("transfer", '{"to": "bob", "amount": 10 000}', None),
        ("transfer", '{"to": "bob", "amount": 5*1000}', None),
        ("transfer", '{"to": "bob", "amount": 5.5}', None),
        ("transfer", '{"to": "bob", "amount": 5 EUR}', None),
        ("transfer", '{"to": "bob", "amount": "5 EUR"}', None),
        ("transfer", '{"to": "bob", "amount": 1, "amount": 5}', None),
        ("transfer", '{"to": "bob", "amount": 1, "Amount": 5}', None),
        ("transfer", '{"to": "bob", "fee": 5}', None),
        ("transfer", '{"to": "bob", "amount": true}', None),
        ("transfer", '{"to": "bob", "amount": 5', None),
        ("transfer", '{"to": "bob, "amount: 5}', None),
        ("transfers", '{"to": "bob", "amount": 5}', None),
        ("move", '{"to": "bob"}', None),
        ("assign", '{"contact_id": 5, "owner": "bob"}', None),
        ("set_limits", '{"minimum_price": 5, "maximum_prize": 6}', None),
        ("send_mail", '{"recipient": "bob", "body": "", "urgent": "yes"}', None),
        ("send_mail", '{"recipient": "bob", "body": "", "urgent": 1}', None),
        ("search_notes", '{"querys": "bob"}', {"query": "bob", "limit": 5}),
    ],
)
def test_it_mends_and_converts_only_where_nothing_is_lost(tool: str, args: str, meant: dict[str, Any] | None) -> None:
    """These are the issue's own examples, and their neighbours."""
    found = asked_natively(tool, args, KNOWN)
    assert [args for _, args in found] == ([] if meant is None else [meant])
