"""`detent memory`: what agents remember, listed, searched, corrected, reviewed, forgotten and moved by a person."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.desk import Desk
from cli.terminals import at_a_terminal, screen


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.write("detent.toml", '[memory]\nurl = "sqlite:///memory.db"\n')
    return desk


def test_an_item_is_added_found_shown_and_corrected_with_both_kept(desk: Desk) -> None:
    """What a person adds is found by its words; a correction replaces it and keeps it readable, with where each came from."""
    added = desk.detent("memory", "add", "--scope", "-/desk", "--by", "ann", "--vouch", "--json", "The", "payee", "is", "Ann")
    assert added.code == 0, added.err
    item = added.json["id"]
    assert "The payee is Ann" in desk.detent("memory", "search", "payee").out
    changed = desk.detent("memory", "correct", item, "The payee is Bob", "--why", "it was wrong", "--json")
    assert changed.code == 0, changed.err
    assert [one["id"] for one in desk.detent("memory", "list", "--status", "current", "--json").json] == [changed.json["id"]]
    shown = desk.detent("memory", "show", item, changed.json["id"]).out
    assert "superseded" in shown and "  | The payee is Ann" in shown and "ann; trusted (approver)" in shown
    assert "untrusted" in shown.partition("The payee is Bob")[2]


def test_forgetting_shows_everything_first_and_needs_a_yes(desk: Desk) -> None:
    """Without a terminal nothing is forgotten without --yes; then the content is gone, and the tombstone says why."""
    item = desk.detent("memory", "add", "--scope", "-/desk", "--by", "ann", "--json", "secret plan").json["id"]
    asked = desk.detent("memory", "forget", "--person", "ann")
    assert asked.code == 2 and "secret plan" in asked.err and "nothing was forgotten" in asked.err
    done = desk.detent("memory", "forget", item, "--why", "asked for", "--yes", "--json")
    assert (done.code, [key.rpartition("/")[2] for key in done.json["removed"]]) == (0, [item]), done.err
    assert "secret plan" not in desk.detent("memory", "list").out + desk.detent("memory", "export").out
    assert "tombstoned" in desk.detent("memory", "show", item).out
    assert desk.detent("memory", "forget").code == 2


AGENT = """\
name = "clerk"
tools = ["remember", "./desk.py:look"]
memory = {write_policy = "POLICY"}
rules = [
    {name = "look", call = {tool = "look", args = {page = "${goal}"}}, as = "page"},
    {name = "keep", call = {tool = "remember", args = {content = "${results.page.value}"}}},
    {name = "answer", answer = "done"},
]
"""
LOOK = """\
from detent import tool


@tool(side_effect="read")
def look(page: str) -> str:
    "Return what a page says."
    return f"the page says that {page} is paid on Fridays"
