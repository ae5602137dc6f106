"""What the gateway knows of one request body."""

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

    `choices` counts the texts that it asks for; `max_tokens` bounds each of them, None where the
    body doesn't. `tokens` counts those of all `prompts` where they come as tokens, 0 where they are
    text. A `flex` request may wait behind others. `parsers` are those that its engine should have
    (`ModelInfo.parsers`), `logprobs` are asked for with each token of each choice. A text of the
    body may be part of as many prompts as it has `rereads`. `body` is what
    the engine's agent gets: the client's bytes, unless the operation makes something else of them;
    `beginnings` are those of its prompt, none where it has many. Its answer repeats what is `told`,
    may be `stored` where its tenant keeps content, and goes on from the response that it `follows`,
    or a `conversation`, to which is added what is `said`, its own items, and answered.
    If it `refers`, items of its input stand in stored responses. One of the `background` is
    answered before it is run.
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
        """See that a batch can have it: its answer is whole, and all that it is about is its body.

        Raises:
            InvalidRequest: it can't.
        """
        if self.stream:
            raise InvalidRequest("A line of a batch cannot stream.", param="stream")
        if self.background:
            said = "A line of a batch is not waited for anyway: leave `background` out."
            raise InvalidRequest(said, param="background")
        if self.conversation:
            said = "A line of a batch goes on from no conversation: send the items as `input`."
            raise InvalidRequest(said, param="conversation")
        if self.follows:
            said = "A line of a batch goes on from no response: send the items as `input`."
            raise InvalidRequest(said, param="previous_response_id")
        if self.refers:
            said = "A line of a batch refers to no stored items: send these as `input`."
            raise InvalidRequest(said, param="input")

    def take_prefix(self, salt: str, adapter: str) -> Prefix | None:
        """What names its prompt's beginnings for this tenant's salt and adapter; they are not kept
        here any longer."""
        beginnings, self.beginnings = self.beginnings, Beginnings()
        return beginnings.named(salt, adapter)

    def take_body(self) -> bytes:
        """The body, which is not kept here any longer: a call lives as long as its answer, and the
        body may have many megabytes."""
        body, self.body = self.body, b""
        return body
