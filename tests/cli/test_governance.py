"""detent backtest, detent explain: what they show, as text and as JSON, and their exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amounts import thinned
from cli.desk import Desk

ALLOW = '[[rules]]\nid = "all"\ndecision = "allow"\n'
NO_TWO = ALLOW + '[[rules]]\nid = "no-two"\ntool = "note"\nwhen = \'args.text == "two"\'\ndecision = "deny"\nreason = "not two"\n'


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def worked(desk: Desk) -> Desk:
    """A desk with a run of two notes."""
    desk.steps("note", "second", "answer")
    assert desk.detent("run", "write").code == 0
    return desk


def test_a_backtest_names_what_would_differ_and_exits_1_where_what_succeeded_is_refused(worked: Desk) -> None:
    """Call, arguments, old and new rule, where it stands; nothing is executed and nothing is written."""
    worked.write("p.toml", NO_TWO)
    records = worked.detent("export", "last").out
    done = worked.detent("backtest", "--policy", "p.toml")
    assert done.code == 1 and "main.2.0  note  allow (tier:write) -> deny (no-two)" in done.out
    assert '{"text": "two"}' in done.out and "not two (p.toml:4); it succeeded" in done.out
    assert "2 decisions of 1 run under policy-" in done.out and "1 would differ, 1 of them refuse what succeeded" in done.out
    assert worked.notes == ["one", "two"] and worked.detent("export", "last").out == records


def test_a_backtest_without_a_difference_exits_0(worked: Desk) -> None:
    """And without a store there is nothing to differ; none is made."""
    worked.write("p.toml", ALLOW)
    assert worked.detent("backtest", "--policy", "p.toml").code == 0
    there = worked.detent("backtest", "--policy", "p.toml", "--store", "sqlite:///nope.db")
    assert there.code == 0 and "0 decisions of 0 runs" in there.out and not (worked.home / "nope.db").exists()


def test_a_backtest_as_json_is_one_document(worked: Desk) -> None:
    """With every field of every change."""
    worked.write("p.toml", NO_TWO)
    done = worked.detent("backtest", "--policy", "p.toml", "--json")
    assert done.code == 1 and (done.json["decisions"], done.json["runs"], done.json["broken"]) == (2, 1, 1)
    (change,) = done.json["changes"]
    assert (change["call_id"], change["args"], change["new_rule"], change["succeeded"]) == ("main.2.0", {"text": "two"}, "no-two", True)


def test_a_backtest_tries_a_budget_and_takes_a_filter(worked: Desk) -> None:
    """Without --policy it is the policy of the configuration that is asked."""
    done = worked.detent("backtest", "--budget", "tool_calls=1")
    assert done.code == 1 and "stop (budget:max_tool_calls)" in done.out
    assert "0 decisions of 0 runs" in worked.detent("backtest", "--budget", "tool_calls=1", "--runs", "status=failed").out
    assert worked.detent("backtest", "--budget", "tool_calls=1", "--runs", "status=completed,agent=tester,since=1h").code == 1
    none = worked.detent("backtest", "--budget", "tool_calls=1", "--runs", "1999")
    assert "0 decisions of 0 runs" in none.out and "no run matches --runs 1999" in none.err


@thinned
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "nope.toml"), "failed to read policy file 'nope.toml': No such file"),
        (("--policy", "bad.toml"), "bad.toml:1: rule 'a': when: expression `1 +` is not CEL"),
        (("--budget", "max_cals=1"), "unknown bound"),
        (("--runs", "state=failed"), "--runs 'state=failed': unknown part"),
        (("--runs", "status=done"), "error: 'done' is not a run status"),
        (("--runs", "since=soon"), "is not a time"),
    ],
)
def test_a_wrong_backtest_is_a_usage_error(worked: Desk, words: tuple[str, ...], said: str) -> None:
    """With what is wrong and what is right."""
    worked.write("bad.toml", '[[rules]]\nid = "a"\nwhen = "1 +"\ndecision = "deny"\n')
    done = worked.detent("backtest", *words)
    assert done.code == 2 and said in done.err


def test_explain_tells_the_story_of_one_call(worked: Desk) -> None:
    """Readable, and as one document."""
    done = worked.detent("explain", "last", "main.2.0")
    assert done.code == 0 and done.out.startswith("main.2.0  note  succeeded\n")
    for words in (
        "the planner asked for note",
        "policy: allow by tier:write",
        "attempt 1 began, key ",
        "it succeeded in",
        "policy tiers-1",
    ):
        assert words in done.out
    data = worked.detent("explain", "last", "main.2.0", "--json").json
    assert data["outcome"] == "succeeded" and [s["kind"] for s in data["steps"]][:2] == ["planned", "policy_decided"]


def test_explain_tells_who_approved(desk: Desk) -> None:
    """And when there is no outcome yet."""
    desk.steps("wipe", "answer")
    assert desk.detent("run", "wipe it").code == 3
    assert "no outcome yet" in desk.detent("explain", "last", "main.1.0").out
    assert desk.detent("approve", "last", "main.1.0", "--by", "ann").code == 0
    assert re.search(r"ann via \S+@\S+ detent approved it", desk.detent("explain", "last", "main.1.0").out)


def test_explain_of_an_unknown_call_names_the_nearest(worked: Desk) -> None:
    """A usage error, like an unknown run."""
    done = worked.detent("explain", "last", "main.2.4")
    assert done.code == 2 and "did you mean main.2.0" in done.err
    assert worked.detent("explain", "nope", "main.1.0").code == 2


def test_an_agents_policy_and_guards_hold_on_the_command_line(desk: Desk) -> None:
    """From its file; the run goes on after a denial, and a resumed run is decided by what stands in its log."""
    desk.steps("note", "second", "answer")
    text = (desk.home / "agent.toml").read_text() + 'guards = ["side_effect_once"]\npolicy = "p.toml"\n'
    desk.write("agent.toml", text)
    desk.write("p.toml", NO_TWO)
    done = desk.detent("run", "write")
    assert done.code == 0 and desk.notes == ["one"]
    shown = desk.detent("explain", "last", "main.2.0")
    assert "policy: deny by no-two: not two (from p.toml:4)" in shown.out
