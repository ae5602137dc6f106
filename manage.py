#!/usr/bin/env python
"""Lorikeet's commands: `up`, `gateway`, `engine`, `worker`, `make_demo` and Django's own."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]

if __name__ == "__main__":
    from gateway.start import main

    main(sys.argv)
