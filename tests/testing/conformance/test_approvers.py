"""Approvers keep their contract, plain, awaited and over a thread; and broken ones are found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.running.results import Approval
from detent.testing.conformance.approver import ApproverContract, ApproverMaker, Person
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned


def plain(person: Person) -> Any:
    return person


def awaited(person: Person) -> Any:
    async def approver(request: Approval) -> bool:
        await asyncio.sleep(0)
        return person(request)

    return approver


def over_a_thread(person: Person) -> Any:
    async def approver(request: Approval) -> bool:
        return await asyncio.to_thread(person, request)

    return approver


def as_messages(person: Person) -> Any:
    """Return an approver that sends the request as JSON and gets a text back, as a chat would."""

    async def approver(request: Approval) -> bool:
        received = msgspec.json.decode(msgspec.json.encode(request), type=Approval)
        said = "yes" if person(received) else "no"
        return said == "yes"

    return approver


class Made(ApproverMaker):
    patience_s = 60.0

    def __init__(self, make: Callable[[Person], Any]) -> None:
        self._make = make

    def approver(self, person: Person) -> Any:
        return self._make(person)


@pytest.mark.parametrize("make", [plain, awaited, over_a_thread, as_messages])
class TestApprovers(ApproverContract):
    @pytest.fixture
    def maker(self, make: Callable[[Person], Any]) -> ApproverMaker:
        return Made(make)


# Broken ones --------------------------------------------------------------------------------------------------------------------


def answers_in_words(person: Person) -> Any:
    return lambda request: "yes" if person(request) else ""


def says_no_in_words(person: Person) -> Any:
    return lambda request: "yes" if person(request) else "no"


def shows_a_summary(person: Person) -> Any:
    return lambda request: person(msgspec.structs.replace(request, args={"name": request.args["name"]}))


def tidies_the_request(person: Person) -> Any:
    def approver(request: Approval) -> bool:
        request.args.pop("odd", None)
        return person(request)

    return approver


def always_approves(person: Person) -> Any:
    def approver(request: Approval) -> bool:
        person(request)
        return True

    return approver


def always_refuses(person: Person) -> Any:
    def approver(request: Approval) -> bool:
        person(request)
        return False

    return approver


def refuses_where_nobody_is(person: Person) -> Any:
    def approver(request: Approval) -> bool:
        try:
            return person(request)
        except ConnectionError:
            return False

    return approver


def approves_where_nobody_is(person: Person) -> Any:
    def approver(request: Approval) -> bool:
        try:
            return person(request)
        except ConnectionError:
            return True

    return approver


def keeps_the_first_failure(person: Person) -> Any:
    failed: list[Exception] = []

    def approver(request: Approval) -> bool:
        if failed:
            raise failed[0]
        try:
            return person(request)
        except ConnectionError as error:
            failed.append(error)
            raise

    return approver


def remembers_by_tool(person: Person) -> Any:
    known: dict[str, bool] = {}

    def approver(request: Approval) -> bool:
        if request.tool not in known:
            known[request.tool] = person(request)
        return known[request.tool]

    return approver


def remembers_by_arguments(person: Person) -> Any:
    known: dict[bytes, bool] = {}

    def approver(request: Approval) -> bool:
        key = msgspec.json.encode([request.tool, request.args])
        if key not in known:
            known[key] = person(request)
        return known[key]

    return approver


def asks_about_the_last(person: Person) -> Any:
    """One place for the request, whoever asks."""
    place: list[Approval] = []

    async def approver(request: Approval) -> bool:
        place[:] = [request]
        await asyncio.sleep(0.01)
        return person(place[0])

    return approver


FORM = "test_the_answer_is_true_or_false"
SEES = "test_the_person_sees_exactly_the_call_that_will_run"
YES = "test_after_a_yes_the_call_runs_once"
NO = "test_after_a_no_the_call_does_not_run"
NOBODY = "test_where_nobody_can_be_reached_the_run_waits"
EACH = "test_each_call_gets_its_own_answer"
ONE = "test_a_yes_is_for_one_call_only"
AT_ONCE = "test_runs_at_once_get_their_own_answers"

REJECTED: dict[Any, set[str]] = {
    answers_in_words: {FORM},
    says_no_in_words: {FORM, NO, EACH, ONE, AT_ONCE},
    shows_a_summary: {SEES},
    tidies_the_request: {SEES},
    always_approves: {FORM, NO, EACH, ONE, AT_ONCE},
    always_refuses: {FORM, YES, NOBODY, EACH, ONE, AT_ONCE},
    refuses_where_nobody_is: {NOBODY},
    approves_where_nobody_is: {NOBODY},
    keeps_the_first_failure: {NOBODY},
    remembers_by_tool: {EACH, ONE, AT_ONCE},
    remembers_by_arguments: {ONE},
    asks_about_the_last: {AT_ONCE},
}


@pytest.mark.parametrize("make", REJECTED)
def test_the_suite_rejects_an_approver_that_is_broken(make: Any) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(ApproverContract, lambda: Made(make)) == REJECTED[make]


def test_every_check_of_approvers_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(ApproverContract)) - set().union(*REJECTED.values()) == set()
