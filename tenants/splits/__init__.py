"""A split sends a share of an alias's requests to a second version, the candidate, compares the two
while it runs, and ends by itself: promoted, rolled back or inconclusive.

Gateways choose the version of each request (`inference.splitting`) and write what became of it
(`tenants.directory.observations`). A periodic job (`jobs`) reads each of these observations once
(`reading`), adds it to the tests of the split's guards (`sequential`), and carries out what `judge`
decides. The tests' state is in the split's row and changes in the transaction that marks the
observations as read, so a job that is killed loses and repeats nothing.

"Rollout" means a revision of a base model (`tenants.rollouts`), which operators move.
"""
