"""Reading what a raw-text model wrote: tolerant of how it is written, strict about what is executed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from detent.core.actions import Abstain, AnyAction, AskUser, CompleteGoal, FinalAnswer, PushGoal, Schedule, Stop, Thought, ToolCall
from detent.core.state import Item
from detent.planners.raw_text.action_schema import SchemaChecks
from detent.planners.text.dialects import Written
from detent.planners.text.json_objects import Found, objects_in, plain_json, whole_json
from detent.planners.text.offers import ACTIONS, Offer
from detent.planners.text.reading import Reading, read
from detent.planners.text.think_blocks import ThinkingSplitter, split_thinking
from detent.ports import ToolSpec
from detent.ports.embedded_calls import IN_A_FENCE
from detent.ports.lead_ins import NOT_A_LEAD_IN
from planners.raw_text.texts import ADD, READ

TYPE_TOOL = ToolSpec(name="set", input_schema={"type": "object", "properties": {"args": {"type": "string"}, "reason": {"type": "string"}}})


def reading(text: str, *tools: ToolSpec, finish: str = "", **fields: Any) -> Reading:
    offered = tools or (READ, ADD)
    checks = SchemaChecks(offered, fields.get("output_schema"))
    given = {"problem_of": checks.arguments, "answer_problem": checks.answer, "actions": ACTIONS, **fields}
    return read(text, Offer(tools={t.name: t for t in offered}, **given), finish=finish)


def actions(text: str, *tools: ToolSpec, **fields: Any) -> tuple[AnyAction, ...]:
    found = reading(text, *tools, **fields)
    assert not found.problem, found.problem
    return found.actions


READING = ToolCall(tool="read_file", args={"path": "a.txt"})


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "tool_call", "tool": "read_file", "args": {"path": "a.txt"}}',
        '{"type": "tool_call", "name": "read_file", "arguments": {"path": "a.txt"}}',
        '{"type": "function_call", "name": "read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}',
        '{"type": "read_file", "path": "a.txt"}',
        '{"type": "read_file", "args": {"path": "a.txt"}}',
        '{"type": "read_file", "path": "a.txt", "thought": "look first"}',
        '{"read_file": {"path": "a.txt"}}',
        '{"tool_call": {"name": "read_file", "arguments": {"path": "a.txt"}}}',
        '{"function_call": {"tool": "read_file", "args": {"path": "a.txt"}}}',
        '{"action": "tool_call", "tool": "read_file", "args": {"path": "a.txt"}}',
        '{"tool": "read_file", "args": {"path": "a.txt"}}',
        '{"tool": "read_file", "input": {"path": "a.txt"}}',
        '{"name": "read_file", "parameters": {"path": "a.txt"}}',
        '{"type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}}',
        '{"action": "read_file", "action_input": {"path": "a.txt"}}',
        '{"thought": "hm", "tool": "read_file", "args": {"path": "a.txt"}, "id": "c1", "createdAt": "now"}',
        '```json\n{"type": "read_file", "path": "a.txt"}\n```',
        '```\n{"type": "read_file", "path": "a.txt"}\n```',
        'Sure! Here is the call:\n\n{"type": "read_file", "path": "a.txt"}',
        'Sure, here it is: {"type": "read_file", "path": "a.txt"}',
        '<think>maybe {"type": "add"}</think>{"type": "read_file", "path": "a.txt"}',
        'I could {"type": "add"} first, no.\n</think>\n{"type": "read_file", "path": "a.txt"}',
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a.txt"}}]',
        '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.txt"}}',
        '{"tool_calls": [{"function": {"name": "read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}}]}',
        '{"actions": [{"type": "read_file", "path": "a.txt"}]}',
        '{"type": "read_file", "path": "a.txt",}',
        "{'type': 'read_file', 'path': 'a.txt'}",
        *(
            f'{{"tool": "read_file", "args": {{"path": "a.txt"}}, "{note}": 1}}'
            for note in ("id", "call_id", "tool_call_id", "index", "createdAt", "created_at", "step")
        ),
        *(f'{{"{key}": "read_file", "args": {{"path": "a.txt"}}}}' for key in ("name", "tool_name", "function", "action")),
        *(
            f'{{"tool": "read_file", "{key}": {{"path": "a.txt"}}}}'
            for key in ("arguments", "parameters", "params", "tool_input", "action_input")
        ),
        *(
            f'{{"{key}": {{"name": "read_file", "args": {{"path": "a.txt"}}}}}}'
            for key in ("tool_call", "function_call", "call", "function", "tool_use", "tool", "action")
        ),
        *(
            f'{{"type": "{kind}", "tool": "read_file", "args": {{"path": "a.txt"}}}}'
            for kind in ("tool_call", "function_call", "call", "function", "tool_use", "tool", "action")
        ),
        *(
            f'{{"type": "{kind}", "{kind}": [{{"tool": "read_file", "args": {{"path": "a.txt"}}}}]}}'
            for kind in ("tool_calls", "actions", "calls")
        ),
        *(
            f'{{"thought": "hm", "{key}": {{"name": "read_file", "arguments": {{"path": "a.txt"}}}}}}'
            for key in ("tool", "function", "action")
        ),
        "{type: 'read_file', path: 'a.txt'}",
    ],
)
def test_a_call_is_read_however_it_is_written(text: str) -> None:
    """Fences, prose, think blocks, other field names, the tool's name as type, text as arguments, broken JSON that is whole."""
    for said in (text, f"Let me check:\n{text}") if text.startswith(("{", "[")) else (text,):
        found = actions(said)
        assert [(a.tool, a.args) for a in found if isinstance(a, ToolCall)] == [("read_file", {"path": "a.txt"})]
        assert len(found) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"type": "final_answer", "content": "42"}', FinalAnswer(content="42")),
        ('{"type": "final_answer", "answer": "42"}', FinalAnswer(content="42")),
        ('{"type": "Final Answer", "content": "42"}', FinalAnswer(content="42")),
        ('{"type": "FinalAnswer", "content": 42}', FinalAnswer(content=42)),
        ('{"type": " Final  Answer ", "answer": null, "content": "42"}', FinalAnswer(content="42")),
        ('{"type": "final_answer", "content": null, "answer": "42"}', FinalAnswer(content="42")),
        ('{"type": "stop", "reason": null}', Stop()),
        ('{"action": "Final Answer", "action_input": "42"}', FinalAnswer(content="42")),
        ('{"final_answer": "42"}', FinalAnswer(content="42")),
        ('Here is the answer: {"final_answer": "42"}', FinalAnswer(content="42")),
        ("It is 42.", FinalAnswer(content="It is 42.")),
        ("Final Answer: 42", FinalAnswer(content="42")),
        ("answer:42", FinalAnswer(content="42")),
        *(
            (f"ANSWER : 42 {mark}\n", FinalAnswer(content="42"))
            for mark in ("</s>", "<|im_end|></s>", "<|eot_id|>", "<|end|>", "<|endoftext|>")
        ),
        ("My answer: 42 <|stop|>", FinalAnswer(content="My answer: 42 <|stop|>")),
        ('The config is {"a": 1} now.', FinalAnswer(content='The config is {"a": 1} now.')),
        ('The config is:\n{"a": 1}', FinalAnswer(content='The config is:\n{"a": 1}')),
        *(
            (text, FinalAnswer(content=text))
            for text in ('Here is it: {"input": 1}', 'Here is it: {"name": "Ann"}', 'Here is it: {"stop": 5, "call": 6}')
        ),
        ("Use {name} as a placeholder", FinalAnswer(content="Use {name} as a placeholder")),
        ("f(x) {\n return 1;\n", FinalAnswer(content="f(x) {\n return 1;")),
        ('{"type": "ask_user", "question": "Which?"}', AskUser(question="Which?")),
        ('{"type": "stop", "reason": "no way"}', Stop(reason="no way")),
        ('{"type": "stop"}', Stop()),
        *(
            (f'{{"type": "final_answer", "{name}": "42"}}', FinalAnswer(content="42"))
            for name in ("final_answer", "output", "text", "result", "response")
        ),
        *((f'{{"type": "ask_user", "{name}": "Which?"}}', AskUser(question="Which?")) for name in ("content", "text", "message")),
        *((f'{{"type": "stop", "{name}": "no way"}}', Stop(reason="no way")) for name in ("content", "message")),
        *((f'{{"type": "thought", "{name}": "hm"}}', Thought(content="hm")) for name in ("thought", "text")),
        ('{"type": "abstain", "content": ["the year"]}', Abstain(missing=("the year",))),
        ('{"type": "push_goal", "content": "g"}', PushGoal(goal="g")),
        ('{"type": "complete_goal", "content": "o"}', CompleteGoal(outcome="o")),
        ('{"type": "thought", "content": "hm"}', Thought(content="hm")),
        ('{"type": "abstain", "missing": "the year"}', Abstain(missing=("the year",))),
        ('{"type": "push_goal", "goal": "g"}', PushGoal(goal="g")),
        ('{"type": "schedule", "delay_s": 5}', Schedule(delay_s=5)),
        ('{"type": "schedule", "content": "2030-01-01T00:00:00Z"}', Schedule(at="2030-01-01T00:00:00Z")),
        *(
            (f'{{"type": "{name}", "{other}": "no", "{main}": "yes"}}', expected)
            for name, main, other, expected in (
                ("final_answer", "content", "answer", FinalAnswer(content="yes")),
                ("ask_user", "question", "text", AskUser(question="yes")),
                ("stop", "reason", "message", Stop(reason="yes")),
                ("thought", "content", "text", Thought(content="yes")),
                ("push_goal", "goal", "content", PushGoal(goal="yes")),
                ("complete_goal", "outcome", "content", CompleteGoal(outcome="yes")),
                ("abstain", "missing", "content", Abstain(missing=("yes",))),
            )
        ),
    ],
)
def test_control_actions_and_answers_are_read(text: str, expected: AnyAction) -> None:
    """Synonyms of fields and spellings of types; text without an action is the answer."""
    assert actions(text) == (expected,)


