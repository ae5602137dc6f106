"""Whatever is killed, every generated token is billed exactly once: `python -m tests.labs.chaos`.

Clients use every operation, through two gateways with two engine agents for each of two base models
(one generates, one embeds), have batches run by two workers, and adapters trained by a trainer.
Meanwhile gateways, agents, workers, the trainer, the console, PostgreSQL and Redis are killed
with -9 and restarted at random. Afterwards what the clients received, the engines' journals,
the ledger, the counters in Redis, and a recorder inside each engine are compared request by
request, and the ledger with each fine-tuning job (`verdict`).
"""
