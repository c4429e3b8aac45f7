"""Mending broken JSON: every name and value of the result is one whole token of the text, no token is left over, and nothing is guessed."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from amounts import times
from detent.core.actions import FinalAnswer, ToolCall
from detent.planners.text.json_objects import as_written, mends_in, objects_in
from detent.planners.text.mending import Broken, mended
from detent.ports.json_data import Unclear

SINGLE, CURLY, NAMES = "single quotes", "typographic quotes", "names without quotes"
PYTHON, COMMA = "True, False or None for true, false or null", "a comma after the last item"
CONTROL, SPACE = "line breaks or other control characters inside of a text", "white space that JSON does not have"


@pytest.mark.parametrize(
    ("text", "value", "mends"),
    [
        ("{'a': 'b'}", {"a": "b"}, [SINGLE]),
        ("{'a': 'it\\'s \"b\" \\\\ \\n \\u00e9'}", {"a": 'it\'s "b" \\ \n é'}, [SINGLE]),
        ("{'a': '\\ud83d\\ude00'}", {"a": "😀"}, [SINGLE]),
        ('{“a”: \u2018it is "b"\u2019}', {"a": 'it is "b"'}, [CURLY]),
        ('{“a\\\\”: “\\"”}', {"a\\": '"'}, [CURLY]),
        ('{“a”: “x\\\\y\\n"z”, \u2018b\u2019: \u2018\\\\y\\nz\u2019}', {"a": 'x\\y\n"z', "b": "\\y\nz"}, [CURLY]),
        ('{"a": \'b\', “c”: "d"}', {"a": "b", "c": "d"}, [SINGLE, CURLY]),
        ("{a: 1, b_2: 2, größe-3: 3}", {"a": 1, "b_2": 2, "größe-3": 3}, [NAMES]),
        ('{"a": [True, False, None, true, false, null]}', {"a": [True, False, None, True, False, None]}, [PYTHON]),
        ('{"a": [1, 2,],}', {"a": [1, 2]}, [COMMA]),
        ('{"a": {},}', {"a": {}}, [COMMA]),
        ('{"a": "x\ny\t\x00"}', {"a": "x\ny\t\x00"}, [CONTROL]),
        ("{'a': 'x\ny'}", {"a": "x\ny"}, [SINGLE, CONTROL]),
        ('{\u00a0"a": 1}', {"a": 1}, [SPACE]),
        (
            "{'a': [0, -1, 2.5, 1e3, -0.5E-2, 1e+2, 12345678901234567890]}",
            {"a": [0, -1, 2.5, 1000.0, -0.005, 100.0, 12345678901234567890]},
            [SINGLE],
        ),
        ("{'a': {'b': [{'c': []}, {}]}}", {"a": {"b": [{"c": []}, {}]}}, [SINGLE]),
        ("[{'a': 1}, {'b': 2}]", [{"a": 1}, {"b": 2}], [SINGLE]),
        ("{'a': '}'}", {"a": "}"}, [SINGLE]),
        ("{'a': '\"'}", {"a": '"'}, [SINGLE]),
        ("{'': ''}", {"": ""}, [SINGLE]),
        ("{'a': '\\n\\n'}", {"a": "\n\n"}, [SINGLE]),
        ('{“a”: “\\n\\n”, b: "\\n\\n"}', {"a": "\n\n", "b": "\n\n"}, [CURLY, NAMES]),
    ],
)
def test_what_is_written_otherwise_and_says_the_same_is_read(text: str, value: Any, mends: list[str]) -> None:
    """Other quotes, names without any, Python's words, a comma at the end, line breaks: what was wrong is said, and what follows is not touched."""
    assert mended(text, 0) == (value, len(text), tuple(mends))
    assert mended(f"x {text} 'y", 2) == (value, len(text) + 2, tuple(mends))
    (found,) = objects_in(text)
    assert (json.dumps(found.value), found.mended, found.mends) == (json.dumps(value), True, tuple(mends))


