"""The store in one SQLite file.

Rule: one transaction an append, written by one thread, with the records, the listing entry and the inbox in it.
Start with `store`. `writer` is that thread, `operations` its SQL, `schema` the tables and their versions.
"""
