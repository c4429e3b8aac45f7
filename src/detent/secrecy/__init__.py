"""Redaction and the vault: sensitive values are replaced before anything is recorded, and stored separately from the log.

Rule: a value leaves the vault only for a tool; every other reader, live or in a replay, sees the placeholder.
Start with `redact`, which finds and replaces values. `placing` decides which call may get a value. `vault` holds the run's secrets.
"""
