"""Tools made from typed functions, or from anything with a JSON Schema.

Rule: arguments are checked before a tool runs, and no exception of a tool gets past `attempt`.
Start with `function`: `tool` and `Tool`. `signature` and `schema` check arguments, `attempt` makes one attempt, `results` checks what it returned.
"""
