"""The demo that a stack with scenery serves: the tiny one, or what LORIKEET_DEMO says."""

from __future__ import annotations

import os
from pathlib import Path

from demo import TINY, smollm2

REAL = os.environ.get("LORIKEET_DEMO") == smollm2.MODEL_NAME
DEMO = smollm2.demo_on(Path()) if REAL else TINY
MODEL_NAME = DEMO.model_name
ADAPTERS = {name: one for each in DEMO.adapters.values() for name, one in each.items()}
