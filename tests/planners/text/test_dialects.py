"""Calls in every dialect: read where they are the whole text, and an answer nowhere."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from amounts import thinned
from detent.core.actions import AnyAction, FinalAnswer, ToolCall
from detent.planners.raw_text.action_schema import SchemaChecks
from detent.planners.text.offers import Offer, Unreadable
from detent.planners.text.python_calls import LONGEST, closes_at, literal
from detent.planners.text.reading import Reading, read
from detent.ports import MOST_NESTED, ToolSpec
from detent.ports.embedded_calls import IN_A_FENCE
from planners.raw_text.texts import ADD, READ
from planners.text.dialects import ARGS, DIALECTS, NAMED, Dialect

pytestmark = thinned

CALL = ToolCall(tool="read_file", args={"path": "a.txt", "lines": 3})
ASK = ToolSpec(name="ask", input_schema={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]})
ANY: dict[str, Any] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "real": {"type": "number"},
    "yes": {"type": "boolean"},
    "many": {"type": "array", "items": {"type": "integer"}},
    "thing": {"$ref": "#/$defs/thing"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "named": {"type": ["string", "null"]},
    "way": {"enum": ["up", "down"]},
    "five": {"const": 5},
    "either": {"anyOf": [{"type": "integer"}, {"title": "Either"}]},
    "open": {},
}
TYPED = ToolSpec(name="typed", input_schema={"type": "object", "properties": ANY, "$defs": {"thing": {"type": "object"}}})
every = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def reading(text: str, *tools: ToolSpec, **fields: Any) -> Reading:
    offered = tools or (READ, ADD, ASK, TYPED)
    options = {name: fields.pop(name) for name in ("finish", "told", "results") if name in fields}
    return read(text, Offer(tools={t.name: t for t in offered}, problem_of=SchemaChecks(offered, None).arguments, **fields), **options)


def actions(text: str, *tools: ToolSpec, **fields: Any) -> tuple[AnyAction, ...]:
    found = reading(text, *tools, **fields)
    assert not found.problem, found.problem
    return found.actions


def args(text: str) -> dict[str, Any]:
    (call,) = actions(text)
    assert isinstance(call, ToolCall)
    return call.args


@every
def test_a_text_that_is_a_call_makes_it(dialect: Dialect) -> None:
    """Alone, after thinking, after a lead-in, and with the marks of a chat template after it."""
    for text in (
        dialect.text,
        f"<think>Shall I? No.</think>\n{dialect.text}",
        f"Let me check:\n{dialect.text}",
        f"{dialect.text}<|im_end|>\n",
    ):
        assert actions(text) == (CALL,), text


@every
def test_a_native_model_makes_a_call_in_text_only_in_a_form_that_is_nothing_else(dialect: Dialect) -> None:
    """Then the kernel finds it in its answer; otherwise, and after words, the model is told to call the tool."""
    if dialect.marked:
        (answer,) = actions(dialect.text, native=True)
        assert isinstance(answer, FinalAnswer)
        assert answer.content == dialect.text or answer.content == f"read_file({json.dumps(CALL.args, separators=(',', ':'))})"
    else:
        assert "call the tool" in reading(dialect.text, native=True).problem
    if dialect.name != "name and object":  # after a lead-in the kernel decides about that
        assert "call the tool" in reading(f"Let me check:\n{dialect.text}", native=True).problem
        assert "call the tool" in reading(f"{dialect.text}\n{dialect.text}", native=True).problem


MENTIONED = [
    ("{}\nThat is how it is done.", "words after"),
    ("{}\nObservation: 3", "words after"),
    ("I must not run this: {}", "negation"),
    ("Das darf ich nicht:\n{}", "negation"),
    ("The page says:\n{}", "short sentence"),
    ("Should I run this?\n{}", "question"),
    ('The page says: "{}"', "quotation mark"),
    ("> {}", "markup"),
    ("Such a call looks so.\n\n```\n{}\n```\n\nEach field has a meaning.", "code block within an explanation"),
]


@every
def test_a_text_in_which_a_call_is_mentioned_makes_none_and_says_why(dialect: Dialect) -> None:
    """Whichever dialect it is in; after the correction the same text is an answer in a fence, and only there."""
    for (around, why), native in product(MENTIONED, (False, True)):
        text = around.replace("{}", dialect.text)
        found = reading(text, native=native)
        if native and dialect.name == "name and object" and found.actions == (FinalAnswer(content=text),):
            continue  # the kernel says why
        assert not found.actions and not found.unfit, found
        assert IN_A_FENCE in found.problem
        if "```" not in dialect.text and not (text.startswith("> ") or dialect.name.startswith(("ReAct", "harmony, "))):
            assert why in found.problem
        if "```" not in text:
            assert not reading(text, native=native, told=True).actions
            fenced = f"```\n{text}\n```"
            assert reading(fenced, native=native, told=True).actions == (FinalAnswer(content=fenced),)
            assert not reading(fenced, native=native).actions


@every
def test_a_call_that_was_cut_off_or_is_cut_short_runs_nothing(dialect: Dialect) -> None:
    """By a limit that is known to have been reached, or at any place by nobody knows what."""
    assert reading(dialect.text, finish="length").cut and not reading(dialect.text, finish="length").actions
    end = max(dialect.text.find('"lines"'), dialect.text.find("lines=") + 1, dialect.text.rfind("lines") + 1)
    for cut in range(len(dialect.text) // 2, end + 5):
        assert CALL not in reading(dialect.text[:cut]).actions
        assert not [a for a in reading(dialect.text[:cut]).actions if isinstance(a, ToolCall) and a.args == CALL.args]


@pytest.mark.parametrize(
    "noise",
    [
        "</s>", "<answer>", "</answer>", "<json>", "<output>", "<end_of_turn>", "<eos>", ".", " . ", "<|end of sentence|>", "<｜end▁of▁sentence｜>",  # noqa: RUF001
        *(f"<|{word}|>" for word in ("im_end", "eot_id", "eom_id", "eot", "eom", "end", "endoftext", "stop", "call", "return", "END_OF_TURN_TOKEN")),
    ],
)  # fmt: skip
def test_marks_that_mean_nothing_may_stand_after_a_call(noise: str) -> None:
    """Templates write them, in any letters; words and other marks they are not."""
    assert actions(f"{NAMED} {noise}\n") == (CALL,) == actions(f"read_file({ARGS})\n{noise.upper()}")[:1]
    if noise.strip() != ".":
        assert actions(f"{noise}{NAMED}") == (CALL,)
        for other in (noise[:-1], noise[1:], noise.replace(noise[1:-1], "x")):
            assert not reading(f"{NAMED} {other}").actions, other
    assert not reading(f"{NAMED} . {NAMED}").actions


@pytest.mark.parametrize("prefix", ["", "seed:", "my-own:", "｜DSML｜", "|DSML|"])  # noqa: RUF001
@pytest.mark.parametrize("tag", ["tool_call", "tool_calls", "function_call", "function_calls", "toolcall", "tool_use", "action", "actions"])
def test_tags_around_calls_are_opened_and_closed(prefix: str, tag: str) -> None:
    """The last may be missing, and so may the first, where a template may have written it; another tag closes nothing."""
    tag = f"{prefix}{tag}"
    for said in (tag, tag.upper()):
        for text in (f"<{said}>{NAMED}</{said}>", f"<{said}>{NAMED}", f"<{said}>\n{NAMED}\n</{said}>\n<{said}>{NAMED}</{said}>"):
            assert actions(text)[0] == CALL and reading(text, native=True).problem, text
        assert bool(reading(f"{NAMED}</{said}>").actions) == (":" not in prefix)
    for text in (
        f"<{tag}>{NAMED}</x{tag}>",
        f"<{tag}>{NAMED}</{tag}></{tag}>x",
        f"<{tag}s>{NAMED}</{tag}>",
        f"<{tag}></{tag}>{NAMED}<{tag}>",
    ):
        assert not reading(text).actions, text


@pytest.mark.parametrize(
    "mark",
    [
        "[TOOL_CALLS]", "[/TOOL_CALLS]", "functools", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁section▁end｜>", "<|tool calls begin|>", "<|tool_call_end|>",  # noqa: RUF001
        *(f"<|{word}|>" for word in ("python_tag", "python_start", "python_end", "tool_call", "/tool_call", "tool_call_start", "tool_call_end")),
        *(f"<|{word}|>" for word in ("START_ACTION", "END_ACTION", "action_start", "plugin", "action_end")),
    ],
)  # fmt: skip
def test_marks_of_calls_make_data_a_call_of_a_native_model_too(mark: str) -> None:
    """A model writes them for nothing else."""
    for said in (mark, mark.lower(), mark.upper()):
        assert actions(f"{said} {NAMED}") == (CALL,)
        (answer,) = actions(f"{said} {NAMED}", native=True)
        assert isinstance(answer, FinalAnswer) and str(answer.content).startswith("read_file({")
    assert not reading(f"x{mark}{NAMED}").actions


@pytest.mark.parametrize(
    "info", ["", "json", "json5", "jsonc", "jsonl", "JSON", "xml", "tool_code", "tool_call", "tool_calls", "function_call"]
)
def test_fences_around_calls(info: str) -> None:
    """Without a language, or one of data; Python only where it says that it is a call."""
    assert actions(f"```{info}\n{NAMED}\n```") == (CALL,) == actions(f"```{info} {NAMED}```")[:1]
    assert actions(f"```{info}\n{NAMED}\n```\n```{info}\n{NAMED}\n```") == (CALL, CALL)
    assert bool(reading(f"```{info}\nread_file({ARGS})\n```").actions) == ("_" in info)
    assert bool(reading(f"```{info}\nprint(default_api.read_file({ARGS}))\n```").actions) == ("_" in info)
    (answer,) = reading(f"```{info}\n{NAMED}\n```", native=True).actions or ("",)
    assert bool(answer) == ("_" in info)
    for text in (
        f"```{info}x\n{NAMED}\n```",
        f"```{info}\n{NAMED}\n```{info or 'json'}",
        f"```python\n{NAMED}\n```",
        f"{NAMED}\n```{info}\n",
    ):
        assert not reading(text).actions, text


@pytest.mark.parametrize(
    "text",
    [
        f"<function=read_file>\n{ARGS}", f"<function=read_file>{ARGS}<|eot_id|>", f"<function=read_file> {ARGS} </function>",
        "<invoke name='read_file' >\n<parameter name='path'>a.txt</parameter><parameter name='lines'>3</parameter></invoke>",
        "<tool_call> read_file <arg_key> path </arg_key> <arg_value>a.txt</arg_value> <arg_key>lines</arg_key><arg_value>3</arg_value></tool_call>",
        f"[TOOL_CALLS] read_file {ARGS}", f"[TOOL_CALLS]read_file [CALL_ID] abc [ARGS] {ARGS}", f"[TOOL_CALLS]read_file[CALL_ID]abc{ARGS}",
        f">>> read_file\n\n {ARGS}", f"<|recipient|> read_file\n<|content|> {ARGS}",
        *(f"{start}<|channel|>{channel} to={name}<|message|>{ARGS}" for start in ("", "<|start|>assistant") for channel in ("commentary", "analysis")
          for name in ("functions.read_file", "read_file")),
        *(f"to=read_file<|channel|>{channel} {data}<|message|> {ARGS}" for channel in ("commentary", "analysis") for data in ("json", "<|constrain|>json", "")),
        f" to=read_file <|message|>{ARGS}", f"<|start|>assistant to=read_file<|message|>{ARGS}",
        f"<|tool call begin|>read_file\n{ARGS}<|tool call end|>", f"<|tool_call_begin|>function<|tool_sep|>read_file\n```json\n{ARGS}\n```\n<|tool_call_end|>",
        f"<|tool_call_begin|>read_file<|tool_sep|> {ARGS} <|tool_call_end|>",
        f"<|tool_call_begin|>read_file:12<|tool_call_argument_begin|>{ARGS} <|tool_call_end|>",
        f"<|tool_call_begin|> functions.read_file:0 <|tool_call_argument_begin|> {ARGS}<|tool_call_end|>",
        f"Action: read_file \nAction Input:{ARGS}", f"Action:read_file\n\nAction Input: ```json\n{ARGS}\n```",
        f"Thought: So.\nAction: read_file\nAction Input:\n{ARGS}",
        f"✿FUNCTION✿:read_file\n✿ARGS✿:{ARGS}", f"✿FUNCTION✿: read_file \n ✿ARGS✿: {ARGS}\n✿RESULT✿", f"✿FUNCTION✿: read_file\n✿ARGS✿: {ARGS}✿RESULT✿:\n",
        f"read_file \n\n{ARGS}",
    ],
)  # fmt: skip
def test_a_form_may_be_written_a_little_otherwise(text: str) -> None:
    """White space, and parts that one version of a model writes and another does not; broken JSON is mended in any, and that is told."""
    assert actions(text) == (CALL,)
    assert not reading(text).mended
    if ARGS in text:
        found = reading(text.replace('"path"', "path"))
        assert found.actions == (CALL,) and found.mended
        for broken in (ARGS[:-1] + "]", ARGS[:-1] + ', "x": }', "[1]", '"a"'):
            assert not [a for a in reading(text.replace(ARGS, broken)).actions if isinstance(a, ToolCall)]


@pytest.mark.parametrize(
    "text",
    [
        f"{NAMED}<tool_call>[TOOL_CALLS]", f"{NAMED};[TOOL_CALLS]", f"```json\n{NAMED},\n```", f"{NAMED},\n```\n```", f"read_file({ARGS});<|tool_call_end|>",
        f"read_file({ARGS});", f"read_file({ARGS})\n<tool_call>", f"read_file({ARGS})\n```tool_code\n", f"<tool_call>\n</tool_call>\nread_file({ARGS}),",
        f"<function=read_file>{ARGS}", f"{NAMED};", f"{NAMED}<tool_call>", f",read_file({ARGS})", f"read_file({ARGS});;read_file({ARGS})",
    ],
)  # fmt: skip
def test_where_a_call_is_due_nothing_runs_without_it(text: str) -> None:
    """After a comma, and after a mark that opens."""
    assert bool(reading(text).actions) == text.startswith("<function")


def test_at_most_64_calls_are_read() -> None:
    """More are refused, however they are written."""
    assert len(actions("\n".join(["add(a=1, b=2)"] * 64))) == 64
    assert reading("\n".join(["add(a=1, b=2)"] * 65)).problem == "there are more than 64 calls"
    assert len(actions("[" + ", ".join(["add(a=1, b=2)"] * 64) + "]")) == 64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-0", 0), ("10", 10), ("-7", -7), ("1.5", 1.5), ("-0.25", -0.25),
        ("1e5", 1e5), ("1E+5", 1e5), ("15e-1", 1.5), ("1.25e2", 125.0), ("9" * 399, int("9" * 399)),
        ("true", True), ("false", False), ("null", None), ("True", True), ("False", False), ("None", None), ("[]", []),
        ("{}", {}), ("[1, [2], {'a': 3},]", [1, [2], {"a": 3}]),
        ('"a\\u00e9\\/"', "aé/"), ("'a\\u00e9'", "aé"), ("'\\x41\\t\\n\\r\\b\\f\\\\\\'\\\"'", "A\t\n\r\b\f\\'\""),
        ('"""a "b" c"""', 'a "b" c'), ("'''a 'b'\nc'''", "a 'b'\nc"), ('""', ""),
        ("''", ""), ('""""""', ""), ("{'a' : 1 , \"b\":2}", {"a": 1, "b": 2}), ('"a\\x41"', "aA"), ("'(,'", "(,"),
    ],
)  # fmt: skip
def test_a_literal_is_a_value_as_it_stands(text: str, value: Any) -> None:
    """In Python or JSON."""
    assert (literal(text), type(literal(text))) == (value, type(value))
    if len(text) < 100:
        assert args(f"typed(open={text})") == {"open": value} == args(f"typed(open = {text} , )")


@pytest.mark.parametrize(
    "text",
    [
        "", "01", "5.", ".5", "1e", "1e+", "+1", "--1", "1_0", "0x1", "1 0", "1j", "9" * 400, "TRUE", "none", "a", "[1", "1]", "[1}",
        "{'a': 1]", "[1, 23", "{'a': 12", "[1)",
        "[,]", "[1,,2]", "{a: 1}", "{'a'}", "{'a' 1}", "{'a': 1, 'a': 1}", "{1: 2}", "{'a'x: 1}", "'a", "'a'b'", "'a' 'b'", "'\\d'", "'\\u12'",
        "'a\nb'", '"a\nb"', "'\\\n'", "b'a'",
        "f'a'", "(1)", "()", "[1] + [2]", "{} | {}", "'\\N{DASH}'", "'\\0'", "[1] # one", "[1][2]", "{}{}",
    ],
)  # fmt: skip
def test_nothing_else_is_a_literal(text: str) -> None:
    """Nothing is computed, completed or dropped."""
    with pytest.raises(Unreadable):
        literal(text)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("()", 2), ("(a, [b], {c})d", 13), ('("(")', 5), ("(')')", 5), ("('''a'b)''')", 12), ('("\\"")', 6), ("", 0), ("a()", 0), ("(", 0), ("(]", 0),
        ("(')", 0),
        ("(# a)", 0), ("{]", 0), ("[(])", 0), ('"()"', 0), (")", 0),
        ("[" * MOST_NESTED + "]" * MOST_NESTED, 2 * MOST_NESTED), ("[" * MOST_NESTED + "[]" + "]" * MOST_NESTED, 0),
        ("(" + " " * (LONGEST - 2) + ")", LONGEST), ("(" + " " * (LONGEST - 1) + ")", 0),
    ],
)  # fmt: skip
def test_where_a_bracket_is_closed(text: str, end: int) -> None:
    """Outside of texts; 0 where none opens, or it is never closed, or too far away."""
    assert closes_at(text, 0) == end
    assert closes_at(f"x{text}", 1) == (end and end + 1)


def test_a_line_of_input_has_the_type_of_the_only_parameter() -> None:
    """Which is named where it has not."""
    tool = ToolSpec(name="wait", input_schema={"type": "object", "properties": {"seconds": {"type": "integer"}}})
    assert actions("Action: wait\nAction Input: 5", tool) == (ToolCall(tool="wait", args={"seconds": 5}),)
    assert reading("Action: wait\nAction Input: five", tool).problem == "'seconds' is 'five', which is not of type integer"


def test_a_line_of_input_may_be_empty_for_a_tool_without_parameters() -> None:
    """ReAct writes the line all the same."""
    ping = ToolSpec(name="ping")
    assert actions("Action: ping\nAction Input:", ping) == (ToolCall(tool="ping", args={}),)
    assert actions("Action: ping\nAction Input: {}", ping) == (ToolCall(tool="ping", args={}),)


def test_a_tool_that_is_called_like_an_action_is_the_tool() -> None:
    """`stop` of an agent's own tools turns off a machine, and ends no run."""
    stop = ToolSpec(name="stop", input_schema={"type": "object", "properties": {"reason": {"type": "string"}}})
    for text in ('stop(reason="hot")', 'Action: stop\nAction Input: {"reason": "hot"}'):
        assert actions(text, stop, actions=("tool_call", "stop")) == (ToolCall(tool="stop", args={"reason": "hot"}),), text


