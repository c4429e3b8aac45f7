"""What things are: actions, events, records, state, the fold, settling, budgets, errors.

Rule: pure. Only the standard library and msgspec; no async, no I/O, no clock, no randomness.
Start with `events`, the closed list of what can happen, then `fold`, which turns events into a state. `settle` decides how a run ends, `codec`
turns records into bytes with a digest chain, `agent` defines the options of an agent, `errors` shows the tree of errors.
"""
