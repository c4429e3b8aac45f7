"""Metering: model calls, tokens, money, and the budgets of tenants.

Rule: usage is counted where the model is called, reserved before the call and charged after it. Nothing else adds it up.
Start with `gateway`, the only way to a model. `reserving` computes what a call may use at most, `pricing` its cost, `provider_limits` how fast a
provider may be called, `tenants` what all runs of a tenant share. A limit on cost is enforced in three places: `reserving` before a model call,
`core.settle.reached` between turns and before tools, and the store for a tenant (`ports.stores.Reservation`).
"""