def test_a_call_in_python_that_is_not_closed_is_told() -> None:
    """Also where its texts are not; a list of calls, too."""
    for text in ('read_file(path="a"', "read_file(path='it's')", '[read_file(path="a")', '```tool_code\nprint(read_file(path="a")\n```'):
        assert reading(text).problem.startswith("the call of read_file cannot be read to its end"), text


@pytest.mark.parametrize("args", ['{"path": "a"', '{"path": "a}', "[1", "5"])
def test_arguments_of_a_form_that_are_no_whole_object_are_told(args: str) -> None:
    """Nothing is completed."""
    assert reading(f">>>read_file\n{args}").problem == "the arguments of read_file are not one whole JSON object"


def test_an_answer_is_a_text_in_which_a_call_may_be_mentioned() -> None:
    """An object around it makes it no better than the bare text."""
    for call in (f"read_file({ARGS})", f"Write read_file({ARGS}) for it.", NAMED):
        assert "was not made" in reading(json.dumps({"type": "final_answer", "content": call})).problem
    assert actions('{"type": "final_answer", "content": "read_file is it"}') == (FinalAnswer(content="read_file is it"),)


def test_a_literal_nests_as_deep_as_other_json() -> None:
    """And no deeper."""
    assert literal("[" * MOST_NESTED + "]" * MOST_NESTED)
    with pytest.raises(Unreadable):
        literal("[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1))


def test_at_most_64_calls_are_a_batch() -> None:
    """More are a model that repeats itself."""
    for one in ("ask(what='x')", '{"tool": "ask", "args": {"what": "x"}}'):
        assert len(actions("\n".join([one] * 64))) == 64


def test_several_calls_of_a_dialect_are_a_batch() -> None:
    """One after the other, in its own way; with nothing but a line between them."""
    two = (CALL, ToolCall(tool="add", args={"a": 1, "b": 2}))
    for text in (
        f'read_file({ARGS})\nadd({{"a": 1, "b": 2}})',
        'read_file(path="a.txt", lines=3); add(a=1, b=2)',
        '[read_file(path="a.txt", lines=3), add(a=1, b=2)]',
        f'[TOOL_CALLS]read_file[ARGS]{ARGS}[TOOL_CALLS]add[ARGS]{{"a": 1, "b": 2}}',
        f'Action: read_file\nAction Input: {ARGS}\nThought: And then.\nAction: add\nAction Input: {{"a": 1, "b": 2}}',
        f'<tool_call>\n{NAMED}\n</tool_call>\n<tool_call>\n{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}\n</tool_call>',
        f'<|python_tag|>{NAMED}; {{"name": "add", "parameters": {{"a": 1, "b": 2}}}}',
    ):
        assert actions(text) == two, text
        if not text.startswith("read_file({"):  # of which the kernel says that it is not JSON
            assert "call the tool" in reading(text, native=True).problem


@pytest.mark.parametrize(
    "text",
    [
        'read_file({"path": "a.txt"})read_file({"path": "a.txt"})',
        '[add(a=1, b=2), print("x")]',
        "read_file(path=name)",
        'read_file(path="a" + "b")',
        'read_file(path="a" "b")',
        'read_file(path=f"{a}")',
        'read_file("a.txt", 3)',
        'read_file("a.txt")',
        'read_file("a.txt", lines=3)',
        'read_file(path="a", path="b")',
        'read_file({"path": "a", "path": "b"})',
        'read_file(**{"path": "a"})',
        'read_file(path="a")  # not really',
        'read_file(path="a"',
        "read_file(path='a\nb')",
        r'read_file(path="\d+")',
        "add(a=5*1000, b=2)",
        "add(a=10_000, b=2)",
        "add(a=0x10, b=2)",
        "add(a=+5, b=2)",
        "add(a=5., b=2)",
        "add(a=1e999, b=2)",
        "add(, a=1)",
        "add(a==1, b=2)",
        f"add(a={'9' * 5000}, b=2)",
        f"ask(what={'[' * 300}{']' * 300})",
        'print(read_file(path="a"))',
        '```\nread_file(path="a")\n```',
        '```python\nread_file(path="a")\n```',
        'await read_file(path="a")',
        'Thought: I must not do it.\nAction: read_file\nAction Input: {"path": "a"}',
        'Thought: Should I?\nAction: read_file\nAction Input: {"path": "a"}',
        "Action: read_file\nAction Input: a.txt",
        'Action: read_file\nAction Input: {"path": "a"} or so',
        '<function=read_file>{"path": "a"} and more</function>',
        '<function=read_file>{"path": "a"}</function> or so',
        "<function=read_file><parameter=path>a</parameter>b</function>",
        "<function=read_file><parameter=path>a</parameter><parameter=path>b</parameter></function>",
        "<function=read_file><parameter=path>a<parameter=path>b</parameter></function>",
        "<function=read_file><parameter=path>a</function>",
        "<tool_call>read_file\n<arg_key>path</arg_key><arg_value>a</tool_call>",
        "<tool_call>typed\n<arg_key></arg_key><arg_value>a</arg_value></tool_call>",
        "\n".join(["ask(what='x')"] * 65),
        "\n".join(['{"tool": "ask", "args": {"what": "x"}}'] * 65),
        '[TOOL_CALLS]read_file[ARGS]{"path": "a"',
        '{"tool": "read_file", "path": "a"}',
        '{"tool": "read_file", "args": {"path": "a"}, "execute": false}',
        '{"tool": "read_file", "args": {"path": "a"}, "arguments": {"path": "b"}}',
        '{"tool": "read_file", "name": "add", "args": {"path": "a"}}',
        '{"tool_calls": [{"name": "read_file", "arguments": {"path": "a"}}], "dry_run": true}',
        '{"type": "function", "function": {"name": "read_file", "arguments": {"path": "a"}}, "confirm": "no"}',
        '{"name": "read_file", "arguments": "{\\"path\\": \\"a\\", \\"path\\": \\"b\\"}"}',
        '"{"tool": "read_file", "args": {"path": "a"}}"',
        "1. " + NAMED,
        NAMED + ",",
        ";" + NAMED,
        NAMED + ",;" + NAMED,
        NAMED + ",[TOOL_CALLS]",
        NAMED + "</minimax:tool_call>",
        f"<tool_call>{NAMED}</tool_calls>",
        f"<tool_call>{NAMED}</tool_call></tool_call",
        NAMED + ",x" + NAMED,
        f"<tool_calls>,{NAMED}</tool_calls>",
        f"<tool_calls>{NAMED};</tool_calls>",
        f"<tool_calls>{NAMED}<tool_calls>",
        f"{NAMED}\n```tool_code\n```",
        '<invoke name="read_file"><parameter name=path>a</parameter></invoke>',
        '<invoke name="read_file"><parameter name="path" >a</parameter></invoke>',
        'Action: ask\nAction Input: >"what": "x"}',
        "Action: ask\nAction Input: what is {x",
        "Action: ask\nAction Input: x}",
        'Action: ask\nAction Input: the word "x"',
        '{"tool": "read_file", "args": {"path": "a\ufffd.txt"}}',
        '[TOOL_CALLS]read_file[ARGS]{"path": "a\ufffd.txt"}',
    ],
)
def test_what_is_not_unmistakably_a_call_runs_nothing_and_is_no_answer(text: str) -> None:
    """Nothing is computed, joined, guessed or left out, and the model is told."""
    found = reading(text)
    assert not [a for a in found.actions if isinstance(a, ToolCall)] and not found.unfit, found
    assert found.problem
    native = reading(text, native=True)
    assert native.problem or (native.actions == (FinalAnswer(content=text),) and text.startswith("read_file("))  # the kernel says why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ask('it\\'s \"so\"')", {"what": 'it\'s "so"'}),
        ('ask("a\\nb")', {"what": "a\nb"}),
        ("ask(what='''a\nb''')", {"what": "a\nb"}),
        ('ask(what="# no comment, (really)")', {"what": "# no comment, (really)"}),
        ("ask({'what': 'x'})", {"what": "x"}),
        (
            "typed(text='5', whole=5, real=-5.5e3, yes=True, many=[1, 2,], named=None,)",
            {"text": "5", "whole": 5, "real": -5500.0, "yes": True, "many": [1, 2], "named": None},
        ),
        ("typed(thing={'a': [{}, 'b']}, yes=false, named=null)", {"thing": {"a": [{}, "b"]}, "yes": False, "named": None}),
        ("Action: ask\nAction Input: how far is it", {"what": "how far is it"}),
        ('Action: ask\nAction Input: "5"', {"what": "5"}),
        ("Action: ask\nAction Input: as the boys'", {"what": "as the boys'"}),
        ("Action: typed\nAction Input:", {}),
        ("<function=typed></function>", {}),
        ("<function=typed>\n</function>", {}),
        ("<tool_call>typed</tool_call>", {}),
        ("<tool_call>typed<arg_key>text</arg_key><arg_value>a</arg_value></tool_call>", {"text": "a"}),
        ("```tool_code\nprint( ask(what='x') )\n```", {"what": "x"}),
    ],
)
def test_values_are_what_is_written(text: str, expected: dict[str, Any]) -> None:
    """Texts in either quotation marks, numbers as JSON writes them, constants of both languages, the only parameter without its name."""
    assert args(text) == expected


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", "true", "true"),
        ("text", "a & b < c", "a & b < c"),
        ("text", "\n two\nlines \n", " two\nlines "),
        ("whole", "5", 5),
        ("whole", "\n5\n", 5),
        ("whole", " 5\t", 5),
        ("many", "\n\n[1]\n\n", [1]),
        ("real", "5.5", 5.5),
        ("yes", "True", True),
        ("many", "[1, 2]", [1, 2]),
        ("thing", '{"a": 1}', {"a": 1}),
        ("maybe", "null", None),
        ("maybe", "7", 7),
        ("named", "Ann", "Ann"),
        ("named", "5", "5"),
        ("way", "up", "up"),
        ("five", "5", 5),
        ("either", "words", "words"),
        ("open", "words", "words"),
    ],
)
def test_the_text_of_an_element_has_the_type_that_the_schema_says(name: str, text: str, value: Any) -> None:
    """And no other: what a text parameter gets is the text."""
    made = args(f"<function=typed>\n<parameter={name}>{text}</parameter>\n</function>")
    assert (made, type(made[name])) == ({name: value}, type(value))
    assert args(f"<tool_call>typed\n<arg_key>{name}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>") == {name: value}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("whole", "5 EUR"), ("whole", "five"), ("whole", "true"), ("whole", ""), ("real", "10 000"), ("yes", "yes"), ("yes", "1"), ("many", "1, 2"),
        ("thing", '{"a": 1, "a": 2}'), ("named", "null"), ("open", "5"), ("either", "5"), ("maybe", "none"),
        ("thing", '{"a": 12'), ("many", "[1, 23"),
    ],
)  # fmt: skip
def test_an_element_whose_text_is_not_of_its_type_or_could_be_of_two_is_refused(name: str, text: str) -> None:
    """Nothing is guessed: null may be the word, and 5 the text."""
    found = reading(f"<function=typed>\n<parameter={name}>{text}</parameter>\n</function>")
    assert not found.actions
    assert repr(name) in found.problem or "stands twice" in found.problem


