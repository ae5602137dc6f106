"""Limits: reserved before a request is dispatched, settled by the engine's figures after it ended.

`commands` says what a store of counters is asked and answers. `book` (over `record`, `window` and
`purse`) is the arithmetic, sans-IO. `memory` keeps one in this process; `redis_store` has the
script in `lua/` do the same on Redis, for all gateways; `failover` chooses between them. `limiter`
is what the token path talks to; `refusals` has the words of its refusals, `spent` reads what a
budget has paid for already.
"""
