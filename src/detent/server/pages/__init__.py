"""The inspector: pages that show what agents did and why, and take decisions.

Rule: a page shows as done only what is in the log, and everything that a model, a tool, a file or a person wrote is text, never markup.
Start with `run`, the page of one run; `visits` says who is signed in, `reading` reads logs, `routes` has the list of all pages.
"""
