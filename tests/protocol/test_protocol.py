"""The protocol of journal, claims and inbox, explored to its end: whatever two workers, two people, crashes, pauses and power failures do."""

from __future__ import annotations

import pytest

from amounts import in_check, sampled
from protocol.exploring import Explored, explore
from protocol.model import RULES, Model

ALONE = {"approval": Model(("a",), asks=True), "cancellation": Model(("c",)), "reconciliation": Model(("r",))}
"""One signal each: small, and nearly everything that can go wrong goes wrong there."""

TOGETHER = {
    "approve and deny": Model(("a", "d"), asks=True),
    "approve and cancel": Model(("a", "c"), asks=True),
    "cancel twice": Model(("c", "C")),
    "cancel and reconcile": Model(("c", "r")),
    "reconcile twice": Model(("r", "R")),
    "happened and happened not": Model(("h", "R")),
    "approve and reconcile": Model(("a", "r"), asks=True),
}
"""Two signals each: the pairs that can get into each other's way."""

NEEDED = {
    "cancel": "cancellation",
    "refused": "cancellation",
    "after_end": "cancellation",
    "own_attempt": "reconciliation",
    "checked": "reconciliation",
    "order": "approve and deny",
    "attempt": "reconcile twice",
}
"""Where a rule is needed, unless an approval needs it."""


def _holds(model: Model, *, states: int) -> None:
    found = explore(model)
    assert not found.broken, _told(found)
    assert found.states > states, "the model has become too small to say anything"


@in_check
@pytest.mark.parametrize("which", ALONE)
def test_every_promise_holds_in_every_state(which: str) -> None:
    """An effect could happen twice, an outcome or an answer be lost, or a run be stuck, in an order of events that nobody has thought of."""
    _holds(ALONE[which], states=4_000)


@in_check
@pytest.mark.parametrize("which", sampled(TOGETHER, few=1))
def test_every_promise_holds_with_two_signals(which: str) -> None:
    """Two people could both be told yes, or what one of them said could count for what the other one saw."""
    _holds(TOGETHER[which], states=15_000)


@pytest.mark.parametrize("rule", sampled(RULES, few=8))
def test_a_promise_breaks_without_the_rule(rule: str) -> None:
    """A rule that could go without anything breaking is idle, or the promises are too weak to need it."""
    model = (ALONE | TOGETHER)[NEEDED.get(rule, "approval")]
    assert explore(model._replace(rules=model.rules - {rule})).broken, f"nothing breaks without this rule: {RULES[rule]}"


def test_looking_before_the_claim_is_released_is_not_enough() -> None:
    """A holder that finds the inbox empty and then releases its claim misses what was posted in between, and the sender was told "busy"."""
    found = explore(ALONE["approval"]._replace(rules=frozenset(RULES) - {"look_again"}))
    assert found.broken == "a signal is never decided, or the run never goes on", _told(found)
    assert [said.split(maxsplit=2)[2] for said in found.way[-3:]] == ["appends W", "reads the inbox", "posted"], _told(found)


def _told(found: Explored) -> str:
    return "\n  ".join((f"{found.broken}, after {found.states} states:", *found.way))
