"""Rules as data: reading a rule file, and checking everything that can be checked without running it.

A rule file is a YAML list. An entry is a rule, `values` (named expressions, at most once) or `default` (the action when no rule fires, at
the end). Errors name the file, the line, the rule and the key or expression, and the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from detent.core.budget import FIELDS as BUDGET_FIELDS
from detent.core.durations import seconds
from detent.core.errors import ConfigError
from detent.expressions.compiled import MACROS, TYPES, Expression, Names, compile_expression, nearest
from detent.planners.rules.templates import Template, parse_template
from detent.ports.governing_files import governs

ALWAYS = ("goal", "variables", "iteration", "results", "values", "host", "budget", "conversation")
"""The variables of every expression. Templates of a `for_each` rule also have `item` and `index`."""
HOST = ("tenant", "workspace", "principal", "scopes")
BOUNDS = tuple(field.removeprefix("max_") for field in BUDGET_FIELDS)


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an action template: its fields, the required ones, and the one that a bare value sets."""

    fields: tuple[str, ...]
    needs: tuple[str, ...]
    bare: str = ""
    whole: bool = False
    ends: bool = False


FORMS: dict[str, Form] = {
    "call": Form(fields=("tool", "args"), needs=("tool",)),
    "answer": Form(fields=("content",), needs=("content",), bare="content", whole=True, ends=True),
    "stop": Form(fields=("reason",), needs=("reason",), bare="reason", ends=True),
    "abstain": Form(fields=("reason", "missing"), needs=("reason",), bare="reason", ends=True),
    "ask": Form(fields=("question", "expected"), needs=("question",), bare="question"),
    "think": Form(fields=("content",), needs=("content",), bare="content", whole=True),
    "schedule": Form(fields=("at", "delay_s"), needs=()),
    "push_goal": Form(fields=("goal",), needs=("goal",), bare="goal"),
    "complete_goal": Form(fields=("goal_id", "outcome"), needs=(), bare="outcome"),
}
"""The actions that a rule can take, by their key."""
AS_CALLS = {"spawn": "spawn_agent or agent_NAME", "join": "join_agent", "cancel": "cancel_agent"}
"""What is done to child runs, and the tools that do it: a rule calls these."""
OPTIONS = ("name", "when", "for_each", "batch", "repeat", "as", "on_error", "why")
RETRIES = 2
"""How often `on_error: retry` retries by default."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, ready to use. `limit` is how often it fires (None: no limit), `batch` how many calls go together (None: one at a time)."""

    name: str
    where: str
    action: str
    template: dict[str, Template]
    when: Expression | None = None
    for_each: Expression | None = None
    batch: int | None = None
    limit: int | None = 1
    result: str = ""
    retries: int = 0
    then: str = "continue"
    why: Template | None = None


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a planner, in order."""

    rules: tuple[Rule, ...]
    values: dict[str, Expression]
    default: Rule | None = None


def load_rules(path: str | Path) -> list[dict[str, Any]]:
    """Return the entries of a rule file as plain data, all checked. Raise `ConfigError` with file, line, rule and key."""
    entries, lines = read_entries(path)
    build_rules(entries, source=str(path), lines=lines)
    return entries


def read_entries(path: str | Path) -> tuple[list[Any], list[int]]:
    """Return a rule file's entries and the lines on which they begin. Raise `ConfigError` if it cannot be read."""
    import yaml

    governs(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        node: Any = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
        entries = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"rule file {str(path)!r} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"rule file {str(path)!r} is not UTF-8 text: byte {error.start} cannot be read") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not YAML: {error}; put texts that look like dates in quotes") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{place}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(entries, list):
        found = "empty" if entries is None else f"a {type(entries).__name__}"
        raise ConfigError(f"{path}: a rule file is a list of rules (`- name: ...`); this one is {found}")
    _refuse_repeated_keys(node, str(path))
    return cast("list[Any]", entries), [item.start_mark.line + 1 for item in node.value]


def build_rules(entries: Sequence[Any], *, source: str = "rules", lines: Sequence[int] = ()) -> RuleSet:
    """Return the rules of the entries. Raise `ConfigError` for the first mistake."""
    places = [f"{source}:{lines[i]}" if lines else f"{source}[{i}]" for i in range(len(entries))]
    rules, values, default = _sorted_entries(entries, places)
    names = Names(variables=ALWAYS, members={"results": _result_names(rules), "values": tuple(values[1]), "host": HOST, "budget": BOUNDS})
    built = [_rule(entry, where, names) for entry, where in rules]
    seen: set[str] = set()
    for rule in built:
        if rule.name in seen:
            raise ConfigError(f"{rule.where}: there is another rule with this name; the log tells rules apart by their names")
        seen.add(rule.name)
    last = None
    if default is not None:
        last = _rule({"name": "default", "repeat": True, **default[0]}, default[1], names, label="default")
    return RuleSet(rules=tuple(built), values=_values(values, names), default=last)


