"""Redaction and the vault: what is sensitive is replaced before anything is recorded, and kept apart from the log.

Rule: a value leaves the vault only for a tool; every other reader, live or in a replay, sees the placeholder.
Start with `redact`, which finds and replaces. `vault` keeps the values with the run, and erases them with it.
"""
