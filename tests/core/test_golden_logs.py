"""Golden logs: what a released version wrote is read for ever, and today's code writes the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from core.golden_logs import GOLDEN, GOLDEN_DIR
from detent.core import events as e
from detent.core.codec import read_log, read_record
from detent.core.fold import fold
from detent.core.records import VERSION
from detent.running.states import dump_state

FILES = sorted(GOLDEN_DIR.glob("v*-*.jsonl"))


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a golden file."""
    return path.read_bytes().splitlines()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_log_folds_to_the_state_that_was_stored_with_it(path: Path) -> None:
    """Byte for byte: neither the format of records nor the meaning of an event has changed silently."""
    lines = lines_of(path)
    run_id = read_record(lines[0]).envelope.run
    state = fold(read_log(run_id, lines))
    assert dump_state(state) == path.with_suffix(".state.json").read_bytes().rstrip(b"\n")


@pytest.mark.parametrize("name", GOLDEN)
def test_todays_code_writes_the_golden_bytes_of_its_version(name: str) -> None:
    """A change of what is written needs a new version, an upcaster and new golden files."""
    assert GOLDEN[name]().lines == lines_of(GOLDEN_DIR / f"v{VERSION}-{name}.jsonl")


def test_the_golden_logs_of_each_version_hold_every_event_that_it_had() -> None:
    """Between them, the files of the present version cover the whole union."""
    held = {type(read_record(line).event) for path in FILES if path.name.startswith(f"v{VERSION}-") for line in lines_of(path)}
    assert set(get_args(e.AnyEvent)) - held == set()


def test_every_golden_log_has_its_state_and_there_are_files_for_every_version() -> None:
    """A version without golden files would not be guarded."""
    assert {p.name.split("-")[0] for p in FILES} == {f"v{v}" for v in range(1, VERSION + 1)}
    assert {p.stem for p in FILES} == {p.name.removesuffix(".state.json") for p in GOLDEN_DIR.glob("*.state.json")}
