"""`python -m tests.labs.kubernetes BINARIES FOLDER`: the scenario, in Linux namespaces of its own.

unshare --net --mount --pid --fork --kill-child --mount-proc python -m tests.labs.kubernetes ...
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.labs.kubernetes.scenario import run


def main() -> None:
    binaries, folder = Path(sys.argv[1]), Path(sys.argv[2])
    result = asyncio.run(run(binaries, folder))
    (folder / "result.json").write_text(json.dumps(asdict(result), indent=1))


if __name__ == "__main__":
    main()
