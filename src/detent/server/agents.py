"""The agents that a server can run."""

from __future__ import annotations

from detent.server.operations import Call, Operation
from detent.server.shapes import Agents, shown


async def listed(call: Call) -> Agents:
    """List the agents."""
    known = call.served.engine.agents
    return Agents(agents=[shown(name, agent.spec()) for name, agent in sorted(known.items())])


OPERATIONS = (Operation(name="listAgents", method="GET", path="/agents", role="see", summary="The agents", handle=listed, answer=Agents),)
