"""Bytes to records and states, and back.

A record is written once and its bytes are kept. Reading checks the digest chain; a record of an older version passes through the
upcasters, one of a newer version is refused. States travel as JSON envelopes `{"v": VERSION, "state": {...}}` with sets sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from detent.core.errors import CorruptLog, NewerVersion
from detent.core.events import AnyEvent
from detent.core.history import Map, Seq
from detent.core.records import VERSION, Envelope, Record, chain, hash_body
from detent.core.state import KernelState, RunState

StateT = TypeVar("StateT", KernelState, RunState)

STATE_VERSION = 1
"""The version of the fold: a snapshot or serialised state of another version is not used."""

UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From version n to n + 1, over the body as plain data."""


class _Line(msgspec.Struct, frozen=True):
    envelope: msgspec.Raw
    digest: str
    salt: str = ""
    body: msgspec.Raw = msgspec.Raw()
    erased: str = ""


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Seq):
        return list(value)  # type: ignore[arg-type]
    if isinstance(value, Map):
        return dict(value)  # type: ignore[arg-type]
    raise NotImplementedError(f"{type(value).__name__} is not JSON data")


def _dec_hook(kind: Any, value: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is Seq:
        return Seq(msgspec.convert(value, list[get_args(kind)[0]], dec_hook=_dec_hook))
    if origin is Map:
        mapping: Map[Any, Any] = Map()
        for key, item in value.items():
            mapping = mapping.put(key, item)
        return mapping
    raise NotImplementedError(f"{kind} cannot be read")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)
_sorted = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")
_lines = msgspec.json.Decoder(_Line)
_envelopes = msgspec.json.Decoder(Envelope)
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)  # type: ignore[arg-type]

encode = _encoder.encode
"""Any event, envelope or plain data as JSON bytes."""

decode_event = _events.decode
"""An event from the JSON bytes of a record's body."""


def canonical(value: Any) -> bytes:
    """Return JSON bytes that are the same for equal values, whatever the order of keys and sets."""
    return _sorted.encode(value)


def digest_of(value: Any) -> str:
    """Return the digest of plain data: 32 hex digits of SHA-256 over its canonical JSON."""
    return sha256(_sorted.encode(value)).hexdigest()[:32]


def seal(envelope: Envelope, body: bytes, *, previous: str, salt: str) -> tuple[bytes, str]:
    """Return a record's line and its digest."""
    head = _encoder.encode(envelope)
    digest = chain(previous, head, hash_body(salt, body))
    return b'{"envelope":%b,"salt":"%b","body":%b,"digest":"%b"}' % (head, salt.encode(), body, digest.encode()), digest


def tombstone(line: bytes) -> bytes:
    """Return the line with body and salt replaced by their hash; an erased line stays as it is."""
    parts = _lines.decode(line)
    if parts.erased:
        return line
    kept = hash_body(parts.salt, bytes(parts.body))
    return b'{"envelope":%b,"erased":"%b","digest":"%b"}' % (bytes(parts.envelope), kept.encode(), parts.digest.encode())


def read_record(line: bytes) -> Record:
    """Return the decoded record without checking the chain; raise `NewerVersion` or `msgspec.MsgspecError`."""
    parts = _lines.decode(line)
    envelope = _envelopes.decode(parts.envelope)
    return Record(envelope, None if parts.erased else _event(parts.body, envelope.v), parts.digest)


def _event(body: msgspec.Raw, version: int) -> AnyEvent:
    if version == VERSION:
        return _events.decode(body)
    if version > VERSION:
        raise NewerVersion(f"a record of format {version} was written by a newer Detent (this one reads up to {VERSION}); upgrade to read it")
    data: dict[str, Any] = msgspec.json.decode(body)
    for step in range(version, VERSION):
        data = UPCASTERS[step](data)
    return msgspec.convert(data, AnyEvent)  # type: ignore[arg-type]


def read_log(run_id: str, lines: Iterable[bytes], *, previous: str = "", after: int = 0) -> Iterator[Record]:
    """Yield the records of a log and check each digest; raise `CorruptLog` naming the first sequence that is not sound."""
    seq = after
    for line in lines:
        seq += 1
        try:
            parts = _lines.decode(line)
            envelope = _envelopes.decode(parts.envelope)
            if envelope.seq != seq or envelope.run != run_id:
                raise CorruptLog(run_id, seq, f"the record says it is number {envelope.seq} of {envelope.run!r}")
            kept = parts.erased or sha256(b"%b\n%b" % (parts.salt.encode(), parts.body)).hexdigest()
            if chain(previous, bytes(parts.envelope), kept) != parts.digest:
                raise CorruptLog(run_id, seq, "its digest does not match its content and the record before it")
            event = None if parts.erased else _event(parts.body, envelope.v)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptLog(run_id, seq, f"it cannot be read ({error})") from error
        previous = parts.digest
        yield Record(envelope, event, parts.digest)


def dump_state(state: KernelState | RunState) -> bytes:
    """Return a state as JSON bytes, sets sorted and maps as objects."""
    return _sorted.encode({"v": STATE_VERSION, "state": state})


def load_state(data: bytes, kind: type[StateT]) -> StateT:
    """Return the state that `dump_state` wrote; raise `NewerVersion` for a newer version, `ValueError` for anything else unreadable."""
    try:
        outer: dict[str, Any] = msgspec.json.decode(data)
        version = outer["v"]
        if version > STATE_VERSION:
            raise NewerVersion(f"a state of version {version} was written by a newer Detent (this one reads up to {STATE_VERSION}); upgrade to read it")
        return msgspec.json.decode(_encoder.encode(outer["state"]), type=kind, dec_hook=_dec_hook)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"this is not a serialised {kind.__name__}: {error}") from error
