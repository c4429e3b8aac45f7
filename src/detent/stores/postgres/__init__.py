"""The store in PostgreSQL, shared by many hosts.

Rule: an append is one transaction that checks the claim and the sequence; many runs share one commit.
Start with `store`. `session` holds claims and receives notifications, `writer` groups appends, `operations` is the SQL, `schema` its tables.
"""
