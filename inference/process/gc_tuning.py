"""Garbage collection in a process that serves for months: rare, and never over all objects."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000
"""Number of new container objects at which the youngest generation is collected. Python's default
of 700 is a small part of what is in flight at any moment: collections took 5 % of the CPU."""
OBJECTS_AT_START = 50_000


def start() -> None:
    """Collect rarely while modules are imported, because what they create stays: with Python's
    defaults, collections take a sixth of a process's start."""
    gc.set_threshold(OBJECTS_AT_START)


def settle() -> None:
    """Exempt all current objects from collection: all modules, the application, the engine.

    Otherwise each full collection, of which there are several a minute under load, pauses the
    process for 50 ms and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def release() -> None:
    """Undo `settle`, and free what is no longer referenced."""
    gc.unfreeze()
    gc.collect()
