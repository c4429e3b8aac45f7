"""Reading what a model wrote: the one reader of actions, calls and typed answers in text, for both planners that ask models.

Rule: `reading.read` is the only way from text to actions; another way to write a call is taught there, for every planner at once.
Start with `reading`. `json_objects` finds JSON in a text, `think_blocks` tells thinking from the answer, `surrogates` makes whole
characters of halves.
"""
