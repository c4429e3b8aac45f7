"""What outlives a turn or a run: memories, and the compactors of a long run. `detent.extend.open_memory(url)` finds the right memory.

Rule: nothing here advances a run. What an item may become is decided in one place (`lifecycle`); every memory only loads and saves rows in a
transaction. A compactor only writes the summary that stands for dropped items. `running` records what both gave.
Start with `lifecycle` and `ram`, and with `compactors`. `ranking` has what all searches share: terms, stems, joining two rankings.
"""
