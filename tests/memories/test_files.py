"""The memory in a directory of text files: what a person writes, what is refused, and the cache."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from detent.core.errors import DetentError, ItemConflict, ItemNotFound, ItemRefused
from detent.memories.files.cache import Cache
from detent.memories.files.entries import Entry, FileEntries
from detent.memories.files.memory import FileMemory
from detent.ports import MemoryItem, Origin
from detent.testing.conformance.memory import item, names
from detent.testing.conformance.memory_scopes import LATER


def test_a_person_writes_a_note_with_an_editor(tmp_path: Path) -> None:
    """A file without a header is remembered as a fact; a header may say only what matters. An edit is seen at once."""

    async def main() -> None:
        memory = FileMemory(tmp_path)
        notes = tmp_path / "memory" / "acme"
        notes.mkdir(parents=True)
        (notes / "prices.md").write_text("A screw costs 2 cents.\n")
        (notes / "style.md").write_text("---\nkind: preference\nwhy: 12\n---\nSpeak plainly.\n")
        (tmp_path / "memory" / "all.md").write_text("Everyone knows this screw.")
        found = await memory.search("screws", host="acme")
        assert [(one.item.id, one.item.content, one.item.kind) for one in found] == [
            ("prices", "A screw costs 2 cents.", "fact"),
            ("style", "Speak plainly.", "preference"),
        ]
        assert names(await memory.search("screw", host="-")) == ["all"]
        (notes / "prices.md").write_text("A screw costs 3 cents.\n")
        assert (await memory.search("screw", host="acme"))[0].item.content == "A screw costs 3 cents."
        (notes / "prices.md").unlink()
        assert names(await memory.search("screw", host="acme")) == ["style"]

    asyncio.run(main())


def test_a_file_says_nothing_about_its_own_trust(tmp_path: Path) -> None:
    """An agent with a tool that writes files could make its own words trusted. Only an operator who vouches for the directory can."""

    async def main() -> None:
        origin = Origin(run_id="r", labels=("user",), trusted=True)
        await FileMemory(tmp_path).write(item("a", origin=origin), host="acme")
        for vouched in (False, True):
            found = await FileMemory(tmp_path, vouched=vouched).get("a", host="acme")
            assert found is not None
            assert found.origin.trusted is vouched

    asyncio.run(main())


def test_what_cannot_be_read_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, NULs, wrong headers, huge files, odd names; hidden files and links are skipped. The other notes are still there."""
    notes = tmp_path / "memory" / "acme"
    notes.mkdir(parents=True)
    (notes / "bytes.md").write_bytes(b"\xff\xfe invoice")
    (notes / "nul.md").write_bytes(b"invoice\0")
    (notes / "huge.md").write_text("invoice " * 20_000)
    (notes / "header.md").write_text("---\nkind: nonsense\n---\ninvoice")
    (notes / "field.md").write_text("---\nno such field: 1\n---\ninvoice")
    (notes / "image.png").write_text("invoice")
    (notes / "empty.md").write_text(" \n")
    (notes / ".hidden.md").write_text("invoice")
    (notes / ".git").mkdir()
    (notes / ".git" / "x.md").write_text("invoice")
    (tmp_path / "secret.md").write_text("invoice")
    (notes / "link.md").symlink_to(tmp_path / "secret.md")
    (notes / "away").symlink_to(tmp_path)
    os.mkfifo(notes / "fifo.md")
    (notes / "good.md").write_text("invoice")
    assert names(asyncio.run(FileMemory(tmp_path).search("invoice", host=""))) == ["good"]
    for name in ("bytes", "nul", "huge", "header", "field", "image", "empty"):
        assert f"{name}." in caplog.text, name


def test_no_link_in_the_directory_is_followed_by_a_write(tmp_path: Path) -> None:
    """A link in place of a scope's directory, or of the lock, would let an agent write anywhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "notes"
    (place / "memory").mkdir(parents=True)
    (place / "memory" / "acme").symlink_to(outside)
    with pytest.raises(DetentError):
        asyncio.run(FileMemory(place).write(item("a"), host="acme"))
    assert list(outside.iterdir()) == []
    (place / "memory" / "acme").unlink()
    (place / "memory" / "acme").mkdir()
    (outside / "a.md").write_text("theirs")
    (place / "memory" / "acme" / "a.md").symlink_to(outside / "a.md")
    with pytest.raises(ItemConflict):
        asyncio.run(FileMemory(place).write(item("a"), host="acme"))
    assert (outside / "a.md").read_text() == "theirs"


def test_a_crash_between_the_files_of_one_change_leaves_all_of_it(tmp_path: Path) -> None:
    """The successor's file is there, the predecessor's does not say so yet: it counts as superseded, and repeating the change finds it done."""

    async def main() -> None:
        memory = FileMemory(tmp_path)
        await memory.write(item("old"), host="acme")
        before = (tmp_path / "memory" / "acme" / "old.md").read_bytes()
        new = item("new", "The invoice was paid.", created_at=LATER)
        await memory.supersede("old", new, why="Paid.", host="acme")
        whole = await memory.export(host="acme")
        (tmp_path / "memory" / "acme" / "old.md").write_bytes(before)
        again = FileMemory(tmp_path)
        assert await again.export(host="acme") == whole
        assert names(await again.search("invoice", host="acme")) == ["new"]
        assert (await again.supersede("old", new, why="Paid.", host="acme")).id == "new"

    asyncio.run(main())


def test_a_workspace_has_instructions(tmp_path: Path) -> None:
    """AGENTS.md of a workspace is read as `agents/AGENTS.md`, beside the agents of the directory; a link out of it is not."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "AGENTS.md").write_text("Run the tests.")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "work" / "CLAUDE.md").symlink_to(tmp_path / "secret")
    memory = FileMemory(tmp_path / "notes", workspace=tmp_path / "work")
    memory.files.save([Entry("agents/clerk.md", "You are a clerk."), Entry("skills/pay.md", "How to pay.")])
    assert asyncio.run(memory.entries("agents/")) == [
        Entry("agents/AGENTS.md", "Run the tests."),
        Entry("agents/clerk.md", "You are a clerk."),
    ]
    assert asyncio.run(memory.entries("skills/")) == [Entry("skills/pay.md", "How to pay.")]
    assert asyncio.run(FileMemory(tmp_path / "notes").entries("agents/")) == [Entry("agents/clerk.md", "You are a clerk.")]


