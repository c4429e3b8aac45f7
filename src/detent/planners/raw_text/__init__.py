"""Planners for models that only write text: small ones on this machine, and any without tool calls.

Rule: tolerant of how a call is written, strict about what runs: what does not parse as one offered call is asked for again.
Start with `planner`. `compact_prompt` is what is asked, `blocks` what fits of the past, `generators` talk to servers; `planners.text` reads.
"""