WORD, QUOTED = "a word or number", "a text in quotes"
ODD_NUMBERS = (
    "+5",
    "05",
    "-05",
    ".5",
    "5.",
    "1_000",
    "0x10",
    "1e",
    "1e+",
    "--5",
    "-",
    "\u0665",
    "5km",
    "5%",
    "1.2.3",
    "(5)",
    "f(5)",
    "#5",
    "5;",
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"amount": 10 000}', f'after "amount" there must be a comma or }}, not {WORD}'),
        ('{"amount": 10,000}', 'after "amount" there must be a name, not a word or number'),
        ('{"amount": 5*1000}', 'after "amount" there is a word that is neither a number nor in quotes'),
        ('{"amount": 5 * 1000}', f'after "amount" there must be a comma or }}, not {WORD}'),
        ('{"amount" 5}', f'after "amount" there must be a colon, not {WORD}'),
        ('{"amount": }', "after \"amount\" there must be a value, not '}'"),
        ('{"amount"}', "after \"amount\" there must be a colon, not '}'"),
        ('{"amount": , "to": 1}', "after \"amount\" there must be a value, not ','"),
        ('{"amount":: 1}', "there must be a value, not ':'"),
        ('{"amount": 5 "to": 1}', f'after "amount" there must be a comma or }}, not {QUOTED}'),
        ('{"amount": 5: 6}', "there must be a comma or }, not ':'"),
        ('{"amount": 5,, "to": 1}', "there must be a name, not ','"),
        ('{, "amount": 5}', "there must be a name, not ','"),
        ('{"a": [,]}', "there must be a value, not ','"),
        ('{"a": [1 2]}', f"there must be a comma or ], not {WORD}"),
        ('{"a": ["x" "y"]}', f"there must be a comma or ], not {QUOTED}"),
        ('{"a": [1}', "there must be a comma or ], not '}'"),
        ('{"a": {"b": 1]', "there must be a comma or }, not ']'"),
        ('{"a": 1', "there must be a comma or }, not the end"),
        ('{"a":', "there must be a value, not the end"),
        ('{"a', "there must be a name, not a quote that is never closed"),
        ('{"a": "x', "there must be a value, not a quote that is never closed"),
        ("{'a': 'it's'}", f"there must be a comma or }}, not {WORD}"),
        ("{'a': \"x'}", "there must be a value, not a quote that is never closed"),
        ('{“a": 1}', "there must be a name, not a quote that is never closed"),
        ("{”a”: 1}", "there must be a name, not a quote that is never closed"),
        ('{"a": bob}', "a word that is neither a number nor in quotes"),
        ('{"a": $x}', "a word that is neither a number nor in quotes"),
        ('{"a": TRUE}', "a word that is neither a number nor in quotes"),
        ('{"a": none}', "a word that is neither a number nor in quotes"),
        ('{"a": NaN}', "a word that is neither a number nor in quotes"),
        ('{"a": Infinity}', "a word that is neither a number nor in quotes"),
        ('{"a": undefined}', "a word that is neither a number nor in quotes"),
        ('{"a": ...}', "a word that is neither a number nor in quotes"),
        *[(f'{{"a": {said}}}', "a word that is neither a number nor in quotes") for said in ODD_NUMBERS],
        ('{"a": 1 // one\n}', f"there must be a comma or }}, not {WORD}"),
        ('{"a": 1, /* b */}', f"there must be a name, not {WORD}"),
        ('{"a": 1, # b\n}', f"there must be a name, not {WORD}"),
        ('{"a" = 1}', f"there must be a colon, not {WORD}"),
        ('{"a" => 1}', f"there must be a colon, not {WORD}"),
        ("{1: 2}", f"there must be a name, not {WORD}"),
        *[(f"{{{word}: 2}}", f"there must be a name, not {WORD}") for word in ("true", "None", "a.b", "-a", "$a", "a!")],
        ("{[1]: 2}", "there must be a name, not '['"),
        ("{{}}", "there must be a name, not '{'"),
        ('{"a": b"c"}', "a word that is neither a number nor in quotes"),
        ('{"a": "b"c}', f"there must be a comma or }}, not {WORD}"),
        ('{"a": """b"""}', f"there must be a comma or }}, not {QUOTED}"),
        ('{"a": "C:\\dir\\new"}', 'after "a" there is a backslash that escapes nothing in JSON; write \\\\ for a backslash'),
        ('{"a": "it\\\'s"}', "a backslash that escapes nothing in JSON; write \\\\ for a backslash"),
        ("{'a': '\\x41'}", "a backslash that escapes nothing in JSON; write \\\\ for a backslash"),
        ("{'a': '\\u12'}", "a backslash that escapes nothing in JSON; write \\\\ for a backslash"),
        ("{“a”: “\\”x”}", "a backslash that escapes nothing in JSON; write \\\\ for a backslash"),
        ('{\\"a\\": 1}', f"there must be a name, not {WORD}"),
        ('{"a"\uff1a1}', f"there must be a colon, not {WORD}"),
        ('{"a": 1\uff0c"b": 2}', "a word that is neither a number nor in quotes"),
        ('{"a": ' + "[" * 200 + "]" * 200 + ",}", "it nests deeper than 200 levels"),
    ],
)
def test_what_would_have_to_be_guessed_is_not_read(text: str, problem: str) -> None:
    """The message says what stands where something else must."""
    with pytest.raises(Broken) as caught:
        mended(text, 0)
    assert str(caught.value).endswith(problem)