def test_an_element_may_say_itself_whether_it_is_a_text() -> None:
    """As DeepSeek writes it; then the schema is not asked."""
    for said, value in (("true", " 5 "), ("false", 5)):
        text = f'<invoke name="typed">\n<parameter name="open" string="{said}"> 5 </parameter>\n</invoke>'
        assert args(text) == {"open": value}


@pytest.mark.parametrize("target", ["#/properties/x/type/y", "#/none/there", "elsewhere"])
def test_a_schema_that_refers_to_nothing_says_nothing(target: str) -> None:
    """The text could be of any type then, and words are a text."""
    tool = ToolSpec(name="odd", input_schema={"type": "object", "properties": {"x": {"type": "string"}, "odd": {"$ref": target}}})
    found = reading("<function=odd><parameter=odd>words</parameter></function>", tool)
    assert found.unfit == (ToolCall(tool="odd", args={"odd": "words"}),)


@pytest.mark.parametrize("references", [1, 5, 6])
def test_a_schema_may_refer_on_five_times(references: int) -> None:
    """Further it says nothing, and what could be a text or a number is refused."""
    defs: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(1, references)}
    root = {"type": "object", "properties": {"odd": {"$ref": "#/$defs/d1"}}, "$defs": {**defs, f"d{references}": {"type": "integer"}}}
    found = reading("<function=odd><parameter=odd>5</parameter></function>", ToolSpec(name="odd", input_schema=root))
    assert bool(found.actions) == (references < 6) == (not found.problem)


