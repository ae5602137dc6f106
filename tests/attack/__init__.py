"""What strangers and hostile tenants send, and what another tenant notices of it: `make attack`.

A victim streams and asks all the time, from a process of its own. Before each attack it is measured
in quiet, then beside it. What must hold whatever the machine does: each of its answers is whole, no
engine is lost, and a process that serves is not lost either. What is judged as a figure: the p99 of
its time to first token and between chunks over that of quiet times, and the longest of each.
"""
