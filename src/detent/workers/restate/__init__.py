"""Workers on Restate: its server pushes runs to workers, keeps timers, and notices dead workers. It needs the extra `restate`.

Rule: the log is the truth, and its sequence is the fence. Restate holds only ticks ("advance this run now"), each of which may be lost or repeated.
Start with `host`; `served` talks to Restate's server, `endpoint` is what that server calls.
"""

from detent.workers.restate.host import RestateHost

__all__ = ["RestateHost"]
