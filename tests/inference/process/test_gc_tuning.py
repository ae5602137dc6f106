"""The settings of the garbage collector, tested in a separate process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, weakref
from inference.process import gc_tuning

class Node: ...

kept = Node()
kept.itself = kept
seen = weakref.ref(kept)
gc_tuning.settle()
assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] == gc_tuning.YOUNG_OBJECTS
del kept
gc.collect()
assert seen() is not None, "a collection went through what was there at the start"
gc_tuning.release()
assert seen() is None, "what nothing refers to is still there"
young = Node()
young.itself = young
seen = weakref.ref(young)
del young
rest = [[] for _ in range(gc_tuning.YOUNG_OBJECTS + 1)]
assert seen() is None, "cycles made since are not found any more"
"""


def test_settled_objects_are_exempt_and_new_cycles_are_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