def _sorted_entries(entries: Sequence[Any], places: list[str]) -> tuple[list[tuple[dict[str, Any], str]], Any, Any]:
    """Return the rules, the values and the default, each with its place."""
    rules: list[tuple[dict[str, Any], str]] = []
    values: tuple[str, dict[str, Any]] = ("", {})
    default: tuple[dict[str, Any], str] | None = None
    for i, (entry, place) in enumerate(zip(entries, places, strict=True)):
        if not isinstance(entry, dict):
            raise ConfigError(f"{place}: a rule is a map (`name: ...`), not {entry!r}")
        if "name" not in entry and set(cast("dict[str, Any]", entry)) == {"values"}:
            if values[0] or not isinstance(entry["values"], dict):
                raise ConfigError(f"{place}: `values` may occur once and is a map of names and expressions")
            values = (place, cast("dict[str, Any]", entry["values"]))
        elif "name" not in entry and set(cast("dict[str, Any]", entry)) == {"default"}:
            if i != len(entries) - 1 or not isinstance(entry["default"], dict):
                raise ConfigError(f"{place}: `default` is the last entry and holds one action, as in `default: {{stop: no rule fits}}`")
            default = (cast("dict[str, Any]", entry["default"]), place)
        else:
            rules.append((cast("dict[str, Any]", entry), place))
    if not rules:
        raise ConfigError(f"{places[0].rsplit(':', 1)[0] if places else 'rules'}: there are no rules")
    return rules, values, default


def _result_names(rules: list[tuple[dict[str, Any], str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(entry["as"]) for entry, _ in rules if "as" in entry))


def _values(values: tuple[str, dict[str, Any]], names: Names) -> dict[str, Expression]:
    """Compile the named expressions; each may use those above it."""
    place, sources = values
    built: dict[str, Expression] = {}
    for name, source in sources.items():
        where = f"{place}: value {name!r}"
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{where}: a name is letters, digits and _, as expressions write it")
        if not isinstance(source, str):
            raise ConfigError(f"{where}: expected an expression (text), not {source!r}")
        known = Names(variables=names.variables, members={**names.members, "values": tuple(built)})
        expression = compile_expression(source, where=where, names=known)
        if expression.reads.get("values", frozenset()) is None:
            raise ConfigError(f"{where}: `values` as a whole is not available here; name the value")
        built[name] = expression
    return built


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


def _rule(entry: dict[str, Any], place: str, names: Names, *, label: str = "") -> Rule:
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (name == "default" and not label):
        said = f"rule name {name!r}" if "name" in entry else f"a rule without a name (its keys: {', '.join(map(str, entry))})"
        if isinstance(name, bool):
            said += " (YAML reads yes, no, on and off as truth values; put it in quotes)"
        raise ConfigError(f"{place}: {said}; a name has letters, digits, - and _, begins with a letter, and is not 'default'")
    where = f"{place}: {label or f'rule {name!r}'}"
    for key in entry:
        if key in AS_CALLS:
            raise ConfigError(f"{where}: {key!r} is not an action of a rule; call the tool {AS_CALLS[key]}. Actions: {', '.join(FORMS)}")
        if key not in OPTIONS and key not in FORMS:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(str(key), (*OPTIONS, *FORMS))}")
    actions = [key for key in entry if key in FORMS]
    if len(actions) != 1:
        found = " and ".join(actions) if actions else "none"
        raise ConfigError(f"{where}: a rule has exactly one action, this one has {found}; actions: {', '.join(FORMS)}")
    if label and (extra := [key for key in entry if key in OPTIONS and key not in ("name", "repeat", "why")]):
        raise ConfigError(f"{where}: {extra[0]!r} has no effect here; the default is one action, taken whenever no rule fires")
    action, own = actions[0], names
    for_each = _optional_expression(entry, "for_each", where, names)
    if for_each is not None:
        own = Names(variables=(*names.variables, "item", "index"), members=names.members)
    fields = _fields(action, entry[action], where)

    def compiled(source: str, at: str) -> Expression:
        return compile_expression(source, where=at, names=own)

    retries, then = _on_error(entry, where, action)
    return Rule(
        name=name,
        where=where,
        action=action,
        template={key: parse_template(value, f"{where}: {action}.{key}", compiled) for key, value in fields.items()},
        when=_optional_expression(entry, "when", where, names),
        for_each=for_each,
        batch=_batch(entry, where, action),
        limit=_limit(entry, where, action) if not label else None,
        result=_result_name(entry, where),
        retries=retries,
        then=then,
        why=parse_template(entry["why"], f"{where}: why", compiled) if "why" in entry else None,
    )