def test_words_that_are_no_parameter_are_refused_wherever_they_stand() -> None:
    """Before, between and after parameters, and where there are none."""
    one = "<parameter=text>a</parameter>"
    for body in ("words\n", "words", f"words {one}", f"{one} words\n", f"{one} words {one.replace('text', 'way')}"):
        assert not reading(f"<function=typed>\n{body}</function>").actions, body


@pytest.mark.parametrize("key", ["type", "tool", "tool_name", "name", "action", "function", "actions", "tool_calls"])
def test_an_action_that_begins_and_cannot_be_read_is_no_answer_whatever_its_tool(key: str) -> None:
    """A name that is misspelt in JSON that is broken, too; one that can be read, of a tool that there is not, is data."""
    for broken in (f'{{"{key}": "raed_file", "args": {{"path": ', f"[ {{ '{key}' : 'raed_file', 'args': {{'path': ", f"[{{{key}: "):
        assert "never closed" in reading(f"I do it.\n{broken}").problem
        assert not reading(f"I do it.\n{broken.replace(key, 'x' + key)}").problem
    assert reading(f'I do it.\n{{"{key}": "raed_file" "args": {{}}}} so').problem.startswith("it is not JSON")
    assert not reading(f'The form is {{"{key}": "raed_file", "args": {{"path": "a"}}}} here').problem


