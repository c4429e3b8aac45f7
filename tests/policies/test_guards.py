"""Guards of use: what each blocks, and above all what it must let pass (section 7 of the composable-kernel catalogue)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detent.core.errors import UnknownName
from detent.core.events import ArtifactRef
from detent.core.state import CallState, KernelState
from detent.policies.guards import (
    GUARDS,
    available_tool,
    blocked,
    bound,
    duplicate,
    guards_named,
    meta_tool_repetition,
    repetition,
    side_effect_once,
)
from detent.policies.verdicts import SPAWN
from detent.ports import Call, Guard
from policies.calls import after, call, did, spec, state

replace = msgspec.structs.replace
TOOLS = {
    t.name: t
    for t in (
        spec("look", "read", concurrency_safe=True),
        spec("slow_look", "read"),
        spec("put", "write"),
        spec("send", "destructive"),
        spec("poll", "read", volatile=True),
        spec("push", "write", volatile=True),
        spec("done", "none", ends_turn=True),
        spec("brief", "none"),
    )
}


def check(guard: Any, which: Call, passed: KernelState, *others: KernelState, tools: Any = TOOLS) -> str | None:
    """Return why the guard blocks the call in this pass, None when it lets it pass."""
    (ready,) = bound([guard], tools)
    run = replace(state(), passes={p.scope: p for p in (passed, *others)})
    block = ready(which, passed, run)
    return None if block is None else block.reason


def tool_call(name: str, call_id: str = "main.9.0", **args: Any) -> Call:
    """Return a call of one of the tools."""
    return call(TOOLS[name], call_id, **args)


def turn(*calls: tuple[str, dict[str, Any]], refused: str = "", **fields: Any) -> KernelState:
    """Return a pass with these calls in its turn, all decided and none run."""
    known = {
        f"main.9.{i}": CallState(call_id=f"main.9.{i}", index=i, tool=name, args=args, status="allowed", refused=refused)
        for i, (name, args) in enumerate(calls)
    }
    return after(**fields, calls=known) if "items" not in fields else after(*fields.pop("items"), **fields, calls=known)


# Duplicate -----------------------------------------------------------------------------------------------------------------------


def test_a_call_that_succeeded_with_these_arguments_is_blocked_with_its_result() -> None:
    """The planner gets what it had asked for, and where it stands."""
    why = check(duplicate, tool_call("look", n=1), after(did("look", {"found": 7}, n=1, call_id="main.3.0")))
    assert why is not None and "main.3.0" in why and '{"found":7}' in why


def test_the_order_of_arguments_does_not_matter_and_their_kind_does() -> None:
    """Equal as JSON: nested keys too; 1, true and 1.0 are different."""
    past = after(did("look", 1, a=1, b={"x": 1, "y": [1, 2]}))
    same = call(TOOLS["look"], "main.9.0", b={"y": [1, 2], "x": 1}, a=1)
    assert check(duplicate, same, past)
    for other in ({"a": True, "b": {"x": 1, "y": [1, 2]}}, {"a": 1, "b": {"x": 1, "y": [2, 1]}}, {"a": 1}):
        assert check(duplicate, call(TOOLS["look"], "main.9.0", **other), past) is None


@pytest.mark.parametrize(
    "between",
    [
        did("put", n=5),
        did("put", n=5, error="handler_error"),  # it may have changed something before it failed
        did("unheard_of", n=5),  # nothing says that it only reads
    ],
)
def test_read_write_read_again_works(between: Any) -> None:
    """After anything that may have changed something the same read is another question."""
    assert check(duplicate, tool_call("look", n=1), after(did("look", n=1), between)) is None
    assert check(duplicate, tool_call("look", n=1), after(did("look", n=1), between, did("look", n=1)))


@pytest.mark.parametrize(
    "between",
    [did("look", n=2), did("put", n=5, error="policy_denied", executed=False), did("put", n=5, error="guard_blocked", executed=False)],
)
def test_what_changed_nothing_does_not_make_a_repetition_a_new_question(between: Any) -> None:
    """Other reads, and calls that were never executed."""
    assert check(duplicate, tool_call("look", n=1), after(did("look", n=1), between))


def test_polling_works() -> None:
    """A volatile tool is never a duplicate, whatever it declares besides."""
    assert check(duplicate, tool_call("poll"), after(did("poll"))) is None
    assert check(side_effect_once, tool_call("push"), after(did("push"))) is None
    assert check(repetition, tool_call("poll"), after(*[did("poll")] * 9)) is None


def test_a_call_that_failed_is_no_duplicate() -> None:
    """Trying again after a failure is not repeating."""
    assert check(duplicate, tool_call("look", n=1), after(did("look", n=1, error="timeout"))) is None


def test_a_repeated_effect_is_a_duplicate_until_something_else_changed() -> None:
    """Writing the same twice in a row is; writing a, b, a is not (that is for `side_effect_once` to say)."""
    assert check(duplicate, tool_call("put", n=1), after(did("put", n=1)))
    assert check(duplicate, tool_call("put", n=1), after(did("put", n=1), did("put", n=2))) is None


def test_parallel_batches_are_read_by_call_and_not_by_place() -> None:
    """Two calls, then their two results: each repetition finds its own (lesson L22)."""
    past = after(did("look", "one", n=1, call_id="main.1.0"), did("look", "two", n=2, call_id="main.1.1"))
    first, second = check(duplicate, tool_call("look", n=1), past), check(duplicate, tool_call("look", n=2), past)
    assert first is not None and '"one"' in first and second is not None and '"two"' in second


def test_two_identical_reads_in_one_batch_are_one() -> None:
    """The second is blocked and points to the first; after a write between them it is another question."""
    twice = turn(("look", {"n": 1}), ("look", {"n": 1}))
    assert "main.9.0" in (check(duplicate, tool_call("look", "main.9.1", n=1), twice) or "")
    assert check(duplicate, tool_call("look", "main.9.0", n=1), twice) is None
    between = turn(("look", {"n": 1}), ("put", {"n": 5}), ("look", {"n": 1}))
    assert check(duplicate, tool_call("look", "main.9.2", n=1), between) is None


def test_a_write_before_it_in_the_batch_makes_an_old_answer_old() -> None:
    """What was read before the turn does not stand for what will be read after the write."""
    past = turn(("put", {"n": 5}), ("look", {"n": 1}), items=[did("look", n=1)])
    assert check(duplicate, tool_call("look", "main.9.1", n=1), past) is None


def test_a_refused_call_of_the_batch_does_not_count() -> None:
    """It will neither answer nor change anything."""
    refused = turn(("look", {"n": 1}), ("look", {"n": 1}), refused="policy_denied")
    assert check(duplicate, tool_call("look", "main.9.1", n=1), refused) is None


def test_another_pass_that_changed_something_makes_every_answer_doubtful() -> None:
    """Nothing says which came first, so nothing is blocked; a pass that only read changes nothing."""
    here = after(did("look", n=1))
    assert check(duplicate, tool_call("look", n=1), here, after(did("put", n=5), scope="other")) is None
    assert check(duplicate, tool_call("look", n=1), here, after(did("look", n=5), scope="other"))


def test_a_large_result_is_shown_in_part_with_where_the_rest_is() -> None:
    """The block goes into a prompt."""
    why = check(duplicate, tool_call("look", n=1), after(did("look", "x" * 9000, n=1, call_id="main.3.0")))
    assert why is not None and len(why) < 2300 and "the rest is in the observation of main.3.0" in why


# Side effect once ----------------------------------------------------------------------------------------------------------------


def test_an_effect_with_these_arguments_happens_once_in_a_run() -> None:
    """By declared level and by arguments: whatever happened in between, in whatever pass."""
    past = after(did("send", to="ann"), did("put", n=1), did("look", n=1))
    assert "done once" in (check(side_effect_once, tool_call("send", to="ann"), past) or "")
    assert check(side_effect_once, tool_call("send", to="bob"), past) is None
    assert check(side_effect_once, tool_call("send", to="ann"), after(), past_of("other", did("send", to="ann")))
    assert check(side_effect_once, tool_call("look", n=1), past) is None


def past_of(scope: str, *items: Any) -> KernelState:
    """Return another pass."""
    return after(*items, scope=scope)


@pytest.mark.parametrize("name", ["updates_seen", "fork_list", "delete_preview", "creator_of"])
def test_a_name_that_sounds_like_an_effect_is_none(name: str) -> None:
    """Rows: the name never decides."""
    reads = spec(name, "read")
    assert check(side_effect_once, call(reads, n=1), after(did(name, n=1)), tools={name: reads}) is None


def test_two_equal_effects_in_one_batch_are_one() -> None:
    """Neither has succeeded yet, and the second would be done all the same."""
    twice = turn(("send", {"to": "ann"}), ("look", {"n": 1}), ("send", {"to": "ann"}))
    assert check(side_effect_once, tool_call("send", "main.9.2", to="ann"), twice)
    assert check(side_effect_once, tool_call("send", "main.9.0", to="ann"), twice) is None


def test_an_effect_that_failed_may_be_tried_again() -> None:
    """It did not happen."""
    assert check(side_effect_once, tool_call("send", to="ann"), after(did("send", to="ann", error="handler_error"))) is None


# Repetition ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "limit"), [("slow_look", 2), ("send", 2), ("look", 4)])
def test_the_same_call_with_the_same_outcome_is_blocked_after_a_few(tool: str, limit: int) -> None:
    """Two, or four for tools whose calls may run side by side; the outcome may be a failure."""
    for item in (did(tool, n=1), did(tool, n=1, error="not_found"), did(tool, n=1, error="policy_denied", executed=False)):
        assert check(repetition, tool_call(tool, n=1), after(*[item] * (limit - 1))) is None
        assert f"called {limit} times" in (check(repetition, tool_call(tool, n=1), after(*[item] * limit)) or "")


def test_long_legitimate_runs_are_left_alone() -> None:
    """Edit, test, edit, test: the same test a hundred times. And three hundred different reads (lesson L6)."""
    edits = [item for i in range(100) for item in (did("put", n=i), did("send", "failed", suite="all"))]
    assert check(repetition, tool_call("send", suite="all"), after(*edits)) is None
    assert check(repetition, tool_call("send", suite="all"), after(*edits, did("send", "failed", suite="all")))
    assert check(repetition, tool_call("look", n=300), after(*[did("look", n=i) for i in range(300)])) is None


def test_another_outcome_begins_the_count_again() -> None:
    """What changes is being watched, not repeated."""
    changing = [did("slow_look", i, n=1) for i in range(20)]
    assert check(repetition, tool_call("slow_look", n=1), after(*changing)) is None
    large = [replace(did("slow_look", "preview", n=1), artifact=ArtifactRef(key=str(i), size_bytes=9)) for i in range(9)]
    assert check(repetition, tool_call("slow_look", n=1), after(*large)) is None


def test_blocked_calls_neither_count_nor_begin_the_count_again() -> None:
    """A block is the guard's own word."""
    own = did("slow_look", n=1, error="guard_blocked", executed=False)
    assert check(repetition, tool_call("slow_look", n=1), after(did("slow_look", n=1), own, own, own)) is None
    assert check(repetition, tool_call("slow_look", n=1), after(did("slow_look", n=1), own, did("slow_look", n=1), own))


