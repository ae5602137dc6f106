"""`python tests/labs/bench/machinery/routed.py ROUTER --port N`: a gateway with another routing
policy.

ROUTER names a function of `tests.labs.bench.simulation.fleet` that chooses the engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def main(router: str, arguments: list[str]) -> None:
    """Run `manage.py gateway` with engines chosen by the function named `router`."""
    from gateway.start import main as manage
    from inference.gateway.routing import choice
    from tests.labs.bench.simulation import fleet

    choice.cheapest = getattr(fleet, router)
    manage(["manage.py", "gateway", *arguments])


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    main(sys.argv[1], sys.argv[2:])
