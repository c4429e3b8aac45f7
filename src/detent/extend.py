"""What you need to extend Detent: the seams, and the parts that a tool, store, planner, policy, phase or strategy of your own is made of.

A program that only runs agents needs nothing of this; `from detent import ...` is its door. The names are loaded when they are first asked for.
"""
