"""Tools: what an agent can do in the world.

Rule: a tool declares its side effect; its arguments are checked before it runs, and an exception from it becomes an outcome.
Start with `functions`: `tool` and `Tool`. `workspace` has files, search and exec for one directory. `web` fetches. `mcp` connects tools of other
servers. `registry` holds the tools of one engine, `done` ends a run, `failures` has typed errors for models.
"""

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
