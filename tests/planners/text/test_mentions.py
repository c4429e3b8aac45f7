"""Calls in a text that are not made: found however they are written, and told from words."""

from __future__ import annotations

from typing import Any

import pytest

from detent.core.state import Item
from detent.planners.text.mentions import ALONE_IN_A_FENCE, in_fences, mention_in, was_told, why_not
from detent.planners.text.offers import ACTIONS, Offer
from detent.ports import ToolSpec
from detent.ports.embedded_calls import IN_A_FENCE
from planners.raw_text.texts import ADD, READ

PING = ToolSpec(name="ping")
OFFER = Offer(tools={tool.name: tool for tool in (READ, ADD, PING)}, actions=ACTIONS)


def mentioned(text: str, offer: Offer = OFFER) -> tuple[str, str] | None:
    """Return the tool of the first call in a text, and what of the text is the call; None where there is none."""
    found = mention_in(text, offer)
    return None if found is None else (found.tool, text[found.start : found.end])


def why(text: str) -> str:
    found = mention_in(text, OFFER)
    assert found is not None, text
    return why_not(text, found)


@pytest.mark.parametrize(
    "value",
    [
        '{"a": 1}',
        '"a"',
        "'a'",
        "[1]",
        "1",
        "-1",
        "true",
        "false",
        "null",
        "True",
        "False",
        "None",
        "path=1",
        "path = 1",
        " path=1",
        "a.b-c=1",
    ],
)
def test_a_value_in_parentheses_makes_a_name_a_call_in_any_sentence(value: str) -> None:
    """Of each kind; the call ends where the parentheses do, and in broken JSON at the end of the text."""
    assert mentioned(f"I write read_file({value}) into it") == ("read_file", f"read_file({value})")
    assert mentioned(f"I write read_file ({value}) into it") == ("read_file", f"read_file ({value})")
    assert mentioned(f"I write read_file({value} into it") == ("read_file", f"read_file({value} into it")


@pytest.mark.parametrize(
    "words", ["twice", "a==b", "truely", "falsehood", "nullable", "Truely", "Falsehood", "Nonesuch", "-a", "path", "{", ")"]
)
def test_words_in_parentheses_make_a_name_no_call(words: str) -> None:
    """Neither a comparison, nor a word that only begins like a value."""
    if words not in "{)":
        assert mentioned(f"I use read_file({words}) and add") is None
    assert mentioned(f"I use read_file ({words[:0]}) and add") is None
    assert mentioned("I use my.read_file(1) and x-read_file(1) and read_file_all(1)") is None


@pytest.mark.parametrize("fence", ["```", "````", "~~~", "```tool_code "])
@pytest.mark.parametrize("words", ["path", "...", "a, b", "*args", "str(1)", 'x("a")', "("])
def test_in_code_any_words_in_parentheses_make_a_name_a_call(fence: str, words: str) -> None:
    """Though not where code defines what only has the name, where the name stands apart, or where a fence is closed before it."""
    marks = fence.removesuffix("tool_code ")
    call = f"read_file({words})"
    assert mentioned(f"So\n{fence}\nx = {call} is it\n{marks}\nand so") is not None
    assert mentioned(f"So\n{fence}\nx = read_file(\n{words}") is not None
    assert mentioned(f"So\n{fence}\nx = {call} is it\n{marks}\nand so".replace("read_file", "Read-File")) is not None
    for other in (f"So\n{fence}\nx\n{marks}\n{call} and so", *(f"So\n{fence}\n{word} {call} is it\n{marks}\nand so" for word in DEFINING)):
        assert mentioned(other) is None, other
    assert mentioned(f"So\n{fence}\nx = {call.replace('(', ' (', 1)} is it\n{marks}\nand so") is None


DEFINING = ("def", "class", "fn", "func", "function", "async  def")


@pytest.mark.parametrize("value", ['f"a"', "r'a'", 'Rb"a"', "U'a'", '**{"a": 1}', "**[1]"])
def test_a_value_may_be_marked_as_python_marks_it(value: str) -> None:
    """A text with a letter before it, or an object that is unpacked; other letters are words."""
    assert mentioned(f"I write read_file({value}) into it") == ("read_file", f"read_file({value})")
    for other in ("x" + value[1:] if value[0] != "*" else value[1:2] + "x", "fff'a'"):
        assert mentioned(f"I write read_file({other}) into it") is None, other


