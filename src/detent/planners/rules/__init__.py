"""The planner that needs no model: an ordered list of conditions and actions.

Rule: the first rule whose condition holds decides, from the view alone; a mistake in a rule is found when it is loaded.
Start with `planner`. `files` reads rule files, `templates` fills in values, `histories` finds what was done.
"""
