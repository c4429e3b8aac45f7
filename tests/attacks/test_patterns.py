"""Attacks on time: a pattern or an expression is to keep the process busy for ever."""

from __future__ import annotations

from typing import Any

import pytest

from amounts import thinned
from detent.core.actions import FinalAnswer
from detent.core.errors import ConfigError
from detent.expressions.compiled import ExpressionFailed, Names, compile_expression, evaluate
from detent.expressions.json_schema import errors_of
from detent.planners.text.offers import Offer
from detent.planners.text.reading import read
from detent.ports import ToolSpec
from detent.secrecy.redact import Redactor
from detent.tools.web.addresses import Pattern, parse_url
from detent.tools.workspace.globbing import Glob

pytestmark = thinned

NEVER = "a" * 5_000 + "!"
NAMES = Names(variables=("a", "s"), members={})


def value_of(source: str, **variables: Any) -> Any:
    """Return the value of an expression over `a` and `s`."""
    return evaluate(compile_expression(source, where="rule", names=NAMES), lambda name, members: variables[name])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)+$", "(.*a){25}b", "(a?){60}a{60}$"])
def test_a_pattern_backtracks_for_ever(pattern: str) -> None:
    """A pattern for redaction, for a rule, for CEL and of a schema backtracks for longer than anyone can wait."""
    Redactor([pattern], b"k").text(NEVER)
    assert value_of(f"grep(s, r'{pattern}b')", s=NEVER) == []
    assert value_of(f"s.matches(r'{pattern}b')", s=NEVER) is False
    list(errors_of({"patternProperties": {pattern + "b": {}}, "additionalProperties": False, "pattern": pattern})({NEVER: 1}))


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", "(?>a)", "(a{0,1000}){0,90}b"])
def test_a_pattern_needs_another_engine(pattern: str) -> None:
    """A pattern with what no linear engine has is given; the error names it."""
    with pytest.raises(ConfigError, match=r"cannot|linear"):
        Redactor([pattern], b"k")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "source",
    [
        "a.map(x, a.map(y, a.map(z, x)))",
        "a.all(x, a.all(y, a.all(z, a.all(q, true))))",
        "a.map(x, a)",
        "a // one \n . map // two \n (x, a.map(y, s))",
        "s.replace('x', s)",
        "a.exists(x, s.grep('[ab]*a[ab]{500}c').size() > 0)",
        "a.exists(x, s.matches('[ab]*a[ab]{500}c'))",
        "a.exists(x, find_all(s, '.').size() < 0)",
        " || ".join(["s.grep('[ab]*a[ab]{500}c').size() > 0"] * 50),
    ],
    ids=lambda source: source[:40],
)
def test_an_expression_multiplies(source: str) -> None:
    """Macros inside macros, slow calls in a macro or in a row, copies of long lists and texts that grow keep the process busy."""
    with pytest.raises(ExpressionFailed, match=r"too many steps|more than"):
        value_of(source, a=list(range(3_000)), s="x" * 10_000)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "*aa*?" * 150 + "b", "*[ab]" * 150 + "c"])
def test_a_path_is_matched_for_ever(pattern: str) -> None:
    """A model's `glob`, and a path of an allow-list, have a star at every turn, and the name or URL ends otherwise."""
    glob = Glob(pattern)
    assert not glob.matches(glob.step(glob.start, "a" * 255))
    url, host = parse_url("http://a.org/" + "a" * 7_900)
    assert not Pattern(f"a.org/{pattern}").matches(url, host)


def test_an_expression_finds_too_much() -> None:
    """A pattern that matches everywhere makes millions of matches."""
    with pytest.raises(ExpressionFailed, match="more than 50,000 matches"):
        value_of("s.find_all('')", s="x" * 60_000)


def test_an_expression_grows_by_adding() -> None:
    """A text is added to itself so often that each sum is copied for the next."""
    with pytest.raises(ConfigError, match="additions"):
        compile_expression(" + ".join(["s"] * 200), where="rule", names=NAMES)


OFFER = Offer(tools={"look": ToolSpec(name="look", description="", input_schema={"type": "object"})})


@pytest.mark.parametrize(
    "text",
    [f"x{' ' * 1_000_000}y", f"x{'</s> ' * 200_000}y", "a</think>" * 200_000 + "x", "<think>a</think> " * 200_000 + "x"],
    ids=["spaces", "ends", "closed", "blocks"],
)
def test_a_model_writes_what_is_slow_to_read(text: str) -> None:
    """A model that is read as text writes white space, ends of messages or tags a million times: each is the start of another search to the end."""
    (answer,) = read(text, OFFER).actions
    assert isinstance(answer, FinalAnswer) and answer.content[-1] in "xy"
