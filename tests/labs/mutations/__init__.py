"""Mutated adapters through the real pipeline: `make mutate COUNT=500`; the tests run a few.

`mutants` makes them. `run` uploads them to a running Lorikeet while two other tenants keep asking.
"""