@pytest.mark.parametrize("name", ["readFile", "READ_FILE", "read-file", "read.file", "Read__File", "readfile"])
def test_a_call_by_a_name_in_other_letters_or_with_other_separators_is_one(name: str) -> None:
    """Where it is surely a call; the letters of data, and of words before an aside, are their own."""
    for text in (
        "I write {}(path=1) into it",
        'So: {"tool": "{}", "path": 1} is it',
        "So <function={}>",
        "So.\naction: {}\nAction Input: x",
    ):
        found = mentioned(text.replace("{}", name))
        assert found is not None and found[0] == name, text
    for text in ('So: {"name": "{}", "path": 1} is it', 'So: {"{}": {"path": 1}}', "So <{}><path>a</path></{}>", "So {} --path a"):
        found = mentioned(text.replace("{}", name))
        assert (found is not None) is (name == name.lower()), text
    assert mentioned(f"I write {name} (1) into it") is None and mentioned(f"I write {name}s(1) into it") is None
    ask = Offer(tools={"ask": ToolSpec(name="ask")})
    assert mentioned('So: {"tool": "ASK"}', ask) is not None
    assert mentioned('To ask: {"tool": "a\u017fk"}', ask) is None, "letters that only count as the same are of another name"


def test_tools_whose_names_differ_in_separators_are_told_apart() -> None:
    """Each by the name that is its own; arguments are those of the tool that is named."""
    names = {"a.b": {"x": {}}, "a_b": {"y": {}}, "_": {"z": {}}}
    offer = Offer(tools={name: ToolSpec(name=name, input_schema={"type": "object", "properties": known}) for name, known in names.items()})
    for name, known in names.items():
        for each in ("x", "y", "z"):
            assert (mentioned(f"So {name} {{{each}: 1}} is it", offer) is not None) is (each in known), (name, each)


@pytest.mark.parametrize("lead", ["", "* ", "print ", "print(", "  - ", "`"])
def test_a_call_alone_on_a_line_or_at_the_end_is_one_without_values(lead: str) -> None:
    """What is in the lines after it does not matter; words on its line do, unless it ends the text."""
    assert mentioned(f"{lead}ping()\nIt pings.") == ("ping", "ping()")
    assert mentioned(f"Words.\n{lead}ping()\nIt pings.") == ("ping", "ping()")
    assert mentioned(f"Words {lead}ping()") == ("ping", "ping()")
    assert mentioned(f"Words {lead}ping() and words") is None
    assert mentioned(f"Words {lead}ping()\nand words") is None
    assert mentioned(f"{lead}ping() and words") is None
    assert mentioned(f"{lead}ping ()") is None
    assert mentioned(f"{lead}ping(") is None
    assert mentioned("I ping()\nand words") is None and mentioned("Words.\nI ping()\nand words") is None


@pytest.mark.parametrize("prefix", ["functions.", "default_api."])
def test_an_api_may_stand_before_a_name_and_call_behind_it(prefix: str) -> None:
    """Other words with a point before it are of something else."""
    assert mentioned(f"I write {prefix}ping()") == ("ping", f"{prefix}ping()")
    assert mentioned("I write ping.call()") == ("ping", "ping.call()")
    assert mentioned("I write os.ping()") is None


def test_arguments_are_looked_for_no_further_than_they_may_be() -> None:
    """4,000 characters, where nothing closes them."""
    assert mentioned("read_file(" + " " * 3998 + "1 is it") is not None
    assert mentioned("read_file(" + " " * 3999 + "1 is it") is None
    for many, end in ((119, "{}"), (120, "ping")):
        found = mentioned("[TOOL_CALLS]ping" + " " * many + "{} is it")
        assert found is not None and found[1].endswith(end)
    assert mentioned("[TOOL_CALLS]ping{ <a> is it") == ("ping", "[TOOL_CALLS]ping{ <a>")


ARGUMENTS = ["args", "arguments", "parameters", "params", "input", "tool_input", "action_input", "kwargs"]
SURE = ["tool", "tool_name", "function", "function_name", "action", "recipient_name", "tool_call", "function_call"]


