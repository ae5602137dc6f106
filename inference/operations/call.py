"""What the gateway knows about one request body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inference.errors import InvalidRequest
from inference.link.wire import Prefix
from inference.operations.bodies.beginnings import Beginnings

if TYPE_CHECKING:
    from inference.operations.operation import Operation


@dataclass(slots=True)
class Call:
    """One parsed request.

    `choices` is the number of texts requested and `max_tokens` the bound of each, None where the
    body sets none. `tokens` counts the tokens of all `prompts` if they come as tokens, 0 if they
    are text; each text of the body may be part of up to `rereads` prompts. A `flex` request may
    wait behind others. `parsers` are those that its engine needs (`ModelInfo.parsers`); `logprobs`
    is how many log-probabilities are requested per token of each choice. `body` is sent to the
    engine's agent: the client's bytes, unless the operation rewrites them. `beginnings` are those
    of its prompt, empty if it has several.

    The answer repeats the fields in `told` and is `stored` if the tenant keeps content. The request
    continues the response that it `follows`, or a `conversation`, to which its own items (`said`)
    and its answer are then added. It `refers` if its input names items of stored responses. A
    `background` request is answered before it is run.
    """

    operation: Operation
    model: str
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    max_tokens: int | None = None
    flex: bool = False
    prompts: int = 1
    rereads: int = 1
    tokens: int = 0
    parsers: tuple[str, ...] = ()
    logprobs: int = 0
    body: bytes = b""
    beginnings: Beginnings = field(default_factory=Beginnings, compare=False)
    told: Mapping[str, Any] = field(default_factory=dict, compare=False)
    stored: bool = False
    background: bool = False
    follows: str = ""
    conversation: str = ""
    said: bytes = b""
    refers: bool = False

    def check_as_line(self) -> None:
        """Check that it may be a line of a batch: its answer does not stream, and its body is
        self-contained.

        Raises:
            InvalidRequest: it may not.
        """
        if self.stream:
            raise InvalidRequest("`stream` is not supported in a batch.", param="stream")
        if self.background:
            said = "`background` is not supported in a batch, which always runs in the background."
            raise InvalidRequest(said, param="background")
        if self.conversation:
            said = "`conversation` is not supported in a batch: send the items as `input`."
            raise InvalidRequest(said, param="conversation")
        if self.follows:
            said = "`previous_response_id` is not supported in a batch: send the items as `input`."
            raise InvalidRequest(said, param="previous_response_id")
        if self.refers:
            said = (
                "References to stored items are not supported in a batch: send the items "
                "themselves as `input`."
            )
            raise InvalidRequest(said, param="input")

    def take_prefix(self, salt: str, adapter: str) -> Prefix | None:
        """The names of its prompt's beginnings for this tenant's salt and adapter, which are
        dropped from here."""
        beginnings, self.beginnings = self.beginnings, Beginnings()
        return beginnings.named(salt, adapter)

    def take_body(self) -> bytes:
        """The body, which is dropped from here: a call lives as long as its answer, and the body
        may have many megabytes."""
        body, self.body = self.body, b""
        return body
