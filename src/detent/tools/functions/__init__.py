"""Tools made of typed functions, or of anything that brings a JSON Schema.

Rule: arguments are checked before a tool runs, and nothing that it does gets past `attempt` as an exception.
Start with `function`: `tool` and `Tool`. `signature` and `schema` check arguments, `attempt` makes one attempt, `results` checks what it returned.
"""
