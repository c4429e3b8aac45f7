"""The whole system in schedules that seeds decide: no promise is broken, a seed repeats everything, and faults put in on purpose are found."""

from __future__ import annotations

import pytest

from amounts import in_check, thinned, times
from simulation.choices import Choices, shrunk
from simulation.cuts import CUTS, applied, found_by, with_fault
from simulation.schedule import run_schedule

pytestmark = thinned

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
    746: "what two passes recorded was charged with one append, and only the second one's calls were reserved: the first one's append had failed",
    942: "a call ended in a process that was suspended and had lost its run meanwhile, and was recorded nowhere",
    100810: "a reservation lapsed before its time by a clock that jumped (the tenant's bound does not hold then)",
}
"""Seeds that found something, with what it was."""

FOUND_WIDE = {
    300222203: "a run waited for a child to take its cancellation that a busy store had stopped, and nobody advanced it",
    300214363: "a child that had ended was opened again with more than its parent had reserved for it",
    300002015: "a child that was left could not go on once its parent was erased",
    300220499: "another process had taken a child and did not begin it, and its parent waited for it for ever",
    300221952: "the same, of a child that its parent then cancelled",
    600020434: "a run waited for ever for a child to take its cancellation that had ended before",
    600004478: "a replay did not find the cancellation that a child picked up behind the news that its parent had left it",
}
"""The same, of trees of runs."""


@pytest.mark.parametrize("seed", FOUND | FOUND_WIDE)
def test_a_seed_that_found_something_finds_nothing_any_more(seed: int) -> None:
    """What it found is mended, or is a limit that is written down."""
    outcome = run_schedule(seed, setting="wide" if seed in FOUND_WIDE else "whole")
    assert not outcome.promise, f"{(FOUND | FOUND_WIDE)[seed]}: {outcome.what}"


FOUND_SMALL: dict[str, dict[int, int]] = {
    "an outcome behind an append that was done and not heard of was recorded nowhere (30148654)": {
        2: 1, 3: 1, 4: 1, 7: 1, 9: 1, 13: 4, 17: 3, 20: 1, 22: 1, 24: 1, 30: 4, 36: 2, 39: 3, 40: 3, 54: 1, 67: 3, 69: 3, 78: 1, 79: 1, 80: 1, 81: 2,
        93: 2, 94: 1,
    },
    "the same, where the store was away without anything else going wrong (30192422)": {
        4: 1, 9: 2, 11: 1, 13: 4, 19: 1, 28: 3, 31: 2, 33: 1, 35: 1, 36: 4, 37: 1, 39: 2, 40: 2, 41: 3, 54: 3, 67: 3, 78: 1, 82: 2, 86: 3,
    },
    "a call ended in a process that had lost its run and met a full disk, and was recorded nowhere (704035696)": {
        2: 1, 3: 1, 7: 1, 9: 1, 13: 4, 17: 3, 20: 2, 22: 1, 23: 4, 24: 1, 25: 2, 26: 3, 27: 1, 28: 3, 44: 3, 50: 3, 54: 1, 57: 2, 59: 5, 62: 1, 63: 1,
        73: 3, 79: 1, 80: 1, 81: 2, 107: 1, 112: 4,
    },
    "a pass in doubt rested when the one beside it ended the run, and the replay found that the run had waited for less (40010414)": {
        3: 1, 9: 1, 11: 1, 13: 2, 18: 1, 19: 2, 20: 3, 62: 1, 63: 1, 64: 2, 65: 2, 83: 2, 88: 1, 89: 1, 91: 1, 120: 1, 121: 1, 122: 2, 123: 2,
        127: 1, 129: 4, 130: 4, 132: 3, 133: 3, 141: 1, 149: 1,
    },
    "an answer was altered in its inbox when its holder had read it: what was given counts, which the model did not know (55001256)": {
        0: 1, 3: 1, 7: 1, 8: 1, 9: 1, 13: 2, 21: 1, 25: 1, 27: 2, 37: 3, 43: 4, 47: 3, 56: 3, 57: 3, 71: 1, 72: 2, 73: 2, 77: 1, 104: 1, 105: 1,
        106: 1, 108: 2, 110: 4,
    },
    "a pass in doubt rested when what it also waited for came to the one beside it, and the replay went on with it (100120248)": {
        3: 1, 4: 1, 9: 1, 11: 1, 13: 6, 14: 1, 16: 2, 18: 1, 20: 3, 23: 2, 25: 1, 27: 1, 30: 1, 36: 2, 41: 2, 56: 3, 58: 3, 59: 4, 72: 4,
        91: 3, 93: 4, 94: 3, 95: 3, 106: 3, 107: 3, 110: 1, 111: 1, 112: 4, 113: 4, 119: 3, 131: 1, 134: 4, 140: 4, 152: 4, 164: 1, 170: 1,
    },
    "the same, where the pass was about to look, and went on: the replay did not (100120248, made smaller)": {
        3: 1, 4: 1, 9: 1, 11: 1, 13: 6, 14: 1, 16: 2, 18: 1, 20: 3, 23: 2, 25: 1, 27: 1, 30: 1, 36: 2, 41: 2, 56: 3, 58: 3, 59: 4, 72: 4,
        91: 3, 93: 4, 94: 3, 95: 3, 106: 3, 107: 3, 110: 1, 111: 1, 112: 4, 113: 4, 119: 3, 123: 1, 138: 1, 152: 1,
    },
}  # fmt: skip
"""What small schedules found, made smaller: the decisions that are not the plainest."""


@pytest.mark.parametrize("what", FOUND_SMALL)
def test_what_a_small_schedule_found_is_mended(what: str) -> None:
    """Its decisions, as few as there may be, break no promise any more."""
    row = FOUND_SMALL[what]
    outcome = run_schedule(given=[row.get(at, 0) for at in range(max(row) + 1)], setting="small")
    assert not outcome.promise, f"{what}: {outcome.what}"


@in_check
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