@pytest.mark.parametrize(
    "text",
    [
        "read_file reads a file, for example read_file a.txt",
        "I used read_file() and add (twice).",
        'The result of read_file: {"size": 5}',
        '{"name": "read_file"} is one of the tools that there are: {"tools": ["read_file", "add"]}',
        "<tool_call> is the tag that starts a call.",
        "<read_file>what stands there</read_file>",
        "The mark is: [TOOL_CALLS]other{",
    ],
)
def test_text_that_names_a_tool_is_an_answer(text: str) -> None:
    """A name without arguments is a word."""
    assert actions(text) == (FinalAnswer(content=text),)
    assert actions(text, native=True) == (FinalAnswer(content=text),)


def test_the_actions_that_a_tool_takes_are_its_arguments() -> None:
    """A tool that plans, or rehearses, calls does not make them; and no list of calls is made that is said to be of something else."""
    batch = ToolSpec(name="rehearse", input_schema={"type": "object", "properties": {"actions": {"type": "array"}}})
    inside = '[{"type": "read_file", "path": "a"}]'
    wanted = (ToolCall(tool="rehearse", args={"actions": [{"type": "read_file", "path": "a"}]}),)
    assert actions(f'{{"type": "rehearse", "actions": {inside}}}', batch, READ) == wanted
    for kind in ("example", "thought", "final_answer"):
        assert "'type' has no meaning beside a call" in reading(f'{{"type": "{kind}", "actions": {inside}}}').problem
    for odd in ('{"not": "done"}', "5", "[]"):
        assert "'type' has no meaning beside a call" in reading(f'{{"type": {odd}, "actions": {inside}}}').problem
        assert "'type' has no meaning beside a call" in reading(f'{{"type": {odd}, "tool": "read_file", "args": {{"path": "a"}}}}').problem
    calls = ToolSpec(name="calls", input_schema={"type": "object", "properties": {"numbers": {"type": "array"}}})
    assert not reading(f'{{"calls": {inside}}}', calls, READ).actions