@pytest.mark.parametrize("info", ["", "json", "python"])
def test_whoever_was_told_may_show_what_is_no_action_in_a_fence(info: str) -> None:
    """Of any language, with what ends an answer in it; words around it change nothing about other problems."""
    shown = f'```{info}\n{{"x": {{"path": "a"}}}}\nObservation: 3\n```'.replace(
        "\nObservation: 3", "" if info == "json" else "\nObservation: 3"
    )
    assert actions(shown, told=True, stop=("\nObservation:",)) == (FinalAnswer(content=shown),)
    wrong = f'```{info}\n{{"tool": "read_file", "args": {{"path": 5}}}}\n```'
    assert info == "python" or reading(wrong, told=True).unfit  # a call, of which the kernel says what is wrong
    assert 'no "type"' in reading('```json\n{"x": 1}\n```').problem
    for block in ("```\n```", "```\na ``` b\n```"):
        assert actions(block, stop=("\n",)) == (FinalAnswer(content=block),)
    assert actions("```\na\n```\nb\n```", stop=("\nb",)) == (FinalAnswer(content="```\na\n```"),)
    assert actions("It is 3.\nObservation: 4", stop=("\nObservation:",)) == (FinalAnswer(content="It is 3."),)


def test_a_thought_in_a_line_may_stand_before_a_call() -> None:
    """As ReAct writes it; one that doubts makes none."""
    for label in ("Thought", "Reasoning"):
        assert actions(f"{label}: I look at the file.\n{NAMED}") == (CALL,) == actions(f"{label}:\n{NAMED}")
    assert not reading(f"Idea: I look at the file.\n{NAMED}").actions and not reading(f"Thought: a\nThought: b\n{NAMED}").actions
    assert "question" in reading(f"Thought: Should I?\n{NAMED}").problem


