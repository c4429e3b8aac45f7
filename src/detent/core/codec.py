"""Bytes to records, and back.

A record is written once and its bytes are kept. Reading checks the digest chain; a record of an older version passes through the
upcasters, one of a newer version is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.core.errors import CorruptLog, NewerVersion
from detent.core.events import AnyEvent, Planned
from detent.core.history import Map, Seq
from detent.core.records import VERSION, Envelope, Record

STATE_VERSION = 5
"""The version of the fold. A snapshot or serialised state of another version is ignored."""

UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From version n to n + 1, over the body as plain data."""


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Seq):
        return list(cast("Seq[Any]", value))
    if isinstance(value, Map):
        return dict(cast("Map[Any, Any]", value))
    raise NotImplementedError(f"{type(value).__name__} is not JSON data")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)
_sorted = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")
_envelopes = msgspec.json.Decoder(Envelope)
_events: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

encode = _encoder.encode
"""Any event, envelope or plain data as JSON bytes."""


def encode_event(event: AnyEvent) -> bytes:
    """Return an event as JSON. Characters that JSON cannot hold (a lone surrogate, as in undecodable file names) are escaped.

    Raise `UnicodeEncodeError` for a plan with such characters, because an escaped call would not be the requested call.
    """
    try:
        return encode(event)
    except UnicodeEncodeError:
        if isinstance(event, Planned):
            raise
        return encode(walk(msgspec.to_builtins(event), lambda text: text.encode("utf-8", "backslashreplace").decode()))


decode_envelope = _envelopes.decode
decode_event = _events.decode
"""An event from the JSON bytes of a record's body."""


def digest_of(value: Any) -> str:
    """Return the digest of plain data: 32 hex digits of SHA-256 over its canonical JSON."""
    return sha256(_sorted.encode(value)).hexdigest()[:32]


def seal(envelope: Envelope, body: bytes, *, previous: str, salt: str) -> tuple[bytes, str]:
    """Return a record's line and its digest."""
    head, salted = encode(envelope), salt.encode()
    kept = sha256(salted + b"\n" + body).hexdigest()  # `_kept`, without the call: this is done for every record
    digest = sha256(b"%b\n%b\n%b" % (previous.encode(), head, kept.encode())).hexdigest()
    return b'{"envelope":%b,"salt":"%b","body":%b,"digest":"%b"}' % (head, salted, body, digest.encode()), digest


def _kept(salt: bytes, body: bytes) -> bytes:
    """Return H(salt, body) in hex."""
    return sha256(salt + b"\n" + body).hexdigest().encode()


def tombstone(line: bytes) -> bytes:
    """Return the line with body and salt replaced by their hash; an erased line stays as it is."""
    head, salt, body, digest = _split(line)
    if salt is None:
        return line
    return b'{"envelope":%b,"erased":"%b","digest":"%b"}' % (head, _kept(salt, body), digest)


def read_record(line: bytes) -> Record:
    """Return the decoded record without checking the chain; raise `NewerVersion`, `ValueError` or `msgspec.MsgspecError`."""
    head, salt, body, digest = _split(line)
    envelope = _envelopes.decode(head)
    return Record(envelope, None if salt is None else _event(body, envelope.v), digest.decode())


def _event(body: bytes, version: int) -> AnyEvent:
    if version == VERSION:
        return _events.decode(body)
    if version > VERSION:
        raise NewerVersion(
            f"a record of format {version} was written by a newer Detent (this one reads up to {VERSION}); upgrade to read it"
        )
    data: dict[str, Any] = msgspec.json.decode(body)
    for step in range(version, VERSION):
        if step not in UPCASTERS:
            raise ValueError(f"a record of format {version} is older than any that this Detent reads")
        data = UPCASTERS[step](data)
    return _events.decode(encode(data))  # not `convert`: results are kept as raw JSON


def read_log(run_id: str, lines: Iterable[bytes], *, previous: str = "", after: int = 0) -> Iterator[Record]:
    """Yield the records of a log and check each digest. Raise `CorruptLog` with the first sequence that is damaged."""
    for seq, (head, body, digest) in enumerate(links(run_id, lines, previous=previous, after=after), after + 1):
        try:
            envelope = _envelopes.decode(head)
            if envelope.seq != seq or envelope.run != run_id:
                raise CorruptLog(run_id, seq, f"it is labelled as number {envelope.seq} of {envelope.run!r}")
            event = None if body is None else _events.decode(body) if envelope.v == VERSION else _event(body, envelope.v)
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError) as error:  # the last two of an upcaster, or where there is none
            raise CorruptLog(run_id, seq, f"it cannot be read ({error})") from error
        yield Record(envelope, event, digest)


def links(run_id: str, lines: Iterable[bytes], *, previous: str = "", after: int = 0) -> Iterator[tuple[bytes, bytes | None, str]]:
    """Yield the bytes of each envelope and body (None: erased) with the checked digest. Raise `CorruptLog`."""
    link = previous.encode()
    for seq, line in enumerate(lines, after + 1):
        try:
            head, salt, body, stored = _split(line)
        except ValueError as error:
            raise CorruptLog(run_id, seq, f"it cannot be read ({error})") from error
        kept = body if salt is None else sha256(b"\n".join((salt, body))).hexdigest().encode()  # as in `seal`, for every record
        digest = sha256(b"\n".join((link, head, kept))).hexdigest()
        link = digest.encode()
        if link != stored:
            raise CorruptLog(run_id, seq, "its digest does not match its content and the record before it")
        yield head, None if salt is None else body, digest


def _split(line: bytes) -> tuple[bytes, bytes | None, bytes, bytes]:
    """Return the exact bytes of envelope, salt, body and digest; of an erased record None for the salt, and H(salt, body) for the body.

    The layout is the one that `seal` writes; raise `ValueError` for any other.
    """
    head, found, rest = line.partition(b',"salt":"')
    salt, also, body = rest.partition(b'","body":')
    if head[:12] != b'{"envelope":' or line[-77:-66] != b',"digest":"' or line[-2:] != b'"}':
        raise ValueError("it is not a record")
    if also:
        return head[12:], salt, body[:-77], line[-66:-2]
    head, erased, rest = line.partition(b',"erased":"')
    if found or not erased or rest[-78:-77] != b'"':
        raise ValueError("it is not a record")
    return head[12:], None, rest[:-78], line[-66:-2]


def walk(value: Any, text: Callable[[str], str]) -> Any:
    """Return JSON data with `text` applied to each string value; keys stay."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {k: walk(v, text) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [walk(v, text) for v in cast("list[Any]", value)]
    return value