@pytest.mark.parametrize("key", [*SURE, "name", "type", "command", "call"])
def test_an_object_that_names_a_tool_is_a_call_where_it_has_arguments_or_says_that_it_is_of_a_tool(key: str) -> None:
    """In any quotes, sound or broken; a name alone may be that of anything."""
    for quoted in ('{"KEY": "read_file", MORE}', "{'KEY': 'read_file', MORE}", "{KEY: “read_file”, MORE}", '{"KEY" = "read_file", MORE}'):
        text = quoted.replace("KEY", key)
        for word in (*ARGUMENTS, "path", "lines"):
            for more in (f'"{word}": 1', f"'{word}': 1", f"{word} = 1", f"“{word}” : 1"):
                call = text.replace("MORE", more)
                assert mentioned(f"So: {call} is it") == ("read_file", call)
        call = text.replace("MORE", '"x": 1')
        assert mentioned(f"So: {call} is it") == (("read_file", call) if key in SURE else None)
    assert mentioned(f'So: {{"{key}": "reads", "path": 1}} is it') is None
    assert mentioned(f'So: {{"x{key}": "read_file", "args": 1}} is it') is None


def test_an_object_of_a_tool_without_parameters_is_a_call_where_it_is_nothing_else() -> None:
    """Its name stands alone in it."""
    assert mentioned('So: {"name": "ping"} is it') == ("ping", '{"name": "ping"}')
    assert mentioned('So: { "name": "ping" } is it') == ("ping", '{ "name": "ping" }')
    assert mentioned('So: {"x": 1, "name": "ping"} is it') is None and mentioned('So: {"name": "ping", "x": 1} is it') is None
    assert mentioned('So: {"name": "read_file"} is it') is None and mentioned('So: "name": "ping" is it') is None


@pytest.mark.parametrize(
    "call", ['{"read_file": {"path": 1}}', "{'read_file': {'path': 1}}", "{read_file : {path: 1}}", '{ “read_file”: {"args": 1}}']
)
def test_a_name_may_be_the_key_of_its_arguments(call: str) -> None:
    """An object that is one field."""
    assert mentioned(f"So: {call} is it") == ("read_file", call)
    assert mentioned(f"So: {call.replace('read_file', 'reads')} is it") is None


def test_an_object_that_is_not_closed_or_has_no_bracket_ends_behind_the_name() -> None:
    """Nothing is known of what comes after it; a bracket of another object is none of it."""
    assert mentioned('So: "tool": "read_file" is it') == ("read_file", 'So: "tool": "read_file"')
    assert mentioned('So} "tool": "read_file" is it') == ("read_file", 'So} "tool": "read_file"')
    assert mentioned('So: {"tool": "read_file" is it') == ("read_file", '{"tool": "read_file"')
    assert mentioned('So: {"a": 1} {"tool": "read_file"} is it') == ("read_file", '{"tool": "read_file"}')
    assert mentioned('{"name": "read_file"' + " " * 5000 + '"path": 1}') is None


@pytest.mark.parametrize("control", [name for name in ACTIONS if name != "tool_call"])
def test_an_object_that_is_a_control_action_is_mentioned_where_text_is_how_actions_are_written(control: str) -> None:
    """Not with native calls, nor where it is not offered, nor where it is the name of a tool that takes more."""
    call = f'{{"type": "{control}", "content": "x"}}'
    assert mentioned(f"So: {call} is it") == (control, call)
    assert mentioned(f"So: {call[:-1]} is it") == (control, f'{{"type": "{control}"')
    assert mentioned(f'So}} "type": "{control}" is it') == (control, f'So}} "type": "{control}"')
    for offer in (
        Offer(tools=OFFER.tools, actions=ACTIONS, native=True),
        Offer(tools=OFFER.tools, actions=("tool_call",)),
        Offer(tools={}, actions=()),
    ):
        assert mentioned(f"So: {call} is it", offer) is None
    assert mentioned(f"So: {call} is it", Offer(tools={}, actions=ACTIONS)) == (control, call)


@pytest.mark.parametrize(
    "before",
    [
        "<function=", "<invoke name=", "<ns:invoke name=", "<function='",
        '<invoke name="', "<invoke name='", "<｜DSML｜invoke name=\"", "[TOOL_CALLS]", "[TOOL_CALLS] ", "to=",  # noqa: RUF001
        "commentary to=functions.", ">>>", ">>> ", "<tool_call>", "<tool_call>\n", "✿FUNCTION✿:", "✿FUNCTION✿: ", "<|recipient|>", "<|tool_call_begin|> ",
        "<｜tool▁sep｜>", "<|tool_call_begin|>functions.", "<｜tool▁call▁begin｜>", "<|tool sep|>",  # noqa: RUF001
    ],
)  # fmt: skip
def test_a_name_is_a_call_where_a_form_of_calls_has_it(before: str) -> None:
    """Whatever its arguments are; not a longer name."""
    assert mentioned(f"So {before}read_file") is not None
    assert mentioned(f"So {before}read_file {{'a': (1)}} is it".replace("(1)", "1"))[1].endswith("{'a': 1}")  # type: ignore[index]
    for name in ("read_files", "read_file.x", "read_file-x"):
        assert mentioned(f"So {before}{name}") is None
    assert mentioned("So goto=read_file") is None


