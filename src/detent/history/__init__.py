"""What you can read from a log, finished or open, and what you can turn it into: replay, fork, diff, archive, upgrade check, backtest.

Rule: reading changes nothing, and what starts a new run (`forking`) or removes one (`upkeep`) does so through the store alone.
Start with `looking`, what the engine reads, and `replaying`: it runs the kernel against a log and names the first divergence. `comparing` sets two
logs side by side, `moving` carries runs between stores and archives, `backtest` asks a candidate policy about decisions of the past.
"""
