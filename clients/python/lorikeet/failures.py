"""Errors, each with a message that says what to do, and an exit code.

Typer exits with 2 if the command line is malformed.
"""

from __future__ import annotations

from typing import Any

import httpx

MAX_CHARACTERS = 500
"""Most characters shown of an error response that is not in one of the server's formats."""


class Failure(Exception):
    """Any other error, at the server or here."""

    exit_code = 1


class NotAllowed(Failure):
    """There is no usable key, or the key may not do this."""

    exit_code = 3


class NotFound(Failure):
    """Nothing has this name, or it belongs to another tenant."""

    exit_code = 4


class Rejected(Failure):
    """The adapter was refused or did not pass its checks, or the batch ended without completing."""

    exit_code = 5


class Unreachable(Failure):
    """The server does not answer, or cannot at the moment: worth a retry."""

    exit_code = 6

    @classmethod
    def of(cls, error: httpx.TransportError) -> Unreachable:
        where = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
        reason = str(error) or type(error).__name__
        return cls(f"Cannot connect to {where} ({reason}). Check the URL and your network.")


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
    """Raises Failure if the response is an error; its body must have been read."""
    if response.is_success:
        return
    message = _message(response) or f"{response.url} answered {response.status_code}."
    if response.status_code == 401:
        message = message.rstrip(".") + ". Sign in with `lorikeet login`."
    if wait := response.headers.get("retry-after"):
        message += f" Try again in {wait} s."
    raise BY_STATUS.get(response.status_code, Failure)(message)


def _message(response: httpx.Response) -> str:
    """The message of an error response: problem details, OpenAI's format, or the hub's."""
    try:
        body = response.json()
    except ValueError:
        return "" if "html" in response.headers.get("content-type", "") else _short(response.text)
    return _error_text(body) if isinstance(body, dict) else ""


def _error_text(body: dict[str, Any]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        return str(error.get("message", ""))
    text = str(body.get("detail") or error or "")
    further = [f"{one['field']}: {one['message']}" for one in body.get("errors", [])[1:]]
    return "\n".join([text, *further])


def _short(text: str) -> str:
    return text.strip()[:MAX_CHARACTERS]
