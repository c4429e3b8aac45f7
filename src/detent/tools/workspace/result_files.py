"""`write_result_to_file`: writes a stored result to a workspace file unchanged, without passing through a model."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from detent.ports import ToolContext
from detent.tools.failures import refused_argument
from detent.tools.functions.function import Tool, tool
from detent.tools.workspace import files
from detent.tools.workspace.confine import Workspace

Format = Literal["json", "text", "lines", "bullets", "table", "csv"]
Asks = Callable[[dict[str, Any]], str] | None


def asks_for_path(workspace: Workspace) -> Asks:
    """Return a function that tells why a person must approve a call that writes `path`; None if no path is opened."""
    if not workspace.protection.unprotected:
        return None
    return lambda args: workspace.protection.asks([args["path"]])


def result_file_tool(workspace: Workspace) -> Tool[..., Any]:
    """Return the tool that writes an earlier result of the run to a file, confined to the workspace."""

    @tool(side_effect="write", idempotent=True, asks=asks_for_path(workspace))
    async def write_result_to_file(result: str, path: str, *, context: ToolContext, format: Format = "text") -> dict[str, Any]:  # noqa: A002
        """Write the whole result of an earlier call to a file, replacing it atomically; nothing of it has to be repeated.

        Args:
            result: the id of the call whose result is wanted, such as main.2.0.
            path: relative to the workspace root.
            format: how it is written; lines, bullets, table and csv are for lists.
        """
        content = rendered(await context.result(result), format)
        written = await asyncio.to_thread(
            files.write_file, workspace, path, content, force=True, again=context.attempt > 1, cancelled=context.cancelled
        )
        return {**msgspec.to_builtins(written), "result": result}

    return write_result_to_file


def rendered(value: Any, kind: Format) -> str:
    """Return a result in a format. Raise `ToolFailed` if the format is for lists and the result is not a list."""
    if kind == "json":
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    if kind == "text":
        return value if isinstance(value, str) else rendered(value, "json")
    if isinstance(value, str):
        value = value.splitlines()
    if not isinstance(value, list):
        raise refused_argument(f"the result is a {type(value).__name__}, but {kind} is for lists; write it as json")
    rows = cast("list[Any]", value)
    if kind in ("lines", "bullets"):
        return "".join(f"{'- ' if kind == 'bullets' else ''}{_cell(row)}\n" for row in rows)
    names = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in cast("dict[str, Any]", row))) or ["value"]
    table = [[_cell(_field(row, name)) for name in names] for row in rows]
    if kind == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([names, *table])
        return out.getvalue()
    cells = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in table)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _field(row: Any, name: str) -> Any:
    return cast("dict[str, Any]", row).get(name, "") if isinstance(row, dict) else row if name == "value" else ""


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return " ".join(text.split())
