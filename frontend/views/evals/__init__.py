"""A tenant's evals: the list, one with its runs, a run with its rows, and two runs compared."""