def test_entries_are_files_by_key(tmp_path: Path) -> None:
    """Rows T24 and T25: list, load, save, delete."""
    files = FileEntries(tmp_path / "none")
    assert files.list() == []
    files.save([Entry("memory/a/b.md", "1"), Entry("memory/c.md", "2")])
    files.save([Entry("memory/a/b.md", "3")])
    assert files.list() == ["memory/a/b.md", "memory/c.md"]
    assert files.load(["memory/c.md", "memory/a/b.md"]) == [Entry("memory/c.md", "2"), Entry("memory/a/b.md", "3")]
    with pytest.raises(ItemNotFound):
        files.load(["memory/a"])
    with pytest.raises(FileExistsError):
        files.save([Entry("memory/c.md", "4")], new=True)
    files.delete(["memory/a/b.md", "memory/missing.md"])
    assert [path.name for path in (tmp_path / "none").rglob("*")] == ["memory", "c.md"]
    for key in ("../x", "/etc/passwd", "a/../b", "", "a//b", ".git/x", "a\0b", "x" * 300):
        with pytest.raises(ItemRefused):
            files.save([Entry(key, "")])
        with pytest.raises(ItemRefused):
            files.load([key])


def test_a_cache_holds_what_it_was_asked_for(tmp_path: Path) -> None:
    """Row T27."""
    files = FileEntries(tmp_path)
    files.save([Entry("memory/a.md", "a"), Entry("memory/b.md", "b"), Entry("skills/s.md", "s")])
    cache = Cache(files)
    cache.bootstrap(["memory/"])
    assert cache.keys() == ["memory/a.md", "memory/b.md", "skills/s.md"]
    assert [entry.key for entry in cache.entries()] == ["memory/a.md", "memory/b.md"]
    assert (cache.has("skills/s.md"), cache.get("skills/s.md")) == (True, None)
    files.save([Entry("memory/a.md", "changed")])
    cache.resolve(["memory/a.md", "skills/s.md"])
    assert cache.get("memory/a.md") == Entry("memory/a.md", "a")
    assert cache.entries("skills/") == [Entry("skills/s.md", "s")]
    cache.set("memory/new.md", "new")
    cache.set("memory/b.md", "b2")
    cache.delete("memory/a.md")
    cache.delete("memory/new.md")
    cache.set("memory/new.md", "newer")
    assert files.list() == ["memory/a.md", "memory/b.md", "skills/s.md"]
    cache.flush()
    assert [entry.text for entry in files.load(files.list())] == ["b2", "newer", "s"]
    with pytest.raises(ItemNotFound):
        cache.resolve(["memory/missing.md"])
    with pytest.raises(ItemNotFound):
        cache.delete("memory/missing.md")
    empty = Cache(files)
    empty.bootstrap()
    assert empty.entries() == []


def test_a_long_scope_is_refused(tmp_path: Path) -> None:
    """No file system has such names; the error says so, and nothing is written."""
    with pytest.raises(ItemRefused):
        asyncio.run(FileMemory(tmp_path).write(MemoryItem(id="a", scope="y" * 400, content="x"), host=""))
    assert list(tmp_path.rglob("*.md")) == []


def test_an_import_that_one_item_hinders_writes_none(tmp_path: Path) -> None:
    """All or none, whatever hinders it: a file in the way, or an item whose file could not be read again."""

    async def main() -> None:
        memory = FileMemory(tmp_path)
        (tmp_path / "memory" / "acme").mkdir(parents=True)
        (tmp_path / "memory" / "acme" / "odd.md").write_text("---\nno header\n---\n")
        for hinders, error in (
            (item("odd"), ItemConflict),
            (item("huge", context="\u0001" * 8_000, why="\u0001" * 8_000), ItemRefused),
        ):
            with pytest.raises(error):
                await memory.import_([item("first"), hinders], host="acme")
            assert await memory.list(host="acme") == []

    asyncio.run(main())
