"""JSON Schemas and validation: the only module that knows the validation library. It loads the library at first use.

Nothing is fetched: a reference leads into the schema itself or to a published meta-schema. The number of references followed in a check is limited,
because a few lines of a schema can otherwise take unlimited time. The draft is 2020-12 unless the schema names another.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from detent.expressions.patterns import BadPattern, check_patterns, compiled, drop_foreign_patterns

MOST_REFERENCES = 10_000
"""Most references followed in a check, plus one for each byte of the value."""
MOST_STEPS = 200_000
"""Most steps in a check with a foreign schema (a part of the schema against a part of the value), plus four for each byte of the value."""
LONGEST = 400
"""Most characters shown of the library's message."""
_FOLLOWED = ("$ref", "$dynamicRef", "$recursiveRef")
_NO_SCHEMAS = ("const", "enum", "default", "examples")


class UnusableSchema(ValueError):
    """The schema cannot be used for a check. The text starts with a verb ("is not a JSON Schema: ..."); `where` is the place in it, if any."""

    def __init__(self, text: str, *, where: str = "", said: str = "") -> None:
        super().__init__(text)
        self.where, self.said = where, said or text


def check_schema(schema: dict[str, Any], *, foreign: bool = False) -> None:
    """Raise `UnusableSchema` if a schema breaks the rules of its draft, or has an unusable pattern and is not `foreign`."""
    from jsonschema.exceptions import SchemaError

    try:
        _kind(schema).check_schema(schema)
    except SchemaError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        raise UnusableSchema(f"is not a JSON Schema: {error.message}", where=where, said=error.message) from error
    except RecursionError as error:
        raise UnusableSchema("is nested too deeply; flatten it") from error
    if not foreign:
        _check_patterns(schema)


def errors_of(
    schema: dict[str, Any], *, foreign: bool = False, formats: bool = False, integers: bool = False
) -> Callable[[Any], Iterator[Any]]:
    """Return a function that yields the library's errors for a value. It raises `UnusableSchema` if the check is not possible.

    `foreign`: patterns of an untrusted schema must not block this process; slow patterns were already left out. `formats`: check formats, too.
    With `integers`, a number that is written with a fraction is not an integer, even if the fraction is zero.
    """
    kind, own = _kind(schema), {name: part for name, part in schema.items() if name != "$schema"}
    raw = msgspec.json.encode(own)
    if foreign and b'"$schema"' in raw:  # otherwise the library would continue with that draft, and count nothing
        raise UnusableSchema("names a draft of its own in a part")
    own = msgspec.json.decode(raw)
    if foreign:
        drop_foreign_patterns(own)
    else:
        _check_patterns(own)
    kind = _of_integers(_linear(kind)) if integers else _linear(kind)
    if any(f'"{name}"'.encode() in raw for name in _FOLLOWED):
        _put_unevaluated_last(own)
        kind = _counting(kind)
    if foreign:
        kind = _weighing(kind)
    nothing: Any = importlib.import_module("referencing").Registry()  # an empty registry: nothing is fetched
    unresolvable: Any = importlib.import_module("referencing.exceptions").Unresolvable
    validator = kind(own, registry=nothing, format_checker=kind.FORMAT_CHECKER if formats else None)

    def errors(value: Any) -> Iterator[Any]:
        _followed.begin(value)
        try:
            yield from validator.iter_errors(value)
        except unresolvable as error:
            raise UnusableSchema(f"refers to {error.ref!r}, which is not in it; schemas are never fetched") from error
        finally:
            _followed.value = None

    return errors


def misfit(value: Any, schema: dict[str, Any]) -> str:
    """Return the most relevant error of an answer, in words for a model; "" if it is valid. Raise `UnusableSchema`."""
    best_match: Any = importlib.import_module("jsonschema.exceptions").best_match
    found: Any = best_match(_kept(msgspec.json.encode(schema))(value))
    if found is None:
        return ""
    where = "".join(f"[{part!r}]" for part in found.absolute_path)
    return f"{'answer' + where if where else 'the answer'}: {str(found.message)[:LONGEST]}"


def whole_numbers(value: Any, schema: dict[str, Any]) -> Any:
    """Return a value in which the numbers that its schema calls integers are `int`: in JSON Schema 5.0 is an integer, and programs want 5.

    Nothing else is changed, and no number that a float cannot represent exactly.
    """
    return _whole(value, [schema], schema)


_EXACT = 2**53