def _fields(action: str, value: Any, where: str) -> dict[str, Any]:
    form = FORMS[action]
    fields: dict[Any, Any]
    if value is None and not form.needs:
        fields = {}
    elif isinstance(value, dict) and not form.whole:
        fields = cast("dict[Any, Any]", value)
    elif form.bare:
        fields = {form.bare: value}
    else:
        raise ConfigError(f"{where}: {action} is a map of {', '.join(form.fields)}, not {value!r}")
    for key in fields:
        if key not in form.fields:
            raise ConfigError(f"{where}: {action} has no key {key!r}{nearest(str(key), form.fields)}")
    for key in form.needs:
        if fields.get(key) in (None, ""):
            raise ConfigError(f"{where}: {action} needs {key!r}")
    if action == "schedule" and len(fields) != 1:
        raise ConfigError(f"{where}: schedule needs one of 'at' (ISO 8601) and 'delay_s' (seconds)")
    if action == "schedule" and "${" not in str(delay := fields.get("delay_s")):
        seconds(delay, f"{where}: schedule.delay_s")
    return fields


def _optional_expression(entry: Mapping[str, Any], key: str, where: str, names: Names) -> Expression | None:
    if key not in entry:
        return None
    source = entry[key]
    if isinstance(source, bool) and key == "when":
        source = str(source).lower()
    if not isinstance(source, str):
        raise ConfigError(f"{where}: {key} is an expression (text), not {source!r}")
    if source.strip().startswith("${"):
        raise ConfigError(f"{where}: {key} is an expression already; write it without ${{ }}")
    return compile_expression(source, where=f"{where}: {key}", names=names)


def _batch(entry: Mapping[str, Any], where: str, action: str) -> int | None:
    value = entry.get("batch", False)
    if value is False:
        return None
    if "for_each" not in entry or action != "call":
        raise ConfigError(f"{where}: batch groups the calls of a for_each rule; this rule has no for_each with a call")
    if value is True:
        return 1_000_000
    return _count(value, "batch", where)


def _limit(entry: Mapping[str, Any], where: str, action: str) -> int | None:
    value = entry.get("repeat", False)
    if FORMS[action].ends:
        if "repeat" in entry or "for_each" in entry or "as" in entry or "on_error" in entry:
            raise ConfigError(f"{where}: {action} ends the run; repeat, for_each, as and on_error have no effect with it")
        return None
    if "for_each" in entry and "repeat" in entry:
        raise ConfigError(f"{where}: for_each and repeat cannot be combined; a for_each rule fires once for each item")
    return None if value is True else 1 if value is False else _count(value, "repeat", where)


def _count(value: Any, key: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}: {key} is true, false or a number above 0, not {value!r}")
    return value


def _result_name(entry: Mapping[str, Any], where: str) -> str:
    value = entry.get("as", "")
    if value and (not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or value in (*TYPES, *MACROS)):
        raise ConfigError(f"{where}: as: {value!r} is not a name for expressions; use letters, digits and _, as in `as: first_page`")
    return value or ""


def _on_error(entry: Mapping[str, Any], where: str, action: str) -> tuple[int, str]:
    value = entry.get("on_error", "continue")
    if "on_error" in entry and action != "call":
        raise ConfigError(f"{where}: on_error is for calls; {action} has no error to act on")
    fields: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if value in ("continue", "stop"):
        return 0, str(value)
    if value == "retry":
        fields = {"retry": RETRIES}
    elif (
        not fields or "retry" not in fields or set(fields) - {"retry", "then"} or fields.get("then", "continue") not in ("continue", "stop")
    ):
        raise ConfigError(f"{where}: on_error is continue, stop, retry or {{retry: N, then: continue|stop}}, not {value!r}")
    if "repeat" in entry:
        raise ConfigError(f"{where}: repeat and retry cannot be combined; a repeating rule fires again anyway")
    return _count(fields["retry"], "on_error.retry", where), str(fields.get("then", "continue"))


def _refuse_repeated_keys(node: Any, path: str, above: tuple[int, ...] = ()) -> None:
    """Reads YAML strictly. YAML silently keeps the last of two equal keys; here that is an error, and so is a value that contains itself."""
    if id(node) in above:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: a value contains itself")
    inner = (*above, id(node))
    if node.id == "mapping":
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                raise ConfigError(
                    f"{path}:{key.start_mark.line + 1}: the key {key.value!r} occurs twice in one map; the first would be lost"
                )
            seen.add(str(key.value))
            _refuse_repeated_keys(value, path, inner)
    elif node.id == "sequence":
        for item in node.value:
            _refuse_repeated_keys(item, path, inner)
