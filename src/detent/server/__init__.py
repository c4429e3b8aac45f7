"""The server: runs behind a port, with identity, for clients that know nothing of Detent. The extra `server` installs what it needs.

Rule: everything is an ASGI application over one engine. A handler asks the engine and holds no state of a run, so any process on the same store
can answer any request.
Start with `application`, which has what every request passes.
"""

from detent.server.application import app
from detent.server.callers import Caller
from detent.server.settings import ServerSettings
from detent.server.webhooks import Webhook

__all__ = ["Caller", "ServerSettings", "Webhook", "app"]
