"""The garbage collector of a process that serves for months: seldom, never through everything."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000
"""Containers made and not freed since, before cycles are looked for among them. Python's own 700
is a small part of what is in flight at any moment: 5 % of the CPU went into looking."""


def settle() -> None:
    """What is there by now stays: all modules, the application, the engine.

    Left among the collector's objects it makes each full collection, several a minute under load, a
    pause of 50 ms and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def release() -> None:
    """Let go of what `settle` kept, as far as nothing refers to it any more."""
    gc.unfreeze()
    gc.collect()
