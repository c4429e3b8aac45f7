"""A signal in another run's inbox file that waits for the record that causes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent.ports import Signal
from detent.stores.files.store import FileStore
from detent.testing.conformance.store_places import write


class Dies(Exception):
    """The process is dead."""


def test_a_signal_whose_append_died_between_the_files_never_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inbox has it already. The next worker of the sender appends something else: a signal without a cause would stay for ever."""

    async def main() -> None:
        sender, reader = FileStore(tmp_path), FileStore(tmp_path)
        await sender.open()
        await reader.open()
        for name in ("run", "other"):
            await write(sender, name, range(1, 2))
        posts = [("other", Signal(id="end", kind="child"))]

        def dies(*_: Any, **__: Any) -> None:
            raise Dies

        with monkeypatch.context() as patch:
            patch.setattr(sender._logs, "append", dies)
            with pytest.raises(Dies):
                await write(sender, "run", range(2, 3), text="the end", durable=True, posts=posts)
        inbox = tmp_path / ".inbox" / "other.jsonl"
        assert b'"id":"end"' in inbox.read_bytes()
        assert await reader.signals(["other"]) == {}
        await write(reader, "run", range(2, 3), text="something else")
        assert await reader.signals(["other"]) == {} and not inbox.exists()  # it can never count: the file is tidied
        await write(reader, "run", range(3, 4), text="the end", durable=True, posts=posts)
        assert await sender.signals(["other"]) == {"other": [posts[0][1]]}
        await reader.close()
        await sender.close()

    asyncio.run(main())
