"""The codec: exact bytes, a chain that shows every change, versions, tombstones, states as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.golden_logs import GOLDEN
from core.logs import Log, calls, opened, turn
from detent.core import events as e
from detent.core.codec import STATE_VERSION, UPCASTERS, decode_event, digest_of, encode, read_log, read_record, seal, tombstone
from detent.core.errors import CorruptLog, NewerVersion
from detent.core.fold import fold
from detent.core.history import Map, Seq
from detent.core.records import VERSION, Envelope
from detent.core.state import Item, KernelState, RunState
from detent.running.states import dump_state, load_state
from detent.testing.clocks import EPOCH

NAMES = list(GOLDEN)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def read(log: Log) -> list[Any]:
    """Return the verified records of a log."""
    return list(read_log(log.state.run_id, log.lines))


def resealed(log: Log, which: int, **changes: Any) -> list[bytes]:
    """Return the lines with the envelope of record `which` changed and the chain made good from there on."""
    lines: list[bytes] = []
    previous = ""
    for number, (line, event) in enumerate(zip(log.lines, log.events, strict=True), 1):
        envelope = read_record(line).envelope
        if number == which:
            envelope = msgspec.structs.replace(envelope, **changes)
        sealed, previous = seal(envelope, encode(event), previous=previous, salt=f"{number:016d}")
        lines.append(sealed)
    return lines


# Records ----------------------------------------------------------------------------------------------------------------------


@given(json_data, st.text(max_size=10))
def test_a_record_comes_back_as_it_was_sealed(value: Any, text: str) -> None:
    """Any JSON in a body; envelope, event and digest survive."""
    event = e.EffectRecorded(label=text, value={"v": value})
    envelope = Envelope(run="r", seq=1, at=EPOCH, scope="main", iteration=3, status="waiting_for_user")
    line, digest = seal(envelope, encode(event), previous="", salt="s" * 16)
    (record,) = read_log("r", [line])
    assert record.envelope == envelope and record.event == event and record.digest == digest
    assert read_record(line) == record and b"\n" not in line


@pytest.mark.parametrize(
    "text", ['","salt":"', '{"envelope":', '","body":', '"digest":"', ',"erased":"', "\n\r\u2028", '\\",\\"body\\":', "\x00"]
)
def test_text_that_looks_like_the_layout_is_only_text(text: str) -> None:
    """What users write can stand in body, scope and run id without being taken for structure."""
    event = e.NoteWritten(text=text, author=text)
    envelope = Envelope(run=text, seq=1, at=EPOCH, scope=text)
    line, _ = seal(envelope, encode(event), previous="", salt="s" * 16)
    (record,) = read_log(text, [line])
    assert record.event == event and record.envelope.scope == text
    (erased,) = read_log(text, [tombstone(line)])
    assert erased.event is None and erased.digest == record.digest


def test_a_line_is_one_json_object_that_holds_the_exact_bytes_of_its_body() -> None:
    """A person can read it; the digest covers the stored bytes, also where another encoder would write them differently."""
    body = b'{"type":"note_written",  "text":"\\u00e9 1.0e3"}'
    line, digest = seal(Envelope(run="r", seq=1, at=EPOCH), body, previous="", salt="s" * 16)
    data = msgspec.json.decode(line)
    assert list(data) == ["envelope", "salt", "body", "digest"] and data["digest"] == digest and body in line
    (record,) = read_log("r", [line])
    assert record.event == e.NoteWritten(text="é 1.0e3")
    assert encode(record.event) != body


def test_the_chain_is_what_the_format_says() -> None:
    """Digest = H(previous, envelope, H(salt, body)), over the exact bytes."""
    log = opened()
    previous = ""
    for line in log.lines:
        data = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        salt = msgspec.json.decode(data["salt"])
        body = sha256(b"%b\n%b" % (salt.encode(), bytes(data["body"]))).hexdigest()
        digest = sha256(b"%b\n%b\n%b" % (previous.encode(), bytes(data["envelope"]), body.encode())).hexdigest()
        assert digest == msgspec.json.decode(data["digest"])
        previous = digest
    assert log.state.digest == previous


def test_reading_goes_on_after_any_record() -> None:
    """`previous` and `after` say where."""
    log = GOLDEN["answered"]()
    whole = read(log)
    for cut in (1, 5, len(whole)):
        rest = list(read_log(log.state.run_id, log.lines[cut:], previous=whole[cut - 1].digest, after=cut))
        assert rest == whole[cut:]


# Tampering --------------------------------------------------------------------------------------------------------------------


def regions(line: bytes) -> Iterator[tuple[str, int]]:
    """Yield a name and a position for a byte in each region of a line, and for each byte of structure."""
    data = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    at = 0
    for name, value in data.items():
        begin = line.index(bytes(value), at)
        yield from ((f"before {name}", i) for i in range(at, begin))
        yield from ((name, i) for i in sorted({begin, begin + 1, begin + len(value) // 2, begin + len(value) - 1}))
        at = begin + len(value)
    yield "end", len(line) - 1


@pytest.mark.parametrize("erased", [False, True], ids=["whole", "erased"])
def test_a_changed_byte_is_found_in_whatever_region_it_stands_and_the_record_is_named(erased: bool) -> None:
    """Envelope, salt, body (or its hash), digest, and the structure between them."""
    log = GOLDEN["answered"]()
    lines = [tombstone(line) for line in log.lines] if erased else log.lines
    for seq in (1, 6, len(lines)):
        for region, position in regions(lines[seq - 1]):
            for flip in (0x01, 0x20):
                line = bytearray(lines[seq - 1])
                line[position] ^= flip
                broken = [*lines[: seq - 1], bytes(line), *lines[seq:]]
                with pytest.raises(CorruptLog) as caught:
                    list(read_log(log.state.run_id, broken))
                assert caught.value.sequence == seq, (region, position)
                assert f"is damaged at record {seq}: " in str(caught.value) and log.state.run_id in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sequence"),
    [
        (lambda lines: [*lines[:3], *lines[4:]], 4),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], 5),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 28),
        (lambda lines: [*lines[:5], b"", *lines[5:]], 6),
        (lambda lines: [*lines[:5], b"{}", *lines[6:]], 6),
        (lambda lines: [*lines[:5], b'{"envelope":' + b"x" * 200, *lines[6:]], 6),
    ],
    ids=["dropped", "swapped", "doubled", "beheaded", "torn", "blank", "other json", "noise"],
)
def test_records_that_were_dropped_moved_or_torn_are_found(change: Any, sequence: int) -> None:
    """The first record that is not sound is named; those before it are read."""
    log = GOLDEN["answered"]()
    found: list[Any] = []
    with pytest.raises(CorruptLog) as caught:
        found.extend(read_log(log.state.run_id, change(log.lines)))
    assert (caught.value.run_id, caught.value.sequence, len(found)) == (log.state.run_id, sequence, sequence - 1)


def test_what_is_before_the_damage_can_be_read() -> None:
    """Records are given out one by one."""
    log = GOLDEN["answered"]()
    reader = read_log(log.state.run_id, [*log.lines[:3], b"{}"])
    assert [next(reader).envelope.seq for _ in range(3)] == [1, 2, 3]
    with pytest.raises(CorruptLog):
        next(reader)


@pytest.mark.parametrize(("field", "value"), [("run", "other"), ("seq", 7)])
def test_a_record_of_another_place_is_found_even_if_its_digest_is_right(field: str, value: Any) -> None:
    """A line that was sealed for another run, or under another number."""
    log = opened()
    with pytest.raises(CorruptLog, match="it is labelled as number") as caught:
        list(read_log("run", resealed(log, 2, **{field: value})))
    assert caught.value.sequence == 2


def test_a_body_that_is_no_event_is_damage() -> None:
    """An unknown tag is never dropped, though the chain holds."""
    line, _ = seal(Envelope(run="r", seq=1, at=EPOCH), b'{"type":"happened"}', previous="", salt="s")
    with pytest.raises(CorruptLog, match="it cannot be read"):
        list(read_log("r", [line]))


# Tombstones -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_tombstone_keeps_the_chain_and_loses_the_content(name: str) -> None:
    """The erased log verifies, digest by digest; bodies and salts are gone; envelopes stay; a second erasure changes nothing."""
    log = GOLDEN[name]()
    erased = [tombstone(line) for line in log.lines]
    records = list(read_log(log.state.run_id, erased))
    assert [r.digest for r in records] == [r.digest for r in read(log)] and all(r.event is None for r in records)
    assert [r.envelope for r in records] == [r.envelope for r in read(log)]
    assert all(b"salt" not in line and set(msgspec.json.decode(line)) == {"envelope", "erased", "digest"} for line in erased)
    assert [tombstone(line) for line in erased] == erased


def test_a_log_may_hold_whole_and_erased_records() -> None:
    """Each line stands for itself."""
    log = GOLDEN["answered"]()
    mixed = [tombstone(line) if i % 2 else line for i, line in enumerate(log.lines)]
    assert [r.event is None for r in read_log(log.state.run_id, mixed)] == [bool(i % 2) for i in range(len(mixed))]


def test_what_is_no_record_cannot_be_erased() -> None:
    """Better an error than a line that says nothing."""
    with pytest.raises(ValueError, match="it is not a record"):
        tombstone(b'{"some":"json"}')


# Versions ---------------------------------------------------------------------------------------------------------------------


def test_a_record_of_a_newer_version_is_refused() -> None:
    """With what to do, both when read alone and in a log."""
    lines = resealed(opened(), 2, v=VERSION + 1)
    with pytest.raises(NewerVersion, match=f"format {VERSION + 1} was written by a newer Detent .* upgrade to read it"):
        list(read_log("run", lines))
    with pytest.raises(NewerVersion):
        read_record(lines[1])


def test_a_record_of_an_older_version_passes_through_its_upcasters(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, over the body as plain data; the chain is checked over the bytes as they were written."""
    steps: list[int] = []

    def upcaster(step: int) -> Any:
        def cast(data: dict[str, Any]) -> dict[str, Any]:
            steps.append(step)
            return data if step == -1 else {"type": "note_written", "text": data["words"], "author": "old"}

        return cast

    monkeypatch.setitem(UPCASTERS, VERSION - 2, upcaster(-1))
    monkeypatch.setitem(UPCASTERS, VERSION - 1, upcaster(0))
    log = opened()
    old = Envelope(run="run", seq=3, at=EPOCH, scope="main", v=VERSION - 2)
    line, digest = seal(old, b'{"type":"note","words":"from before"}', previous=log.state.digest, salt="s")
    records = list(read_log("run", [*log.lines, line]))
    assert records[-1].event == e.NoteWritten(text="from before", author="old") and records[-1].digest == digest
    assert steps == [-1, 0] and fold(records).passes["main"].steps[-1].text == "from before"
    assert read_record(tombstone(line)).event is None


