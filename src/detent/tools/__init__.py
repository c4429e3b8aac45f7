"""Tools: typed functions, tools that bring a JSON Schema, the registry that an engine owns, the workspace tools, and how many calls run at once."""

from detent.ports import Together
from detent.tools.bounded import Bounded
from detent.tools.function import Tool, tool
from detent.tools.options import Options, ToolOptions
from detent.tools.registry import Registry
from detent.tools.schema import schema_digest
from detent.tools.settlement import Happened, NotHappened
from detent.tools.threads import ThreadPool

__all__ = [
    "Bounded",
    "Happened",
    "NotHappened",
    "Options",
    "Registry",
    "ThreadPool",
    "Together",
    "Tool",
    "ToolOptions",
    "schema_digest",
    "tool",
]
