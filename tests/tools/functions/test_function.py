"""`tool`: what a typed function becomes, which arguments it takes, and what is refused when it is decorated."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import BaseModel, Field

from detent.core.errors import ConfigError, InvalidArguments, UnknownName
from detent.ports import ToolContext
from detent.tools import Tool, tool
from tool_calls import attempt


class Colour(enum.Enum):
    """A closed choice."""

    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """A nested model."""

    x: int
    y: int = 0


@tool(side_effect="read")
async def forecast(city: str, days: int = 3, unit: Annotated[str, Field(description="C or F")] = "C") -> dict[str, Any]:
    """Forecast the weather.

    It is often right.

    Args:
        city: the city's
            English name
        days (int): how many days
        unit: not this text

    Returns:
        a table
    """
    return {"city": city, "days": days, "unit": unit}


def test_a_tool_has_the_name_and_description_of_its_function() -> None:
    """The description is all text before the first section; the level is the given one."""
    spec = forecast.spec
    assert (spec.name, spec.description, spec.side_effect) == ("forecast", "Forecast the weather.\n\nIt is often right.", "read")
    assert (spec.timeout_s, spec.retries, spec.max_result_bytes, spec.trust, spec.cost_usd) == (120.0, 0, 65_536, "untrusted", None)


def test_the_schema_has_types_descriptions_and_defaults_and_refuses_the_rest() -> None:
    """Descriptions come from `Args:`, unless the annotation has one; no generated titles."""
    assert forecast.spec.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "the city's English name"},
            "days": {"type": "integer", "description": "how many days", "default": 3},
            "unit": {"type": "string", "description": "C or F", "default": "C"},
        },
    }


def test_without_options_a_tool_is_destructive() -> None:
    """Bare `@tool`, and `tool()` with other options, take the safest level."""

    @tool
    def bare(x: int) -> int:
        return x

    @tool(idempotent=True)
    def other(x: int) -> int:
        return x

    assert bare.spec.side_effect == other.spec.side_effect == "destructive"
    assert bare.spec.description == ""


def test_options_of_the_decorator_stand_in_the_declaration() -> None:
    """Each option arrives under its own name."""
    given: dict[str, Any] = {
        "side_effect": "write",
        "name": "renamed",
        "description": "Do it.",
        "scopes": ("a", "b"),
        "timeout_s": None,
        "retries": 2,
        "idempotent": True,
        "concurrency_safe": True,
        "volatile": True,
        "result_schema": {"type": "integer"},
        "max_result_bytes": 10,
        "sensitive": ("x",),
        "trust": "trusted",
        "cost_usd": 0.5,
        "ends_turn": True,
    }

    @tool(**given)
    def original(x: str) -> int:
        """Something else."""
        return len(x)

    assert {name: getattr(original.spec, name) for name in given} == given


@pytest.mark.parametrize(
    ("level", "is_async", "safe"), [("none", True, True), ("read", True, True), ("read", False, False), ("write", True, False)]
)
def test_only_async_tools_that_read_run_beside_others_by_default(level: Any, is_async: bool, safe: bool) -> None:
    """`concurrency_safe=None` is decided by function and level; a given value wins."""

    async def waits() -> None: ...

    def blocks() -> None: ...

    function = waits if is_async else blocks
    assert tool(function, side_effect=level).spec.concurrency_safe is safe
    assert tool(function, side_effect=level, concurrency_safe=not safe).spec.concurrency_safe is not safe


def test_a_tool_stays_callable_like_its_function() -> None:
    """For unit tests of the function itself; no check stands in between."""

    @tool(side_effect="none")
    def double(x: Any) -> Any:
        return x * 2

    assert double(4) == 8
    assert double("ab") == "abab"


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (str, ["", "a"], [1, True, None, ["a"], {}]),
        (int, [0, -1, 2**80, 1.0], ["1", 1.5, 1e16, True, None]),
        (float, [1, 1.5], ["1.5", True, None]),
        (bool, [True, False], [0, 1, "true"]),
        (bytes, ["abc"], [1]),
        (datetime, ["2026-01-02T03:04:05Z"], [5, "yesterday"]),
        (date, ["2026-01-02"], ["02.01.2026"]),
        (timedelta, ["PT5S"], ["five"]),
        (Decimal, ["1.5", 2], ["x"]),
        (uuid.UUID, ["12345678-1234-5678-1234-567812345678"], ["x", 5]),
        (Path, ["a/b"], [1]),
        (Colour, ["red"], ["green", 1]),
        (Literal["a", 1], ["a", 1], ["b", "1"]),
        (list[int], [[], [1]], [["1"], "12", {}]),
        (tuple[int, str], [[1, "a"]], [[1], ["a", 1], [1, "a", 2]]),
        (set[int], [[1, 2]], [["a"]]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, []]),
        (int | None, [None, 1], ["1"]),
        (int | str, ["1", 1], [1.5, []]),
        (Point, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"x": "1"}, [1]]),
        (list[Point], [[{"x": 1}]], [[{"x": None}]]),
        (Annotated[int, Field(gt=0)], [1], [0]),
        (Any, [1, "a", None, {"b": [1]}], []),
    ],
    ids=str,
)
def test_arguments_are_as_strict_as_json_is(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    """A number is no text and a text no number; what JSON can only write as text or array is read from that."""

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    made = tool(take, side_effect="read")
    for value in good:
        checked = made.check({"value": value})
        assert checked == {"value": value}
        assert made.check(checked) == checked
    for value in bad:
        with pytest.raises(InvalidArguments, match="value") as caught:
            made.check({"value": value})
        assert caught.value.error_code == "schema_validation_failed"


def test_the_function_gets_python_values() -> None:
    """What was checked as JSON arrives as the annotated types."""
    seen: list[Any] = []

    @tool(side_effect="none")
    def keep(when: datetime, pair: tuple[int, str], point: Point, tags: set[str], size: float = 1.0) -> None:
        seen.extend([when, pair, point, tags, size])

    args = {"when": "2026-01-02T03:04:05Z", "pair": [1, "a"], "point": {"x": 1}, "tags": ["t"]}
    assert attempt(keep, keep.check(args)).kind == "ok"
    assert seen[0].year == 2026
    assert seen[1:] == [(1, "a"), Point(x=1), {"t"}, 1.0]


def test_checked_arguments_are_fresh_plain_data() -> None:
    """Nothing of what the planner holds is handed on; what it left out stays left out."""
    nested = {"a": [1]}

    @tool(side_effect="none")
    def take(value: dict[str, list[int]], more: int = 5) -> None: ...

    checked = take.check({"value": nested})
    assert checked == {"value": {"a": [1]}}
    checked["value"]["a"].append(2)
    assert nested == {"a": [1]}


def test_values_that_are_not_json_yet_are_checked_in_their_json_form() -> None:
    """A planner in Python may use a date or a tuple; the log gets text and array."""

    @tool(side_effect="none")
    def take(day: date, pair: tuple[int, int]) -> None: ...

    assert take.check({"day": date(2026, 1, 2), "pair": (1, 2)}) == {"day": "2026-01-02", "pair": [1, 2]}


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), object(), "\ud800", {None: 1}, 1j],
    ids=["nan", "inf", "object", "surrogate", "none-key", "complex"],
)
def test_arguments_that_json_cannot_say_are_refused(value: Any) -> None:
    """NaN would become null in silence; objects and broken text have no form at all."""

    @tool(side_effect="none")
    def take(value: Any, maybe: int | None = None) -> None: ...

    with pytest.raises(InvalidArguments, match="not JSON") as caught:
        take.check({"value": value})
    assert caught.value.error_code == "schema_validation_failed"


@pytest.mark.parametrize("given", ["{}", [1], None, 5], ids=repr)
def test_arguments_that_are_no_object_are_refused(given: Any) -> None:
    """Text must have been parsed before."""
    with pytest.raises(InvalidArguments, match="not an object"):
        forecast.check(given)


def test_a_message_names_each_bad_argument_and_what_was_expected() -> None:
    """Missing, unknown and mistyped ones, all at once, with the nearest name; never the value."""
    with pytest.raises(InvalidArguments) as caught:
        forecast.check({"day": 1, "unit": 5_000_111})
    said = str(caught.value)
    assert "forecast:" in said
    assert "argument 'city' is missing" in said
    assert "unknown argument 'day'; did you mean 'days'?" in said
    assert said.endswith("Nothing was executed; correct the arguments and call again")
    assert "argument 'unit': Input should be a valid string (got integer)" in said
    assert "5000111" not in said


def test_a_message_stays_short() -> None:
    """A thousand bad items are listed as eight and a count; a huge value is not repeated."""

    @tool(side_effect="none")
    def take(items: list[int], text: int = 0) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        take.check({"items": ["secret"] * 1000, "text": "x" * 100_000, "k" * 5000: 1})
    said = str(caught.value)
    assert "argument 'items.0'" in said
    assert "more" in said
    assert "secret" not in said
    assert len(said) < 2000


def test_a_validator_that_raises_anything_is_a_refusal() -> None:
    """Code in annotations is the user's: a KeyError in it does not get past `check`."""

    def broken(value: int) -> int:
        raise KeyError(value)

    @tool(side_effect="none")
    def take(x: Annotated[int, pydantic.AfterValidator(broken)]) -> None: ...

    with pytest.raises(InvalidArguments, match="cannot be checked"):
        take.check({"x": 1})


