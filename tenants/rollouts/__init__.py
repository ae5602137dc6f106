"""Rollouts move tenants to a new revision of their base model, by weight and under guards.

Every few seconds one worker checks every pool (`pool_checks`): adapters are tried on the revisions
they are to run on (`tenants.adapters.trials`), and for each open rollout the placement of tenants
and the outcomes of their requests are read (`progress`), and the next step is decided (`driver`).
All state is in PostgreSQL, so another worker continues if one dies. Gateways route tenants
according to the rollouts (`inference.pools`).
"""
