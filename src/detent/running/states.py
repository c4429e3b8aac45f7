"""Converts a state to bytes and back, for snapshots: `{"v": VERSION, "state": {...}}`, sets sorted. A newer version is refused."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from detent.core.codec import STATE_VERSION, encode
from detent.core.errors import NewerVersion
from detent.core.history import Map, Seq
from detent.core.state import KernelState, RunState

StateT = TypeVar("StateT", KernelState, RunState)


def _dec_hook(kind: Any, value: Any) -> Any:
    origin = get_origin(kind) or kind
    if origin is Seq:
        return Seq(_items(kind).decode(encode(value)))  # not `convert`: items hold raw JSON
    if origin is Map:
        mapping: Map[Any, Any] = Map()
        for key, item in value.items():
            mapping = mapping.put(key, item)
        return mapping
    raise NotImplementedError(f"{kind} cannot be read")


@cache
def _items(kind: Any) -> msgspec.json.Decoder[list[Any]]:
    """Return what reads the items of a sequence: working out their type takes longer than reading them."""
    items: Any = list[get_args(kind)[0]]
    return msgspec.json.Decoder(items, dec_hook=_dec_hook)


class _Outer(msgspec.Struct, frozen=True):
    v: int
    state: msgspec.Raw


_outer = msgspec.json.Decoder(_Outer)


def dump_state(state: KernelState | RunState) -> bytes:
    """Return a state as JSON bytes: sets as sorted arrays, maps as objects in their order."""
    if isinstance(state, RunState):
        fields: dict[str, Any] = {name: getattr(state, name) for name in RunState.__struct_fields__}  # a loaded run has more than its state
        fields["passes"] = {scope: _with_sorted_sets(p) for scope, p in state.passes.items()}
        shown: Any = RunState(**fields)
    else:
        shown = _with_sorted_sets(state)
    return encode({"v": STATE_VERSION, "state": shown})


def _with_sorted_sets(state: KernelState) -> KernelState:
    """Sort sets, but keep the order of mappings, which has a meaning."""
    return msgspec.structs.replace(state, tools_used=sorted(state.tools_used), phases_done=sorted(state.phases_done))


def load_state(data: bytes, kind: type[StateT]) -> StateT:
    """Return the state that `dump_state` wrote. Raise `NewerVersion` for a newer version, `ValueError` for anything else unreadable."""
    try:
        outer = _outer.decode(data)
        if outer.v > STATE_VERSION:
            raise NewerVersion(
                f"a state of version {outer.v} was written by a newer Detent (this one reads up to {STATE_VERSION}); upgrade to read it"
            )
        return msgspec.json.decode(outer.state, type=kind, dec_hook=_dec_hook)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"this is not a serialised {kind.__name__}: {error}") from error
