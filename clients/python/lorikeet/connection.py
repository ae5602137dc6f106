"""Addresses of the server, and the key: from the environment, else from a private file."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import typer

from lorikeet.failures import Failure, NotAllowed

URL, API_URL, KEY = "LORIKEET_URL", "LORIKEET_API_URL", "LORIKEET_KEY"
"""Environment variables; they take precedence over the file."""


@dataclass(frozen=True, slots=True)
class Connection:
    """`url` is the console's address, `api_url` that of the inference API; empty if the console has
    to be asked for it."""

    url: str
    api_url: str
    key: str


def folder() -> Path:
    """The folder of this program's files."""
    return Path(os.environ.get("LORIKEET_HOME") or typer.get_app_dir("lorikeet"))


def credentials_file() -> Path:
    return folder() / "credentials.json"


def load() -> Connection:
    """Raises NotAllowed if there is no address or key, or others may read the file."""
    saved = _read(credentials_file())
    url, key = os.environ.get(URL) or saved.get("url"), os.environ.get(KEY) or saved.get("key")
    if not url or not key:
        raise NotAllowed(f"Not signed in. Run `lorikeet login`, or set {URL} and {KEY}.")
    # The saved address of the API is only valid for the saved console.
    same = url == saved.get("url")
    api_url = os.environ.get(API_URL) or (saved.get("api_url") if same else None) or ""
    return Connection(address(url), address(api_url) if api_url else "", key)


def address(url: str) -> str:
    """The URL without a slash at its end. Raises Failure if it is not one."""
    if not url.startswith(("http://", "https://")):
        raise Failure(f"{url!r} is not a URL: it must begin with https:// or http://.")
    return url.rstrip("/")


def save(connection: Connection) -> Path:
    """Write the file; no other user can read it at any moment."""
    return write_private(credentials_file(), json.dumps(asdict(connection), indent=1))


def write_private(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:  # its mode is 0600
        draft.write(text)
    os.replace(draft.name, file)
    return file


def _read(file: Path) -> dict[str, str]:
    try:
        mode = file.stat().st_mode
        text = file.read_text()
    except FileNotFoundError:
        return {}
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise NotAllowed(
            f"{file} contains a key, but other users can read it. Run `chmod 600 {file}`."
        )
    try:
        return {name: str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise NotAllowed(f"{file} is damaged. Run `lorikeet login` again.") from None
