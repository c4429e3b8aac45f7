"""`FakeTool`: a tool with scripted answers that remembers its effects.

charge = FakeTool("charge", "receipt 1", args={"amount": int}, idempotent=True)
charge = FakeTool("charge", breaks(TimeoutError("no answer"), after_effect=True), "receipt 1")
...
assert charge.effects == [{"tool": "charge", "args": {"amount": 5}, "key": "..."}]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any, Literal, Unpack, cast

import msgspec

from detent.core.errors import ConfigError
from detent.ports import ToolContext, ToolOutcome, ToolSpec
from detent.testing.clocks import FakeClock
from detent.tools.functions.function import Tool
from detent.tools.functions.options import SchemaToolOptions
from detent.tools.functions.settlement import Happened, NotHappened

_SCHEMAS: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class Break(msgspec.Struct, frozen=True):
    """An answer that raises an error; see `breaks`."""

    error: BaseException
    after_effect: bool = False


def breaks(error: BaseException, *, after_effect: bool = False) -> Break:
    """Return an answer that raises `error`, before the tool's effect or after it."""
    return Break(error, after_effect)


class FakeTool:
    """A tool for tests; give it to `Agent(tools=[...])`.

    Each call takes the next of `answers`; the last one repeats (default: `{"ok": true}`). An answer is a value, an exception, `breaks(...)`, or a
    plain or async function of the arguments that returns one. `args` has the names and types of the arguments (`{"city": str}`) or is a JSON Schema;
    without it the tool takes any arguments. `takes_s` moves `clock` forward before the answer.

    A tool that writes (`side_effect`, by default "write") has an effect with each answered call. An `idempotent` tool remembers the keys of its
    effects and answers a known key as before, without another effect. `bug` plants a mistake: "forgets_key" (declared idempotent but is not),
    "says_not_happened" and "says_happened" (its reconcile always reports that). `honest` gives it a reconcile that knows. Other options are those of
    `Tool.from_schema`.
    """

    def __init__(
        self,
        name: str,
        *answers: Any,
        args: Mapping[str, Any] | None = None,
        description: str = "",
        honest: bool = False,
        bug: Literal["", "forgets_key", "says_not_happened", "says_happened"] = "",
        takes_s: float = 0.0,
        clock: FakeClock | None = None,
        **options: Unpack[SchemaToolOptions],
    ) -> None:
        if takes_s and clock is None:
            raise ConfigError(
                f"tool {name!r} takes {takes_s:g} s, but there is no clock; give clock=FakeClock() and the same one to the engine"
            )
        if bug not in ("", "forgets_key", "says_not_happened", "says_happened"):
            raise ConfigError(f"tool {name!r}: {bug!r} is not a bug; give forgets_key, says_not_happened or says_happened")
        options.setdefault("side_effect", "write")
        if honest or bug.startswith("says_"):
            options["reconcile"] = self._reconcile
        self.name, self.answers, self.bug = name, answers, bug
        self.effects: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self._done: dict[str, Any] = {}
        self._takes_s, self._clock = takes_s, clock
        self._tool = Tool.from_schema(
            name=name,
            description=description or f"{name}, a fake.",
            input_schema=_schema(args),
            execute=self._execute,
            **options,
        )

    @property
    def spec(self) -> ToolSpec:
        """The declaration."""
        return self._tool.spec

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """See `Tool.check`."""
        return self._tool.check(args)

    def run(self, args: dict[str, Any], context: ToolContext) -> CoroutineType[Any, Any, ToolOutcome]:
        """See `Tool.run`."""
        return self._tool.run(args, context)

    def settle(self, context: ToolContext) -> CoroutineType[Any, Any, ToolOutcome | None]:
        """See `Tool.settle`."""
        return self._tool.settle(context)

    def calls_with(self, **args: Any) -> list[dict[str, Any]]:
        """Return the arguments of the executed calls that include these, in order."""
        return [call for call in self.calls if all(name in call and call[name] == value for name, value in args.items())]

    def reset(self) -> None:
        """Forget all calls and effects, and restart the answers."""
        self.effects.clear()
        self.calls.clear()
        self._done.clear()

    async def _execute(self, args: dict[str, Any], context: ToolContext) -> Any:
        number = len(self.calls)
        self.calls.append(args)
        if self._clock is not None:
            self._clock.advance(self._takes_s)
        options = self._tool.options
        if options.idempotent and self.bug != "forgets_key" and (key := context.idempotency_key) in self._done:
            return self._done[key]
        answer: Any = self.answers[min(number, len(self.answers) - 1)] if self.answers else {"ok": True}
        if callable(answer) and not isinstance(answer, type):
            answer = cast("Callable[[dict[str, Any]], Any]", answer)(args)
            answer = await answer if inspect.isawaitable(answer) else answer
        broken = answer if isinstance(answer, Break) else Break(answer) if isinstance(answer, BaseException) else None
        if not options.read_only and (broken is None or broken.after_effect):
            self._take_effect(args, context, None if broken else answer)
        if broken is not None:
            raise broken.error
        return answer

    def _take_effect(self, args: dict[str, Any], context: ToolContext, answer: Any) -> None:
        key = "" if self.bug == "forgets_key" else context.idempotency_key
        self.effects.append({"tool": self.name, "args": args, "key": key})
        self._done[key] = answer

    def _reconcile(self, key: str) -> Happened | NotHappened:
        happened = key in self._done if not self.bug.startswith("says_") else self.bug == "says_happened"
        return Happened(self._done.get(key)) if happened else NotHappened(f"{self.name} does not know the key")


def _schema(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON Schema for `args`."""
    if args is None:
        return {"type": "object"}
    if args.get("type") == "object":
        return dict(args)
    strange = [name for name, kind in args.items() if kind not in _SCHEMAS]
    if strange:
        raise ConfigError(f"args: {strange[0]} is {args[strange[0]]!r}; give str, int, float, bool, list or dict, or a whole JSON Schema")
    return {
        "type": "object",
        "properties": {name: {"type": _SCHEMAS[kind]} for name, kind in args.items()},
        "required": list(args),
        "additionalProperties": False,
    }
