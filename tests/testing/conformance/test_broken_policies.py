"""The contracts of policies and guards can fail: each one here breaks one promise, and the suite says which."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.core.state import KernelState, RunState
from detent.ports import Block, Call, Guard, Policy, ToolSpec, Verdict
from detent.testing.conformance.policy import GuardContract, GuardMaker, PolicyContract, PolicyMaker
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned


class Sound:
    """A policy that keeps the contract: what destroys asks, `exec` is denied and not offered."""

    version = "sound-1"

    def decide(self, call: Call, state: RunState) -> Verdict:
        if call.tool.name == "exec":
            return Verdict(decision="deny", rule="exec", reason="no programs here")
        if call.tool.side_effect == "destructive":
            return Verdict(decision="require_approval", rule="destructive", reason="it destroys", expires_s=60.0)
        return Verdict(decision="allow", rule="rest")

    def may_ask(self, tool: ToolSpec) -> bool:
        return tool.name != "exec" and tool.side_effect == "destructive"

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        return tool.name != "exec"


class Changed(Sound):
    """Does something to what a sound one decides."""

    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return verdict

    def decide(self, call: Call, state: RunState) -> Verdict:
        return self.change(super().decide(call, state), call, state)


class AnswersYesOrNo(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return verdict.decision == "allow"


class MustBeAwaited(Sound):
    async def decide(self, call: Call, state: RunState) -> Verdict:  # type: ignore[override]
        return super().decide(call, state)


class AsksNobody(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return msgspec.structs.replace(verdict, approvers=0) if verdict.decision == "require_approval" else verdict


class HasFactsThatAreNoJson(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return msgspec.structs.replace(verdict, facts={"call": Sound})


class HasAFact(Changed):
    """A tuple that comes back from the log as a list."""

    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return msgspec.structs.replace(verdict, facts={"names": ("a", "b")})


class RaisesOnOddArguments(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        assert call.args["path"] is not None
        return verdict


class NamesNoRule(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return msgspec.structs.replace(verdict, rule="")


class GivesNoReason(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return msgspec.structs.replace(verdict, reason=" ")


class Counts(Changed):
    def __init__(self) -> None:
        self.count = 0

    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        self.count += 1
        return verdict if self.count < 700 else Verdict(decision="deny", rule="enough", reason="enough calls were made")


class ReadsTheClock(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return verdict if time.time() > 0 else Verdict(decision="stop", rule="late", reason="after hours")


class ThrowsADie(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return verdict if random.random() < 2 else Verdict(decision="stop", rule="die", reason="bad luck")


class ReadsTheEnvironment(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        return verdict if os.environ.get("NOBODY_ALLOWS") is None else Verdict(decision="stop", rule="e", reason="e")


class ReadsAFile(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        Path("/dev/null").read_bytes()
        return verdict


class TidiesArguments(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        call.args.pop("force", None)
        return verdict


class KeepsNotesInTheState(Changed):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        state.variables["last"] = call.tool.name
        return verdict


class NeverSaysThatItAsks(Sound):
    def may_ask(self, tool: ToolSpec) -> bool:
        return False


class OffersNothing(Sound):
    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        return False


class HasAVersionAnObject(Sound):
    def __init__(self) -> None:
        self.version = f"policy-{id(self)}"


class HasAVersionThatGrows(Counts):
    def change(self, verdict: Verdict, call: Call, state: RunState) -> Any:
        self.count += 1
        self.version = f"policy-{self.count}"
        return verdict


class HasABlankVersion(Sound):
    version = " "


class HasAVersionAProcess(Sound):
    version = f"policy-{os.getpid()}"


class Makers(PolicyMaker):
    def __init__(self, kind: Callable[[], Policy]) -> None:
        self._kind = kind
        version = "'sound-1'"
        if kind is HasAVersionAProcess:
            version = "'policy-' + str(__import__('os').getpid())"
        if kind in (Sound, HasAVersionAProcess):
            self.child = f"class policy: version = {version}"

    def policy(self) -> Policy:
        return self._kind()


FORM = "test_every_call_gets_a_verdict_in_good_form"
RULE = "test_every_verdict_names_its_rule_and_a_refusal_its_reason"
SAME = "test_the_same_call_and_state_give_the_same_verdict"
WORLD = "test_deciding_reads_nothing_of_the_world"
CHANGES = "test_deciding_changes_neither_call_nor_state"
ASKS = "test_what_may_ask_is_known_beforehand"
OFFERED = "test_what_is_not_offered_is_never_allowed"
VERSION = "test_the_version_is_that_of_equal_policies"
PROCESS = "test_the_version_is_the_same_in_every_process"
EVERY_DECISION = {FORM, RULE, SAME, WORLD, CHANGES, ASKS, OFFERED, VERSION}

REJECTED: dict[Any, set[str]] = {
    AnswersYesOrNo: EVERY_DECISION,
    MustBeAwaited: EVERY_DECISION,
    AsksNobody: {FORM},
    HasFactsThatAreNoJson: {FORM},
    HasAFact: {FORM},
    RaisesOnOddArguments: EVERY_DECISION,
    NamesNoRule: {RULE},
    GivesNoReason: {RULE},
    Counts: {SAME},
    ReadsTheClock: {WORLD},
    ThrowsADie: {WORLD},
    ReadsTheEnvironment: {WORLD},
    ReadsAFile: {WORLD},
    TidiesArguments: {CHANGES},
    KeepsNotesInTheState: {CHANGES},
    NeverSaysThatItAsks: {ASKS},
    OffersNothing: {OFFERED},
    HasAVersionAnObject: {VERSION},
    HasAVersionThatGrows: {VERSION},
    HasABlankVersion: {VERSION},
    HasAVersionAProcess: {PROCESS},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_a_policy_that_is_broken(kind: Any) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(PolicyContract, lambda: Makers(kind)) == REJECTED[kind]


def test_the_suite_accepts_a_policy_that_is_sound() -> None:
    """What rejects the broken policies is what was broken in them."""
    assert failing(PolicyContract, lambda: Makers(Sound)) == set()


def test_every_check_of_policies_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(PolicyContract)) - set().union(*REJECTED.values()) == set()


# Guards -------------------------------------------------------------------------------------------------------------------------


def sound(call: Call, state: KernelState, run: RunState) -> Block | None:
    return Block("look first") if call.tool.name == "put" and not state.results else None


def of_its_own(guard: Guard) -> Callable[[], Guard]:
    return lambda: guard


def awaited(call: Call, state: KernelState, run: RunState) -> Any:
    async def later() -> None: ...

    return later()


def truth(call: Call, state: KernelState, run: RunState) -> Any:
    return sound(call, state, run) is None


def unreasoned(call: Call, state: KernelState, run: RunState) -> Block | None:
    return Block("") if sound(call, state, run) else None


def raising(call: Call, state: KernelState, run: RunState) -> Block | None:
    return Block("no") if call.args["path"] == "" else None


def counting() -> Guard:
    seen: list[str] = []

    def guard(call: Call, state: KernelState, run: RunState) -> Block | None:
        seen.append(call.digest)
        return Block("the same call again") if seen.count(call.digest) > 5 else None

    return guard


def clocked(call: Call, state: KernelState, run: RunState) -> Block | None:
    return Block("too late") if time.monotonic() < 0 else None


def tidying(call: Call, state: KernelState, run: RunState) -> Block | None:
    call.args.pop("force", None)
    return None


class Guards(GuardMaker):
    def __init__(self, make: Callable[[], Guard]) -> None:
        self._make = make

    def guard(self) -> Guard:
        return self._make()


ALL_OF_GUARDS = set(checks_of(GuardContract))
PASSES = "test_every_call_passes_or_is_blocked_for_a_reason"


@pytest.mark.parametrize(
    ("make", "failed"),
    [
        (of_its_own(sound), set[str]()),
        (of_its_own(awaited), ALL_OF_GUARDS),
        (of_its_own(truth), ALL_OF_GUARDS),
        (of_its_own(unreasoned), {PASSES}),
        (of_its_own(raising), ALL_OF_GUARDS),
        (counting, {"test_the_same_call_and_states_give_the_same_answer"}),
        (of_its_own(clocked), {"test_a_guard_reads_nothing_of_the_world"}),
        (of_its_own(tidying), {"test_a_guard_changes_nothing"}),
    ],
    ids=["sound", "awaited", "truth", "unreasoned", "raising", "counting", "clocked", "tidying"],
)
def test_the_suite_rejects_a_guard_that_is_broken(make: Callable[[], Guard], failed: set[str]) -> None:
    """The checks about the broken promise fail, and no other; a sound one fails none."""
    assert failing(GuardContract, lambda: Guards(make)) == failed
