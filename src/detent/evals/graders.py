"""Graders: how a trial came out, judged by its log, with a reason and an excerpt.

A grader is data: `{"kind": "contains", "expected": "paid"}`. Without `expected` it takes what the case expects. One that raises does not know, says why,
and ends nothing.
"""  # rows K133, L4

from __future__ import annotations

import asyncio
import json
import math
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from detent.core.errors import ConfigError, Explained
from detent.core.records import Record
from detent.core.state import RunState
from detent.evals.suites import Case
from detent.expressions import compiled, json_schema, patterns
from detent.expressions.display import as_text, clean
from detent.history.traces import Call, Trace, make_trace

Verdict = Literal["passed", "failed", "unknown"]
MOST_SHOWN = 300
NAMES = compiled.Names(
    variables=("result", "trace", "usage", "case"),
    members={},
    open=("result", "trace", "usage", "case"),
)


class Grade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a grader says of a trial: the verdict, a score from 0 to 1, why, and the place in the trial that shows it."""

    grader: str
    verdict: Verdict
    score: float | None = None
    reason: str = ""
    excerpt: str = ""
    required: bool = True


class Graded(msgspec.Struct, frozen=True, kw_only=True):
    """What a grader looks at: the case, the run's records and state, what it did, and its workspace if it had one."""

    case: Case
    records: Sequence[Record]
    state: RunState
    trace: Trace
    workspace: Path | None = None

    @property
    def answer(self) -> Any:
        """The answer of the run, or the text that it had so far."""
        return self.state.output if self.state.output is not None else self.state.partial

    @property
    def calls(self) -> list[Call]:
        """Its calls, in their order."""
        return [call for turn in self.trace.iterations for call in turn.calls]


class Grader(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A grader as data. `kind` is one of `GRADERS`, or a name that `graders=` gives; the other fields are its options.

    `required`: the trial fails with it. `tolerance` is absolute, `relative` a share of what is expected. `at_least` is the lowest score that passes.
    """

    kind: str
    name: str = ""
    expected: Any = None
    path: str = ""
    tolerance: float = 0.0
    relative: float = 0.0
    at_least: float = 1.0
    ignore_case: bool = True
    most: int | None = None
    command: tuple[str, ...] = ()
    timeout_s: float = 30.0
    required: bool = True

    @property
    def label(self) -> str:
        """How reports name it."""
        return self.name or self.kind


Judge = Callable[[Grader, Graded], "Grade | Awaitable[Grade]"]


def said(grader: Grader, passed: bool, reason: str, excerpt: Any = "", *, score: float | None = None) -> Grade:
    """Return a grade."""
    text = clean(excerpt if isinstance(excerpt, str) else as_text(excerpt), lines=True)
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
    score = (1.0 if passed else 0.0) if score is None else score
    return Grade(
        grader=grader.label, verdict="passed" if passed else "failed", score=score, reason=reason, excerpt=shown, required=grader.required
    )


def _wanted(grader: Grader, of: Graded) -> Any:
    wanted = grader.expected if grader.expected is not None else of.case.expected
    if wanted is None:
        raise ConfigError(f"grader {grader.label} expects nothing, and case {of.case.id!r} does not either; give one of them `expected`")
    return wanted


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def normal(text: str) -> str:
    """Return a text without what does not matter: case, accents' forms, punctuation at the ends, articles, and amounts of space."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"[^\W_]+(?:[.,:/'-][^\W_]+)*|[^\w\s]", plain)
    return " ".join(word for word in words if word not in ("a", "an", "the") and (word.isalnum() or any(c.isalnum() for c in word)))


# The answer -----------------------------------------------------------------------------------------------------------------------------


def exact(grader: Grader, of: Graded) -> Grade:
    """The answer is exactly what is expected."""
    wanted = _wanted(grader, of)
    same = of.answer == wanted and type(of.answer) is type(wanted)
    return said(grader, same, "the same" if same else f"expected {_text(wanted)[:200]}", of.answer)


def normalised(grader: Grader, of: Graded) -> Grade:
    """The answer is what is expected but for case, articles, punctuation and space."""
    wanted, answer = normal(_text(_wanted(grader, of))), normal(_text(of.answer))
    return said(grader, wanted == answer, "the same words" if wanted == answer else f"expected {wanted[:200]!r}", of.answer)


