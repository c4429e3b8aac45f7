"""Planners for models that only write text: small ones on this machine, and any without tool calls.

Rule: tolerant of how a call is written, strict about what runs: text that does not parse as one offered call is requested again.
Start with `planner`. `compact_prompt` writes the prompt, `blocks` selects the history that fits, `generators` talk to servers; `planners.text` reads.
"""
