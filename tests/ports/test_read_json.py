"""Reading JSON that somebody else wrote: it says one thing, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from detent.ports import MOST_NESTED, calls_in, read_json
from detent.ports.json_data import Unclear, strict_json


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": {"a": 1}}', {"a": 1, "b": {"a": 1}}),
        ("[5, 5.0, -0.0, 5e3, 1.5e-7]", [5, 5.0, -0.0, 5000.0, 1.5e-7]),
        ("3.14159265358979323846", 3.141592653589793),  # rounded as everywhere, and no other whole number
        ("6.02214076e23", 6.02214076e23),
        ("1e308", 1e308),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("9007199254740991.0", 9007199254740991.0),
    ],
)
def test_json_is_read_as_it_is_written(text: str, value: Any) -> None:
    """As text or bytes; numbers keep their value and kind."""
    assert repr(read_json(text)) == repr(read_json(text.encode())) == repr(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "'a' is given twice in one object"),
        ('{"a": 1, "a": 1}', "'a' is given twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' is given twice"),
        ('[{"x": {"b": 1, "c": 2, "b": 3}}]', "'b' is given twice"),
        ("4.99999999999999999999", "too large, too small or too long"),
        ("9007199254740990.6", "too large"),
        ("-1.00000000000000000001", "too large"),
        ("1e-400", "too large"),
        ("1e-99999999999999999999", "too large"),
        ("1e999", "out of range"),
        ("NaN", "malformed"),
        ("{'a': 1}", "malformed"),
        ('{"a": 1,}', "malformed"),
        ("[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1), "nests deeper than 200 levels"),
    ],
)
def test_what_does_not_say_one_thing_is_refused(text: str, problem: str) -> None:
    """A name that is given twice, and a number that would become another whole number."""
    with pytest.raises(msgspec.DecodeError, match=problem):
        read_json(text)


def test_many_brackets_are_no_depth() -> None:
    """Those that are closed count no more."""
    many = [[{"a": "["}]] * MOST_NESTED
    assert read_json(json.dumps(many)) == many


@pytest.mark.parametrize(
    ("text", "kind"), [("1e999", Unclear), ("-1e999999999999999999999", Unclear), ("NaN", ValueError), ("[-Infinity]", ValueError)]
)
def test_no_number_is_infinite(text: str, kind: type[Exception]) -> None:
    """Nor none at all."""
    with pytest.raises(kind):
        strict_json.decode(text)


def test_many_names_take_a_time_in_proportion_to_their_number() -> None:
    """Also where the last one is given twice."""
    text = "{" + ",".join(f'"{n}": 1' for n in range(100_000)) + ', "99999": 2}'
    with pytest.raises(msgspec.DecodeError, match="'99999' is given twice"):
        read_json(text)
    with pytest.raises(msgspec.DecodeError) as caught:
        read_json('{"' + "n" * 1000 + '": 1, "' + "n" * 1000 + '": 2}')
    assert len(str(caught.value)) < 150


def test_a_call_in_an_answer_with_a_name_given_twice_is_none() -> None:
    """As native arguments and JSON in text."""
    assert list(calls_in('pay({"n": 1, "n": 2})', ("pay",))) == []
    assert len(list(calls_in('pay({"n": 1, "m": 2})', ("pay",)))) == 1


def test_a_call_in_the_last_line_is_found_whatever_stands_before_it() -> None:
    """It is not made; its sensitive fields are hidden all the same."""
    assert list(calls_in('I must not.\npay({"n": 1})', ("pay",))) == [('pay({"n": 1})', "pay", {"n": 1})]
    assert not list(calls_in('I must not.\npay({"n": 1})', ("other",)))
