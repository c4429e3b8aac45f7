"""Readers of foreign input that several rooms use: CEL expressions, regular expressions, markup, JSON Schemas.

Rule: nothing here fetches anything or runs without a bound. Libraries are loaded when they are first needed.
Start with `compiled` (CEL). `json_schema` builds every validator, `patterns` finds slow regular expressions, `markup` cleans answers,
`spellings` finds keys in messages.
"""
