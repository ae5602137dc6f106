"""An engine's folder for sockets and temporary files.

vLLM and libraries that it uses leave sockets and files behind when they are killed. So each engine
has a folder of its own in the system's temporary folder, which only its user can read, and which is
emptied at its next start. It is named by the journal, which only one engine has at a time.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from inference.process.environ import BadSetting

VARIABLE = "VLLM_RPC_BASE_PATH"
"""The environment variable with the folder, which vLLM reads too."""
MAX_PATH = 70
"""Bytes of the folder's path: the kernel accepts 107 for a socket, and vLLM adds a UUID."""


@contextmanager
def used(journal: Path) -> Iterator[Path]:
    """In the block, this process and its children put sockets and temporary files into the folder
    of the engine with this journal. It is empty at first, and deleted at the end.

    Raises:
        BadSetting: it cannot be used, such as because another user created it.
    """
    parent = Path(tempfile.gettempdir()) / f"lorikeet-{os.getuid()}"
    folder = parent / sha256(bytes(journal.resolve())).hexdigest()[:12]
    if (length := len(bytes(folder))) > MAX_PATH:
        raise BadSetting(
            f"{folder} is too long for sockets: it has {length} bytes and may have {MAX_PATH}. "
            "Set TMPDIR to a folder with a shorter name"
        )
    _make_private(parent)
    rmtree(folder, ignore_errors=True)
    _make_private(folder)
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(parent / "compiled")}  # outlives the engine
    own = dict.fromkeys(("TMPDIR", VARIABLE), str(folder))
    os.environ |= kept | dict(os.environ) | own
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)


def _make_private(folder: Path) -> None:
    """Create the folder unless it exists, and make sure that it is ours alone."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise BadSetting(f"{folder} cannot be used for sockets: {error}") from None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise BadSetting(f"{folder} belongs to another user or is open to others: delete it")