@pytest.mark.parametrize("thought", ["", "So.\nI look? No.", "{"])
def test_thinking_between_marks_may_stand_before_a_call(thought: str) -> None:
    """As Command A and harmony write it, whatever is in it; once, and closed."""
    for before in (
        "<|START_THINKING|>{}<|END_THINKING|>",
        "<|channel|>analysis<|message|>{}<|end|>",
        "<|start|>assistant<|channel|>analysis<|message|>{}<|end|>",
    ):
        said = before.replace("{}", thought)
        for call in (NAMED, f"read_file({ARGS})", f"\n<|START_ACTION|>[{NAMED}]<|END_ACTION|>"):
            assert actions(said + call) == (CALL,)
            assert not [a for a in reading(said[:-2] + call).actions if isinstance(a, ToolCall)]


def test_data_between_the_marks_of_calls_is_no_answer() -> None:
    """A model writes them for nothing else; after a lead-in, too."""
    for text in ('<|tool_call|>{"path": "a"}', 'Let me check:\n<|tool_call|>{"path": "a"}'):
        assert 'no "type"' in reading(text).problem


def test_a_call_without_arguments_that_is_alone_on_its_line_is_mentioned() -> None:
    """What comes in the lines after it does not make it a word of a sentence."""
    assert "words after it" in reading("read_file()\nThat is how it goes.").problem