def test_a_line_of_input_makes_a_name_behind_action_a_call() -> None:
    """Also in a list, or in other letters; an action without input is a word."""
    for label in ("Action: ", "action:", "ACTION: "):
        assert mentioned(f"So.\n{label}read_file\nAction Input: x") is not None
    for label in ("tool:", "* tool: ", "*function*: ", "- name: `", "`tool_name`: "):
        for after in ("Args: x", "Action Input: x", "parameters : x", "*input*: x"):
            assert mentioned(f"So.\n{label}read_file\n{after}") is not None, (label, after)
        assert mentioned(f"So.\n{label}read_file\nIt reads: x") is None
    assert mentioned("So the action: read_file is it") is None
    assert mentioned("So.\nAction: read_file\nIt reads.") is not None
    for action in ("Action:read_file", "Action: \tread_file ", "Action: read_file\n "):
        assert mentioned(f"So {action}\nAction Input: x") is not None


def test_tags_with_the_name_of_a_tool_are_a_call_where_its_parameters_are_tags_in_them() -> None:
    """Or nothing, where it has none."""
    assert mentioned("So <read_file><path>a</path></read_file> is it") == ("read_file", "<read_file><path>a</path></read_file>")
    assert mentioned("So <ping></ping> is it") == ("ping", "<ping></ping>") == mentioned("So <ping> \n </ping> is it".replace(" \n ", ""))
    assert mentioned("So <ping>\n</ping> is it") == ("ping", "<ping>\n</ping>")
    for text in ("So <read_file><x>a</x></read_file>", "So <read_file></read_file>", "So <ping>a</ping>", "So <ping></read_file>"):
        assert mentioned(text) is None, text


@pytest.mark.parametrize(
    "call",
    [
        'read_file {"path": 1}',
        "read_file: {'path' = 1}",
        "`read_file` {“path”: 1}",
        '**read_file**: ```json\n{"path": 1}',
        "read_file{path: 1}",
    ],
)
def test_an_object_beside_a_name_is_a_call_where_it_has_one_of_its_parameters(call: str) -> None:
    """Another object is of something else."""
    found = mentioned(f"So {call} is it")
    assert found is not None and found[1].endswith("}")
    for other in (call.replace("path", "size"), f"my_{call.lstrip('`*')}", f"x/{call.lstrip('`*')}"):
        assert mentioned(f"So {other} is it") is None, other
    assert mentioned("So ping {} is it") == ("ping", "ping {}") and mentioned("So ping { } is it") == ("ping", "ping { }")
    assert mentioned("So read_file {} is it") is None and mentioned('So ping {"a": 1} is it') is None


@pytest.mark.parametrize("flag", ["--path=a", "--path a", "-path a", "path=a", "path=a --lines 3"])
def test_flags_beside_a_name_are_a_call(flag: str) -> None:
    """As on a command line, to the end of the text; other words are words."""
    assert mentioned(f"So read_file {flag}") == ("read_file", f"read_file {flag}")
    for other in (flag.replace("path", "size"), flag.replace("path", "paths"), "path == a", "path"):
        assert mentioned(f"So read_file {other}") is None, other


@pytest.mark.parametrize("name", ["readFile", "READ-FILE", "Read.File", "readfile"])
def test_a_call_by_another_spelling_of_a_name_is_one(name: str) -> None:
    """On a line of its own, behind a colon, or in a sentence; it would be taken for an answer."""
    for before in ("", "So.\n", "So.\n \t", "So:", "So: ", "So: x\n"):
        for call in (f'{name}({{"path": "a"}})', f"{name}( {{}} )", f"{name}({{\n}}\n)"):
            assert mentioned(f"{before}{call} \n") == (name, call), (before, call)
    assert mentioned(f"I use {name}({{}})") == (name, f"{name}({{}})")
    for other in (f"{name}s({{}})", f"my{name}({{}})", f"{name} ({{}})"):
        assert mentioned(other) is None, other
    assert mentioned(f"first({{}})\n{name}({{}})") == (name, f"{name}({{}})")