def _whole(value: Any, parts: list[Any], root: dict[str, Any]) -> Any:
    said = list(_applying(parts, root))
    if isinstance(value, float):
        wanted = any("integer" in ([kind] if isinstance(kind := part.get("type"), str) else kind or ()) for part in said)
        return int(value) if wanted and value.is_integer() and abs(value) <= _EXACT else value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _whole(inner, [p for part in said for p in _of_field(part, name)], root) for name, inner in fields.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_whole(inner, [p for part in said for p in _of_item(part, place)], root) for place, inner in enumerate(items)]
    return value


def _applying(parts: list[Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas that may apply to a value: these, and those that they refer to or combine."""
    todo, seen = list(parts), set[int]()
    while todo:
        part = todo.pop()
        if not isinstance(part, dict) or id(cast("object", part)) in seen:
            continue
        fields = cast("dict[str, Any]", part)
        seen.add(id(fields))
        yield fields
        for name in ("allOf", "anyOf", "oneOf"):
            todo += fields.get(name) or ()
        todo += [fields.get(name) for name in ("if", "then", "else")]
        if isinstance(reference := fields.get("$ref"), str) and reference.startswith("#"):
            todo.append(_at(root, reference))


def _at(root: Any, reference: str) -> Any:
    """Return the target of a reference into the schema itself, None if that is unknown."""
    found = root
    for step in reference[1:].split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(name)]
        else:
            return None
    return found


def _of_field(part: dict[str, Any], name: str) -> list[Any]:
    """Return the schema of a field of this name."""
    patterns: dict[str, Any] = part.get("patternProperties") or {}
    found = [inner for said, inner in patterns.items() if compiled(said).search(name)]
    own: dict[str, Any] = part.get("properties") or {}
    found += [own[name]] if name in own else []
    return found or [part.get("additionalProperties")]


def _of_item(part: dict[str, Any], place: int) -> list[Any]:
    """Return the schema of the item at this index of a list."""
    rest = part.get("items")
    first = (
        cast("list[Any]", rest) if isinstance(rest, list) else cast("list[Any]", part.get("prefixItems") or [])
    )  # drafts before 2020 use the former
    if place < len(first):
        return [first[place]]
    return [part.get("additionalItems") if isinstance(rest, list) else rest]


def dangling(schema: dict[str, Any]) -> str | None:
    """Return the first reference without a target, None if all have one."""
    specifications: Any = importlib.import_module("referencing.jsonschema")
    published: Any = importlib.import_module("jsonschema_specifications").REGISTRY
    unresolvable: Any = importlib.import_module("referencing.exceptions").Unresolvable
    draft = specifications.specification_with(str(schema.get("$schema", "")), default=specifications.DRAFT202012)
    base = str(schema.get("$id", ""))
    resolver = published.with_resource(base, draft.create_resource(schema)).resolver(base)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (unresolvable, ValueError):
            return reference
    return None


def _references(schema: dict[str, Any]) -> Iterator[str]:
    """Yield every `$ref` in a place for schemas (not in `const`, `enum`, `default` or `examples`)."""
    open_parts: list[Any] = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, list):
            open_parts.extend(cast("list[Any]", part))
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            if fields is not schema and "$id" in fields:
                continue  # a schema with its own base: its references are relative to that, and are resolved when it is used
            if isinstance(fields.get("$ref"), str):
                yield fields["$ref"]
            open_parts.extend(value for key, value in fields.items() if key not in ("$ref", *_NO_SCHEMAS))


def _kind(schema: dict[str, Any]) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for

    return validator_for(schema, default=Draft202012Validator)


def _check_patterns(schema: dict[str, Any]) -> None:
    raw = msgspec.json.encode(schema)
    if b'"patternProperties"' in raw and b'"unevaluatedProperties"' in raw:  # the library would match these patterns itself
        raise UnusableSchema("has unevaluatedProperties and patternProperties; use additionalProperties")
    try:
        check_patterns(schema)
    except BadPattern as error:
        raise UnusableSchema(f"has a pattern that cannot be used: {error}") from error


@cache
def _linear(kind: Any) -> Any:
    """Return the validator class with patterns matched in linear time."""
    validators: Any = importlib.import_module("jsonschema.validators")
    failed: Any = importlib.import_module("jsonschema.exceptions").ValidationError

    def pattern(validator: Any, said: str, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and compiled(said).search(instance) is None:
            yield failed(f"{instance!r} does not match {said!r}")

    def named(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for said, inner in patterns.items():
                for name, value in instance.items():
                    if compiled(said).search(name) is not None:
                        yield from validator.descend(value, inner, path=name, schema_path=said)

    def additional(validator: Any, said: Any, instance: Any, schema: Any) -> Iterator[Any]:
        patterns: dict[str, Any] = schema.get("patternProperties") or {}
        if patterns and validator.is_type(instance, "object"):
            fits = [compiled(pattern).search for pattern in patterns]
            rest = {name: value for name, value in instance.items() if not any(found(name) for found in fits)}
            schema = {name: part for name, part in schema.items() if name != "patternProperties"}
            yield from kind.VALIDATORS["additionalProperties"](validator, said, rest, schema)
        else:
            yield from kind.VALIDATORS["additionalProperties"](validator, said, instance, schema)

    def unique(validator: Any, said: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if said and validator.is_type(instance, "array") and len({_hashable(item) for item in instance}) < len(instance):
            yield failed(f"{instance!r} has non-unique elements")

    ours = {"pattern": pattern, "patternProperties": named, "additionalProperties": additional, "uniqueItems": unique}
    return validators.extend(kind, {name: check for name, check in ours.items() if name in kind.VALIDATORS})


@cache
def _of_integers(kind: Any) -> Any:
    """Return the validator class for which no float is an integer."""

    def is_integer(_checker: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    checker = kind.TYPE_CHECKER.redefine("integer", is_integer)
    return importlib.import_module("jsonschema.validators").extend(kind, type_checker=checker)


def _hashable(value: Any) -> Any:
    """Return a value that is equal for two values that are equal in JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(part)) for name, part in cast("dict[str, Any]", value).items())
    if isinstance(value, list):
        return tuple(_hashable(part) for part in cast("list[Any]", value))
    return (bool, value) if isinstance(value, bool) else value