def test_it_may_nest_as_deep_as_other_json() -> None:
    """And no deeper, in lists and in objects."""
    for opening, closing, most in (("[", "]", 200), ("{'a':", "}", 200), ("[{'a':", "}]", 100)):
        assert mended(opening * most + " 1" + closing * most, 0)[1] > most
        with pytest.raises(Broken, match="deeper"):
            mended(opening * most + "[]" + closing * most, 0)


@pytest.mark.parametrize("text", ["{'a': 1, 'b': 2, 'a': 1}", "{'x': {'a': 1, a: 2}}", '{"a": 1, “a”: 2,}'])
def test_a_name_that_is_given_twice_says_nothing(text: str) -> None:
    """Whatever the values, and however the names are quoted."""
    with pytest.raises(Unclear, match="'a' is given twice in one object"):
        mended(text, 0)


def test_a_number_that_cannot_be_kept_says_nothing() -> None:
    """In broken JSON as in sound JSON."""
    for said in ("1e999", "4.99999999999999999999", "1e-400"):
        with pytest.raises(Unclear, match="too large, too small or too long"):
            mended(f"{{'a': {said}}}", 0)


def test_no_problem_shows_a_value() -> None:
    """It may be a password."""
    for text in ("{'p': 'hunter2' 'x'}", "{'p': hunter2}", '{"p": "hunter2\\q"}', "{'p': hunter2 3}", "{'p': ['hunter2', x]}"):
        (found,) = objects_in(text)
        assert found.problem.startswith('it is not JSON: after "p" there') and "hunter2" not in found.problem
    (long,) = objects_in('{"' + "ß" * 1000 + '" 1}')
    assert 'after "' + "ß" * 80 + '" there' in long.problem
    (long,) = objects_in("{'" + "ß" * 1000 + "': 1, '" + "ß" * 1000 + "': 1}")
    assert f"'{'ß' * 80}' is given twice" in long.problem


@pytest.mark.parametrize("text", ['{"a": 1} {"b": {"c": 1, "c": 1}} {"d": 2}', "{'a': 1} {'b': x} {'d': 2}"])
def test_one_object_that_cannot_be_read_does_not_hide_the_others(text: str) -> None:
    """It has a problem, and begins and ends where it does."""
    first, broken, last = objects_in(text)
    assert (first.value, broken.value, last.value) == ({"a": 1}, None, {"d": 2}) and broken.problem
    assert (text[broken.start], text[broken.end - 1], broken.mended, broken.whole) == ("{", "}", False, True)


def test_an_object_that_is_never_closed_is_not_completed() -> None:
    """What is missing cannot be known."""
    for text in ("{'a': 1", "{'a': {'b': 1}", "{a: 1, b: [1, 2}", '{"a": "b'):
        (found,) = objects_in(text)
        assert (found.value, found.whole, found.problem) == (None, False, "the JSON is not complete")