def test_repetition_inside_a_batch_counts() -> None:
    """Before anything of it has run; another effect in between makes it another call."""
    batch = turn(*[("slow_look", {"n": 1})] * 3)
    assert check(repetition, tool_call("slow_look", "main.9.1", n=1), batch) is None
    assert "in this batch" in (check(repetition, tool_call("slow_look", "main.9.2", n=1), batch) or "")
    mixed = turn(("slow_look", {"n": 1}), ("slow_look", {"n": 1}), ("put", {"n": 2}), ("slow_look", {"n": 1}))
    assert check(repetition, tool_call("slow_look", "main.9.3", n=1), mixed) is None


def test_delegation_and_the_end_are_exempt() -> None:
    """They are bounded elsewhere."""
    spawn = spec(SPAWN, "write", delegates=True)
    assert check(repetition, call(spawn, agent="a"), after(*[did(SPAWN, agent="a")] * 9), tools={SPAWN: spawn}) is None
    for guard in (duplicate, side_effect_once, repetition):
        assert check(guard, tool_call("done", answer=1), after(*[did("done", answer=1)] * 9)) is None


# Meta-tools, blocked, available ---------------------------------------------------------------------------------------------------


def test_the_third_equal_meta_call_in_a_row_is_blocked() -> None:
    """Other arguments, and work in between, begin again."""
    brief = did("brief", "status", meta=True, section="all")
    again = tool_call("brief", section="all")
    assert check(meta_tool_repetition, again, after(brief)) is None
    assert "nothing has changed" in (check(meta_tool_repetition, again, after(brief, brief)) or "")
    assert check(meta_tool_repetition, tool_call("brief", section="tools"), after(brief, brief)) is None
    assert check(meta_tool_repetition, again, after(brief, brief, did("look", n=1))) is None
    assert check(meta_tool_repetition, tool_call("look", n=1), after(brief, brief)) is None