def test_the_first_call_counts_whatever_it_is_written_in() -> None:
    """Longer names are not cut."""
    assert mentioned('{"tool": "add", "args": {}} and ping()') == ("add", '{"tool": "add", "args": {}}')
    assert mentioned("[TOOL_CALLS]ping and add(a=1) is it") == ("ping", "[TOOL_CALLS]ping")
    longer = Offer(tools={name: ToolSpec(name=name) for name in ("get", "get_all", "ge")})
    assert mentioned("get_all()", longer) == ("get_all", "get_all()")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Words.\n```\nping()\n```", "code block within"), ("```\nping()\n```\nWords.", "code block within"), ("```\nping()\n```", ALONE_IN_A_FENCE),
        ("```python\nping()\n```\n", ALONE_IN_A_FENCE), ("```\nx\n```\nping()", "short sentence"), ("```\nping()\n[]\n```", "code block within"),
        ("`ping()`", "not written as"), ('Action: ```json\n{"tool": "ping"}\n```', ALONE_IN_A_FENCE),
        ("X ping()", "short sentence"), ("ping(1) X", "words after"), ("```\nping()\n```.", ALONE_IN_A_FENCE),
        ("Never:\nping()", "negation"), ("Shall I? ping()", "question"),
        ('"ping()', "quotation mark"), ("ping(1) is it", "words after"), ("Words: ping(1) is it", "words after"), ("ping()?", "question"),
        ("ping() \u201d", "quotation"),
        ("Words: ping()", "short sentence"), ("ping()", "not written as"), ("**ping()**", "not written as"), ("ping().", "not written as"),
        ("<tool_call>[TOOL_CALLS] functools[({ping(1)})]</tool_call>", "not written as"), ("Action: ping()", "not written as"),
        ("✿FUNCTION✿: ping()", "not written as"), ("[/TOOL_CALLS] ping(1) [/TOOL_CALLS]", "not written as"), ("[a] ping()", "short sentence"),
        ("ping(1) [TOOL_CALLS]", "not written as"), ("ping(1) [/TOOL_CALLS]", "not written as"),
        ("[] ping()", "short sentence"), ("ping(1) <x> </x> ``` ) } ]", "not written as"),
        ("<" + "x" * 81 + "> ping()", "markup"), ("ping(1) <" + "x" * 81 + ">", "words after"),
    ],
)  # fmt: skip
def test_why_a_call_is_not_made_is_said(text: str, reason: str) -> None:
    """The first of: a code block, doubt before it, words or doubt after it, other words before it, how it is written; marks are no words."""
    assert reason in why(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("```\nping()\n```", True), (" \t```json\nping()\n \t```", True), ("~~~~\n~~~\nping()\n~~~~\n", True),
        ("So:\n```\nping()\n```\n\n```\nping()\n```", True),
        ("```\nping()", False), ("```\nping()\n~~~", False), ("So ```\nping()\n```", False), ("```\nping()\nx```", False), ("``\nping()\n``", False),
        ("```\nx\n```\nping()\n```\nx\n```", False), ("```\n```\nping()\n```\n```", False), ("```\nping()\n```\nping()", False),
    ],
)  # fmt: skip
def test_a_call_is_shown_where_a_fence_is_around_each(text: str, shown: bool) -> None:
    """From the beginning of a line to that of another; what stands between two fences stands in none."""
    assert in_fences(text, OFFER) == shown


def test_the_name_of_a_tool_is_none_of_its_arguments() -> None:
    """Though a parameter is called so."""
    offer = Offer(tools={"greet": ToolSpec(name="greet", input_schema={"type": "object", "properties": {"name": {}}})})
    assert mentioned('So: {"name": "greet"} is it', offer) is None
    assert mentioned('So: {"name": "greet", "x": {"name": 1}} is it', offer) is not None


def test_an_offer_of_nothing_has_no_calls() -> None:
    """Whatever stands in the text."""
    nothing: dict[str, Any] = {"tools": {}, "actions": ()}
    assert mentioned('ping() {"type": "stop"} {"tool": ""}', Offer(**nothing)) is None


def test_only_what_a_model_heard_last_counts_as_told() -> None:
    """A hint of an earlier turn, before it went on, is no permission to answer with a call now."""
    note = Item(kind="note", iteration=1, text=f"Not run. {IN_A_FENCE}")
    assert was_told((note,)) and was_told((Item(kind="user", iteration=0, text="go"), note))
    assert not was_told((note, Item(kind="model", iteration=2, text="I went on")))
