"""What outlives a turn or a run: memories, and the compactors of a long run.

Rule: nothing here advances a run. A memory stores items for later runs; a compactor only writes the summary that stands for dropped items. Each
is the other side of a port (`ports.remembering`, `ports.compacting`), and `running` records what they gave.
Start with `compactors`.
"""
