"""The trace that a run belongs to (W3C Trace Context), from what its log says alone: any process gives the same ids.

Rule: nothing here needs OpenTelemetry. A run that came with a `traceparent` continues it; another one has a trace that follows from its goal.
"""

from __future__ import annotations

import re
from hashlib import sha256

from detent.core.agent import Host

_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


def trace_of(host: Host, goal_id: str) -> tuple[int, int, int]:
    """Return the trace of a run, the span around it (0: none), and its flags (1: it is sampled)."""
    if (said := _PARENT.fullmatch(host.trace_id)) is not None:
        return int(said[1], 16), int(said[2], 16), int(said[3], 16) & 1
    return digest(goal_id, bits=128), 0, 1


def digest(text: str, *, bits: int = 64) -> int:
    """Return the id of what `text` names."""
    return int.from_bytes(sha256(text.encode()).digest()[: bits // 8], "big") or 1


def traceparent(host: Host, goal_id: str, name: str) -> str:
    """Return what tells others that the span `name` of this run calls them."""
    trace_id, _, flags = trace_of(host, goal_id)
    return f"00-{trace_id:032x}-{digest(name):016x}-{flags:02x}"
