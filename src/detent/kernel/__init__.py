"""The loop: one turn is think, then act, and every tool call takes the same path.

Rule: it knows core and ports only, reads no clock and no environment, and writes the log through `journal` alone.
Start with `runner`, the universal loop, and `kernel`, an ordered tuple of phases. `planning` asks for a plan, `deciding` says whether a call
may run, `execution` runs it, `controls` carries out the other actions, `context` is what a phase may do.
"""