def test_the_words_before_a_call_may_name_its_tool_and_no_other() -> None:
    """What announces another tool does not announce this call."""
    other = ToolSpec(name="remove_all")
    call = '{"type": "read_file", "path": "a"}'
    assert actions(f"Let me read_file:\n{call}", READ, other) == (ToolCall(tool="read_file", args={"path": "a"}),)
    assert NOT_A_LEAD_IN in reading(f"Let me remove_all:\n{call}", READ, other).problem


def test_an_answer_ends_where_somebody_else_would_speak() -> None:
    """A model that goes on makes up what a tool says; where nothing is before that, nothing is lost."""
    for said, answer in (
        ("It is 3.\nObservation: 4\nUser: 5", "It is 3."),
        ("It is 3.\nUser: 5\nObservation: 4", "It is 3."),
        ("Observation: 3</s>", "Observation: 3</s>"),
    ):
        assert actions(said, stop=("Observation:", "User:")) == (FinalAnswer(content=answer),)


def test_several_calls_are_a_batch() -> None:
    """One after the other, in a list, or under `actions`; with words between them they are none."""
    two = [("read_file", {"path": "a"}), ("add", {"a": 1, "b": 2})]
    one, other = '{"type": "read_file", "path": "a"}', '{"type": "add", "a": 1, "b": 2}'
    for text in (
        f"{one}\n{other}",
        f"[{one}, {other}]",
        f"```json\n{one}\n```\n```json\n{other}\n```",
        f'{{"actions": [{one}, {other}]}}',
        f"{one} {other}",
    ):
        assert [(a.tool, a.args) for a in actions(text) if isinstance(a, ToolCall)] == two, text
    assert "words after it" in reading(f"{one}\nThe file says 3.\n{other}").problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no action"),
        ("<think>I wonder", "no action"),
        ('{"type": "tool_call", "tool": "read_file", "args": {"path": "a.t', "not complete"),
        ('{"type": "write_file", "path": "a", "content": "', "not complete"),
        ('{"type": "tool_call", "tool": "read_file", "args": {"path": "a.txt"}', "not complete"),
        ('[{"type": "read_file", "path": "a"}, {"type": "add", "a": 1', "not complete"),
        ('{"type": "read_file", "path": "a"}\n{"type": "add", "a": 1', "not complete"),
        ('{"type": "delete_file", "path": "a"}', "no action and no tool"),
        ('{"type": "tool_call", "tool": "read-file", "args": {"path": "a"}}', "no tool 'read-file'"),
        ('{"type": "tool_call", "tool": "READ_FILE", "args": {"path": "a"}}', "no tool 'READ_FILE'"),
        ('{"type": "tool_call"}', "needs"),
        ('{"type": "tool_call", "tool": "read_file", "args": [1]}', "must be a JSON object"),
        ('{"type": "tool_call", "tool": "read_file", "args": "path=a"}', "not JSON"),
        ('{"type": "read_file"}', "'path' is a required property"),
        ('{"type": "read_file", "args": {"path": "a.txt"}, "lines": 5}', "'path' is a required property"),
        ('{"type": "read_file", "path": 5}', "not of type 'string'"),
        ('{"type": "read_file", "path": "a", "lines": "5"}', "not of type 'integer'"),
        ('{"type": "read_file", "path": "a", "path": "b"}', "'path' is given twice"),
        ('{"type": "read_file", "path": "a", "path": "a"}', "'path' is given twice"),
        ('{"type": "read_file", // the first\n "path": "a"}', "there must be a name, not a word"),
        ('{"type": "read_file" "path": "a"}', 'after "type" there must be a comma or }, not a text in quotes'),
        ('{"type": "add", "a": NaN, "b": 1}', "neither a number nor in quotes"),
        ('{"type": "add", "a": 1e999, "b": 1}', "too large"),
        ('{"type": "read_file", "path": "\\ud800"}', "cannot keep"),
        ('{"type": "final_answer", "content": "  "}', "blank"),
        ('{"type": "final_answer", "content": "<think>no</think>"}', "blank"),
        ('{"type": "final_answer", "content": "\\u200b\\u2060"}', "blank"),
        ("[[1]] or so</think>", "only markup"),
        *((mark, "only markup") for mark in ("</s>", "</s></s>\n</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|></s>")),
        ('{"tool_call": {"path": "a"}}', 'no "type"'),
        ('{"tool_call": 5}', 'no "type"'),
        ('{"name": {"tool": "read_file", "args": {"path": "a.txt"}}}', 'no "type"'),
        ('{"type": "tool_call", "tool_name": {"tool": "read_file", "args": {"path": "a.txt"}}}', "needs"),
        ('{"action": "tool_call"}', "no tool 'tool_call'"),
        ('{"tool": "final_answer", "content": "4"}', "'content' has no meaning beside a call"),
        ('{"tool": "final_answer", "args": {"content": "4"}}', "no tool 'final_answer'"),
        ('{"name": "stop"}', 'no "type"'),
        ('[{"type": "stop"}, 5]', "an action is a JSON object, not int"),
        ('{"actions": ["stop"]}', "an action is a JSON object, not str"),
        ('{"actions": []}', "the list of actions is empty"),
        ('{"type": "final_answer"}', "needs"),
        ('{"type": "stop"}{"type": "thought", "content": "x"}', "2 control actions"),
        ('{"type": "schedule", "delay_s": "5"}', "delay_s is '5'; write seconds"),
        ('{"a": 1}', 'no "type"'),
        ("[1, 2]", "FinalAnswer"),
        ('I will now use {"type": "read_file", "path": "a"}', "not one short sentence"),
        ("{" * 5000, "not complete"),
        ('{"type": "add", "a": ' + "[" * 3000 + "]" * 3000 + ', "b": 1}', ""),
    ],
)
def test_what_is_no_action_is_said_in_words(text: str, said: str) -> None:
    """Each problem names what is wrong; none becomes an action."""
    found = reading(text)
    if said == "FinalAnswer":
        assert found.actions == (FinalAnswer(content=text),)
        return
    assert not found.actions
    assert said in found.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tool_call": {"path": "a"}}', 'the object has no "type"'),
        ('{"a": 1}', f'the object has no "type"; {IN_A_FENCE}'),
        ('{"type": "tool_call"}', 'a tool_call needs "tool", the name of a tool, and "args", an object'),
        ('{"tool": "read_file", "args": "path=a"}', "the arguments are text that is not JSON; send an object"),
        ('<function=read_file>{"path": "a"}}</function>', "the call of read_file is not closed"),
        ('<function=read_file>{"path": {"a"}}</function>', "it is not JSON: after \"a\" there must be a colon, not '}'"),
        (">>>read_file\n[1]", "the arguments are not one JSON object"),
        ("read_file(path=)", "'' is not a value: write a text in quotation marks, a number, true, false, null, a list or an object"),
        ('{"type": "final_answer", "content": " "}', "the final answer is blank"),
        ('{"type": "read_file", "path": "a', "the JSON object is not complete: it is never closed"),
        ('{"type": "read_file", "path": "b } c" "d}', "the JSON object is not complete: it is never closed"),
        ('I do it: {"type": "raed_file", "path": "a', "the JSON is not complete: it is never closed"),
        ('{"actions": []}', "the list of actions is empty"),
        ("", "there was no action"),
        ("</s>", "there is only markup, no action and no answer"),
        ('{"type": "read_file"}{"type": "add", "a": 1}',
         "the arguments of read_file do not fit: 'path' is a required property; the arguments of add do not fit: 'b' is a required property"),
        ('[{"type": "stop"}, {"type": "thought", "content": "x"}]', "there are 2 control actions (stop, thought); one is allowed"),
    ],
)  # fmt: skip
def test_the_whole_of_a_problem_is_what_is_wrong(text: str, problem: str) -> None:
    """A model that is told half of it, or something else, sends the same again."""
    assert reading(text).problem == problem