# States -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_state_of_a_run_survives_json(name: str) -> None:
    """Row S0-7, for all fields: load after dump is the same state, and dumps to the same bytes; so do its passes."""
    for state in GOLDEN[name]().states:
        data = dump_state(state)
        again = load_state(data, RunState)
        assert again == state and dump_state(again) == data
        for part in state.passes.values():
            alone = dump_state(part)
            assert load_state(alone, KernelState) == part and dump_state(load_state(alone, KernelState)) == alone


def test_a_state_that_was_loaded_goes_on_like_the_one_that_was_dumped() -> None:
    """From any record on, the fold of the rest gives the same state (lesson L12)."""
    for make in GOLDEN.values():
        log = make()
        records = read(log)
        for cut, state in enumerate(log.states, 1):
            assert fold(records[cut:], load_state(dump_state(state), RunState)) == log.state


def test_sets_are_sorted_arrays_and_maps_are_objects() -> None:
    """Row S0-7; the bytes do not depend on the order in which a set was filled."""
    names = ["b", "a", "c"]
    seen = Map[str, bool]().put("y", True).put("x", True)
    state = KernelState(tools_used=frozenset(names), scratchpad={"k": "v"}, seen=seen, steps=Seq([Item(kind="note", text="t")]))
    data = msgspec.json.decode(dump_state(state))
    assert data["v"] == STATE_VERSION
    assert data["state"]["tools_used"] == ["a", "b", "c"] and data["state"]["scratchpad"] == {"k": "v"}
    assert data["state"]["seen"] == {"x": True, "y": True} and data["state"]["steps"] == [{"kind": "note", "text": "t"}]
    assert dump_state(state) == dump_state(
        KernelState(tools_used=frozenset(reversed(names)), scratchpad={"k": "v"}, seen=seen, steps=state.steps)
    )


