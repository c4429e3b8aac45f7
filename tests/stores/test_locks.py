"""Locks: the file that is locked is the one that has the name."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from detent.stores.locks import Holder, is_dead, lock_file, remove_dead, still_named


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_a_file_that_was_replaced_while_it_was_being_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Between opening and locking another process may put a new file there; the lock of the old one is worth nothing."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    real = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, how: int) -> None:
        if not calls:
            path.unlink()
            if what == "replaced":
                path.write_bytes(b"new")
        calls.append(fd)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = lock_file(path)
    assert still_named(fd, path)
    assert os.pread(fd, 9, 0) == (b"new" if what == "replaced" else b"")
    assert len(calls) == 2
    os.close(fd)


def test_a_lock_is_free_when_its_holder_drops_it_or_its_file_is_gone(tmp_path: Path) -> None:
    """A holder lives while it has the lock; a missing lock file is a dead holder; a holder takes a lost lock file again."""
    holder, other = Holder(tmp_path), Holder(tmp_path)
    holder.take()
    assert other.lives(holder.name, holder.host)
    assert not is_dead(holder.path)
    holder.path.unlink()
    assert not other.lives(holder.name, holder.host)
    holder.take()
    assert other.lives(holder.name, holder.host)
    remove_dead(tmp_path, holder.host)
    assert holder.path.exists()
    holder.drop()
    assert not holder.path.exists()
    assert not other.lives(holder.name, holder.host)


def test_a_holder_whose_process_cannot_be_seen_lives_while_it_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers of one host see each other's locks, and not each other's processes."""
    holder, other = Holder(tmp_path), Holder(tmp_path)
    holder.take()

    def kill(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    assert other.lives(holder.name, holder.host)
    holder.drop()
    assert not other.lives(holder.name, holder.host)


def test_other_hosts_are_judged_by_their_lease_and_their_files_left_alone(tmp_path: Path) -> None:
    """Whether a lock is held cannot be seen from another host."""
    now = [100.0]
    here, there = Holder(tmp_path, host="a/1", now=lambda: now[0]), Holder(tmp_path, host="b/1", now=lambda: now[0])
    there.take()
    assert here.lives(there.name, there.host)
    now[0] += there.lease_s
    assert not here.lives(there.name, there.host)
    os.close(lock_file(tmp_path / "0-unlocked.lock"))
    assert remove_dead(tmp_path, "a/1") == 0
    assert len(list(tmp_path.iterdir())) == 2
    there.drop()
