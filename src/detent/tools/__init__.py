"""Tools: typed functions, tools that bring a JSON Schema, the registry that an engine owns, and the workspace tools."""

from detent.tools.function import Tool, tool
from detent.tools.options import Options, ToolOptions
from detent.tools.registry import Registry
from detent.tools.schema import schema_digest
from detent.tools.settlement import Happened, NotHappened
from detent.tools.threads import ThreadPool

__all__ = ["Happened", "NotHappened", "Options", "Registry", "ThreadPool", "Tool", "ToolOptions", "schema_digest", "tool"]
