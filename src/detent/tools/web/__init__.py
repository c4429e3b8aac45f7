"""Tools that fetch from the web: only from allowed hosts, never from internal addresses.

Rule: an address is checked after it is resolved, at every redirect (`addresses`).
Start with `fetch`.
"""
