"""Reading a model's text: the one reader of actions, calls and typed answers in text, for both planners that call models.

Rule: `reading.read` is the only way from text to actions; another way to write a call is added there, for every planner at once.
Start with `reading`. `json_objects` finds JSON in a text, `think_blocks` separates thinking from the answer, `surrogates` joins halves of
characters.
"""
