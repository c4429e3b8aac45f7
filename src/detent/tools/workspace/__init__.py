"""Tools for one directory: list, read, search, write, patch, and run programs in a sandbox.

Rule: no path leaves the directory (`confine`), and every failure is a typed error that a model can act on.
Start with `tools`, which creates all of them. `process` and `sandbox` run programs. Each other file is one tool, or its inner part.
"""
