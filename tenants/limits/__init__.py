"""Limits: reserved before a request is dispatched, settled by the engine's figures after it ended.

`kinds` declares each kind of limit; columns, API, pages, stores, refusals and headers derive from
it. `ceilings` says which limits are in force of those that were set. `commands` is what a store of
counters is asked and answers; `state` (over `counters`, `window`, `budget` and `reservation`) is
the arithmetic, sans-IO. `memory` keeps it in this process, `redis_store` has the script in `lua/`
do the same on Redis, for all gateways; `failover` chooses between the two. `limiter` is what the
token path talks to, `refusals` words its refusals. `spent` reads from the ledger what a budget
starts from, `consumption` what pages show as used.
"""