def test_the_context_is_handed_over_and_is_no_argument() -> None:
    """Wherever it stands, under whatever name; an optional one too."""
    seen: list[Any] = []

    @tool(side_effect="none")
    async def first(where: ToolContext, x: int) -> None:
        seen.append((where.host.tenant, where.idempotency_key, x))

    @tool(side_effect="none")
    async def last(x: int, *, context: ToolContext | None = None) -> None:
        seen.append((context is not None and context.call_id, x))

    assert attempt(first, {"x": 1}).kind == "ok"
    assert attempt(last, {"x": 2}).kind == "ok"
    assert seen == [("acme", "key-1", 1), ("main.1.0", 2)]
    assert list(first.spec.input_schema["properties"]) == list(last.spec.input_schema["properties"]) == ["x"]
    with pytest.raises(InvalidArguments, match="unknown argument 'where'"):
        first.check({"x": 1, "where": {}})


def test_arguments_may_be_named_like_anything() -> None:
    """Names that pydantic's models keep for themselves are ordinary here."""

    @tool(side_effect="none")
    def take(json: int, schema: str, model_config: bool, _hidden: int = 1, copy: int = 2, title: str = "") -> dict[str, Any]:
        return {"json": json, "schema": schema, "model_config": model_config, "_hidden": _hidden}

    assert list(take.spec.input_schema["properties"]) == ["json", "schema", "model_config", "_hidden", "copy", "title"]
    outcome = attempt(take, {"json": 1, "schema": "s", "model_config": True, "_hidden": 4})
    assert outcome.result == b'{"json":1,"schema":"s","model_config":true,"_hidden":4}'


