"""Limits: reserved before a request is dispatched, settled by the engine's figures after it ended.

`kinds` declares each kind of limit; columns, API, pages, stores, refusals and headers derive from
it. `ceilings` works out which of the limits that were set are in force. `commands` defines the
commands and answers of a store of counters; `state` (over `counters`, `window`, `budget` and
`reservation`) is the arithmetic, sans-IO. `memory` keeps the state in this process; `redis_store`
does the same on Redis for all gateways, with the script in `lua/`; `failover` chooses between the
two. `limiter` is the interface to the token path, `refusals` writes the error messages. `spent`
reads from the ledger what seeds a budget.
"""
