"""How models write calls as text: one function a dialect, named as in the documentation where it is read as a whole text.

`ISSUE` are the dialects that one reader must read where they are the whole text, `JSON` the shapes of one JSON object. Those of
`OTHER` may be read or not: what matters is that no text of theirs is taken for an answer.
"""

# ruff: noqa: RUF001 - other languages and signs that look alike are what this is about
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from meaning.offered import Called

Written = Callable[[Sequence[Called]], str]


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def python(call: Called) -> str:
    """Return a call as Python writes it."""
    return f"{call[0]}({', '.join(f'{name}={value!r}' for name, value in call[1].items())})"


def plain(value: Any) -> str:
    """Return a value as text of an XML element: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumped(value)


def named(name: str, args: str) -> Callable[[Called], dict[str, Any]]:
    return lambda call: {name: call[0], args: call[1]}


def one_object(shape: Callable[[Called], Any]) -> Written:
    """Return a dialect in which each call is a JSON object on a line of its own."""
    return lambda calls: "\n".join(dumped(shape(call)) for call in calls)


def around(before: str, shape: Callable[[Called], str], after: str = "", *, between: str = "\n") -> Written:
    return lambda calls: before + between.join(shape(call) for call in calls) + after


NAMED = named("name", "arguments")


def name_and_json(call: Called) -> str:
    return dumped(NAMED(call))


def invoked(call: Called) -> str:
    fields = "".join(f'<parameter name="{name}">{plain(value)}</parameter>\n' for name, value in call[1].items())
    return f'<invoke name="{call[0]}">\n{fields}</invoke>'


def qwen_coder(call: Called) -> str:
    fields = "".join(f"<parameter={name}>\n{plain(value)}\n</parameter>\n" for name, value in call[1].items())
    return f"<function={call[0]}>\n{fields}</function>"


def glm(call: Called) -> str:
    fields = "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for name, value in call[1].items())
    return f"<tool_call>{call[0]}\n{fields}</tool_call>"


JSON: dict[str, Written] = {
    "type tool_call": one_object(lambda call: {"type": "tool_call", "tool": call[0], "args": call[1]}),
    "type tool_call, name": one_object(lambda call: {"type": "tool_call", **NAMED(call)}),
    "name and arguments": one_object(NAMED),
    "name and arguments as text": one_object(lambda call: {"name": call[0], "arguments": dumped(call[1])}),
    "name and parameters": one_object(named("name", "parameters")),
    "tool and args": one_object(named("tool", "args")),
    "tool and input": one_object(named("tool", "input")),
    "action and action_input": one_object(named("action", "action_input")),
    "type is the tool": one_object(lambda call: {"type": call[0], **call[1]}),
    "name is the key": one_object(lambda call: {call[0]: call[1]}),
    "function": one_object(lambda call: {"type": "function", "function": {"name": call[0], "arguments": dumped(call[1])}}),
    "tool_call is the key": one_object(lambda call: {"tool_call": NAMED(call)}),
    "function_call is the key": one_object(lambda call: {"function_call": NAMED(call)}),
    "tool_calls": lambda calls: dumped({"tool_calls": [{"function": {"name": n, "arguments": dumped(a)}} for n, a in calls]}),
    "list": lambda calls: dumped([NAMED(call) for call in calls]),
    "with a thought": one_object(lambda call: {"thought": "I look at this first", "tool": call[0], "args": call[1]}),
}
NAME_AND_OBJECT = around("", lambda call: f"{call[0]}({dumped(call[1])})")
ISSUE: dict[str, Written] = {
    "Llama pythonic": around("[", python, "]", between=", "),
    "Llama <function=>": around("", lambda call: f"<function={call[0]}>{dumped(call[1])}</function>"),
    "Llama <|python_tag|>": around("<|python_tag|>", lambda call: dumped(named("name", "parameters")(call)), between="; "),
    "Gemma tool_code": around("```tool_code\n", python, "\n```"),
    "Gemma tool_code, printed": around("```tool_code\n", lambda call: f"print({python(call)})", "\n```"),
    "Mistral [TOOL_CALLS] list": lambda calls: "[TOOL_CALLS] " + dumped([NAMED(call) for call in calls]),
    "Mistral [TOOL_CALLS] name": around("", lambda call: f"[TOOL_CALLS]{call[0]}{dumped(call[1])}", between=""),
    "Mistral [ARGS]": around("", lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{dumped(call[1])}", between=""),
    "functionary": around("", lambda call: f">>>{call[0]}\n{dumped(call[1])}"),
    "functionary 2": around("", lambda call: f"<|from|>assistant\n<|recipient|>{call[0]}\n<|content|>{dumped(call[1])}"),
    "ReAct": around("", lambda call: f"Action: {call[0]}\nAction Input: {dumped(call[1])}"),
    "ReAct with a thought": around("", lambda call: f"Thought: I need to see this.\nAction: {call[0]}\nAction Input: {dumped(call[1])}"),
    "DeepSeek": around(
        "<｜tool▁calls▁begin｜>",
        lambda call: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n```json\n{dumped(call[1])}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "DeepSeek 3.1": around(
        "<｜tool▁calls▁begin｜>",
        lambda call: f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{dumped(call[1])}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        between="",
    ),
    "harmony": around(
        "",
        lambda call: f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{dumped(call[1])}<|call|>",
    ),
    "harmony, started": around(
        "",
        lambda call: (
            f"<|start|>assistant<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{dumped(call[1])}<|call|>"
        ),
    ),
    "Hermes": around("", lambda call: f"<tool_call>\n{name_and_json(call)}\n</tool_call>"),
    "Qwen3-coder": around("", lambda call: f"<tool_call>\n{qwen_coder(call)}\n</tool_call>"),
    "GLM": around("", glm),
    "<invoke>": around("<function_calls>\n", invoked, "\n</function_calls>"),
    "Granite": lambda calls: "<|tool_call|>" + dumped([NAMED(call) for call in calls]),
    "Granite, tagged": lambda calls: f"<tool_call>{dumped([NAMED(call) for call in calls])}</tool_call>",
    "Phi-4": lambda calls: f"<|tool_call|>{dumped([NAMED(call) for call in calls])}<|/tool_call|>",
    "Phi-4, functools": lambda calls: "functools" + dumped([NAMED(call) for call in calls]),
    "fenced JSON": around("```json\n", name_and_json, "\n```"),
    "fenced": around("```\n", lambda call: dumped({"type": "tool_call", "tool": call[0], "args": call[1]}), "\n```"),
    "name(args)": around("", python),
}
OTHER: dict[str, Written] = {
    "Llama <|python_tag|>, called": around("<|python_tag|>", lambda call: python(call).replace("(", ".call(", 1), between="; "),
    "Mistral [CALL_ID]": around("", lambda call: f"[TOOL_CALLS]{call[0]}[CALL_ID]a1b2c3d4e[ARGS]{dumped(call[1])}", between=""),
    "Anthropic tool_use": one_object(lambda call: {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}),
    "Kimi": around(
        "<|tool_calls_section_begin|>",
        lambda call: f"<|tool_call_begin|>functions.{call[0]}:0<|tool_call_argument_begin|>{dumped(call[1])}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "MiniMax": around("<minimax:tool_call>\n", invoked, "\n</minimax:tool_call>"),
    "InternLM": around("", lambda call: f"<|action_start|><|plugin|>\n{dumped(named('name', 'parameters')(call))}<|action_end|>"),
    "Jamba": lambda calls: f"<tool_calls>{dumped([NAMED(call) for call in calls])}</tool_calls>",
    "Command A": lambda calls: (
        f"<|START_ACTION|>{dumped([{'tool_call_id': '0', **named('tool_name', 'parameters')(c)} for c in calls])}<|END_ACTION|>"
    ),
    "Command R": lambda calls: f"Action: ```json\n{dumped([named('tool_name', 'parameters')(call) for call in calls])}\n```",
    "Seed-OSS": around("<seed:tool_call>\n", qwen_coder, "\n</seed:tool_call>"),
    "Nemotron": lambda calls: f"<TOOLCALL>{dumped([NAMED(call) for call in calls])}</TOOLCALL>",
    "Python block": around("```python\n", python, "\n```"),
    "multi_tool_use": lambda calls: dumped({"tool_uses": [{"recipient_name": f"functions.{n}", "parameters": a} for n, a in calls]}),
    "name {args}": around("", lambda call: f"{call[0]} {dumped(call[1])}"),
    "awaited": around("", lambda call: f"await {python(call)}"),
    "one positional list": around("", lambda call: f"{call[0]}({', '.join(map(repr, call[1].values()))})"),
    "parameter tags": around(
        "", lambda call: f"<{call[0]}>\n" + "".join(f"<{k}>{plain(v)}</{k}>\n" for k, v in call[1].items()) + f"</{call[0]}>"
    ),
}
EVERY: dict[str, Written] = {"name({...})": NAME_AND_OBJECT, **JSON, **ISSUE, **OTHER}