def test_types_of_a_function_are_found_where_it_is_defined() -> None:
    """Annotations are text in this file; local classes are resolved all the same."""

    class Local(BaseModel):
        a: int

    @tool(side_effect="none")
    def take(value: Local) -> None: ...

    with pytest.raises(InvalidArguments, match=r"value\.a"):
        take.check({"value": {"a": "x"}})


class Box:
    """Holds a number; its method is a tool of each instance."""

    def __init__(self, size: int) -> None:
        self.size = size

    @tool(side_effect="read")
    def grown(self, by: int) -> int:
        """How large the box is after it has grown."""
        return self.size + by

    @tool(side_effect="none")
    @staticmethod
    def unit(by: int) -> int:
        """A static method."""
        return by

    def plain(self, by: int) -> int:
        return self.size - by


def test_a_method_is_a_tool_of_its_instance() -> None:
    """Decorated in the class or bound later; two bindings of one instance are the same tool, those of two instances are not."""
    one, two = Box(1), Box(2)
    assert attempt(one.grown, {"by": 10}).result == b"11"
    assert attempt(two.grown, {"by": 10}).result == b"12"
    assert two.grown(by=1) == 3
    assert one.grown.same_as(one.grown)
    assert not one.grown.same_as(two.grown)
    assert attempt(tool(one.plain, side_effect="none"), {"by": 1}).result == b"0"
    assert attempt(one.unit, {"by": 7}).result == b"7"
    assert list(one.grown.spec.input_schema["properties"]) == ["by"]
    with pytest.raises(ConfigError, match="pass it from an instance"):
        _ = Box.grown.spec


def test_a_partial_is_a_tool_without_what_it_has_filled() -> None:
    """Bound arguments are neither in the schema nor accepted; name and text are those of the function inside."""

    async def scale(x: int, factor: int, offset: int = 0) -> int:
        """Scale x.

        Args:
            x: the number
        """
        return x * factor + offset

    made = tool(functools.partial(functools.partial(scale, factor=3), offset=1), side_effect="none")
    assert (made.name, made.spec.description, made.spec.concurrency_safe) == ("scale", "Scale x.", True)
    assert made.spec.input_schema["properties"] == {"x": {"type": "integer", "description": "the number"}}
    assert attempt(made, {"x": 2}).result == b"7"
    with pytest.raises(InvalidArguments, match="unknown argument 'factor'"):
        made.check({"x": 1, "factor": 2})


