"""The whole system in schedules that seeds decide: no promise is broken, a seed repeats everything, and faults put in on purpose are found."""

from __future__ import annotations

import pytest

from amounts import in_check, times
from simulation.choices import Choices, shrunk
from simulation.cuts import CUTS, applied, found_by, with_fault
from simulation.schedule import run_schedule

QUICKLY_FOUND = (
    "an_intent_is_left_out",
    "a_claim_is_not_taken",
    "an_answer_is_not_posted",
    "a_doubt_is_passed_over",
    "an_artifact_is_not_kept",
)
SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_schedule_breaks_a_promise(shard: int) -> None:
    """Crashes, pauses, partitions, clocks, full disks, lost power and flipped bits, in whatever order: what is promised holds.

    `scripts/schedules --seed N` tells what happened in the schedule that this names.
    """
    for seed in range(shard, times(200, soak=20_000), SHARDS):
        outcome = run_schedule(seed)
        assert not outcome.promise, f"seed {seed}: {outcome.what}"


FOUND = {
    1575: "an outcome that came late, before whoever had taken the run over recorded anything, was not found by the replay",
    203360: "an outcome that came late took along what another pass had buffered, and broke the chain",
    3108: "an approval was taken up by the pass beside the one that waited for it, and the run waited for ever",
    3913: "a pass came to a bound of its own, and the replay to one of the run, which another pass had reached by then",
    414: "a power failure took records from which a fork, which was durable, goes on",
    400959: "an outcome came late between two calls of a turn, and the replay began the second one",
    425940: "a pass that waited was answered while another one ended the run, and the replay went on with it",
    100810: "a reservation lapsed before its time by a clock that jumped (the tenant's bound does not hold then)",
}
"""Seeds that found something, with what it was."""


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_something_finds_nothing_any_more(seed: int) -> None:
    """What it found is mended, or is a limit that is written down."""
    outcome = run_schedule(seed)
    assert not outcome.promise, f"{FOUND[seed]}: {outcome.what}"


def test_a_seed_reproduces_everything() -> None:
    """The same seed makes the same decisions, and these decisions alone the same schedule: the same lines in the same order."""
    for seed in range(times(30)):
        first = run_schedule(seed, trace=True)
        again, given = run_schedule(seed, trace=True), run_schedule(given=first.made, trace=True)
        assert (again.made, again.trace, again.what) == (first.made, first.trace, first.what)
        assert (given.trace, given.what) == (first.trace, first.what)
        assert len(first.made) >= 30, f"seed {seed} decides nothing"


@pytest.mark.parametrize("name", QUICKLY_FOUND)
def test_a_fault_put_in_on_purpose_is_found(name: str) -> None:
    """A guard that is taken out breaks a promise within few schedules; `scripts/schedules --cuts` tries all of them."""
    seed, outcome = found_by(name, most=200)
    assert outcome is not None, f"{name}: not found in {seed} schedules"


@in_check
@pytest.mark.parametrize("name", sorted(set(CUTS) - set(QUICKLY_FOUND)))
def test_every_fault_put_in_on_purpose_fits(name: str) -> None:
    """Each of them still names what is there in the engine, and is called as that is; the command says whether it is found."""
    for seed in range(3):
        with_fault(name, seed)


def test_a_failing_schedule_is_made_smaller() -> None:
    """What is left of the decisions breaks the same promise, and is far shorter."""
    name = "a_claim_is_not_taken"
    _, outcome = found_by(name, most=200)
    assert outcome is not None
    with applied(name):
        row = shrunk(outcome.made, lambda made: run_schedule(given=made).promise == outcome.promise, tries=150)
        assert run_schedule(given=row).promise == outcome.promise
    assert len(row) < len(outcome.made) / 2


def test_what_is_not_decided_is_the_plainest() -> None:
    """A row that is too short goes on with zeros: nothing goes wrong."""
    choices = Choices(given=[5, 1])
    assert [choices.below(3), choices.chance(0.0), choices.below(9), choices.chance(1.0)] == [2, True, 0, False]
