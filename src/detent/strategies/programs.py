"""Programs that a model writes: the tools as functions, what the model is told of them, and the program in its reply."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.ports import ToolSpec
from detent.strategies.showing import shown

RULES = (
    "You write a program in Python; it runs in a sandbox, and the functions below are the only way to the outside. Answer with one code block:\n"
    "```python\n...\n```\n"
    "The value of its last line is the answer to the goal, as text, a number, a list or a dict. If you need to see something first, print it and end "
    "the program with `None`: you are shown what it printed, and write the next one. Each program starts from nothing.\n"
    "Call the functions directly, with arguments by name; none is awaited. They return JSON data. A call that fails, or that is not allowed, raises a "
    "RuntimeError. Loops, functions, classes and comprehensions work; `yield`, files, the network, the clock, chance and packages do not. These modules "
    "can be imported: math, re, json, csv, datetime (without now), decimal, itertools, functools, collections, copy, hashlib, typing, dataclasses."
)
LONGEST = 100_000
"""The longest program, in characters."""

_BLOCK = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "array": "list", "object": "dict"}
_PYTHON = ("", "python", "py", "python3")


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a function: its `name` in a program, the names of its parameters in order, and what the model is told of it."""

    name: str
    tool: ToolSpec
    parameters: tuple[str, ...]
    told: str


def functions_of(tools: Sequence[ToolSpec]) -> dict[str, Function]:
    """Return the tools as functions by name. Names that Python cannot have, or has already, are changed; tools that end a turn are left out."""
    made: dict[str, Function] = {}
    for tool in tools:
        if not tool.ends_turn:
            name = _name(tool.name, made)
            properties = cast("dict[str, Any]", tool.input_schema.get("properties") or {})
            required = cast("Sequence[str]", tool.input_schema.get("required") or ())
            parameters = tuple(sorted(properties, key=lambda one: one not in required))  # those that must be given come first
            made[name] = Function(name=name, tool=tool, parameters=parameters, told=_told(name, tool, parameters))
    return made


def _name(tool: str, taken: Mapping[str, Any]) -> str:
    name = re.sub(r"\W", "_", tool, flags=re.ASCII) or "tool"
    if keyword.iskeyword(name) or hasattr(builtins, name) or not name.isidentifier():
        name = f"tool_{name}"
    names = (name, *(f"{name}_{count}" for count in range(2, len(taken) + 3)))
    return next(one for one in names if one not in taken)


def _told(name: str, tool: ToolSpec, parameters: Sequence[str]) -> str:
    """Return a function as the model sees it: a signature, and what it does."""
    schema = tool.input_schema
    required = cast("Sequence[str]", schema.get("required") or ())
    types = {one: _type(schema["properties"][one]) for one in parameters}
    says = " ".join(tool.description.split())
    if any(types[one].endswith("dict") or "$ref" in shown(schema["properties"][one]) or not one.isidentifier() for one in parameters):
        says = f"{says} Arguments: {shown(schema)}".strip()
    given = ", ".join(
        f"{one}: {types[one]}" + ("" if one in required else f" = {schema['properties'][one].get('default', '...')!r}")
        for one in parameters
        if one.isidentifier() and not keyword.iskeyword(one)
    )
    odd = [one for one in parameters if not one.isidentifier() or keyword.iskeyword(one)]
    more = f"{', ' if given else ''}**{{{', '.join(map(repr, odd))}}}" if odd else ""
    return f"def {name}({given}{more}) -> {_type(tool.result_schema or {})}: {says}"


def _type(schema: Any) -> str:
    """Return a JSON schema as a type of Python, as far as that says something."""
    schema = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    if options := schema.get("enum"):
        return f"Literal[{', '.join(map(repr, cast('list[Any]', options)))}]"
    if isinstance(either := schema.get("anyOf") or schema.get("oneOf"), list):
        return " | ".join(dict.fromkeys(map(_type, cast("list[Any]", either))))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(str(one), "Any") for one in cast("list[Any]", kind))
    if kind == "array" and "items" in schema:
        return f"list[{_type(schema['items'])}]"
    return "dict" if "$ref" in schema else _TYPES.get(str(kind), "Any")


def arguments(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the arguments of a call by name, and why they are none ("": they are). The tool itself validates them."""
    if len(args) > len(function.parameters):
        return {}, f"{function.name}() takes at most {len(function.parameters)} arguments, and {len(args)} were given"
    given = dict(zip(function.parameters, args, strict=False))
    if twice := given.keys() & kwargs.keys():
        return {}, f"{function.name}() got {', '.join(sorted(twice))} twice"
    return {**given, **kwargs}, ""


def program_in(reply: str, functions: Collection[str] = ()) -> tuple[str, str]:
    """Return the program of a model's reply, and what is wrong with the reply ("": nothing). A reply without a code block has no program.

    A call of a function outside of a block is neither a program nor an answer.
    """
    blocks = [found["code"] for found in _BLOCK.finditer(reply) if found["language"].lower() in _PYTHON]
    if len(blocks) > 1:
        return "", f"it has {len(blocks)} code blocks; give one program in one block"
    if not blocks:
        if re.search(r"^[ \t]*(?:`{3,}|~{3,})", reply, re.MULTILINE):
            return "", "its code block is not closed, or is not Python"
        called = [name for name in functions if re.search(rf"(?<![\w.]){name}[ \t]*\(", reply)]
        return (
            "",
            f"it calls {called[0]}() outside of a code block: nothing was run; give a program in a block, or the answer in words"
            if called
            else "",
        )
    if len(blocks[0]) > LONGEST:
        return "", f"the program has {len(blocks[0])} characters; {LONGEST} is the most"
    return blocks[0], "" if blocks[0].strip() else "the code block is empty"
