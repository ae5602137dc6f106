"""Mutated adapters through the real pipeline: `make mutate COUNT=500`, a few of them in the tests.

`mutants` makes them, `run` uploads them to a running Lorikeet while two other tenants go on asking.
"""
