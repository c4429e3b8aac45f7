"""The contracts of a `Policy` and of a `Guard`, as tests.

A project with a policy writes a `PolicyMaker`, which creates it, and a class with one fixture; for a guard, a `GuardMaker`:

    class TestMyPolicy(PolicyContract):
        @pytest.fixture
        def maker(self):
            return MyPolicyMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from detent.ports import Block, Call, Policy, Verdict
from detent.ports.governance import checked
from detent.testing.conformance.policy_makers import (
    GuardMaker,
    PolicyMaker,
    call_of,
    calls,
    declared,
    pass_after,
    states,
    world_watched,
)
from detent.testing.conformance.promises import as_bytes, documented

__all__ = ["GuardContract", "GuardMaker", "PolicyContract", "PolicyMaker", "call_of", "declared"]


def _cases(maker: PolicyMaker) -> list[tuple[Call, Any]]:
    return [(call, state) for state in states() for call in calls(maker.tools(), maker.calls())]


def _decided(policy: Policy, call: Call, state: Any) -> Verdict:
    try:
        verdict = policy.decide(call, state)
    except Exception as error:  # noqa: BLE001 - what a policy raises is what is looked at
        pytest.fail(
            f"`decide` raised {type(error).__name__} on {_shown(call)}: {error}; a call that raises is denied for no reason of yours"
        )
    if inspect.iscoroutine(verdict):
        verdict.close()
    assert isinstance(verdict, Verdict), f"`decide` gave a {type(verdict).__name__} on {_shown(call)}; it gives a detent.ports.Verdict"
    return verdict


def _shown(call: Call) -> str:
    args = msgspec.json.encode(call.args).decode()
    return f"{call.tool.name} ({call.tool.side_effect}) with {args if len(args) < 200 else args[:200] + '…'}"


@documented(page="howto/control/approvals.md#a-policy-of-your-own", port="Policy")
class PolicyContract:
    """The promises of a `Policy`. A subclass gives the fixture `maker`."""

    def test_every_call_gets_a_verdict_in_good_form(self, maker: PolicyMaker) -> None:
        """A policy returns synchronously: a `Verdict` of recordable data, with at least one approver and an expiry above 0, if any."""
        policy = maker.policy()
        for call, state in _cases(maker):
            verdict = _decided(policy, call, state)
            try:
                again = checked(verdict)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                pytest.fail(f"the verdict on {_shown(call)} cannot be used, and counts as a denial: {error}")
            assert again == verdict, f"the verdict on {_shown(call)} comes back from the log as {again!r}, it was {verdict!r}"

    def test_every_verdict_names_its_rule_and_a_refusal_its_reason(self, maker: PolicyMaker) -> None:
        """`rule` names what decided, and every verdict but a plain allow has a reason: planner, approver and `detent explain` show it."""
        policy = maker.policy()
        for call, state in _cases(maker):
            verdict = _decided(policy, call, state)
            assert verdict.rule.strip(), f"{verdict.decision} for {_shown(call)}, by no rule"
            assert verdict.decision == "allow" or verdict.reason.strip(), f"{verdict.decision} for {_shown(call)}, without a reason"

    def test_the_same_call_and_state_give_the_same_verdict(self, maker: PolicyMaker) -> None:
        """A policy remembers nothing: earlier decisions of this object or an equal one, in any order, change nothing."""
        cases = _cases(maker)
        first, second = maker.policy(), maker.policy()
        forwards = [_decided(first, *case) for case in cases]
        backwards = [_decided(second, *case) for case in reversed(cases)][::-1]
        again = [_decided(first, *case) for case in cases]
        for (call, _), one, other, third in zip(cases, forwards, backwards, again, strict=True):
            assert one == other == third, f"on {_shown(call)} it decides {one!r}, then {other!r}, then {third!r}"

    def test_deciding_reads_nothing_of_the_world(self, maker: PolicyMaker) -> None:
        """No clock, random source, environment, file or network: the same log gives the same decision years later, elsewhere."""
        policy, cases = maker.policy(), _cases(maker)
        for case in cases:
            _decided(policy, *case)  # what is loaded lazily is loaded now
        with world_watched() as read:
            for case in cases:
                policy.decide(*case)
        assert not read, f"`decide` read {', '.join(dict.fromkeys(read))}; what it needs of the world is in the state, or nowhere"

    def test_deciding_changes_neither_call_nor_state(self, maker: PolicyMaker) -> None:
        """A policy changes neither the arguments, which run as decided, nor the state, which belongs to the run."""
        policy = maker.policy()
        for call, state in _cases(maker):
            before = msgspec.json.encode(call), as_bytes(state)
            _decided(policy, call, state)
            assert msgspec.json.encode(call) == before[0], f"the call {_shown(call)} was changed"
            assert as_bytes(state) == before[1], f"the state was changed when {_shown(call)} was decided"

    def test_what_may_ask_is_known_beforehand(self, maker: PolicyMaker) -> None:
        """If a call may ask for approval, `may_ask` is true for its tool: a run whose calls nobody could approve does not begin."""
        policy = maker.policy()
        for call, state in _cases(maker):
            if _decided(policy, call, state).decision != "require_approval":
                continue
            assert policy.may_ask(call.tool) is True, f"{_shown(call)} asks for approval, and may_ask of its tool says no"

    def test_what_is_not_offered_is_never_allowed(self, maker: PolicyMaker) -> None:
        """If a policy has `offers(tool, state)` and it returns no, every call of that tool is denied or stopped."""
        policy = maker.policy()
        offers = getattr(policy, "offers", None)
        if offers is None:
            pytest.skip("this policy does not say what is offered")
        for call, state in _cases(maker):
            if offers(call.tool, state):
                continue
            decision = _decided(policy, call, state).decision
            assert decision in ("deny", "stop"), f"{call.tool.name} is not offered, and {_shown(call)} gets {decision}"

    def test_the_version_is_that_of_equal_policies(self, maker: PolicyMaker) -> None:
        """`version` is a constant text: every decision records it, and a run that continues with another version reports that."""
        policy = maker.policy()
        assert isinstance(policy.version, str), f"the version is {policy.version!r}; it is text"
        assert policy.version.strip(), "the version is blank"
        before = policy.version
        for case in _cases(maker)[:50]:
            _decided(policy, *case)
        assert policy.version == before, f"the version was {before!r} and is {policy.version!r}"
        assert maker.policy().version == before, f"an equal policy has the version {maker.policy().version!r}, this one {before!r}"

    def test_the_version_is_the_same_in_every_process(self, maker: PolicyMaker) -> None:
        """An equal policy in another process, with another order of sets, has the same version."""
        if maker.child is None:
            pytest.skip("no other process can make this policy")
        for seed in ("1", "77"):
            code = f"{maker.child}\nprint(policy.version)"
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"{maker.policy().version}\n", f"here the version is {maker.policy().version!r}, there {done.stdout!r}"


def _guard_cases(maker: GuardMaker) -> list[tuple[Call, Any, Any]]:
    return [(call, state.passes.get("main", pass_after()), state) for state in states() for call in calls(own=maker.calls())]


def _blocks(guard: Any, call: Call, kernel: Any, run: Any) -> Block | None:
    try:
        said = guard(call, kernel, run)
    except Exception as error:  # noqa: BLE001 - what a guard raises is what is looked at
        pytest.fail(
            f"the guard raised {type(error).__name__} on {_shown(call)}: {error}; a guard that raises blocks for no reason of yours"
        )
    if inspect.iscoroutine(said):
        said.close()
    assert said is None or isinstance(said, Block), f"the guard gave {said!r} on {_shown(call)}; it gives None, or a Block"
    return said


@documented(page="howto/extend/extending.md#a-guard", port="Guard")
class GuardContract:
    """The promises of a `Guard`. A subclass gives the fixture `maker`."""

    def test_every_call_passes_or_is_blocked_for_a_reason(self, maker: GuardMaker) -> None:
        """A guard returns synchronously: None, or a `Block` with a reason that tells the planner in words what to do instead."""
        guard = maker.guard()
        for call, kernel, run in _guard_cases(maker):
            said = _blocks(guard, call, kernel, run)
            if said is not None:
                assert isinstance(said.reason, str), f"{_shown(call)} is blocked for {said.reason!r}; the reason is text"
                assert said.reason.strip(), f"{_shown(call)} is blocked without a reason"

    def test_the_same_call_and_states_give_the_same_answer(self, maker: GuardMaker) -> None:
        """A guard remembers nothing that decides: earlier calls of this guard or an equal one, in any order, change nothing."""
        cases = _guard_cases(maker)
        first, second = maker.guard(), maker.guard()
        forwards = [_blocks(first, *case) for case in cases]
        backwards = [_blocks(second, *case) for case in reversed(cases)][::-1]
        again = [_blocks(first, *case) for case in cases]
        for (call, *_), one, other, third in zip(cases, forwards, backwards, again, strict=True):
            assert one == other == third, f"on {_shown(call)} it says {one!r}, then {other!r}, then {third!r}"

    def test_a_guard_reads_nothing_of_the_world(self, maker: GuardMaker) -> None:
        """No clock, random source, environment, file or network: the same log gives the same answer."""
        guard, cases = maker.guard(), _guard_cases(maker)
        for case in cases:
            _blocks(guard, *case)
        with world_watched() as read:
            for case in cases:
                guard(*case)
        assert not read, f"the guard read {', '.join(dict.fromkeys(read))}; what it needs of the world is in the states, or nowhere"

    def test_a_guard_changes_nothing(self, maker: GuardMaker) -> None:
        """A guard changes neither call nor states: the checked arguments are those that run."""
        guard = maker.guard()
        for call, kernel, run in _guard_cases(maker):
            before = msgspec.json.encode(call), as_bytes(kernel), as_bytes(run)
            _blocks(guard, call, kernel, run)
            assert (msgspec.json.encode(call), as_bytes(kernel), as_bytes(run)) == before, (
                f"something changed when {_shown(call)} was checked"
            )