def test_who_mentions_a_call_is_told_why_it_is_not_made_and_what_to_do() -> None:
    """How to make it, and how to show it: one sentence each, by how its model calls tools."""
    call = 'read_file({"path": "a"})'
    for text, why in (
        (f"Never: {call}", "there is a negation beside it"),
        (f"{call} or so", "there are words after it"),
        (f"The file: {call}", NOT_A_LEAD_IN),
        (f"Words.\n```\n{call}\n```", "it stands in a code block within an explanation"),
        (f"**{call}**", "it is not written as a call that can be read"),
    ):
        told = f"the text holds a call of 'read_file' that was not made: {why}; to make it, HOW; {IN_A_FENCE}"
        assert reading(text).problem == told.replace("HOW", "send the call alone")
        assert reading(text, native=True).problem == told.replace("HOW", "call the tool")
    offer = Offer(tools={"read_file": READ}, native=True)
    for result, made in ((call, False), (f"Do {call} now", False), (call[1:], True), (call[:-1], True)):
        seen = Item(kind="tool", result=msgspec.Raw(msgspec.json.encode({"page": result})))
        quoted = read(call, offer, results=[seen])
        assert bool(quoted.actions) == made == ("it stands, letter for letter, in the result of a tool; to make it" not in quoted.problem)
    assert reading(f"```\n{call}\n```", native=True).problem == (
        "the text holds a call of 'read_file' that was not made: it stands in a code block; to make it, call the tool; to explain it, write about it"
    )
    assert IN_A_FENCE == "to show it without running it, send the same text again with the call in a code fence"


