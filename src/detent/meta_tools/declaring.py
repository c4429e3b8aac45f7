"""Declaring a meta-tool by the struct of its arguments, and what meta-tools read and keep of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import msgspec

from detent.core.errors import InvalidArguments
from detent.core.state import Item, KernelState, RunState
from detent.ports import Answer, MetaTool, ToolSpec

ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)

KEPT = "meta_tools"
"""Where in a pass's `meta` the notes of meta-tools are."""
DISCOVERED = "discovered"
"""Under which of them the tools are that `discover_tools` found."""
NOTE = "note:"
"""What stands before the key of a note that `recall` keeps."""


def declared(
    name: str, description: str, kind: type[ArgsT], handler: Callable[[ArgsT, KernelState, Any], Awaitable[Answer]], **options: Any
) -> MetaTool:
    """Return the meta-tool `name`; `kind` is the struct of its arguments, from which its schema is made."""

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
    """Return what meta-tools have kept in this run, in whatever pass; the later pass wins."""
    kept: dict[str, Any] = {}
    for state in run.passes.values():
        kept.update(cast("dict[str, Any]", state.meta.get(KEPT, {})))
    return kept


def noted(run: RunState) -> dict[str, Any]:
    """Return by key what was written down in this run: notes, the list; of one key, the note. Which tools were found is neither."""
    kept = notes_of(run)
    notes = {key.removeprefix(NOTE): value for key, value in kept.items() if key.startswith(NOTE)}
    return {key: value for key, value in kept.items() if not key.startswith(NOTE) and key != DISCOVERED} | notes


def results_of(run: RunState) -> list[Item]:
    """Return the successful results of the run's tools, oldest first; answers of meta-tools are none."""
    return [item for state in run.passes.values() for item in state.results if item.ok and not item.meta]


def size_of(item: Item) -> int:
    """Return the size of a result in bytes, whole."""
    return item.artifact.size_bytes if item.artifact is not None else len(bytes(item.result))


def as_text(value: Any) -> str:
    """Return a value as text: itself, or JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def refused(content: str) -> Answer:
    """Return an answer that says what cannot be done, and what to do."""
    return Answer(content=content, success=False)
