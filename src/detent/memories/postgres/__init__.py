"""The memory in PostgreSQL, beside a store's tables if both have the same URL.

Rule: each change is one transaction under one lock, and can be repeated if the connection breaks.
Start with `memory`. `tables` has the tables and the statements.
"""
