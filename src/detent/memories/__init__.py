"""Memories keep what outlives a run: in memory, in a SQLite file, in PostgreSQL or in a directory of text files. `open_memory(url)` finds the right one.

Rule: what an item may become is decided in one place (`lifecycle`), and every implementation only loads and saves rows in a transaction.
Start with `lifecycle` and `ram`. `ranking` has what all searches share: terms, stems, joining two rankings.
"""
