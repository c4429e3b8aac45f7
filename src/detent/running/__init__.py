"""One run being advanced in this process: admission, claim, live world, passes, answers, endings.

Rule: nothing here outlives the run's claim, and every decision is based on the log. Code that reads finished logs is in `history`.
Start with `starting` (what `engine.run` does), then `runtime` (what the runs of an engine share) and `advancing` (one run: claim, load, loop, release). `live`
is the world that the kernel sees, `passes` what a strategy may do, `answering` what people answer, `working` what a worker does; `snapshots`,
`branching` and `lineage` load a run or a fork.
"""
