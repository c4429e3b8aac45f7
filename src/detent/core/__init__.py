"""What things are: actions, events, records, state, the fold, settling, budgets, errors.

Rule: pure. The standard library and msgspec only; no async, no I/O, no clock, no randomness.
Start with `events`, the closed list of what can happen, then `fold`, which makes a state of them. `settle` decides how a run ends, `codec` turns
records into bytes with their digest chain, `agent` defines the options of an agent, `errors` draws the tree of failures.
"""
