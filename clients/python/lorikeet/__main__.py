"""`lorikeet`: runs a command, and turns any failure into one line and an exit code."""

from __future__ import annotations

import sys

import httpx

from lorikeet.cli import app
from lorikeet.failures import Failure, Unreachable


def main() -> None:
    """Run the command. Exits with the codes that `failures` defines."""
    try:
        app()
    except Failure as failure:
        _fail(failure)
    except httpx.TransportError as error:
        _fail(Unreachable.of(error))
    except BrokenPipeError:  # the reader of the output has closed it, such as `head`
        sys.stderr.close()
        sys.exit(1)


def _fail(failure: Failure) -> None:
    sys.stderr.write(f"lorikeet: {failure}\n")
    sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
