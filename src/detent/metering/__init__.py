"""What may be used, and what it costs: model calls, tokens, money, and the budgets of tenants.

Rule: usage is counted where the model is called, reserved before the call and settled after it; nothing else adds it up.
Start with `gateway`, the only way to a model. `reserving` says what a call may use at most, `pricing` what it cost,
`provider_limits` how fast a provider may be called, `tenants` what all runs of a tenant share. Where a limit on cost holds: `reserving` before a
model call, `core.settle.reached` between turns and before tools, and for a tenant the store (`ports.stores.Reservation`).
"""
