"""Worker hosts: who advances runs that were submitted, and those that wait, once they can continue.

Rule: what workers must agree on is in the logs; a host only decides who looks when (`ports.working.WorkerHost`).
Start with `in_process`, for which the store is the queue.
"""

from detent.workers.in_process import InProcessHost

__all__ = ["InProcessHost"]
