"""What you can read from a log, finished or open, and what you can turn it into: replay, fork, diff, archive, upgrade check, backtest.

Rule: reading changes nothing, and only two modules write: `forking` starts a new run, `upkeep` removes one, and both do so through the store alone.
Start with `looking`, which has what the engine reads, and `replaying`, which runs the kernel against a log and names the first divergence.
`comparing` compares two logs, `moving` moves runs between stores and archives, `backtest` applies a candidate policy to past decisions.
"""
