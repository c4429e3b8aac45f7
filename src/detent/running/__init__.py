"""One run being advanced in this process: admission, claim, live world, passes, answers, endings.

Rule: nothing here outlives the run's claim, and nothing decides from what the log does not hold. What reads finished logs is in `history`.
Start with `advancing`: claim, load, loop, release. `live` is the world that the kernel sees, `passes` what a strategy may do,
`admission` what is refused before anything is recorded, and `snapshots`, `branching` and `lineage` how a run, or a fork, is loaded.
"""
