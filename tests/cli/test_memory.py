"""`detent memory`: what agents remember, listed, searched, corrected, reviewed, forgotten and moved by a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk


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
