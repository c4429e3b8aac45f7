"""The store in one SQLite file.

Rule: each append is one transaction, written by one thread; it holds the records, the listing entry and the inbox.
Start with `store`. `writer` is that thread, `operations` its SQL, `schema` the tables and their versions.
"""