def contains(grader: Grader, of: Graded) -> Grade:
    """The answer has a text, or each of several."""
    wanted = _wanted(grader, of)
    answer = _text(of.answer)
    fold: Callable[[str], str] = str.casefold if grader.ignore_case else str
    texts = [_text(one) for one in (cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted])]
    missing = [one for one in texts if fold(one) not in fold(answer)]
    return said(grader, not missing, "it has it" if not missing else f"it lacks {', '.join(map(repr, missing))[:200]}", answer)


def regex(grader: Grader, of: Graded) -> Grade:
    """The answer has a match of a pattern (the linear-time patterns of rules)."""
    pattern = patterns.compiled(_text(_wanted(grader, of)), ignore_case=grader.ignore_case)
    found = pattern.search(_text(of.answer)) is not None
    return said(grader, found, "it matches" if found else "nothing in it matches", of.answer)


_NUMBER = re.compile(r"[-+]?\d[\d,_ ]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


def numbers(text: str) -> list[float]:
    """Return the numbers in a text; thousands may be set apart."""
    found: list[float] = []
    for match in _NUMBER.findall(text):
        try:
            found.append(float(re.sub(r"[,_ ]", "", match)))
        except ValueError:
            continue
    return found


def numeric(grader: Grader, of: Graded) -> Grade:
    """The last number of the answer is what is expected, within a tolerance."""
    wanted = float(_wanted(grader, of))
    found = [float(of.answer)] if isinstance(of.answer, (int, float)) and not isinstance(of.answer, bool) else numbers(_text(of.answer))
    if not found:
        return said(grader, False, "there is no number in the answer", of.answer)
    near = math.isclose(found[-1], wanted, abs_tol=grader.tolerance, rel_tol=grader.relative)
    return said(grader, near, f"{found[-1]:g} against {wanted:g}", of.answer)


def schema(grader: Grader, of: Graded) -> Grade:
    """The answer, or the JSON in it, fits a JSON Schema."""
    wanted = _wanted(grader, of)
    json_schema.check_schema(wanted)
    problem = json_schema.misfit(_json(of.answer), wanted)
    return said(grader, not problem, problem or "it fits", of.answer)


def json_path(grader: Grader, of: Graded) -> Grade:
    """The value at `path` of the answer (`items[0].price`) is what is expected."""
    value: Any = _json(of.answer)
    for name, place in re.findall(r"([^.\[\]]+)|\[(\d+)\]", grader.path):
        try:
            value = value[int(place)] if place else value[name]
        except (KeyError, IndexError, TypeError):
            return said(grader, False, f"there is nothing at {grader.path}", of.answer)
    wanted = _wanted(grader, of)
    return said(grader, value == wanted, "the same" if value == wanted else f"expected {_text(wanted)[:200]}", value)


def _json(answer: Any) -> Any:
    return msgspec.json.decode(answer) if isinstance(answer, str) else answer


def _set(value: Any) -> set[str]:
    parts = cast("list[Any]", value) if isinstance(value, list) else re.split(r"[,;\n]", _text(value))
    return {normal(_text(part)) for part in parts} - {""}


def f1(grader: Grader, of: Graded) -> Grade:
    """The items of the answer are those that are expected: the harmonic mean of precision and recall is at least `at_least`."""
    wanted, got = _set(_wanted(grader, of)), _set(of.answer)
    both = len(wanted & got)
    score = 2 * both / (len(wanted) + len(got)) if wanted or got else 1.0
    lacks = f"; it lacks {', '.join(sorted(wanted - got))[:200]}" if wanted - got else ""
    return said(grader, score >= grader.at_least, f"F1 {score:.3f}{lacks}", of.answer, score=score)


def cel(grader: Grader, of: Graded) -> Grade:
    """A CEL expression over `result`, `trace`, `usage` and `case` is true, or a score from 0 to 1 that is at least `at_least`."""
    source = _text(grader.expected)
    value = compiled.evaluate(
        compiled.compile_expression(source, where=f"grader {grader.label}", names=NAMES), lambda name, _: seen_by_cel(of)[name]
    )
    score = float(value)
    return said(grader, score >= grader.at_least, f"{source} is {value}", of.answer, score=max(0.0, min(1.0, score)))


def seen_by_cel(of: Graded) -> dict[str, Any]:
    """Return what expressions see of a trial."""
    usage = of.state.usage
    return {
        "result": {"status": of.state.status, "reason": of.state.reason, "output": of.answer, "error": of.state.error},
        "trace": {
            "calls": [{"tool": c.tool, "args": c.args, "outcome": c.outcome, "output": c.output, "decision": c.decision} for c in of.calls],
            "tools": [c.tool for c in of.calls],
            "turns": len(of.trace.iterations),
        },
        "usage": {**msgspec.to_builtins(usage), "cost_usd": usage.cost_usd or 0.0, "total_tokens": usage.total_tokens},
        "case": {
            "id": of.case.id,
            "goal": of.case.goal,
            "expected": of.case.expected,
            "variables": of.case.variables,
            "tags": list(of.case.tags),
        },
    }


# The world ------------------------------------------------------------------------------------------------------------------------------


def file(grader: Grader, of: Graded) -> Grade:
    """The file at `path` of the workspace has what is expected; without `expected` it is enough that it exists."""
    if of.workspace is None:
        raise ConfigError(f"grader {grader.label} looks at files, and the trial had no workspace")
    place = (of.workspace / grader.path).resolve()
    if not place.is_relative_to(of.workspace.resolve()):
        raise ConfigError(f"grader {grader.label}: {grader.path!r} is outside the workspace")
    if not place.is_file():
        return said(grader, False, f"there is no file {grader.path}")
    text = place.read_text(errors="replace")
    wanted = grader.expected
    has = wanted is None or _text(wanted) in text
    return said(
        grader, has, f"{grader.path} is there" if wanted is None else "it has it" if has else f"it lacks {_text(wanted)[:200]!r}", text
    )


async def command(grader: Grader, of: Graded) -> Grade:
    """A command in the workspace exits with 0. It runs with the rights of whoever evaluates."""
    if of.workspace is None or not grader.command:
        raise ConfigError(f"grader {grader.label} runs a command in the workspace; give `command`, and cases with files")
    program = await asyncio.create_subprocess_exec(
        *grader.command,
        cwd=of.workspace,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(program.communicate(), grader.timeout_s)
    except TimeoutError:
        program.kill()
        await program.wait()
        return said(grader, False, f"it had not ended after {grader.timeout_s:g} s")
    return said(grader, program.returncode == 0, f"it exited with {program.returncode}", out.decode(errors="replace"))


# The trajectory -------------------------------------------------------------------------------------------------------------------------


def tools_used(grader: Grader, of: Graded) -> Grade:
    """Every tool of a list was called with success."""
    wanted = cast("list[str]", _wanted(grader, of))
    done = {call.tool for call in of.calls if call.outcome == "ok"}
    missing = [name for name in wanted if name not in done]
    return said(
        grader, not missing, "all were" if not missing else f"not called: {', '.join(missing)}", ", ".join(call.tool for call in of.calls)
    )


def order(grader: Grader, of: Graded) -> Grade:
    """Tools were called in this order; others may come between."""
    wanted = list(cast("list[str]", _wanted(grader, of)))
    made = iter(call.tool for call in of.calls)
    right = all(any(tool == one for tool in made) for one in wanted)
    return said(
        grader, right, "in this order" if right else f"not in the order {' → '.join(wanted)}", " → ".join(call.tool for call in of.calls)
    )


def arguments(grader: Grader, of: Graded) -> Grade:
    """Some call of the tool `path` had these arguments, and perhaps others."""
    wanted = cast("dict[str, Any]", _wanted(grader, of))
    calls = [call for call in of.calls if call.tool == grader.path]
    every: list[Any] = [call.args for call in calls]
    given = [cast("dict[str, Any]", args) for args in every if isinstance(args, dict)]
    fits = any(all(args.get(name) == value for name, value in wanted.items()) for args in given)
    return said(
        grader, fits, "a call had them" if fits else f"no call of {grader.path} had {_text(wanted)[:200]}", [call.args for call in calls]
    )


def forbidden(grader: Grader, of: Graded) -> Grade:
    """None of these tools was executed."""
    named = cast("list[str]", _wanted(grader, of))
    made = [call for call in of.calls if call.tool in named and call.attempts]
    return said(
        grader, not made, "none was" if not made else f"executed: {', '.join(call.tool for call in made)}", [call.args for call in made]
    )


def at_most(grader: Grader, of: Graded) -> Grade:
    """At most `most` calls were made, of the tool `path` if it is given."""
    count = sum(not grader.path or call.tool == grader.path for call in of.calls)
    if grader.most is None:
        raise ConfigError(f"grader {grader.label} needs `most`")
    return said(grader, count <= grader.most, f"{count} calls, {grader.most} allowed")


def no_repeats(grader: Grader, of: Graded) -> Grade:
    """No effect happened twice: no two calls with the same tool and arguments that change something succeeded."""
    seen: set[str] = set()
    twice: list[str] = []
    for call in of.calls:
        if call.outcome == "ok" and call.attempts and call.side_effect in ("write", "destructive"):
            key = _text([call.tool, call.args])
            twice += [call.tool] if key in seen else []
            seen.add(key)
    return said(grader, not twice, "none did" if not twice else f"twice: {', '.join(twice)}")


def no_violations(grader: Grader, of: Graded) -> Grade:
    """No call was refused by a policy or a guard."""
    refused = [call for call in of.calls if call.decision in ("deny", "stop") or call.outcome == "refused"]
    why = ", ".join(f"{call.tool} ({call.rule or call.error})" for call in refused)
    return said(grader, not refused, "none was" if not refused else f"refused: {why[:200]}", [call.args for call in refused])


def grounded(grader: Grader, of: Graded) -> Grade:
    """Every number in the answer occurs in an observation, or in what the run was given."""
    known = [n for call in of.calls for n in numbers(_text(call.output))] + numbers(f"{of.case.goal} {_text(of.case.variables)}")
    loose = [n for n in numbers(_text(of.answer)) if not any(math.isclose(n, k, rel_tol=1e-9, abs_tol=1e-9) for k in known)]
    return said(grader, not loose, "each is" if not loose else f"not observed: {', '.join(f'{n:g}' for n in loose[:8])}", of.answer)


def completed(grader: Grader, of: Graded) -> Grade:
    """The run ended with the status that is expected, `completed` unless another one is."""
    wanted = grader.expected or "completed"
    return said(
        grader, of.state.status == wanted, f"{of.state.status}: {of.state.reason}" if of.state.reason else of.state.status, of.state.error
    )


GRADERS: Mapping[str, Judge] = {
    "exact": exact, "normalised": normalised, "contains": contains, "regex": regex, "numeric": numeric, "schema": schema, "json_path": json_path,
    "f1": f1, "cel": cel, "file": file, "command": command, "tools_used": tools_used, "order": order, "arguments": arguments, "forbidden": forbidden,
    "at_most": at_most, "no_repeats": no_repeats, "no_violations": no_violations, "grounded": grounded, "completed": completed,
}  # fmt: skip
"""The graders by kind."""


def graders_of(tables: Sequence[Mapping[str, Any]], own: Mapping[str, Judge], *, where: str) -> list[tuple[Grader, Judge]]:
    """Return graders with their functions. Raise `ConfigError` for an unknown kind, and for options that do not fit."""
    found: list[tuple[Grader, Judge]] = []
    for table in tables:
        try:
            grader = msgspec.convert(table, Grader)
        except (msgspec.ValidationError, ConfigError) as error:
            raise ConfigError(f"{where}: a grader does not fit: {error}") from error
        judge = own.get(grader.kind) or GRADERS.get(grader.kind)
        if judge is None:
            raise ConfigError(f"{where}: there is no grader {grader.kind!r}{compiled.nearest(grader.kind, (*own, *GRADERS))}")
        found.append((grader, judge))
    return found


async def graded(
    case: Case, records: Sequence[Record], graders: Sequence[tuple[Grader, Judge]], *, workspace: Path | None, state: RunState
) -> tuple[Grade, ...]:
    """Return what each grader says. One that raises does not know, and says why."""
    of = Graded(case=case, records=records, state=state, trace=make_trace(records), workspace=workspace)
    found: list[Grade] = []
    for grader, judge in graders:
        try:
            grade = judge(grader, of)
            found.append(await grade if isinstance(grade, Awaitable) else grade)
        except Exception as error:  # noqa: BLE001 - a grader of anybody: what it raises is why it does not know
            found.append(
                Grade(grader=grader.label, verdict="unknown", reason=f"{type(error).__name__}: {error}"[:500], required=grader.required)
            )
    return tuple(found)


def verdict_of(grades: Sequence[Grade]) -> Verdict:
    """Return the verdict of a trial: failed if a required grader failed it, unknown if one does not know, else passed. Without graders unknown."""
    required = [grade for grade in grades if grade.required]
    if any(grade.verdict == "failed" for grade in required):
        return "failed"
    return "unknown" if not required or any(grade.verdict == "unknown" for grade in required) else "passed"
