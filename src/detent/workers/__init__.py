"""Worker hosts: who advances runs that were submitted, and those that wait, once they can go on."""

from detent.workers.in_process import InProcessHost

__all__ = ["InProcessHost"]