@pytest.mark.parametrize("kind", [Reading, Offer, Found, Written])
def test_what_was_read_stays_so(kind: Any) -> None:
    """It is handed on, and kept: who could change it, or mix two of its fields up, would change what is run."""
    assert kind.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        kind({}, True)


@pytest.mark.parametrize("cut", range(1, 62))
def test_a_call_that_is_cut_off_anywhere_is_no_call(cut: int) -> None:
    """Whatever the last character, with or without a limit that is known to have been reached."""
    whole = '{"type": "tool_call", "tool": "read_file", "args": {"path": "a.txt"}}'
    for finish in ("length", ""):
        found = reading(whole[: len(whole) - cut], finish=finish)
        assert not [a for a in found.actions if isinstance(a, ToolCall)]
        assert not found.unfit


def test_text_that_a_limit_cut_off_is_no_answer() -> None:
    """A sentence without its end is not given out as the result; a complete object is."""
    assert reading("The answer is 4", finish="length").cut
    assert reading("The answer is 4", finish="length").problem == "the text was cut off before it was complete"
    assert reading("<think>x", finish="length").problem == "the thinking took all the room, and no action came"
    for whole in (
        '{"type": "final_answer", "content": "4"}',
        '```json\n{"type": "final_answer", "content": "4"}\n```',
        '```{"final_answer": "4"}',
    ):
        assert actions(whole, finish="length") == (FinalAnswer(content="4"),)
    for half in ("`4`", '{"type": "stop"}{"type": "stop"}', 'Here:\n{"a": 1}'):
        assert reading(half, finish="length").cut


def test_mended_json_that_does_not_fit_is_not_handed_on() -> None:
    """Sound JSON with wrong arguments is left to the kernel to refuse; what was mended into wrong arguments is not."""
    assert reading('{"type": "read_file", "path": 5}').unfit == (ToolCall(tool="read_file", args={"path": 5}),)
    assert reading('{"type": "gone", "tool": "x"}').unfit == ()
    both = reading('[{"type": "read_file", "path": 5}, {"type": "stop"}]')
    assert both.unfit == (ToolCall(tool="read_file", args={"path": 5}), Stop())
    found = reading("{'type': 'read_file', 'path': 5,}")
    assert (found.unfit, found.mended) == ((), True)
    assert reading("{'type': 'read_file', 'path': 'a'}").mended and not reading("It is 42.").mended


