"""Where tests wait for real time: a limit is shown to end something that no event loop decides about, so it has to run out.

Everywhere else time is virtual (`virtual_time`, `FakeClock`), and a test waits for the thing itself. `tests/test_architecture.py` finds limits of less
than a second in other files.
"""

from __future__ import annotations

WAITS_FOR = {
    "metering/sharing.py": "workers in processes of their own",
    "metering/test_closed_accounts.py": "workers, which wake each other",
    "planners/model/test_aimock.py": "a model server of Node that is silent",
    "planners/model/test_interrupted.py": "a provider that has begun to speak when the run's time is up",
    "planners/raw_text/test_generators.py": "a model server that is silent",
    "running/test_holding.py": "workers on stores with threads of their own",
    "running/test_loops_and_forks.py": "event loops that were closed or stopped",
    "running/test_workers.py": "workers that look into stores with threads of their own",
    "crash/test_stopping.py": "runs on stores with threads of their own that are told to stop",
    "laws/test_once.py": "a tool that hangs over a store with threads of its own",
    "properties/scripts.py": "tools in threads that hang",
    "stores/files/test_store.py": "a lock of the system that another process holds",
    "stores/postgres/test_store.py": "a server that is full, locked, away, or starts up",
    "stores/sqlite/test_store.py": "a lock of the database that another process holds",
    "stores/test_unreleased.py": "a store that another process has locked",
    "teams/trees.py": "workers, and stores that have not noticed yet that a process was killed",
    "testing/conformance/test_broken_worker_hosts.py": "what a broken host never does",
    "testing/conformance/test_worker_hosts.py": "workers that look into stores with threads of their own",
    "workers/fleet.py": "servers and workers in processes of their own",
    "testing/test_simulate.py": "a trial that hangs, of which real time is the bound",
    "tools/functions/test_attempt.py": "tools in threads that hang",
    "tools/functions/test_threads.py": "tools in threads that hang",
    "tools/mcp/test_calls.py": "a server process that hangs",
    "tools/mcp/test_http.py": "a server that never ends its answer",
    "tools/web/test_fetch.py": "a server that is silent",
    "tools/workspace/test_exec.py": "a program that hangs",
    "tools/workspace/test_finding.py": "an expression in a process of its own that never ends",
    "tools/workspace/test_writing.py": "a lock of the system that another process holds",
}
"""By file: what would not come. The bounds are of hundredths of a second where nothing has to happen before them, else of tenths."""
