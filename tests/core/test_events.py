"""Events and actions: closed unions with unique tags, and every one of them survives the log."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest

from core.golden_logs import GOLDEN
from detent.core import actions as a
from detent.core import events as e
from detent.core.actions import AnyAction
from detent.core.codec import decode_event, encode

EVENTS: tuple[type[e.Event], ...] = get_args(e.AnyEvent)
ACTIONS: tuple[type[a.Action], ...] = get_args(AnyAction)
SEEN: dict[type, list[Any]] = {}
for _make in GOLDEN.values():
    for _event in _make().events:
        SEEN.setdefault(type(_event), []).append(_event)


def tag(kind: Any) -> str:
    """Return the wire tag of a class."""
    return str(kind.__struct_config__.tag)


@pytest.mark.parametrize("kind", EVENTS, ids=tag)
def test_an_event_comes_back_from_its_bytes_as_it_was(kind: type[e.Event]) -> None:
    """Every event class, in every form that the golden logs hold; the bytes are the same again."""
    assert SEEN.get(kind), f"no golden log holds a {kind.__name__}; add one to core/golden_logs.py"
    for event in SEEN[kind]:
        body = encode(event)
        again = decode_event(body)
        assert type(again) is kind and again == event and encode(decode_event(encode(again))) == encode(again)
        assert msgspec.json.decode(body)["type"] == tag(kind)


@pytest.mark.parametrize("union", [EVENTS, ACTIONS], ids=["events", "actions"])
def test_tags_are_unique_and_the_snake_case_of_their_class(union: tuple[type, ...]) -> None:
    """`ToolFinished` stands in the log as "tool_finished"."""
    tags = [tag(kind) for kind in union]
    assert len(set(tags)) == len(tags) and all(re.fullmatch(r"[a-z]+(_[a-z]+)*", t) for t in tags)
    assert [t.replace("_", "") for t in tags] == [kind.__name__.lower() for kind in union]


def test_the_unions_are_closed_over_every_class_of_their_module() -> None:
    """An event or action that is defined but left out of its union could not be read back."""
    assert {k for k in vars(e).values() if isinstance(k, type) and issubclass(k, e.Event)} - {e.Event} == set(EVENTS)
    assert {k for k in vars(a).values() if isinstance(k, type) and issubclass(k, a.Action)} - {a.Action} == set(ACTIONS)
    assert set(e.INPUTS) < set(EVENTS)


@pytest.mark.parametrize("kind", [*EVENTS, *ACTIONS], ids=tag)
def test_events_and_actions_are_frozen_take_keywords_only_and_have_docstrings(kind: Any) -> None:
    """DESIGN 4: frozen structs; every one says what it means."""
    config = kind.__struct_config__
    assert config.frozen and config.tag_field == "type" and kind.__doc__ and kind.__doc__ != (EVENTS[0].__base__ or kind).__doc__
    with pytest.raises(TypeError):
        kind("positional")


@pytest.mark.parametrize("body", [b'{"type":"happened"}', b"{}", b'{"type":"tool_finished"}', b"[1]", b"\xff"])
def test_what_is_no_event_is_refused(body: bytes) -> None:
    """Unknown tags and missing fields are never silently dropped."""
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        decode_event(body)


@pytest.mark.parametrize("action", [
    a.ToolCall(tool="t", args={"a": [1, None, {"b": "ü"}]}, provider_id="p", reason="why"), a.ToolCall(tool="t", args="{"), a.FinalAnswer(content={"n": 1}),
    a.AskUser(question="q", expected={"type": "string"}), a.Stop(reason="enough"), a.Abstain(missing=("x",)), a.Thought(content="hm"), a.PushGoal(goal="g"),
    a.CompleteGoal(goal_id="1", outcome="ok"), a.Schedule(at="2026-01-01T00:00:00Z"), a.Schedule(delay_s=0.5), a.SpawnSubagent(agent="x", goal="g", join=False),
    a.JoinSubagent(child="c"), a.CancelSubagent(child="c"),
], ids=tag)  # fmt: skip
def test_an_action_comes_back_from_a_plan_as_it_was(action: Any) -> None:
    """Every action class, inside `Planned`."""
    event = e.Planned(actions=(action,))
    assert decode_event(encode(event)) == event


def test_arguments_stand_in_a_log_once() -> None:
    """DESIGN 4: the plan has them; start and end of the call name it only."""
    fields = {kind.__name__ for kind in EVENTS if {"args", "arguments"} & set(kind.__struct_fields__)}
    assert fields == {"CallHealed", "ApprovalEdited"}


def test_a_record_a_person_can_read_leaves_defaults_out() -> None:
    """Size on disk: nothing is written that a reader knows anyway."""
    assert encode(e.ToolFinished(call="main.1.0", result=msgspec.Raw(b"3"))) == b'{"type":"tool_finished","call":"main.1.0","result":3}'
    assert encode(e.CancelRequested()) == b'{"type":"cancel_requested"}'
