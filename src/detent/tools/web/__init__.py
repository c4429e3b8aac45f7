"""Tools that fetch from the web: only from hosts that are allowed, never from addresses inside.

Rule: an address is checked after it was looked up, at every redirect (`addresses`).
Start with `fetch`.
"""
