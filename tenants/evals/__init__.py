"""Evals: rows of a tenant are answered by a model and judged by graders.

A run goes through three stages in workers, each of which a child process computes from the tenant's
rows (`stages`): the requests of a first batch, those of a second one for graders that are models,
and the results.
"""