def test_a_strategy_can_block_tools_and_narrow_what_a_pass_may_use() -> None:
    """By `meta` of the pass; the block names what there is."""
    assert (
        check(blocked, tool_call("send"), after(meta={"blocked_tools": ["send"]})) == "send is blocked in this pass: it did its work before"
    )
    assert check(blocked, tool_call("put"), after(meta={"blocked_tools": ["send"]})) is None
    assert check(blocked, tool_call("put"), after()) is None
    narrow = check(available_tool, tool_call("send"), after(meta={"available_tools": ["look"]}))
    assert narrow == "send is not available in this pass; use one of these, by its exact name: look"
    assert check(available_tool, tool_call("put"), after()) is None and check(available_tool, tool_call("send"), after()) is not None


# All of them ---------------------------------------------------------------------------------------------------------------------


def test_guards_are_named_and_an_unknown_one_is_refused() -> None:
    """In the order given; the nearest name is offered."""
    assert [g.__name__ for g in guards_named(["repetition", "duplicate"])] == ["repetition", "duplicate"]
    assert list(GUARDS) == ["blocked", "available_tool", "duplicate", "side_effect_once", "repetition", "meta_tool_repetition"]
    with pytest.raises(UnknownName, match="did you mean 'duplicate'"):
        guards_named(["dupplicate"])


