"""Tools for one directory: list, read, search, write, patch, and run programs in a sandbox.

Rule: no path leaves the directory (`confine`), and every failure is a typed error that a model can act on.
Start with `tools`, which makes them all. `process` and `sandbox` run programs; the other files are one tool each, or its inner part.
"""
