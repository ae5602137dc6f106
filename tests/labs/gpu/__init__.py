"""`make gpu-check`: what can be known of Lorikeet on a GPU in fifteen minutes, as one report.

`steps.py` has the steps. Each runs in a process of its own with its own time limit, prints what it
found at once, and may fail without the others; `__main__.py` runs them and writes docs/gpu.md.
`--device cpu` runs the same steps with tiny sizes. Nothing here needs Django or a database, so that
a machine that has only the bundle of vLLM runs it too.
"""