def test_a_name_may_be_the_key_of_its_arguments_after_a_lead_in_too() -> None:
    """Then it looks like an action, as other data does not."""
    assert actions(f'Let me check:\n{{"read_file": {ARGS}}}') == (CALL,)
    assert actions('The config is:\n{"read": {"path": "a"}}') == (FinalAnswer(content='The config is:\n{"read": {"path": "a"}}'),)


def test_a_call_that_nothing_stands_around_is_told_how_it_is_written() -> None:
    """The words before it are not what is wrong."""
    assert "not written as a call that can be read" in reading(NAMED, native=True).problem


@pytest.mark.parametrize("label", ["Tool", "function", "tool_name", "name"])
def test_a_label_before_a_name_and_one_before_its_arguments_are_a_call_that_is_not_made(label: str) -> None:
    """Nobody reads this form; it is no answer either."""
    assert "was not made" in reading(f'{label}: read_file\nArgs: {{"path": "a"}}').problem
    assert actions(f"{label}: read_file\nIt reads.") == (FinalAnswer(content=f"{label}: read_file\nIt reads."),)


def test_a_mark_that_closes_may_be_missing_at_the_end_of_a_text() -> None:
    """It may be what a model stops at, and then nothing has it; a call must stand after every mark that opens."""
    for text in (
        f"<tool_call>{NAMED}",
        f"```json\n{NAMED}",
        f"```tool_code\nread_file({ARGS})",
        f"<tool_call>{NAMED}</tool_call><tool_call>{NAMED}",
    ):
        assert actions(text)[0] == CALL, text


