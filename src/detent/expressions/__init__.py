"""CEL expressions, for whatever is data and has to decide: rules of a planner, rules of a policy. Below the adapters, which share it."""
