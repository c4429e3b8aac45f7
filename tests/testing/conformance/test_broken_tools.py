"""The contract of tools can fail: each tool here breaks one promise, and the suite says which."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.core.errors import InvalidArguments, UnknownName
from detent.ports import Tool, ToolContext, ToolOutcome, ToolSpec
from detent.testing.conformance.tool import ToolboxContract, ToolboxMaker, ToolContract, ToolMaker, ToolWish
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned

CAP = 200
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}


def ok(value: Any) -> ToolOutcome:
    raw = msgspec.json.encode(value)
    if len(raw) <= CAP:
        return ToolOutcome(kind="ok", result=raw)
    return ToolOutcome(kind="ok", result=msgspec.json.encode({"truncated": True, "preview": raw[:50].decode()}), full=raw)


class Sound:
    """A tool by hand that keeps the contract, whatever is wished."""

    def __init__(self, wish: ToolWish, effects: dict[str, str]) -> None:
        self.wish, self.by_key = wish, effects

    @property
    def spec(self) -> ToolSpec:
        reads = self.wish in ("echo", "hangs", "large")
        return ToolSpec(
            name=f"t_{self.wish}",
            input_schema=SCHEMA,
            side_effect="read" if reads else "write",
            idempotent=self.wish == "once",
            max_result_bytes=CAP,
        )

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        if set(args) != {"text"} or not isinstance(args["text"], str):
            raise InvalidArguments(f"give a text, not {args!r}")
        return dict(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        left = context.remaining_s()
        try:
            async with asyncio.timeout(left):
                return await self.work(args, context)
        except TimeoutError:
            context.cancelled.set("timeout")
            return ToolOutcome(kind=self.unknown, error_code="timeout", message=f"timed out after {left} s")
        except Exception as error:  # noqa: BLE001 - a tool's own work
            return ToolOutcome(kind=self.unknown, error_code="handler_error", message=f"it broke: {error}")

    @property
    def unknown(self) -> Any:
        return "failed" if self.spec.read_only or self.spec.idempotent else "in_doubt"

    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        await asyncio.sleep(0)
        match self.wish:
            case "fails":
                return ToolOutcome(kind="failed", error_code="no_such_account", message="there is no such account")
            case "breaks":
                raise ConnectionResetError("gone")
            case "hangs" | "hangs_writing":
                await asyncio.Event().wait()
            case "large":
                return ok(args["text"] * CAP)
            case "once" | "reconciles":
                return ok(self.by_key.setdefault(context.idempotency_key, args["text"]))
            case _:
                pass
        return ok(args["text"])

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        if self.wish != "reconciles":
            return None
        if context.idempotency_key in self.by_key:
            return ok(self.by_key[context.idempotency_key])
        return ToolOutcome(kind="not_executed", error_code="not_executed", message="no such key")


class ChangesItsDeclaration(Sound):
    count = 0

    @property
    def spec(self) -> ToolSpec:
        self.count += 1
        return msgspec.structs.replace(super().spec, description=f"asked {self.count} times")


class HasAnOddName(Sound):
    @property
    def spec(self) -> ToolSpec:
        return msgspec.structs.replace(super().spec, name="look at it!")


class TakesAList(Sound):
    @property
    def spec(self) -> ToolSpec:
        return msgspec.structs.replace(super().spec, input_schema={"type": "array"})


class GivesBackWhatItGot(Sound):
    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        super().check(args)
        return args


class AddsAtEachCheck(Sound):
    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"text": super().check(args)["text"] + " "}


class LetsTypeErrorsOut(Sound):
    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"text": args["text"] + ""}


class LetsAnythingThrough(Sound):
    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        return dict(args)


class ActsWhenItChecks(Sound):
    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        if self.wish == "once":
            self.by_key["key-1"] = "checked"
        return super().check(args)


class ReturnsText(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        return msgspec.structs.replace(outcome, result=outcome.result.decode()) if outcome.kind == "ok" else outcome


class ReturnsNoJson(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        return ToolOutcome(kind="ok", result=args["text"].encode()) if self.wish == "echo" else outcome


class ChangesItsArguments(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        args["text"] = ""
        return outcome


class TakesAFailureForAResult(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        return ok({"error": outcome.message}) if outcome.kind == "failed" else outcome


class FailsWithoutACode(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        return msgspec.structs.replace(outcome, error_code="")


class Raises(Sound):
    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if self.wish == "breaks":
            raise ConnectionResetError("gone")
        return await super().run(args, context)


class SaysThatItFailed(Sound):
    @property
    def unknown(self) -> Any:
        return "failed"


class IgnoresTheDeadline(Sound):
    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        context.deadline = None
        return await super().run(args, context)


class NeverTellsThatTimeIsUp(Sound):
    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        told = ToolContext(
            run_id="run", call_id="c", tool=self.spec, host=context.host, idempotency_key=context.idempotency_key, deadline=context.deadline
        )
        return await super().run(args, told)


class SwallowsCancellation(Sound):
    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        with contextlib.suppress(asyncio.CancelledError):
            return await super().run(args, context)
        return ToolOutcome(kind="failed", error_code="cancelled", message="cancelled")


class IgnoresTheCap(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        outcome = await super().work(args, context)
        return msgspec.structs.replace(outcome, result=outcome.full or outcome.result)


class LosesTheRest(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        return msgspec.structs.replace(await super().work(args, context), full=None)


class KeepsTheArgumentsInItself(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        self.args = args
        await asyncio.sleep(0)
        return await super().work(self.args, context)


class BindsToItsFirstLoop(Sound):
    loop: Any = None

    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("bound to a different event loop")
        return await super().work(args, context)


class IgnoresTheKey(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if self.wish == "once":
            self.by_key[str(len(self.by_key))] = args["text"]
        return await super().work(args, context)


class HasOneEffectForAllKeys(Sound):
    async def work(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        if self.wish == "once" and self.by_key:
            return ok(next(iter(self.by_key.values())))
        return await super().work(args, context)


class SettlesEverythingAsDone(Sound):
    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        known = await super().settle(context)
        return ok("settled") if known is not None else None


class ForgetsWhatItDid(Sound):
    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        return None


class SettlesByDoing(Sound):
    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        known = await super().settle(context)
        if self.wish == "reconciles":
            self.by_key.setdefault(context.idempotency_key, "done now")
        return known


class RaisesWhenItCannotTell(Sound):
    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        if self.wish != "reconciles":
            raise NotImplementedError
        return await super().settle(context)


class Makers(ToolMaker):
    limit_s = 0.01

    def __init__(self, kind: type[Sound]) -> None:
        self.kind, self.by_key = kind, dict[str, str]()
        self.patience_s = 0.3 if kind is IgnoresTheDeadline else 60.0

    def tool(self, wish: ToolWish) -> Tool:
        return self.kind(wish, self.by_key)

    def effects(self) -> int:
        return len(self.by_key)


CONSTANT = "test_the_declaration_is_constant_data"
CHECKED = "test_checked_arguments_are_new_plain_data_that_passes_again"
REFUSED = "test_arguments_are_refused_in_one_way"
NOTHING_ELSE = "test_checking_does_nothing_else"
OK = "test_what_went_well_is_ok_with_the_result_as_json"
KNOWN = "test_a_known_failure_is_failed_with_a_code"
DOUBT = "test_an_effect_that_nobody_saw_end_is_in_doubt"
TIME = "test_an_attempt_ends_when_its_time_is_up"
TIME_WRITING = "test_a_change_whose_time_is_up_is_in_doubt"
CANCELLED = "test_an_attempt_that_is_cancelled_ends"
LARGE = "test_a_result_over_the_cap_has_a_preview_and_is_there_whole"
MIX = "test_attempts_at_once_do_not_mix"
LOOPS = "test_one_event_loop_after_another_is_served"
ONCE = "test_the_same_key_has_its_effect_once"
SETTLES = "test_settling_says_what_became_of_an_attempt"
CANNOT_TELL = "test_settling_without_knowledge_is_none"

REJECTED: dict[type[Sound], set[str]] = {
    ChangesItsDeclaration: {CONSTANT},
    HasAnOddName: {CONSTANT},
    TakesAList: {CONSTANT, REFUSED},
    GivesBackWhatItGot: {CHECKED},
    AddsAtEachCheck: {CHECKED},
    LetsTypeErrorsOut: {REFUSED},
    LetsAnythingThrough: {REFUSED},
    ActsWhenItChecks: {NOTHING_ELSE},
    ReturnsText: {OK, LARGE, MIX, LOOPS, ONCE, SETTLES},
    ReturnsNoJson: {OK, MIX, LOOPS},
    ChangesItsArguments: {OK},
    TakesAFailureForAResult: {KNOWN},
    FailsWithoutACode: {KNOWN},
    Raises: {DOUBT, CANNOT_TELL},
    SaysThatItFailed: {DOUBT, TIME_WRITING},
    IgnoresTheDeadline: {TIME, TIME_WRITING},
    NeverTellsThatTimeIsUp: {TIME, TIME_WRITING},
    SwallowsCancellation: {CANCELLED},
    IgnoresTheCap: {LARGE},
    LosesTheRest: {LARGE},
    KeepsTheArgumentsInItself: {MIX},
    BindsToItsFirstLoop: {LOOPS},
    IgnoresTheKey: {ONCE},
    HasOneEffectForAllKeys: {ONCE},
    SettlesEverythingAsDone: {SETTLES},
    ForgetsWhatItDid: {SETTLES},
    SettlesByDoing: {SETTLES},
    RaisesWhenItCannotTell: {CANNOT_TELL},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_a_tool_that_is_broken(kind: type[Sound]) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(ToolContract, lambda: Makers(kind)) == REJECTED[kind]


def test_the_suite_accepts_a_tool_that_is_sound() -> None:
    """What rejects the broken tools is what was broken in them."""
    assert failing(ToolContract, lambda: Makers(Sound)) == set()


def test_every_check_of_tools_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(ToolContract)) - set().union(*REJECTED.values()) == set()


# Toolboxes ----------------------------------------------------------------------------------------------------------------------


class Box:
    """A toolbox by hand that keeps the contract."""

    def __init__(self, tools: list[Tool]) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}

    def get(self, name: str) -> Tool:
        if name not in self.tools:
            raise UnknownName("tool", name, self.tools)
        return self.tools[name]

    def names(self) -> Any:
        return tuple(self.tools)


class SortsItsNames(Box):
    def names(self) -> Any:
        return sorted(self.tools)


class GivesNone(Box):
    def get(self, name: str) -> Tool:
        return self.tools.get(name)  # type: ignore[return-value]


class GuessesNames(Box):
    def get(self, name: str) -> Tool:
        return super().get(name.strip().lower())


SHARED: dict[str, Tool] = {}


class SharesItsTools(Box):
    def __init__(self, tools: list[Tool]) -> None:
        self.tools = SHARED
        if len(tools) == 3:
            self.tools.clear()
        self.tools.update({tool.spec.name: tool for tool in tools})


class BoxMaker(ToolboxMaker):
    def __init__(self, kind: type[Box]) -> None:
        self.kind = kind

    def toolbox(self, tools: list[Tool]) -> Box:
        return self.kind(tools)


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Box, set[str]()),
        (SortsItsNames, {"test_every_tool_is_found_by_its_name"}),
        (GivesNone, {"test_an_unknown_name_is_named", "test_toolboxes_share_nothing"}),
        (GuessesNames, {"test_an_unknown_name_is_named"}),
        (SharesItsTools, {"test_toolboxes_share_nothing"}),
    ],
)
def test_the_suite_rejects_a_toolbox_that_is_broken(kind: type[Box], failed: set[str]) -> None:
    """The checks about the broken promise fail, and no other; a sound one fails none."""
    assert failing(ToolboxContract, lambda: BoxMaker(kind)) == failed
