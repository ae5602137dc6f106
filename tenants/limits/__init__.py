"""Limits: reserved before a request is dispatched, settled by the engine's figures after it ended.

`commands` says what a store of counters is asked and answers. `book` (over `window` and `purse`) is
the arithmetic, sans-IO; `memory` keeps one in this process, `redis_store` has `limits.lua` do the
same on Redis for all gateways together. `limiter` is what the token path talks to; `refusals` has
the words of its refusals, `spent` reads what the ledger says a budget has paid for already.
"""
