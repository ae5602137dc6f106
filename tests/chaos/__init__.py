"""Whatever is killed, every generated token is billed exactly once: `python -m tests.chaos`.

Clients ask for every operation, of two gateways with two engine agents for each of two base models,
one that generates and one that embeds, and have batches run by two workers, while gateways, agents,
workers, the console, PostgreSQL and Redis are killed with -9 and started again at random. What the
clients received, the engines' journals, the ledger, the counters in Redis, and a recorder that sits
inside each engine are then compared, request by request (`verdict`).
"""
