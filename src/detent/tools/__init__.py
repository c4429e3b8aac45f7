"""Tools: typed functions, tools that bring a JSON Schema, the registry that an engine owns, the workspace tools, and how many calls run at once."""

from detent.ports import Together
from detent.tools.functions.bounded import Bounded
from detent.tools.functions.function import Tool, tool
from detent.tools.functions.options import Options, ToolOptions
from detent.tools.functions.schema import schema_digest
from detent.tools.functions.settlement import Happened, NotHappened
from detent.tools.functions.threads import ThreadPool
from detent.tools.registry import Registry

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