def test_a_call_may_have_no_arguments() -> None:
    """None, an empty text, or nothing."""
    ping = ToolSpec(name="ping", input_schema={"type": "object", "properties": {}})
    for more in ("", ', "args": null', ', "args": ""', ', "args": "{}"', ', "args": {}'):
        assert actions(f'{{"tool": "ping"{more}}}', ping) == (ToolCall(tool="ping", args={}),)
    assert actions('{"tool": "ping", "reason": "why"}', ping) == (ToolCall(tool="ping", args={}, reason="why"),)
    assert actions('{"tool": "ping", "reason": 5}', ping) == (ToolCall(tool="ping", args={}),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 3 ", (True, 3)), ("```3```", (True, 3)), ("\n```json\n[3]\n```\n", (True, [3])), ("3```", (False, None)), ("```3", (False, None)),
        ("```js\n3\n```", (False, None)),
        ("", (False, None)), ('"\\ud800"', (False, None)),
    ],
)  # fmt: skip
def test_a_typed_answer_is_json_and_nothing_else(text: str, value: Any) -> None:
    """With a fence around it, or none."""
    assert whole_json(text) == value


def test_data_that_json_does_not_keep_is_not_plain() -> None:
    """It would be another in the log."""
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, float("inf"), "\ud800", {"a": [float("nan")]}):
        assert not plain_json(value)
    assert plain_json({"a": [1, 10**400, "\u2028", None, 0.1]})


def test_arguments_that_are_called_like_fields_stay_arguments() -> None:
    """A tool with an argument `args` or `reason` gets it."""
    assert actions('{"type": "set", "args": "x", "reason": "y"}', TYPE_TOOL) == (
        ToolCall(tool="set", args={"args": "x", "reason": "y"}, reason="y"),
    )


@pytest.mark.parametrize("name", ["reason", "thought", "thoughts", "thinking", "reasoning", "explanation", "step"])
def test_a_thought_beside_a_call_that_negates_stops_it(name: str) -> None:
    """Wherever the call has it, and the model is told; one beside an answer does not, nor an argument of that name."""
    call, args = '"name": "read_file", "arguments": {"path": "a.txt"}', '{"path": "a.txt"}'
    for form in (
        f'{{"NAME": "SAID", {call}}}',
        f'{{"type": "tool_call", {call}, "NAME": "SAID"}}',
        '{"type": "read_file", "NAME": "SAID", "path": "a.txt"}',
        f'{{"type": "read_file", "NAME": "SAID", "args": {args}}}',
        f'{{"NAME": "SAID", "function": {{{call}}}}}',
        f'{{"tool_call": {{{call}, "NAME": "SAID"}}}}',
        f'{{"NAME": "SAID", "actions": [{{{call}}}]}}',
    ):
        text = form.replace("NAME", name)
        assert [a.args for a in actions(text.replace("SAID", "I look into 'it'.")) if isinstance(a, ToolCall)] == [{"path": "a.txt"}]
        assert f'a negation in its "{name}"' in reading(text.replace("SAID", "I must not run this.")).problem
        assert not reading(text.replace("SAID", "Das darf ich nicht.")).actions
    answer = f'{{"{name}": "I cannot.", "actions": [{{"type": "final_answer", "content": "4"}}]}}'
    assert actions(answer) == actions('{"type": "final_answer", "content": "4"}')
    odd = ToolSpec(name="odd", input_schema={"type": "object", "properties": {name: {"type": "string"}}})
    assert actions(f'{{"type": "odd", "{name}": "not"}}', odd)


def test_only_offered_actions_are_taken() -> None:
    """An action that the planner was not given is named as impossible."""
    assert "not possible" in reading('{"type": "ask_user", "question": "?"}', actions=("tool_call", "final_answer")).problem
    assert "not possible" in reading('{"type": "read_file", "path": "a"}', actions=("final_answer",)).problem
    for said in ('{"tool": "read_file", "args": {"path": "a"}}', '{"tool_call": {"name": "read_file", "args": {"path": "a"}}}'):
        assert "not possible here; possible: final_answer" in reading(said, actions=("final_answer",)).problem
    assert 'no "type"' in reading('{"read_file": {"path": "a"}}', actions=("final_answer",)).problem
    assert 'no "type"' in reading('{"ask_user": "?"}', actions=("final_answer",)).problem
    assert reading("hello", prose=False).problem == "there is no JSON object with an action in it"
    assert reading("").problem == reading("<think>hm</think>\n").problem == "there was no action"
    assert reading("{5: 1}").problem == "it is not JSON: there must be a name, not a word or number"
    assert "no JSON object" in reading("hello", actions=("tool_call",)).problem


def test_a_model_may_answer_ask_stop_and_think_if_nothing_else_is_said() -> None:
    """And call tools; what changes the goal or the time of a run must be offered."""
    for said in (
        {"type": "final_answer", "content": "4"},
        {"type": "ask_user", "question": "?"},
        {"type": "stop"},
        {"type": "thought", "content": "hm"},
    ):
        assert read(json.dumps(said), Offer(tools={})).actions
    assert read('{"tool": "ping"}', Offer(tools={"ping": ToolSpec(name="ping")})).actions
    assert not read('{"type": "push_goal", "goal": "g"}', Offer(tools={})).actions


