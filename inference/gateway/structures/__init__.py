"""Checks finished answers against the schemas and tools that their requests came with
(`operations.structure`).

1. `recording` keeps the answer of a request that asks for a structure, within bounds.
2. When the request has ended, and its client has the answer, `checks` queues it.
3. `process` passes it to `child`, a process of its own that is killed if a check takes too long: a
   client's pattern may backtrack for hours, and holds Python's lock meanwhile.
4. The outcome goes to the figures of the request's adapter version (`records`).

No answer waits for it unless its request may be repaired. What is too large, takes too long or
finds no room is `unchecked`, and counted as such.
"""
