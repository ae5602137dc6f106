"""What the gateway knows about the body of one `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.errors import InvalidRequest
from inference.operations.operation import Call


@dataclass
class ResponseCall(Call):
    """One parsed request for a response.

    The answer repeats the fields in `echoed`; with `store` it is stored if the tenant keeps
    content. `namespaces` has the namespace and the name of each function that a chat calls
    otherwise. The request continues the response of `previous_response_id`, or a `conversation`, to
    which its `own_items` and its answer are then added. With `references` its input names items of
    stored responses. A `background` request is answered before it is run.
    """

    echoed: Mapping[str, Any] = field(default_factory=dict, compare=False)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)
    store: bool = False
    background: bool = False
    previous_response_id: str = ""
    conversation: str = ""
    own_items: bytes = b""
    references: bool = False

    @property
    def continues(self) -> bool:
        """Whether it needs something that is stored: a response, a conversation or an item."""
        return bool(self.previous_response_id or self.conversation or self.references)

    def check_as_line(self) -> None:
        """See `Call`."""
        super().check_as_line()
        if self.background:
            message = (
                "`background` is not supported in a batch, which always runs in the background."
            )
            raise InvalidRequest(message, param="background")
        if self.conversation:
            message = "`conversation` is not supported in a batch: send the items as `input`."
            raise InvalidRequest(message, param="conversation")
        if self.previous_response_id:
            message = (
                "`previous_response_id` is not supported in a batch: send the items as `input`."
            )
            raise InvalidRequest(message, param="previous_response_id")
        if self.references:
            message = (
                "References to stored items are not supported in a batch: send the items "
                "themselves as `input`."
            )
            raise InvalidRequest(message, param="input")
