"""The format of a conversation that a page sends to be saved."""

from __future__ import annotations

from typing import Literal

import msgspec

from frontend.playground.messages import Parameters, ToolCall
from inference.errors import InvalidRequest

MAX_PANES = 4


class Node(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message. `parent` is the message that it follows, None for a first one; messages with the
    same parent are versions of each other."""

    id: int
    parent: int | None
    role: Literal["user", "assistant"]
    content: str
    calls: list[ToolCall] = []
    """The tools that an answer calls."""
    results: dict[str, str] = {}
    """In a user's message: the results of these calls, by their ids."""
    foot: str = ""
    """The figures below an answer, as they were shown."""
    why: str = ""
    """Why an answer was cut short."""


class Pane(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One pane: model, parameters, and the tree of its messages, parents before children."""

    model: str
    parameters: Parameters
    nodes: list[Node]
    leaf: int | None = None
    """The last message of the branch that is shown."""


class Draft(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation to be saved; `revision` is that of the stored one that it replaces."""

    panes: list[Pane]
    title: str = ""
    revision: int = 0

    def encoded(self) -> str:
        """The panes as JSON, as they are stored."""
        return msgspec.json.encode(self.panes).decode()


_decoder = msgspec.json.Decoder(Draft)


def decode(body: bytes) -> Draft:
    """Decode and check a conversation.

    Raises:
        InvalidRequest: it is not a valid conversation.
    """
    try:
        draft = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Not a conversation: {error}.") from None
    if not 1 <= len(draft.panes) <= MAX_PANES:
        raise InvalidRequest(f"A conversation has 1 to {MAX_PANES} panes.", param="panes")
    for pane in draft.panes:
        _check(pane)
    return draft


def _check(pane: Pane) -> None:
    """Check that every branch begins with a question and alternates with answers."""
    roles: dict[int | None, str] = {None: "assistant"}
    for node in pane.nodes:
        if node.id in roles or roles.get(node.parent, node.role) == node.role:
            raise InvalidRequest(f"The message {node.id} has no place in its tree.", param="nodes")
        roles[node.id] = node.role
    if pane.leaf not in roles:
        raise InvalidRequest(f"There is no message {pane.leaf}.", param="leaf")
