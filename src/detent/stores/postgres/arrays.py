"""Arrays of a statement's values, in PostgreSQL's binary form: one value of the driver for each column, however many operations there are."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from detent.ports import Spent


class Lines(list[bytes]):
    """Byte strings that are passed as one array."""


class Texts(list[str]):
    """Texts that are passed as one array."""


class Numbers(list["int | None"]):
    """64-bit numbers that are passed as one array."""


_EIGHT = Struct(">iq").pack
_FOUR = Struct(">i").pack


class _ArrayDumper(Dumper):
    """Writes PostgreSQL's binary form of a one-dimensional array without a call of the driver for each element."""

    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, obj: Any) -> bytes:
        """Return the array: dimensions, whether it has nulls, element type, length, lower bound, then each element with its length."""
        parts = [b"\x00\x00\x00\x01\x00\x00\x00\x01", _FOUR(self.element), _FOUR(len(obj)), b"\x00\x00\x00\x01"]
        self.add(parts, obj)
        return b"".join(parts)

    def add(self, parts: list[bytes], obj: Any) -> None:
        """Add the elements."""
        raise NotImplementedError


class LinesDumper(_ArrayDumper):
    """`Lines` as `bytea[]`."""

    oid, element = 1001, 17

    def add(self, parts: list[bytes], obj: Lines) -> None:
        """See `_ArrayDumper.add`."""
        for line in obj:
            parts += (_FOUR(len(line)), line)


class TextsDumper(_ArrayDumper):
    """`Texts` as `text[]`."""

    oid, element = 1009, 25

    def add(self, parts: list[bytes], obj: Texts) -> None:
        """See `_ArrayDumper.add`."""
        for text in obj:
            data = text.encode()
            parts += (_FOUR(len(data)), data)


class NumbersDumper(_ArrayDumper):
    """`Numbers` as `bigint[]`."""

    oid, element = 1016, 20

    def add(self, parts: list[bytes], obj: Numbers) -> None:
        """See `_ArrayDumper.add`."""
        parts += [b"\xff\xff\xff\xff" if number is None else _EIGHT(8, number) for number in obj]


def amounts_of(of: Sequence[Spent]) -> list[Any]:
    """Return amounts, column by column."""
    return [
        Numbers(one.runs for one in of),
        Numbers(one.model_calls for one in of),
        Numbers(one.tool_calls for one in of),
        Numbers(one.tokens for one in of),
        [float(one.cost_usd) for one in of],
    ]


def register(db: psycopg.AsyncConnection[Any]) -> None:
    """Register the dumpers of `Lines`, `Texts` and `Numbers` with a connection."""
    db.adapters.register_dumper(Lines, LinesDumper)
    db.adapters.register_dumper(Texts, TextsDumper)
    db.adapters.register_dumper(Numbers, NumbersDumper)
