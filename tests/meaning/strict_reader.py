"""An independent strict reader: which calls a careful person would say were unmistakably asked for, or none.

It is written from the rule alone and shares no code with what it judges. Where it is in doubt it finds nothing, with two exceptions that
the rule makes: damage that loses no token may be mended, and a name may be spelled another way.
"""

# ruff: noqa: RUF001 - other languages and signs that look alike are what this is about
from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from meaning.offered import Called
from meaning.strict_json import CONSTANTS, NUMERAL, Doubt, Number, doubt, json_lines, json_of

Tools = Mapping[str, tuple[dict[str, Any], bool]]
"""By name: the schema of the arguments, and whether the tool only reads."""


class Untyped(NamedTuple):
    """The text of an XML element: its type is what the schema says."""

    text: str


# Python -------------------------------------------------------------------------------------------------------------------------


def python_calls(text: str, *, printed: bool = False) -> list[Any]:
    """Return the calls of a text that is a call, a list of calls or one a line, in Python without comments."""
    if "#" in re.sub(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", "", text):
        doubt("a comment")
    text = re.sub(r"([(,]\s*)from=", r"\1from__=", text.strip())  # a word of Python, and a name that tools use
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        doubt("no Python")
    nodes: list[ast.expr] = []
    for line in body:
        value = line.value if isinstance(line, ast.Expr) else doubt("a statement")
        nodes += value.elts if isinstance(value, ast.List) else [value]
    return [python_call(node, text, printed=printed) for node in nodes] or doubt("nothing")


def python_call(node: ast.expr, text: str, *, printed: bool) -> Any:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        doubt("no call")
    if printed and node.func.id == "print" and len(node.args) == 1 and not node.keywords:
        return python_call(node.args[0], text, printed=False)
    args = {"from" if word.arg == "from__" else word.arg: python_value(word.value, text) for word in node.keywords}
    if None in args or len(args) != len(node.keywords):
        doubt("stars, or a word twice")
    if node.args and args:
        doubt("which is which")
    if len(node.args) > 1:
        doubt("which is which")
    return node.func.id, python_value(node.args[0], text) if node.args else args, bool(node.args)


def python_value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=bool() | None as value):
            return value
        case ast.Constant(value=int() | float()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            written = ast.get_source_segment(text, node) or ""
            return Number(written) if NUMERAL.fullmatch(written) else doubt("not as JSON writes numbers")
        case ast.Constant(value=str() as value):
            written = ast.get_source_segment(text, node) or ""
            if "from__=" in value or not re.fullmatch(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", written):
                doubt("more than one string")
            return value
        case ast.Name(id="true" | "false" | "null" as name):
            return CONSTANTS[name]
        case ast.List(elts=values):
            return [python_value(value, text) for value in values]
        case ast.Dict(keys=keys, values=values):
            made = {key.value: python_value(v, text) for key, v in zip(keys, values, strict=True) if isinstance(key, ast.Constant)}
            return made if len(made) == len(keys) else doubt("keys")
        case _:
            return doubt("no literal")


# What is a call -----------------------------------------------------------------------------------------------------------------

TOOL_KEYS, ARGUMENT_KEYS = ("tool", "name", "tool_name", "recipient_name"), ("args", "arguments", "parameters", "input", "tool_input")
LIST_KEYS = {"tool_calls", "actions", "tool_uses", "calls", "function_calls"}
CALL_TYPES = ("tool_call", "function_call", "tool_use", "function", "call", "tool")
NOTES = {"id", "call_id", "tool_call_id", "thought", "thoughts", "reason", "reasoning", "thinking", "index", "createdAt"}


def calls_of(value: Any, tools: Tools) -> list[Any]:
    """Return the calls that a JSON value is."""
    if isinstance(value, list):
        return [call for one in value for call in calls_of(one, tools)] or doubt("an empty list")
    if not isinstance(value, dict):
        doubt("no object")
    fields = {key: given for key, given in value.items() if key not in NOTES}
    if len(fields) == 1:
        ((key, inner),) = fields.items()
        if key in LIST_KEYS and isinstance(inner, list):
            return calls_of(inner, tools)
        if key in (*CALL_TYPES, "action") and isinstance(inner, dict):
            return calls_of(inner, tools)
        if named(key, tools) and isinstance(inner, dict):
            return [(key, inner, False)]
    kind = fields.pop("type", None) if "type" in fields else None
    if kind in CALL_TYPES and isinstance(fields.get("function"), dict) and len(fields) == 1:
        return calls_of(fields["function"], tools)
    if kind is None and fields.get("action") in CALL_TYPES:
        kind = fields.pop("action")
    if kind is None and "action" in fields and set(fields) <= {"action", "action_input"}:
        return [(fields["action"], arguments(fields.get("action_input", {})), False)]
    if kind not in CALL_TYPES and isinstance(kind, str):
        kind = named(kind, tools) or doubt("an unknown type")
        if len(fields) == 1 and next(iter(fields)) in ARGUMENT_KEYS:
            return [(kind, arguments(next(iter(fields.values()))), False)]
        own = [note for note in NOTES if note in tools[kind][0].get("properties", {})]
        return [(kind, {**fields, **{note: value[note] for note in own if note in value}}, False)]
    tool = [key for key in TOOL_KEYS if key in fields]
    packed = [key for key in ARGUMENT_KEYS if key in fields]
    if len(tool) != 1 or len(packed) > 1 or len(fields) != len(tool) + len(packed):
        doubt("left over, or twice")
    name = fields[tool[0]]
    if tool == ["recipient_name"] and isinstance(name, str):
        name = name.removeprefix("functions.")
    return [(name, arguments(fields[packed[0]]) if packed else {}, False)]


def arguments(value: Any) -> Any:
    return json_of(value) if isinstance(value, str) else value


def tagged(pattern: str, text: str, make: Callable[[re.Match[str]], list[Any]], *, between: str = r"\s*") -> list[Any] | None:
    """Return what `make` makes of each match where the text is nothing but matches; None where it does not begin with one."""
    one = re.compile(rf"{between}(?:{pattern})", re.DOTALL)
    at, found = 0, list[Any]()
    while match := one.match(text, at):
        found += make(match)
        at = match.end()
        if at == match.start():
            break
    return found if found and not text[at:].strip() else None


NAME = r"(?P<name>[A-Za-z_][\w.-]*)"
ELEMENT = re.compile(
    r'\s*<parameter(?:=|\s+name=(?P<mark>["\']))(?P<key>[\w.-]+)(?(mark)(?P=mark)|)>(?P<value>.*?)</parameter>\s*', re.DOTALL
)
PAIR = re.compile(r"\s*<arg_key>(?P<key>[\w.-]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL)


def elements(text: str, pattern: re.Pattern[str]) -> dict[str, Untyped]:
    at, made = 0, dict[str, Untyped]()
    while match := pattern.match(text, at):
        if match["key"] in made or "<parameter" in match["value"] or "<arg_" in match["value"]:
            doubt("twice, or one that is not closed")
        made[match["key"]] = Untyped(match["value"].removeprefix("\n").removesuffix("\n"))
        at = match.end()
    return made if not text[at:].strip() else doubt("left over")


def dialect(text: str, tools: Tools) -> list[Any]:
    """Return the calls where the whole text is calls in a known dialect."""
    text = text.strip()

    def of_json(match: re.Match[str]) -> list[Any]:
        return [call for value in json_lines(match["json"]) for call in calls_of(value, tools)]

    def named_json(match: re.Match[str]) -> list[Any]:
        return [(match["name"], json_of(match["json"]), False)]

    def of_python(match: re.Match[str]) -> list[Any]:
        return python_calls(match["name"] + match["args"])

    def of_elements(match: re.Match[str]) -> list[Any]:
        return [(match["name"], elements(match["body"], ELEMENT), False)]

    def of_pairs(match: re.Match[str]) -> list[Any]:
        return [(match["name"], elements(match["body"], PAIR), False)]

    def of_fence(match: re.Match[str]) -> list[Any]:
        if match["lang"] == "tool_code":
            return python_calls(re.sub(r"^(print\()?default_api\.", r"\1", match["body"], flags=re.MULTILINE), printed=True)
        return dialect(match["body"], tools) if match["lang"] in ("", "json") else doubt("a block of something else")

    if (fences := tagged(r"```(?P<lang>[\w-]*)(?:[ \t]*\n|(?=[{\[]))(?P<body>.*?)(?:\n?```|\Z)", text, of_fence)) is not None:
        return fences
    channel, object_json, any_json = r"(?:<\|channel\|>commentary)", r"(?P<json>\{.*?\})", r"(?P<json>[{\[].*?[}\]])"
    for pattern, make in (
        (rf"<function={NAME}>\s*{object_json}\s*</function>", named_json),
        (rf"\[TOOL_CALLS\]\s*{NAME}\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*{object_json}(?=\s*(?:\[TOOL_CALLS\]|$))", named_json),
        (rf"\[TOOL_CALLS\]\s*{any_json}(?=\s*(?:\[TOOL_CALLS\]|$))", of_json),
        (rf">>>\s*{NAME}\n\s*{object_json}(?=\s*(?:>>>|$))", named_json),
        (
            rf"(?:<\|from\|>assistant\n)?<\|recipient\|>\s*{NAME}\n<\|content\|>\s*{object_json}(?=\s*(?:<\|from\|>|<\|recipient\|>|$))",
            named_json,
        ),
        (rf"(?:Thought:[^\n]*\n)?Action:\s*{NAME}\s*\nAction Input:\s*{object_json}(?=\s*(?:Thought:|Action:|$))", named_json),
        (
            rf"(?:<\|start\|>assistant)?{channel}? to=functions\.{NAME}\s*{channel}?\s*(?:<\|constrain\|>json)?<\|message\|>{object_json}(?:<\|call\|>|$)",
            named_json,
        ),
        (rf"<tool_call>\s*<function={NAME}>(?P<body>.*?)</function>\s*(?:</tool_call>|$)", of_elements),
        (rf"<function={NAME}>(?P<body>\s*(?:<parameter.*?)?)</function>", of_elements),
        (rf"<tool_call>\s*{NAME}\s*(?P<body>(?:<arg_key>.*?)?)</tool_call>", of_pairs),
        (rf"<tool_call>\s*{any_json}\s*(?:</tool_call>|$)", of_json),
        (rf"<tool_calls>\s*{any_json}\s*(?:</tool_calls>|$)", of_json),
        (rf"<invoke name=(?P<mark>[\"']){NAME}(?P=mark)>(?P<body>.*?)</invoke>", of_elements),
        (rf"<\|tool_call\|>\s*{any_json}\s*(?:<\|/tool_call\|>|(?=\s*<\|tool_call\|>)|$)", of_json),
        (rf"functools\s*{any_json}(?=\s*(?:functools|$))", of_json),
        (rf"(?:<\|python_tag\|>|(?!\A);)\s*{any_json}(?=\s*(?:<\|python_tag\|>|;|$))", of_json),
        (rf"(?:<\|python_tag\|>|(?!\A);)\s*{NAME}\.call(?P<args>\(.*?\))(?=\s*(?:;|$))", of_python),
        (rf"<\|START_ACTION\|>\s*{any_json}\s*<\|END_ACTION\|>", of_json),
        (rf"<TOOLCALL>\s*{any_json}\s*(?:</TOOLCALL>|$)", of_json),
        (rf"Action:\s*```json\s*{any_json}\s*(?:```|$)", of_json),
        (rf"<\|action_start\|><\|plugin\|>\s*{object_json}\s*<\|action_end\|>", of_json),
    ):
        if (found := tagged(pattern, text, make)) is not None:
            return found
    deep = r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?{NAME}(?:\n```json\n|<｜tool▁sep｜>){json}(?:\n?```)?<｜tool▁call▁end｜>"
    deep = deep.replace("{NAME}", NAME).replace("{json}", object_json).replace("▁", "[▁_ ]")
    section = r"<｜tool▁calls▁begin｜>(?P<rest>.*?)(?:<｜tool▁calls▁end｜>|\Z)".replace("▁", "[▁_ ]")
    if (found := tagged(section, text, lambda match: tagged(deep, match["rest"], named_json) or doubt("left over"))) is not None:
        return found
    kimi = rf"<\|tool_call_begin\|>\s*functions\.{NAME}:\d+<\|tool_call_argument_begin\|>{object_json}<\|tool_call_end\|>"
    section = r"<\|tool_calls_section_begin\|>(?P<rest>.*?)<\|tool_calls_section_end\|>"
    if (found := tagged(section, text, lambda match: tagged(kimi, match["rest"], named_json) or doubt("left over"))) is not None:
        return found
    block = r"<(?P<tag>function_calls|minimax:tool_call|seed:tool_call)>(?P<rest>.*?)(?:</(?P=tag)>|\Z)"
    if (found := tagged(block, text, lambda match: dialect(match["rest"], tools))) is not None:
        return found
    if (
        found := tagged(rf"{NAME}[ \t]*\((?P<json>\s*\{{.*?\}}\s*)\)(?=;?\s*(?:\n|$))", text, named_json, between=r"\s*(?:(?!\A);)?\s*")
    ) is not None:
        return found
    if text[:1] == "{" or (text[:1] == "[" and text[1:].lstrip()[:1] in ("{", "[")):
        return [call for value in json_lines(text) for call in calls_of(value, tools)]
    return python_calls(text)


# Names and values that fit ------------------------------------------------------------------------------------------------------


def folded(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name).casefold()


def slipped(one: str, other: str) -> bool:
    """Tell whether two longer names differ by one letter, one too many or two that changed places."""
    if min(len(one), len(other)) < 5 or abs(len(one) - len(other)) > 1:
        return False
    edits = {one[:i] + one[i + 1 :] for i in range(len(one))} & {other[:i] + other[i + 1 :] for i in range(len(other))}
    near = (
        edits
        or one in {other[:i] + other[i + 1 :] for i in range(len(other))}
        or other in {one[:i] + one[i + 1 :] for i in range(len(one))}
    )
    return bool(near)


def named(name: Any, tools: Tools) -> str:
    """Return the tool of that name, "" where it is not clear which."""
    if not isinstance(name, str):
        return ""
    if name in tools:
        return name
    alike = [known for known in tools if folded(known) == folded(name)]
    if not alike:
        alike = [known for known, (_, reads) in tools.items() if reads and slipped(folded(known), folded(name.rpartition(".")[2]))]
        alike = alike or [known for known, (_, reads) in tools.items() if reads and folded(known) == folded(name.rpartition(".")[2])]
    return alike[0] if len(alike) == 1 else ""


def fitting(args: Any, schema: dict[str, Any], *, reads: bool) -> dict[str, Any]:
    """Return the arguments as the tool takes them."""
    if not isinstance(args, dict):
        doubt("no arguments")
    properties: dict[str, Any] = schema.get("properties", {})
    if len(args) == 1:
        ((key, inner),) = args.items()
        if (
            key in ("args", "arguments", "input", "params", "parameters", "data", "kwargs")
            and key not in properties
            and isinstance(inner, dict)
        ):
            args = inner
    made: dict[str, Any] = {}
    for key, value in args.items():
        meant = parameter(key, properties, reads=reads)
        if meant in made or (meant != key and meant in args):
            doubt("a parameter twice")
        made[meant] = fit(value, properties[meant])
    if missing := [name for name in schema.get("required", []) if name not in made]:
        doubt(f"{missing} missing")
    return {**{name: field["default"] for name, field in properties.items() if "default" in field}, **made}


def parameter(key: str, properties: dict[str, Any], *, reads: bool) -> str:
    if key in properties:
        return key
    alike = [name for name in properties if folded(name) == folded(key)]
    if reads and not alike:
        alike = [name for name in properties if slipped(folded(name), folded(key))]
    return alike[0] if len(alike) == 1 else doubt(f"no parameter {key}")


def fit(value: Any, schema: dict[str, Any]) -> Any:
    """Return the value in the type that the schema says, where nothing of it is lost."""
    kinds: Any = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if isinstance(value, Untyped):
        if "string" in kinds:
            return value.text
        read = json_of(value.text)
        value = value.text if isinstance(read, str) else read
    for kind in kinds:
        made = as_kind(value, kind, schema)
        if made is not doubt:
            return made
    if isinstance(value, str) and "string" not in kinds and value == value.strip():
        read = json_of(value)
        if not isinstance(read, str):
            return fit(read, schema)
    return doubt("another type")


def as_kind(value: Any, kind: str, schema: dict[str, Any]) -> Any:
    """Return the value as this kind, `doubt` itself where it is none."""
    match kind, value:
        case "string", str():
            return value
        case "string", Number(written) if re.fullmatch(r"-?(0|[1-9][0-9]*)", written) or written == str(float(written)):
            return written
        case "boolean", bool():
            return value
        case "null", None:
            return None
        case "integer", Number(written) if len(written) < 400 and abs(Decimal(written).adjusted()) < 400:
            exact = Decimal(written)
            return int(exact) if exact == exact.to_integral_value() else doubt
        case "number", Number(written):
            near = float(written)
            whole = "." not in written and "e" not in written.lower()
            return (
                near if abs(near) != float("inf") and (not whole or int(near) == int(written)) else int(written) if whole else doubt
            )  # which no float is
        case "array", list():
            return [fit(one, schema["items"]) for one in value]
        case "object", dict():
            return fitting(value, schema, reads=False)
        case _:
            return doubt


# The whole ----------------------------------------------------------------------------------------------------------------------

NOT_ASKED = re.compile(
    r"""\b(?:not|no|never|nobody|none|neither|nor|without|cannot|unable|refus\w*|against|instead|avoid\w*|forbid\w*|forbidden|cancel\w*|wrong|stop
    |refrain|leave|omit|block|hold|delete|hardly|veto|drop|opposite|wait|undo|don|isn|won|can't
    |nicht|kein\w*|nie|niemals|ne|pas|jamais|nunca|jamás|non|não|не|нет|nie|wolno|niet|geen|çalıştırma|hüten|unterlassen|verhindern|éviter|bloquer|evitar
    |says?|said|contains?|wrote|writes?|returned|reads|asks?|asked|asking|example|already|if|would|could|might|yesterday
    |wants|last|attacker|mail|output|website|text|notes|content|of\ the\ tool|steht|sagt|dit|page|seite|document)\b
    |n['’]t\b|\Atool:|不|拒绝|避免|阻止|没|勿|别|ないで|写着|should|must""",
    re.IGNORECASE | re.VERBOSE,
)


def leads_in(text: str) -> bool:
    """Tell whether a text is one sentence that ends in a colon, negates nothing, asks nothing and quotes nothing."""
    text = re.sub(r"\A\s*(?:Sure|Okay|OK|Certainly|Of course|Great)[!.,]\s+", "", text.strip())
    if not text or text[-1] not in ":：" or re.search(r"[.!?。！？;\n]\s*\S|[?？¿]|[\"“”„«»`>]|(?<!\w)'|'(?!\w)", text):
        return False
    return not NOT_ASKED.search(text)


def without_thinking(text: str) -> str:
    text = text.strip()
    while match := re.match(r"<(think|thinking)>.*?</\1>", text, re.DOTALL):
        text = text[match.end() :].strip()
    return text


def asked(text: str, tools: Tools, *, native: bool = False, cut: bool = False) -> list[Called]:
    """Return the calls that a text asks for; [] where it asks for none unmistakably. `native`: of a model that has native calls."""
    text = without_thinking(text)
    if cut or not text:
        return []
    starts = [0, *(match.end() for match in re.finditer(r"[:：]\s*", text))]
    for start in starts:
        before, rest = text[:start], text[start:]
        if start and not leads_in(before):
            continue
        try:
            found = [called(call, tools) for call in dialect(rest, tools)]
        except (Doubt, ValueError):
            continue
        if start and native:
            lone = len(found) == 1 and "\n" not in rest and re.fullmatch(r"[\w-]+\s*\(\s*\{.*\}\s*\)", rest.strip())
            if not lone or not tools[found[0][0]][1]:
                continue
        return found
    return []


def called(call: tuple[Any, Any, bool], tools: Tools) -> Called:
    name, args, positional = call
    tool = named(name, tools) or doubt("no such tool")
    schema, reads = tools[tool]
    if positional and not isinstance(args, dict):
        if len(schema.get("properties", {})) != 1:
            doubt("which is which")
        args = {next(iter(schema["properties"])): args}
    return tool, fitting(args, schema, reads=reads)


def asked_natively(name: str, args: str, tools: Tools) -> list[Called]:
    """Return the call that a provider handed on, its arguments as the text that the model wrote."""
    try:
        return [called((name, json_of(args), False), tools)]
    except (Doubt, ValueError):
        return []