def test_a_name_alone_is_a_call_where_it_is_that_of_a_tool() -> None:
    """Anything else may have a name."""
    assert reading('{"tool_call": {"name": "add"}}').problem.startswith("the arguments of add do not fit")
    assert 'needs "tool"' in reading('{"type": "tool_call", "name": "Ann"}').problem


def test_a_typed_answer_may_stand_in_prose_where_it_is_the_one_object_there_and_fits_as_it_is() -> None:
    """A fence with words around it; not one that is mentioned, mended, cut off, or one of two."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for said in ('Here it is:\n```json\n{"n": 1}\n```\nThat is all.', 'I counted.\n\n{"n": 1}'):
        assert actions(said, output_schema=schema) == (FinalAnswer(content={"n": 1}),)
        assert not reading(said, output_schema=schema, finish="length").actions
    for tag in ("answer", "json", "output", "JSON"):
        assert actions(f'I counted <{tag}>{{"n": 1}}</{tag}>', output_schema=schema) == (FinalAnswer(content={"n": 1}),)
    for said in ('I counted: `{"n": 1}`', 'I counted:{"n": 1}', 'I counted.\n**{"n": 1}**'):
        assert actions(said, output_schema=schema) == (FinalAnswer(content={"n": 1}),)
    assert "no JSON object" in reading('I counted.\n\n{"n": 1}', output_schema=schema, actions=("tool_call",)).problem
    assert actions('I counted.\n\n{"n": 1}', output_schema=schema, prose=False) == (FinalAnswer(content={"n": 1}),)
    assert "output schema" in reading('Here:\n{"n": 1, "m": "\\ud800"}', output_schema=schema).problem
    for said in ('Write {"n": 1} or so.', "Here:\n{'n': 1,}", 'First:\n{"n": 1}\nThen:\n{"n": 2}', 'Here:\n{"n": "1"}'):
        assert "output schema" in reading(said, output_schema=schema).problem


def test_a_tool_that_has_the_name_of_a_control_action_is_called_where_that_action_is_not_offered() -> None:
    """As the meta-tools abstain and ask_user do; where the action is offered, it is meant."""
    tool = ToolSpec(name="abstain", input_schema={"type": "object", "properties": {"missing": {"type": "array"}}})
    said = '{"type": "abstain", "missing": ["a map"]}'
    assert actions(said, tool, actions=("tool_call", "final_answer")) == (ToolCall(tool="abstain", args={"missing": ["a map"]}),)
    assert actions(said, tool) == (Abstain(missing=("a map",)),)


@pytest.mark.parametrize("name", ["AskUser", "Ask User", "ask-user"])
def test_a_tool_is_called_by_its_very_name_though_an_action_is_spelt_so_too(name: str) -> None:
    """As the type, under `action`, and as the only key."""
    tool = ToolSpec(name=name, input_schema={"type": "object", "properties": {"question": {"type": "string"}}})
    called = (ToolCall(tool=name, args={"question": "Which?"}),)
    for said in (
        '{"type": "NAME", "question": "Which?"}',
        '{"action": "NAME", "args": {"question": "Which?"}}',
        '{"NAME": {"question": "Which?"}}',
    ):
        said_so = said.replace("NAME", name)
        assert actions(said_so, tool) == called
        if "args" not in said:
            assert actions(said_so) == (AskUser(question="Which?"),)


def test_an_answer_must_fit_the_output_schema() -> None:
    """Given as content, or directly."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert actions('{"type": "final_answer", "content": {"n": 1}}', output_schema=schema) == (FinalAnswer(content={"n": 1}),)
    assert actions('{"n": 1}', output_schema=schema) == (FinalAnswer(content={"n": 1}),)
    assert "output schema" in reading('{"type": "final_answer", "content": {"n": "1"}}', output_schema=schema).problem
    assert "output schema" in reading("It is 1", output_schema=schema).problem
    assert 'no "type"' in reading('{"n": "1"}', output_schema=schema).problem and 'no "type"' in reading('{"n": 1}').problem
    assert 'no "type"' in reading('{"n": 1, "m": "\\ud800"}', output_schema=schema).problem
    assert 'no "type"' in reading('{"n": 1}', output_schema=schema, actions=("tool_call",)).problem


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("<think>a</think>b", "a", "b"),
        ("<thinking>a</thinking>\n<think>c</think>b", "a\nc", "\nb"),
        ("a</think>b", "a", "b"),
        ("<think></think>b", "", "b"),
        ("</think>b", "", "b"),
        ("<think>a {", "a {", ""),
        ('{"content": "<think>x</think>"}', "", '{"content": "<think>x</think>"}'),
        ('{"content": "x</think>"}', "", '{"content": "x</think>"}'),
        ("plain", "", "plain"),
        ("<think> a\n</think> <think> </think>b", "a", " b"),
        ("a</think>b</think>c<think>d</think>e", "a\nb\nd", "ce"),
        *(
            (f"<{name}>a</{name}>b", "a", "b")
            for name in ("think", "thinking", "thought", "reasoning", "reflection", "THINK", "|think|", "|thought")
        ),
        ("<|think|>a<|/think|>b", "a", "b"),
        ("<|think|>a</|think|>b", "a", "b"),
        ("<thinks>a</thinks>b", "", "<thinks>a</thinks>b"),
        ("  [1]</think>", "", "  [1]</think>"),
        ("```</think>", "", "```</think>"),
        ("<think>a</think>{<think>b</think>", "a", "{<think>b</think>"),
    ],
)
def test_thinking_is_kept_apart(text: str, thinking: str, answer: str) -> None:
    """A draft in a think block is no answer; a tag inside a string is text."""
    assert split_thinking(text) == (thinking, answer)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_thinking_is_told_apart_while_it_streams(size: int) -> None:
    """However the pieces are cut, tags never show, and everything else comes."""
    text = "<think>so < 5</think> the <b>answer</b>"
    splitter = ThinkingSplitter()
    told = [part for i in range(0, len(text), size) for part in splitter.feed(text[i : i + size])] + splitter.end()
    assert "".join(piece for kind, piece in told if kind == "thinking") == "so < 5"
    assert "".join(piece for kind, piece in told if kind == "text") == " the <b>answer</b>"


