"""Downloads an adapter from a hub, at a pinned commit.

This runs on the client, because the server fetches nothing from addresses that a tenant names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lorikeet.api import TIMEOUT
from lorikeet.failures import Failure, NotFound, raise_for
from lorikeet.transfer.archive import FILES

HUGGING_FACE = "https://huggingface.co"
MAX_REDIRECTS = 5
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A repository and one of its commits."""

    repo: str
    commit: str

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Raises Failure if it is not pinned: the files of a branch may change."""
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([0-9a-f]{40})", text)
        if match is None:
            raise Failure(
                f"{text!r} does not have the form owner/name@commit with a commit of 40 "
                "digits. The hub shows commits on the page `Files and versions` under "
                "History."
            )
        return cls(match[1], match[2])

    @property
    def name(self) -> str:
        """The repository's name as that of an adapter."""
        return self.repo.partition("/")[2].lower()


def download(pin: Pin, hub: str, folder: Path) -> None:
    """Put the adapter's two files into the folder.

    Raises:
        Failure: a file is missing, or does not match the hub's SHA-256 or the commit.
    """
    token = os.environ.get("HF_TOKEN", "")
    # The variable may hold a key of Lorikeet, for its own hub, which must not be sent elsewhere.
    headers = {"Authorization": f"Bearer {token}"} if token.startswith("hf_") else {}
    with httpx.Client(headers=headers, timeout=TIMEOUT) as http:
        for name in FILES:
            _fetch(http, pin, f"{hub}/{pin.repo}/resolve/{pin.commit}/{name}", folder / name)


def _fetch(http: httpx.Client, pin: Pin, url: str, target: Path) -> None:
    with _opened(http, pin, url) as (response, expected), target.open("xb") as file:
        found = hashlib.sha256()
        for chunk in response.iter_bytes():
            found.update(chunk)
            file.write(chunk)
    if SHA256.fullmatch(expected) and found.hexdigest() != expected:
        raise Failure(f"The SHA-256 of {url} differs from the one that the hub states. Try again.")


@contextmanager
def _opened(http: httpx.Client, pin: Pin, url: str) -> Iterator[tuple[httpx.Response, str]]:
    """The response with the file, after redirects, and the file's SHA-256 according to the hub, if
    it states that: in its own response, before any redirect."""
    commit = expected = ""
    request = http.build_request("GET", url)
    for _ in range(MAX_REDIRECTS):
        response = http.send(request, stream=True)
        try:
            commit = commit or response.headers.get("x-repo-commit", "")
            expected = expected or response.headers.get("x-linked-etag", "").strip('"')
            if response.next_request is None:
                _require(response, pin, commit, url)
                yield response, expected
                return
            request = response.next_request  # without the token if it goes to another host
        finally:
            response.close()
    raise Failure(f"{url} redirects too often.")


def _require(response: httpx.Response, pin: Pin, commit: str, url: str) -> None:
    if response.status_code in (401, 403, 404):
        raise NotFound(
            f"{url} does not exist or needs a token. Set HF_TOKEN to a Hugging Face token."
        )
    if not response.is_success:
        response.read()
        raise_for(response)
    if commit and commit != pin.commit:
        raise Failure(f"{url} belongs to the commit {commit}, not to the requested one.")
