"""What can go wrong: each a message that says what to do, and an exit code.

Typer exits with 2 for a command that is not well formed.
"""

from __future__ import annotations

from typing import Any

import httpx

MAX_TOLD = 500
"""Characters of an answer that is not one of ours."""


class Failure(Exception):
    """Anything else that the server refuses, or that is wrong here."""

    exit_code = 1


class NotAllowed(Failure):
    """Nobody is signed in, or the key may not do this."""

    exit_code = 3


class NotFound(Failure):
    """There is nothing of this name, or it is another tenant's."""

    exit_code = 4


class Rejected(Failure):
    """The adapter was refused, or did not pass its checks; the batch ended without being done."""

    exit_code = 5


class Unreachable(Failure):
    """The server does not answer, or is not able to: worth trying again."""

    exit_code = 6

    @classmethod
    def of(cls, error: httpx.TransportError) -> Unreachable:
        where = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
        reason = str(error) or type(error).__name__
        return cls(f"{where} cannot be reached ({reason}). Check the address and your network.")


BY_STATUS: dict[int, type[Failure]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    429: Unreachable,
    502: Unreachable,
    503: Unreachable,
    504: Unreachable,
}


def raise_for(response: httpx.Response) -> None:
    """Raises Failure where the answer is an error; its body must have been read."""
    if response.is_success:
        return
    message = _message(response) or f"{response.url} answered {response.status_code}."
    if response.status_code == 401:
        message = message.rstrip(".") + ". Sign in with `lorikeet login`."
    if wait := response.headers.get("retry-after"):
        message += f" Try again in {wait} s."
    raise BY_STATUS.get(response.status_code, Failure)(message)


def _message(response: httpx.Response) -> str:
    """What the answer says: of problem details, of OpenAI's errors, or of the hub's."""
    try:
        body = response.json()
    except ValueError:
        return "" if "html" in response.headers.get("content-type", "") else _short(response.text)
    return _told(body) if isinstance(body, dict) else ""


def _told(body: dict[str, Any]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        return str(error.get("message", ""))
    text = str(body.get("detail") or error or "")
    further = [f"{one['field']}: {one['message']}" for one in body.get("errors", [])[1:]]
    return "\n".join([text, *further])


def _short(text: str) -> str:
    return text.strip()[:MAX_TOLD]
