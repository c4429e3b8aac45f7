"""How models write `read_file(path="a.txt", lines=3)`: one text for each dialect, and whether a model with native calls is executed so too.

The table of dialects in the documentation is made from this file.
"""

from __future__ import annotations

from typing import NamedTuple

ARGS = '{"path": "a.txt", "lines": 3}'
NAMED = f'{{"name": "read_file", "arguments": {ARGS}}}'
PYTHON = 'read_file(path="a.txt", lines=3)'
PARAMETERS = "<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n3\n</parameter>\n"


class Dialect(NamedTuple):
    """A way to write a call. `marked`: it is unmistakably a call, also in the text of a model that has native ones."""

    name: str
    text: str
    marked: bool = True


DIALECTS = [
    Dialect("name and object", f"read_file({ARGS})"),
    Dialect("JSON", f'{{"type": "tool_call", "tool": "read_file", "args": {ARGS}}}', marked=False),
    Dialect("JSON, OpenAI", NAMED, marked=False),
    Dialect("JSON, LangChain", f'{{"action": "read_file", "action_input": {ARGS}}}', marked=False),
    Dialect("JSON in a fence", f"```json\n{NAMED}\n```", marked=False),
    Dialect("Python", PYTHON, marked=False),
    Dialect("Llama, pythonic", f"[{PYTHON}]"),
    Dialect("Llama, function", f"<function=read_file>{ARGS}</function>"),
    Dialect("Llama, JSON", f'<|python_tag|>{{"name": "read_file", "parameters": {ARGS}}}<|eom_id|>'),
    Dialect("Gemma", f"```tool_code\n{PYTHON}\n```"),
    Dialect("Gemma, printed", f"```tool_code\nprint({PYTHON})\n```"),
    Dialect("Mistral, list", f"[TOOL_CALLS] [{NAMED}]"),
    Dialect("Mistral, arguments", f"[TOOL_CALLS]read_file[ARGS]{ARGS}"),
    Dialect("Mistral, call id", f"[TOOL_CALLS]read_file[CALL_ID]a1b2c3d4e[ARGS]{ARGS}"),
    Dialect("functionary", f">>>read_file\n{ARGS}"),
    Dialect("functionary 2", f"<|from|>assistant\n<|recipient|>read_file\n<|content|>{ARGS}<|stop|>"),
    Dialect("ReAct", f"Thought: I look into the file.\nAction: read_file\nAction Input: {ARGS}"),
    Dialect("Qwen", f"✿FUNCTION✿: read_file\n✿ARGS✿: {ARGS}"),
    Dialect("Qwen, Hermes", f"<tool_call>\n{NAMED}\n</tool_call>", marked=False),
    Dialect("Qwen3-coder", f"<tool_call>\n<function=read_file>\n{PARAMETERS}</function>\n</tool_call>"),
    Dialect("Seed-OSS", f"<seed:tool_call>\n<function=read_file>\n{PARAMETERS}</function>\n</seed:tool_call>"),
    Dialect(
        "DeepSeek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n{ARGS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    Dialect(
        "DeepSeek 3.1",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read_file<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    Dialect(
        "DeepSeek 3.2",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_file">\n<｜DSML｜parameter name="path" string="true">a.txt</｜DSML｜parameter>\n'  # noqa: RUF001
        '<｜DSML｜parameter name="lines" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',  # noqa: RUF001
    ),
    Dialect("harmony", f"<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{ARGS}<|call|>"),
    Dialect(
        "harmony, with analysis",
        "<|channel|>analysis<|message|>Is it there? Look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{ARGS}<|call|>",
    ),
    Dialect("GLM-4", f"read_file\n{ARGS}"),
    Dialect(
        "GLM-4.5",
        "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a.txt</arg_value>\n<arg_key>lines</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    Dialect(
        "invoke",
        '<function_calls>\n<invoke name="read_file">\n<parameter name="path">a.txt</parameter>\n<parameter name="lines">3</parameter>\n</invoke>\n'
        "</function_calls>",
    ),
    Dialect(
        "MiniMax",
        '<minimax:tool_call>\n<invoke name="read_file">\n<parameter name="path">a.txt</parameter>\n<parameter name="lines">3</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    Dialect(
        "Kimi",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    Dialect("Granite", f"<|tool_call|>[{NAMED}]"),
    Dialect("Granite, tagged", f"<tool_call>[{NAMED}]</tool_call>", marked=False),
    Dialect("Phi-4", f"<|tool_call|>[{NAMED}]<|/tool_call|>"),
    Dialect("Phi-4, functools", f"functools[{NAMED}]"),
    Dialect("Command R", f'Action: ```json\n[{{"tool_name": "read_file", "parameters": {ARGS}}}]\n```', marked=False),
    Dialect("Command A", f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "read_file", "parameters": {ARGS}}}]<|END_ACTION|>'),
    Dialect("InternLM", f'<|action_start|><|plugin|>{{"name": "read_file", "parameters": {ARGS}}}<|action_end|>'),
    Dialect("Jamba", f"<tool_calls>[{NAMED}]</tool_calls>", marked=False),
    Dialect("LFM2", f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>"),
    Dialect("Nemotron", f"<TOOLCALL>[{NAMED}]</TOOLCALL>", marked=False),
]