def test_marks_in_other_letters_and_of_two_kinds_are_marks() -> None:
    """A template may have opened one that closes; a model that writes one of its own makes the call."""
    for text in (f"{NAMED}</tool_call>", f"<TOOL_CALL>{NAMED}</tool_call>", f"<minimax:tool_call>{NAMED}</minimax:tool_call>"):
        assert actions(text) == (CALL,)
    assert actions(f"[TOOL_CALLS]<tool_call>{NAMED}</tool_call>", native=True) == (
        FinalAnswer(content='read_file({"path":"a.txt","lines":3})'),
    )


@pytest.mark.parametrize("info", ["tool_code", "tool_call", "tool_calls", "function_call"])
def test_python_is_read_in_a_block_of_calls(info: str) -> None:
    """With the name of its API before it, and printed, too; natively, too, for a model writes such a block for nothing else."""
    for call in (
        'read_file(path="a.txt", lines=3)',
        'default_api.read_file(path="a.txt", lines=3)',
        'print(read_file(path="a.txt", lines=3))',
    ):
        block = f"```{info}\n{call}\n```"
        assert actions(block) == (CALL,)
        assert actions(block, native=True) == (FinalAnswer(content='read_file({"path":"a.txt","lines":3})'),)


def test_json_that_was_mended_in_one_call_of_several_is_told() -> None:
    """The log says so, whichever it was."""
    sound, broken = '<function=ask>{"what": "x"}</function>', '<function=ask>{what: "x"}</function>'
    assert [reading(text).mended for text in (sound, broken, broken + sound, sound + broken)] == [False, True, True, True]


def test_a_word_above_data_is_a_call_where_it_is_that_of_a_tool() -> None:
    """Any other is a title."""
    assert actions('ask\n{"what": "x"}') == (ToolCall(tool="ask", args={"what": "x"}),)
    assert actions('config\n{"what": "x"}') == (FinalAnswer(content='config\n{"what": "x"}'),)


def test_a_character_that_was_lost_stops_calls_and_no_answers() -> None:
    """What it was cannot be known, unless it is written as an escape."""
    assert args('{"tool": "ask", "args": {"what": "a\\ufffd"}}') == {"what": "a\ufffd"}
    lost = "it holds U+FFFD, which stands for a character that was lost; where it is meant, write \\ufffd"
    assert lost in reading('{"tool": "ask", "args": {"what": "a\ufffd"}}').problem
    assert lost in reading('ask({"what": "a\ufffd"})', native=True).problem
    assert actions('{"type": "final_answer", "content": "a\ufffd"}') == (FinalAnswer(content="a\ufffd"),)


def test_a_tool_that_is_not_offered_is_never_called_in_any_dialect() -> None:
    """In a form it is named as unknown; in Python, which may be anything, the text is an answer."""
    for dialect in DIALECTS:
        found = reading(dialect.text, ADD)
        assert not [a for a in found.actions if isinstance(a, ToolCall)]
        assert found.problem or "read_file(" in dialect.text or dialect.name == "GLM-4", dialect.name
    assert actions('other(path="a")') == (FinalAnswer(content='other(path="a")'),)
    assert "was not made" in reading('<|tool_call|>{"name": "read_file", "arguments": {"path": "\\ud800"}}', native=True).problem
    for marked in ('<|tool_call|>{"name": "other", "arguments": {"path": "a"}}', '<|tool_call|>{"type": "final_answer", "content": "4"}'):
        assert actions(marked, native=True) == (FinalAnswer(content=marked),)
