"""Tenants move to a new revision of their base model, by weight and watched by guards.

One worker at a time looks at every pool each few seconds (`tending`): adapters that were not tried
yet where they are to run are tried (`trials`), and of each open rollout it is seen who is where and
what requests meet there (`progress`), and decided what happens next (`driver`). All that is known
is in PostgreSQL, so another worker goes on where one died. Gateways send tenants where rollouts say
(`inference.gateway.routing.pools`).
"""
