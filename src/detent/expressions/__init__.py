"""What others wrote, read for several rooms: CEL expressions, regular expressions, markup, JSON Schemas.

Rule: nothing here fetches anything or runs without a bound; it is loaded when it is first needed.
Start with `compiled` (CEL). `json_schema` builds every validator, `patterns` finds slow regular expressions, `markup` cleans answers,
`spellings` finds keys in messages.
"""
