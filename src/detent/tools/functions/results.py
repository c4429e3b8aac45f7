"""Tool results as JSON bytes: checks that a result is JSON, satisfies its schema and fits its cap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.expressions.json_schema import errors_of
from detent.ports import MOST_NESTED, nests_too_deep
from detent.tools.functions import problems
from detent.tools.functions.schema import check_schema, own_copy


class NotJson(ValueError):
    """A value has no JSON form; the message gives the reason."""


def _foreign(value: Any) -> Any:
    """Return the plain form of a pydantic model. Raise `TypeError` for other foreign values."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no JSON form; return plain values, a dataclass, a msgspec Struct or a pydantic model")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=_foreign).encode


def encoded(value: Any) -> bytes:
    """Return `value` as JSON. Raise `NotJson` if that is impossible: foreign objects, NaN, infinities, cycles, broken text."""
    try:
        raw = _encode(value)
        if nests_too_deep(raw):
            raise NotJson(f"it is nested too deeply: more than {MOST_NESTED} levels")
        if b"null" in raw and not _finite(value):
            raise NotJson("it holds NaN or an infinity, which JSON cannot express")
    except NotJson:
        raise
    except RecursionError:
        raise NotJson("it contains itself, or is nested too deeply") from None
    except Exception as error:  # encoding calls foreign code (model_dump), and its exception is the reason
        raise NotJson(problems.of_exception(error)) from error
    return raw


def _finite(value: Any) -> bool:
    """Return whether no float in `value` is NaN or infinite (msgspec writes those as null)."""
    plain = value if value is None or isinstance(value, float) else msgspec.to_builtins(value, enc_hook=_foreign, str_keys=True)
    open_parts: list[Any] = [plain]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, float):
            if not math.isfinite(part):
                return False
        elif isinstance(part, dict):
            open_parts.extend(cast(dict[str, Any], part).values())
        elif isinstance(part, list | tuple | set | frozenset):
            open_parts.extend(cast(list[Any], part))
    return True


def preview(raw: bytes, *, limit_bytes: int) -> bytes:
    """Return a preview that replaces the result `raw`, which is over `limit_bytes`. The preview as a whole is within the limit.

        {"truncated":true,"preview":"...","original_bytes":70000,"limit_bytes":65536}

    The text is that of a text result, else the JSON, cut between characters. If the limit is too small for the byte counts, they are left out.
    The smallest form is an empty preview of 31 bytes.
    """
    text = msgspec.json.decode(raw) if raw[:1] == b'"' else raw[: limit_bytes + 4].decode("utf-8", errors="ignore")
    text = cast(str, text)[:limit_bytes]

    def with_figures(part: str) -> bytes:
        return _encode({"truncated": True, "preview": part, "original_bytes": len(raw), "limit_bytes": limit_bytes})

    def without(part: str) -> bytes:
        return _encode({"truncated": True, "preview": part})

    form = with_figures if len(with_figures("")) <= limit_bytes else without
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(form(text[:middle])) <= limit_bytes:
            low = middle
        else:
            high = middle - 1
    return form(text[:low])


def reported_failure(raw: bytes) -> dict[str, Any] | None:
    """Return the result if it reports a failure itself (`"success": false` and a text `error`, which is the code), else None."""
    if b'"success":false' not in raw:
        return None
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict):
        return None
    told = cast("dict[str, Any]", value)
    return told if told.get("success") is False and isinstance(told.get("error"), str) else None


class ResultCheck:
    """Checks results against a declared JSON Schema (validated at once) or type (read by pydantic at first use)."""

    def __init__(self, declared: Any, *, tool: str) -> None:
        """Raise `ConfigError` for an invalid schema."""
        self._declared, self._tool = declared, tool
        self._schema: dict[str, Any] | None = None
        if isinstance(declared, dict):
            self._schema = own_copy(declared, what=f"tool {tool!r}, result_schema")
            check_schema(self._schema, what=f"tool {tool!r}, result_schema")
        self._problem: Callable[[bytes], str] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of results."""
        if self._schema is None:
            self._problem, self._schema = self._of_type()
        return self._schema

    def problem(self, raw: bytes) -> str:
        """Return the problem of the result `raw`, or "" if there is none."""
        schema = self.schema
        self._problem = self._problem or self._of_schema(schema)
        return self._problem(raw)

    def _of_schema(self, schema: dict[str, Any]) -> Callable[[bytes], str]:
        errors = errors_of(schema)

        def problem(raw: bytes) -> str:
            try:
                return problems.of_result(errors(msgspec.json.decode(raw)))
            except Exception as error:  # noqa: BLE001 - a foreign validator on what a tool returned
                return f"it cannot be checked ({problems.of_exception(error)})"

        return problem

    def _of_type(self) -> tuple[Callable[[bytes], str], dict[str, Any]]:
        import pydantic

        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(self._declared)
            schema = adapter.json_schema()
        except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
            raise ConfigError(
                f"tool {self._tool!r}: result_schema {self._declared!r} is neither a JSON Schema nor a type that pydantic knows "
                f"({str(error).splitlines()[0]})"
            ) from error

        def problem(raw: bytes) -> str:
            try:
                adapter.validate_json(raw, strict=True)
            except pydantic.ValidationError as error:
                return problems.of_pydantic_result(error)
            return ""

        return problem, schema