def test_a_callable_object_is_a_tool_under_a_given_name() -> None:
    """It has no name of its own; an async `__call__` is awaited."""

    class Adder:
        """Adds."""

        async def __call__(self, a: int, b: int = 1) -> int:
            """Add."""
            return a + b

    made = tool(Adder(), name="adder", side_effect="none")
    assert attempt(made, {"a": 1}).result == b"2"
    assert made.spec.concurrency_safe
    with pytest.raises(ConfigError, match="has no name; set one"):
        tool(Adder(), side_effect="none")


def test_a_wrapped_function_keeps_its_signature() -> None:
    """`functools.wraps` is followed."""

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    @tool(side_effect="none")
    @logged
    def take(x: int) -> int:
        """Take x."""
        return x

    assert attempt(take, {"x": 4}).result == b"4"
    assert take.spec.description == "Take x."


def make_bad() -> list[tuple[str, Callable[[], Any], str]]:
    """Return functions that cannot be tools, and what the error says."""

    def untyped(x) -> None: ...  # type: ignore[no-untyped-def]
    def star(*args: int) -> None: ...
    def stars(**kwargs: int) -> None: ...
    def slash(x: int, /) -> None: ...
    def field(x: int = Field(default=3)) -> None: ...
    def many() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    def fine(x: int) -> None: ...

    return [
        ("untyped", lambda: tool(untyped), "parameter x.*no type"),
        ("star", lambda: tool(star), r"\*args.*named parameters"),
        ("stars", lambda: tool(stars), r"\*\*kwargs.*named parameters"),
        ("slash", lambda: tool(slash), "positional-only"),
        ("field", lambda: tool(field), "Annotated"),
        ("generator", lambda: tool(many), "generator"),
        ("async generator", lambda: tool(stream), "generator"),
        ("class", lambda: tool(Point), "is a class"),
        ("lambda", lambda: tool(lambda: 1), "tool name '<lambda>'"),
        ("no function", lambda: tool("read"), "this is not a function"),  # type: ignore[call-overload]
        ("twice", lambda: tool(forecast), "is already a tool"),
        ("name", lambda: tool(fine, name="a b"), "tool name 'a b'"),
        ("long name", lambda: tool(fine, name="a" * 65), "tool name"),
        ("level", lambda: tool(fine, side_effect="wipe"), "side_effect is 'wipe'; did you mean 'write'"),  # type: ignore[call-overload]
        ("trust", lambda: tool(fine, trust="maybe"), "trust is 'maybe'"),  # type: ignore[call-overload]
        ("scopes", lambda: tool(fine, scopes="files"), "scopes is 'files'; write a tuple"),
        ("sensitive", lambda: tool(fine, sensitive=("y",)), "sensitive names 'y'.*parameters: x"),
        ("timeout", lambda: tool(fine, timeout_s=0), "above 0"),
        ("negative timeout", lambda: tool(fine, timeout_s=-1), "timeout_s is -1"),
        ("nan", lambda: tool(fine, timeout_s=float("nan")), "timeout_s is nan"),
        ("retries", lambda: tool(fine, retries=-1), "retries is -1"),
        ("retries text", lambda: tool(fine, retries="2"), "retries is '2'"),  # type: ignore[call-overload]
        ("cap", lambda: tool(fine, max_result_bytes=0), "above 0"),
        ("cost", lambda: tool(fine, cost_usd=-0.1), "cost_usd is -0.1"),
        ("flag", lambda: tool(fine, idempotent=1), "idempotent is 1"),  # type: ignore[call-overload]
        ("safe", lambda: tool(fine, concurrency_safe="yes"), "concurrency_safe is 'yes'"),  # type: ignore[call-overload]
        ("hook", lambda: tool(fine, before=5), "before is 5; it must be a function"),  # type: ignore[call-overload]
        ("async check", lambda: tool(fine, validate=stream_check), "validate is an async function"),
        ("reconcile", lambda: tool(fine, reconcile=lambda: None), "is called with 1 argument"),
        ("result schema", lambda: tool(fine, result_schema={"type": "nope"}), "result_schema: not a valid JSON Schema at type"),
    ]