"""


def clerk(desk: Desk, policy: str, *goals: str) -> list[str]:
    """Have an agent remember what a page says of each, in a run of the same name; return the ids of the items."""
    desk.write("desk.py", LOOK)
    desk.write("agent.toml", AGENT.replace("POLICY", policy))
    for goal in goals:
        done = desk.detent("run", goal, "--run-id", goal)
        assert done.code == 0, done.err
    items = desk.detent("memory", "list", "--json").json
    return [one["id"] for goal in goals for one in items if goal in one["content"]]


def test_a_proposal_waits_for_a_review_and_is_accepted_or_refused(desk: Desk) -> None:
    """Without a terminal a review shows each proposal and decides nothing; --accept makes it an item, --refuse WHY keeps it out and says why."""
    one, two = clerk(desk, "proposal_only", "bolt", "nuts")
    shown = desk.detent("memory", "review")
    assert "that bolt is paid" in shown.out and "that nuts is paid" in shown.out, shown
    assert desk.detent("memory", "list", "--status", "current", "--json").json == []
    (told,) = re.findall(rf"next: detent (memory review \S*{one} --accept)", shown.out)
    accepted = desk.detent(*told.split(), "--by", "ann", "--json")
    assert (accepted.code, [item["id"] for item in accepted.json]) == (0, [one]), accepted.err
    assert desk.detent("memory", "review", two, "--refuse", "nobody knows nuts").code == 0
    assert [item["id"] for item in desk.detent("memory", "list", "--status", "current", "--json").json] == [one]
    assert "nobody knows nuts" in desk.detent("memory", "show", two).out
    assert "no proposal waits" in desk.detent("memory", "review").err
    again = desk.detent("memory", "review", two, "--accept")
    assert again.code != 0 and two in again.err, again.err


def test_at_a_terminal_a_review_asks_about_each_proposal(desk: Desk) -> None:
    """Yes, no and later: the one for later still waits."""
    ids = clerk(desk, "proposal_only", "bolt", "nuts", "cogs")
    answers, asked = {ids[0]: "y", ids[1]: "n", ids[2]: "l"}, list[str]()

    def types(shown: str) -> str:
        lines = screen(shown, columns=200).split("\n")
        now = [one for one in ids if any(one in line for line in lines) and one not in asked]
        if not lines[-1].startswith("remember this?") or not now:
            return ""
        asked.append(now[0])
        return f"{answers[now[0]]}\n"

    said = {**desk.environment, "TERM": "xterm"}
    sat = at_a_terminal("memory", "review", types=types, env=said, cwd=desk.home, columns=200, forks=())
    assert (sat.code, sorted(asked)) == (0, sorted(ids)), sat.shown
    found = {one["id"]: one for one in desk.detent("memory", "list", "--json").json}
    assert [bool(found[one].get("proposed")) for one in ids] == [False, False, True] and found[ids[1]]["refused"]


def test_what_came_from_a_source_a_run_or_a_person_is_shown_and_forgotten(desk: Desk) -> None:
    """Other items stay, nothing goes before a yes, and the runs whose logs still have the words are named."""
    bolt, nuts = clerk(desk, "agent_write", "bolt", "nuts")
    plan = desk.detent("memory", "add", "--scope", "-/clerk", "--by", "ann", "--json", "a plan of ann").json["id"]
    for option, words, item in (("source", "look:bolt", bolt), ("run", "nuts", nuts), ("person", "ann", plan)):
        asked = desk.detent("memory", "forget", f"--{option}", words)
        assert asked.code == 2 and "nothing was forgotten" in asked.err, asked.err
        assert re.findall(r"bolt is paid|nuts is paid|a plan", asked.err) == [
            {bolt: "bolt is paid", nuts: "nuts is paid", plan: "a plan"}[item]
        ]
        done = desk.detent("memory", "forget", f"--{option}", words, "--yes", "--json")
        assert (done.code, [key.rpartition("/")[2] for key in done.json["removed"]]) == (0, [item]), done.err
        wrote = {bolt: "bolt", nuts: "nuts", plan: ""}[item]
        assert (f"remains in the log of run {wrote}: detent erase {wrote}" in done.err) == bool(wrote), done.err


def test_a_search_of_another_time_finds_what_held_then(desk: Desk) -> None:
    """A fact that no longer holds is found as of a day on which it did, and is not found without."""
    assert (
        desk.detent("memory", "add", "--scope", "-/desk", "--held-from", "2020-01-01", "--held-until", "2021-01-01", "Ann paid").code == 0
    )
    assert desk.detent("memory", "add", "--scope", "-/desk", "--held-from", "2021-01-01", "Bob paid").code == 0

    def found(*words: str) -> list[str]:
        return [one["item"]["content"] for one in desk.detent("memory", "search", "paid", "--json", *words).json]

    assert (found(), found("--as-of", "2020-06-01"), found("--as-of", "2019-06-01")) == (["Bob paid"], ["Ann paid"], [])


def test_exported_items_are_imported_elsewhere_and_untrusted(desk: Desk) -> None:
    """An import proves nothing unless somebody vouches for it, and a line that is no item is named."""
    assert desk.detent("memory", "add", "--scope", "-/desk", "--vouch", "Pay Ann").code == 0
    assert desk.detent("memory", "export", "-o", "items.jsonl").code == 0
    desk.write("detent.toml", '[memory]\nurl = "sqlite:///other.db"\n')
    done = desk.detent("memory", "import", "items.jsonl", "--json")
    assert (done.code, done.json) == (0, {"items": 1, "new": 1}), done.err
    (there,) = desk.detent("memory", "list", "--json").json
    assert there["content"] == "Pay Ann" and not there.get("origin", {}).get("trusted", False)
    desk.write("broken.jsonl", '{"id": 3}\n')
    wrong = desk.detent("memory", "import", "broken.jsonl")
    assert (wrong.code, "broken.jsonl, line 1 is not an exported item" in wrong.err) == (2, True), wrong.err


def test_what_does_not_fit_is_refused_with_what_would(desk: Desk) -> None:
    """An option of another action, an unknown kind, words too many; and an engine without memory says how to get one."""
    for words, told in (
        (("list", "--source", "x"), "takes no --source; that is an option of forget"),
        (("list", "words"), "takes no words"),
        (("search", "x", "--kind", "idea"), "choose from preference"),
        (("review", "--accept"), "name the proposals"),
        (("show", "nope"), "nope"),
    ):
        wrong = desk.detent("memory", *words)
        assert wrong.code != 0 and told in wrong.err and "Traceback" not in wrong.err, wrong.err
    assert "no proposal waits" in desk.detent("memory", "review").err
    (desk.home / "detent.toml").unlink()
    without = desk.detent("memory", "list")
    assert without.code == 2 and "memory" in without.err, without.err


def test_another_tenant_sees_nothing(desk: Desk) -> None:
    """--tenant shows the items of that tenant alone, and cannot forget others."""
    item = desk.detent("memory", "add", "--scope", "acme/desk", "--json", "the plan of acme").json["id"]
    assert "the plan" in desk.detent("memory", "list", "--tenant", "acme").out
    assert "nothing is remembered" in desk.detent("memory", "list", "--tenant", "other").err
    for words in (("show", item), ("forget", item, "--yes"), ("correct", item, "x")):
        assert desk.detent("memory", *words, "--tenant", "other").code != 0
    assert "the plan" in desk.detent("memory", "list").out