@lru_cache(maxsize=64)
def _kept(raw: bytes) -> Callable[[Any], Iterator[Any]]:
    schema = msgspec.json.decode(raw)
    check_schema(schema)
    return errors_of(schema)


def _size(value: Any) -> int:
    """Return how many bytes a value has as JSON. Half a surrogate pair, which UTF-8 cannot encode, counts as its escape."""
    try:
        return len(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return len(json.dumps(value))


class _Followed(threading.local):
    """How many references and steps are left in this thread's current check."""

    left = steps = 0
    value: Any = None

    def begin(self, value: Any) -> None:
        self.left, self.steps, self.value = MOST_REFERENCES, MOST_STEPS + 4 * _size(value), value

    def step(self, *looked_at: Any) -> None:
        self.steps -= 1 + sum(len(cast("list[Any]", part)) for part in looked_at if isinstance(part, (list, dict)))
        if self.steps < 0:
            raise UnusableSchema(f"makes more than {MOST_STEPS:,} steps with this value")

    def follow(self) -> None:
        self.left -= 1
        if self.left < 0 and self.value is not None:  # a large value needs more of them
            self.left, self.value = _size(self.value), None
        if self.left < 0:
            raise UnusableSchema(f"follows more than {MOST_REFERENCES} references")


_followed = _Followed()


@cache
def _counting(kind: Any) -> Any:
    """Return the validator class that counts its references."""
    extend: Any = importlib.import_module("jsonschema.validators").extend

    def counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
        def follow(*given: Any) -> Any:
            _followed.follow()
            return keyword(*given)

        return follow

    return extend(kind, {name: counted(kind.VALIDATORS[name]) for name in _FOLLOWED if name in kind.VALIDATORS})


@cache
def _weighing(kind: Any) -> Any:
    """Return the validator class that counts its steps."""
    extend: Any = importlib.import_module("jsonschema.validators").extend

    def weighed(keyword: Callable[..., Any]) -> Callable[..., Any]:
        def step(validator: Any, said: Any, instance: Any, schema: Any) -> Any:
            _followed.step(said, instance)
            return keyword(validator, said, instance, schema)

        return step

    return extend(kind, {name: weighed(keyword) for name, keyword in kind.VALIDATORS.items()})


def _put_unevaluated_last(schema: Any) -> None:
    """Move `unevaluated...` behind all other keywords. The library follows its references uncounted, but by then they were followed and counted."""
    todo: list[Any] = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += cast("list[Any]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            for name in ("unevaluatedItems", "unevaluatedProperties"):
                if name in fields:
                    fields[name] = fields.pop(name)
            todo += fields.values()
