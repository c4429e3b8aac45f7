"""The memory in one SQLite file, which may be the file of a store.

Rule: each change is one transaction, committed to the disk. Each tenant has an index of words of its own, so no score tells of another tenant's items.
Start with `memory`. `tables` has the tables and the rows, `searching` the two rankings, `vectors` how meanings are compared.
"""
