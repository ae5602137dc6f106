"""`make bench`: what Lorikeet costs, as ratios of figures taken in one run on one machine.

Each process runs on its own as in production, on loopback, with PostgreSQL. The compared sides take
turns (A B A B), so that a busy machine slows both. Nothing here is collected as a timed test.
"""
