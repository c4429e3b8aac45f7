"""Worker hosts: who advances submitted runs, and waiting runs once they can continue.

Rule: what workers must agree on is in the logs; a host only decides who checks when (`ports.working.WorkerHost`).
Start with `in_process`, which uses
the store as its queue.
"""

from detent.workers.in_process import InProcessHost

__all__ = ["InProcessHost"]
