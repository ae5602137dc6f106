"""Fitting routes, which let the cheapest sufficient of several models answer.

1. `jobs`: somebody asks for a fit on an eval, of which each option has a completed run.
2. `rows`: a child process reads the results of these runs row by row.
3. `fitting`: it fits on some of the rows and reports on the others, which alone decide whether the
   route is turned on.

`inference.routes` then chooses for each request, at its gateway.
"""
