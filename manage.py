#!/usr/bin/env python
"""Lorikeet's commands: `up`, `gateway`, `engine`, `worker`, `make_demo` and Django's own."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]


def main() -> None:
    from gateway.start import prepare

    prepare(sys.argv[1:])
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
