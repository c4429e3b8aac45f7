"""Declaring a meta-tool by the struct of its arguments, and reading what meta-tools keep in a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from detent.core.errors import InvalidArguments
from detent.core.state import Item, KernelState, RunState
from detent.ports import Answer, MetaTool, ToolSpec

ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)

KEPT = "meta_tools"
"""The key in a pass's `meta` for the notes of meta-tools."""
DISCOVERED = "discovered"
"""The key of those notes for the tools that `discover_tools` found."""
NOTE = "note:"
"""The prefix of the key of a note that `recall` keeps."""


def declared(
    name: str, description: str, kind: type[ArgsT], handler: Callable[[ArgsT, KernelState, Any], Awaitable[Answer]], **options: Any
) -> MetaTool:
    """Return the meta-tool `name`. `kind` is the struct of its arguments, and gives its schema."""

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        try:
            msgspec.convert(args, kind)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{name}: {error}") from None
        return args

    async def handle(args: dict[str, Any], state: KernelState, context: Any) -> Answer:
        return await handler(msgspec.convert(args, kind), state, context)

    schema: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]
    schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    spec = ToolSpec(name=name, description=description, input_schema=schema, side_effect="none", trust="trusted", **options)
    return MetaTool(spec=spec, handler=handle, validate=validate)


def notes_of(run: RunState) -> dict[str, Any]:
    """Return everything that meta-tools kept in this run, in any pass; a later pass overrides an earlier one."""
    kept: dict[str, Any] = {}
    for state in run.passes.values():
        kept.update(cast("dict[str, Any]", state.meta.get(KEPT, {})))
    return kept


def noted(run: RunState) -> dict[str, Any]:
    """Return the notes of this run by key: those of `recall` and the list. Found tools are not included."""
    kept = notes_of(run)
    notes = {key.removeprefix(NOTE): value for key, value in kept.items() if key.startswith(NOTE)}
    return {key: value for key, value in kept.items() if not key.startswith(NOTE) and key != DISCOVERED} | notes


def results_of(run: RunState) -> list[Item]:
    """Return the successful results of the run's tools, oldest first, without answers of meta-tools."""
    return [item for state in run.passes.values() for item in state.results if item.ok and not item.meta]


def size_of(item: Item) -> int:
    """Return the size of a whole result in bytes."""
    return item.artifact.size_bytes if item.artifact is not None else len(bytes(item.result))


def as_text(value: Any) -> str:
    """Return a value as text: a text itself, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def refused(content: str) -> Answer:
    """Return an answer that states what is not possible, and what to do."""
    return Answer(content=content, success=False)
