"""`make bench`: what Lorikeet costs, as ratios of figures taken in one run on one machine.

Each process runs alone as production runs it, on loopback, with PostgreSQL; what is compared takes
turns (A B A B), so that a busy machine slows both. Nothing here is collected as a timed test.
"""
