"""`detent erase` of a run that others know of: later runs of its session, and a memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk
from cli.terminals import Sat, at_a_terminal, screen
from cli.test_chat import piped

AGENT = """\
name = "clerk"
tools = ["remember"]
memory = {}
rules = [{name = "keep", call = {tool = "remember", args = {content = "${goal}"}}}, {name = "answer", answer = "done"}]
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.write("agent.toml", AGENT)
    desk.write("detent.toml", '[memory]\nurl = "sqlite:///memory.db"\n')
    return desk


def remembered(desk: Desk) -> list[str]:
    """Return what the memory has."""
    return [one["content"] for one in desk.detent("memory", "list", "--status", "current", "--json").json]


def sitting(desk: Desk, *words: str, answers: list[tuple[str, str]]) -> Sat:
    """Run a command at a terminal, where each answer is typed when the last line has its question."""
    left = list(answers)

    def types(shown: str) -> str:
        last = screen(shown).split("\n")[-1]
        return f"{left.pop(0)[1]}\n" if left and left[0][0] in last else ""

    sat = at_a_terminal(*words, types=types, env={**desk.environment, "TERM": "xterm"}, cwd=desk.home, columns=200, forks=())
    assert not left, sat.shown
    return sat


@pytest.mark.parametrize("keeps", [False, True])
def test_later_messages_lose_the_words_of_an_erased_one_unless_they_are_kept(keeps: bool, desk: Desk) -> None:
    """The words of a message are in the conversation of every later run: `erase` removes them there too, and --keep-later leaves them."""
    assert piped(desk, lines="secret\ntwo\n").code == 0
    (session,) = desk.detent("sessions", "--json").json
    done = desk.detent("erase", f"{session['id']}.1", "--yes", "--json", *(["--keep-later"] if keeps else []))
    assert (done.code, done.json["later"]) == (0, [] if keeps else [f"{session['id']}.2"]), done.err
    kept = desk.detent("export", "--session", "last").out
    assert ("secret" in kept, "two" in kept) == (keeps, True)


def test_erasing_a_run_says_what_a_memory_has_of_it_and_forgets_it_if_told(desk: Desk) -> None:
    """A person who erases a run for its words finds them in a memory; without a terminal nobody is asked, so the command to forget is printed."""
    for run in ("first", "second"):
        assert desk.detent("run", f"the {run} plan", "--run-id", run).code == 0
    left = desk.detent("erase", "first", "--yes", "--json")
    assert (left.code, len(left.json["remembered"])) == (0, 1) and "memory still has 1 item" in left.err, left
    assert "next: detent memory forget --run first" in left.err and len(remembered(desk)) == 2
    gone = desk.detent("erase", "second", "--yes", "--memory")
    assert gone.code == 0 and "forgot 1 item of memory" in gone.err and remembered(desk) == ["the first plan"], gone.err
    assert desk.detent("memory", "forget", "--run", "first", "--yes").code == 0 and remembered(desk) == []


def test_at_a_terminal_the_person_is_offered_to_forget_what_came_from_the_run(desk: Desk) -> None:
    """No forgets nothing, and yes forgets it."""
    for run in ("first", "second"):
        assert desk.detent("run", f"the {run} plan", "--run-id", run).code == 0
    for run, said, left in (("first", "n", 2), ("second", "y", 1)):
        sat = sitting(desk, "erase", run, answers=[("Remove everything that run", "y"), ("Also forget 1 item", said)])
        assert (sat.code, len(remembered(desk))) == (0, left), sat.shown