def test_a_state_of_a_newer_version_is_refused() -> None:
    """It is never half read."""
    data = dump_state(RunState(run_id="r")).replace(b'"v":%d' % STATE_VERSION, b'"v":%d' % (STATE_VERSION + 1))
    with pytest.raises(NewerVersion, match=f"a state of version {STATE_VERSION + 1} was written by a newer Detent"):
        load_state(data, RunState)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"v":1}', b'{"v":"x","state":{}}', b'{"v":1,"state":{}}', b'{"v":1,"state":{"run_id":5}}', b"\xff"],
)
def test_what_is_no_state_is_refused_by_name(data: bytes) -> None:
    """Corrupt JSON and other JSON alike (row 1.3, codec)."""
    with pytest.raises(ValueError, match="this is not a serialised RunState"):
        load_state(data, RunState)


@given(json_data, json_data)
def test_equal_data_has_equal_digests_and_other_data_others(one: Any, other: Any) -> None:
    """The digest of arguments does not depend on the order of keys."""
    again = msgspec.json.decode(encode(one))
    assert digest_of(one) == digest_of(again) and len(digest_of(one)) == 32
    assert (digest_of(one) == digest_of(other)) == (msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted"))


def test_the_order_of_keys_does_not_count() -> None:
    """At any depth."""
    assert digest_of({"a": {"x": 1, "y": 2}, "b": 3}) == digest_of({"b": 3, "a": {"y": 2, "x": 1}})
    assert digest_of([1, 2]) != digest_of([2, 1]) and digest_of({"a": 1}) != digest_of({"a": "1"}) != digest_of({"a": True})


def test_an_event_is_what_was_encoded() -> None:
    """Encoding, decoding and encoding again gives the bytes of a log line's body."""
    log = turn(opened()).add(calls(1, 2))
    assert [encode(r.event) for r in read(log)] == [encode(decode_event(encode(event))) for event in log.events]