async def stream_check(args: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(("made", "said"), [case[1:] for case in make_bad()], ids=[case[0] for case in make_bad()])
def test_what_cannot_be_a_tool_is_refused_when_it_is_decorated(made: Callable[[], Any], said: str) -> None:
    """At once, with a message that says which part and what to do instead."""
    with pytest.raises(ConfigError, match=said):
        made()


def test_a_misspelt_option_names_the_nearest() -> None:
    """Nothing that is given is ignored."""
    with pytest.raises(UnknownName, match="did you mean 'side_effect'"):
        tool(side_efect="read")(stream_check)  # type: ignore[call-overload]


def test_a_type_without_json_form_is_refused_at_first_use() -> None:
    """Types are looked at when the schema is asked for; the message names the tool."""

    class Opaque: ...

    @tool(side_effect="none")
    def take(x: Opaque) -> None: ...

    with pytest.raises(ConfigError, match=r"'take'.*cannot be described"):
        _ = take.spec


def test_an_annotation_that_cannot_be_resolved_is_refused_at_first_use() -> None:
    """With the missing name."""

    @tool(side_effect="none")
    def take(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="Missing"):
        _ = take.spec


def test_decorating_loads_no_validation_library() -> None:
    """A program of a hundred tools starts as fast as one of none: pydantic comes with the first schema."""
    code = """
import sys
from detent.tools import tool
@tool(side_effect="read")
def f(x: int) -> int:
    "Do."
    return x
assert not {"pydantic", "jsonschema", "referencing"} & set(sys.modules), sorted(sys.modules)
assert f.spec.input_schema["required"] == ["x"]
assert "pydantic" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def hooked(**hooks: Any) -> Tool[..., Any]:
    """Return a tool with hooks; it returns its argument."""

    @tool(side_effect="none", **hooks)
    def echo(x: int) -> int:
        return x

    return echo


def test_sanitize_comes_before_the_schema_and_validate_after_it() -> None:
    """Each sees what the one before it left; the checked arguments are the sanitised ones."""
    order: list[Any] = []

    def sanitize(args: dict[str, Any]) -> dict[str, Any]:
        order.append(("sanitize", dict(args)))
        return {"x": int(args["x"])}

    def validate(args: dict[str, Any]) -> None:
        order.append(("validate", dict(args)))

    given = {"x": " 5 "}
    assert hooked(sanitize=sanitize, validate=validate).check(given) == {"x": 5}
    assert order == [("sanitize", {"x": " 5 "}), ("validate", {"x": 5})]
    assert given == {"x": " 5 "}


def test_sanitize_may_change_its_copy_in_place() -> None:
    """Returning nothing keeps what is in the copy; the planner's own dict is untouched."""
    given = {"x": "5"}

    def sanitize(args: dict[str, Any]) -> None:
        args["x"] = 6

    assert hooked(sanitize=sanitize).check(given) == {"x": 6}
    assert given == {"x": "5"}


def fail(error: Exception) -> Callable[[dict[str, Any]], Any]:
    """Return a hook that raises `error`."""

    def hook(args: dict[str, Any]) -> Any:
        raise error

    return hook


@pytest.mark.parametrize(
    "hook", [fail(ValueError("bad host")), fail(InvalidArguments("bad host")), fail(KeyError("bad host"))], ids=["value", "typed", "key"]
)
def test_a_failing_sanitize_has_its_own_code(hook: Any) -> None:
    """Whatever it raises."""
    with pytest.raises(InvalidArguments, match="bad host") as caught:
        hooked(sanitize=hook).check({"x": 1})
    assert caught.value.error_code == "sanitize_failed"


def test_sanitize_must_give_a_dict() -> None:
    """Anything else has no names to check."""
    with pytest.raises(InvalidArguments, match="returned list") as caught:
        hooked(sanitize=lambda args: [1]).check({"x": 1})
    assert caught.value.error_code == "sanitize_failed"


def test_the_schema_speaks_before_validate() -> None:
    """Validate may rely on types."""
    with pytest.raises(InvalidArguments) as caught:
        hooked(validate=fail(ValueError("not reached"))).check({"x": "1"})
    assert caught.value.error_code == "schema_validation_failed"


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (fail(ValueError("x is odd")), "echo: x is odd"),
        (fail(InvalidArguments("x is odd", error_code="mine")), "x is odd"),
        (lambda args: "x is odd", "echo: x is odd"),
        (lambda args: args["x"] > 5, "refused the arguments"),
    ],
)
def test_validate_refuses_by_raising_by_a_message_or_by_false(hook: Any, said: str) -> None:
    """All three have the code of a semantic failure; None and True accept."""
    with pytest.raises(InvalidArguments, match=said) as caught:
        hooked(validate=hook).check({"x": 1})
    assert caught.value.error_code == "semantic_validation_failed"
    assert hooked(validate=lambda args: True).check({"x": 1}) == {"x": 1}


def test_validate_cannot_change_the_arguments() -> None:
    """What is validated is what runs."""
    assert hooked(validate=lambda args: args.clear()).check({"x": 1}) == {"x": 1}