def test_each_guard_is_checked_once_and_foreign_ones_stay_as_they_are() -> None:
    """A kernel's and an agent's list may name the same guard."""

    def own(which: Call, passed: KernelState, run: Any) -> None:
        return None

    made: tuple[Guard, ...] = bound([own, duplicate, duplicate, own], TOOLS)
    assert [getattr(g, "__name__", "") for g in made] == ["own", "duplicate"] and made[0] is own


def test_an_unbound_guard_knows_only_the_tool_that_is_called() -> None:
    """Everything else may have changed something: it lets pass rather than give an old answer."""
    past = after(did("look", n=1), did("other", n=1))
    run = replace(state(), passes={"main": past})
    assert duplicate(tool_call("look", n=1), past, run) is None
    assert duplicate(tool_call("look", n=1), after(did("look", n=1)), run) is not None


def test_guards_read_each_result_once_and_begin_anew_where_the_past_is_another() -> None:
    """Branches of a state: what one has seen does not leak into the other."""
    (ready,) = bound([duplicate], TOOLS)
    stem = after(did("look", n=1))
    left, right = replace(stem, results=stem.results.append(did("put", n=1))), replace(stem, results=stem.results.append(did("look", n=2)))
    run = state()
    for _ in range(2):
        assert ready(tool_call("look", n=1), left, run) is None
        assert ready(tool_call("look", n=1), right, run) is not None
        assert ready(tool_call("look", n=1), stem, run) is not None
        assert ready(tool_call("look", n=2), stem, run) is None
