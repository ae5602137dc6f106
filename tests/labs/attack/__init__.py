"""Attacks by strangers and hostile tenants, and their effect on another tenant: `make attack`.

A victim streams and asks all the time, from a process of its own. It is measured in quiet before
each attack, then beside the attack. These must hold on any machine: each of its answers is
complete, and no engine and no serving process is lost. These are judged as figures: the p99 of its
time to first token and of the gaps between chunks, relative to quiet times, and the longest of
each.
"""