@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_has_begun_to_answer_thinks_no_more(size: int) -> None:
    """A tag in an answer is text, at its end, too; before it white space is none."""
    for text in ("so <think>x</think> it is", "so <thi", "a <think>", "<"):
        splitter = ThinkingSplitter()
        told = [part for i in range(0, len(text), size) for part in splitter.feed(text[i : i + size])] + splitter.end()
        assert ("".join(piece for _, piece in told), {kind for kind, _ in told}) == (text, {"text"})
        assert splitter.end() == []
    splitter = ThinkingSplitter()
    told = [part for piece in (" \n", "<think>", "x", "</think>", "y") for part in splitter.feed(piece)]
    assert told == [("text", " \n"), ("thinking", "x"), ("text", "y")]
    assert ThinkingSplitter().feed("ab<reflection") == [("text", "ab")] and ThinkingSplitter().feed("ab<reflections") == [("text", "ab")]
    assert ThinkingSplitter().feed("ab<reflectionsssss") == [("text", "ab<reflectionsssss")]
    assert ThinkingSplitter().feed("ab<reflectionssss") == [("text", "ab")]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('[X{"a": 1}', [(2, 10)]), ('[ \t\r\n{"a": 1}]', [(0, 14)]), ("[]{}", [(2, 4)]), ('[{"a": "b"c"}] x', [(0, 14)]),
        ('{"a": "b"c"} [', [(0, 12)]),
        ("{'a': [1}]", [(0, 10)]), ("{a b} {}", [(0, 5), (6, 8)]),
        ('{"a": "" b} }', [(0, 11)]),
        ("}{", [(1, 2)]), ("}{}", [(1, 3)]), ('{"a": "\\""} x', [(0, 11)]), ("{'a': '}'}", [(0, 10)]), ('{"a": [{}]}{', [(0, 11), (11, 12)]),
    ],
)  # fmt: skip
def test_objects_are_found_where_they_are(text: str, places: list[tuple[int, int]]) -> None:
    """With the list around them, readable or not; brackets in texts are none."""
    assert [(one.start, one.end) for one in objects_in(text)] == places


def test_a_great_many_objects_cost_no_more_than_they_are_long() -> None:
    """At most 64 are looked at."""
    assert len(objects_in(json.dumps({"a": 1}) * 5000)) == 64


def test_the_text_of_a_model_with_native_calls_is_its_answer() -> None:
    """As it stands, where no call stands in it; where a type is wanted, JSON of it, fenced or not."""
    for text in ('{"type": "sum", "a": 1, "b": 2}', "Answer: 3 ", "<think>hm</think>3"):
        assert actions(text, native=True) == (FinalAnswer(content=text),)
    assert reading("<think>hm</think> ", native=True).said == ""
    called = 'Let me check Paris: read_file({"path": "Paris"})'
    assert (
        actions(called, native=True) == (FinalAnswer(content=called),)
        and reading(called.replace("check Paris", "check Rome"), native=True).problem
    )
    typed: dict[str, Any] = {"native": True, "output_schema": {"const": 3}, "answer_tool": "final_result"}
    assert actions("```json\n3\n```", **typed) == (FinalAnswer(content=3),)
    assert reading("4", **typed).actions == () and "3 was expected" in reading("4", **typed).problem
    assert reading("It is 3", **typed).problem == "the answer must be given by calling final_result"