def test_a_call_says_what_was_written_and_what_was_wrong_with_it() -> None:
    """Not other actions, and not what was only thought."""
    text = "<think>{b: 1}</think>{'tool': 'pay', 'args': {'n': 1,},}"
    call, answer = as_written([ToolCall(tool="pay", args={"n": 1}), FinalAnswer(content="x")], text)
    assert call == ToolCall(tool="pay", args={"n": 1}, written=text, mends=(f"JSON: {SINGLE}", f"JSON: {COMMA}"))
    assert answer == FinalAnswer(content="x")
    assert mends_in('{"a": 1}') == ()


def test_a_long_text_takes_a_time_in_proportion_to_its_length() -> None:
    """Each token is looked at once; a megabyte of what others need hours for."""
    for text in (
        "{'a': '" + "x" * 1_000_000 + "',}",
        '{"a": "' + "\\\\" * 500_000,
        "{'" * 100_000,
        "{" + " " * 500_000 + "x}",
        "{'a': " + "[1," * 150 + "1" * 100_000,
    ):
        assert len(objects_in(text)) == 1


# An independent reading of damaged texts ------------------------------------------------------------------------------------------


SOUND = [
    {"tool": "transfer", "args": {"to": "bob", "amount": 10}},
    {"tool": "transfer", "args": {"to": "O'Neil", "amount": 2.5, "note": 'half of 5, as agreed: "thanks"'}},
    {"type": "move", "from": [1, -20, 300], "fast": True, "why": None, "opts": {"a": {}, "b": []}},
    {"tool": "write", "args": {"path": "a b.txt", "content": "if x:\n\treturn {1}\n"}},
]
PIECES = [
    "'",
    '"',
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    " ",
    "0",
    "5",
    "000",
    "*1000",
    "-",
    ".",
    "e",
    "x",
    " km",
    "\\",
    "\n",
    "“",
    "”",
    "None",
    "true",
    "//",
    "#",
]


def damaged(chance: random.Random) -> str:
    """Return the text of a sound call in one of the ways to write it, with some characters left out, put in, doubled or exchanged."""
    text = json.dumps(chance.choice(SOUND), ensure_ascii=False)
    text = chance.choice(
        [str, str, lambda t: repr(json.loads(t)), lambda t: re.sub(r'"(\w+)":', r"\1:", t), lambda t: t.replace("}", ",}")]
    )(text)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(1, len(text))
        text = text[:at] + chance.choice(["", chance.choice(PIECES), text[at : at + 2] * 2]) + text[at + chance.randrange(3) :]
    return text


def flat(value: Any) -> list[Any]:
    """Return what is in JSON data, in order: brackets, names and values."""
    if isinstance(value, dict):
        return ["{", *[part for name, inner in value.items() for part in (name, *flat(inner))], "}"]
    return ["[", *[part for inner in value for part in flat(inner)], "]"] if isinstance(value, list) else [value]


def said_by(text: str) -> list[Any]:
    """Return the tokens of a text in order, each as what it says when it stands for itself; commas and colons say nothing."""
    found: list[Any] = []
    for token in re.findall(
        r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|“(?:\\.|[^”\\])*”|[{}\[\]]|[^\s{}\[\],:"'“”]+|["'“”]""", text, re.DOTALL
    ):
        if len(token) > 1 and token[0] in "\"'“":
            inside = token[1:-1].replace("\\'", "'") if token[0] == "'" else token[1:-1]
            found.append(json.loads('"' + re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inside) + '"', strict=False))
        elif token in "{}[]":
            found.append(token)
        else:
            words = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
            found.append(words[token] if token in words else json.loads(token) if re.fullmatch(r"-?\d.*", token) else token)
    return found


def test_every_scalar_of_a_damaged_text_is_a_whole_token_of_it_and_none_is_left_over() -> None:
    """Read by another reader, which knows nothing of what is mended: what comes out of a text is, in order, all that is in it."""
    chance = random.Random(14)
    read = 0
    for _ in range(times(3_000)):
        text = damaged(chance)
        found = objects_in(text)
        if not found or found[0].value is None:
            continue
        read += found[0].mended
        whole = text[found[0].start : found[0].end]
        assert json.dumps(flat(found[0].value)) == json.dumps(said_by(whole)), whole
    assert read > times(3_000) / 50
