"""What was asked and answered, of tenants that keep that: taken up in memory, written elsewhere.

Nothing waits for it. What there is no room for is dropped, and counted: more than MAX_BYTES of a
body or an answer, which is cut then, more than ROOM_BYTES of all requests that run or wait to be
written, more than a share of that of one tenant. So a tenant with huge prompts costs another
neither time nor content.
"""

from __future__ import annotations

from collections import deque

import msgspec

from inference.gateway.space import Space
from inference.grants import Grant
from inference.link.wire import Delta, Done

MAX_BYTES = 256 << 10
"""Of a body, and of an answer."""
ROOM_BYTES = 64 << 20
EACH_BYTES = 1 << 10
"""What one takes besides its texts."""


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a request: its body, and of its answer the text, or chunks of the stream, or
    the whole response, each as its engine said it. `cut`: there was more."""

    operation: str
    model: str
    request: str
    text: str = ""
    chunks: list[str] = []
    response: str = ""
    cut: bool = False


class Taken(msgspec.Struct, frozen=True):
    """What is to be written of a request, JSON of `Kept`; `at` is a unix time."""

    id: str
    tenant_id: int
    at: float
    text: bytes


class Capture:
    """Takes up one request and its answer."""

    def __init__(self, contents: Contents, id: str, grant: Grant, operation: str) -> None:
        self.id, self.tenant_id = id, grant.tenant_id
        self.bytes = EACH_BYTES
        """As the room counts it."""
        self._contents, self._operation = contents, operation
        self._request, self._response = b"", b""
        self._said = bytearray()
        self._chunks: list[bytes] = []
        self._answer_bytes = 0
        self._cut = False

    def asked(self, body: bytes) -> None:
        """Take up the body."""
        self._request = self._part(body, MAX_BYTES)

    def add(self, delta: Delta) -> None:
        """Take up what the engine said, each token once."""
        if delta.text and not delta.chunks:
            self._said += self._of_answer(delta.text.encode())
        for chunk in delta.chunks:
            if self._answer_bytes + len(chunk) > MAX_BYTES:
                self._cut = True  # half a chunk is none
                break
            self._chunks.append(self._of_answer(chunk))

    def end(self, done: Done, model: str, at: float) -> None:
        """The request is over: it is to be written."""
        if done.response is not None:
            self._response = self._of_answer(done.response)
        kept = Kept(
            self._operation,
            model,
            _text(self._request),
            _text(self._said),
            [_text(chunk) for chunk in self._chunks],
            _text(self._response),
            self._cut,
        )
        self._contents.ended(self, Taken(self.id, self.tenant_id, at, msgspec.json.encode(kept)))

    def drop(self) -> None:
        """Nothing came of it."""
        self._contents.dropped_by_itself(self)

    def _of_answer(self, part: bytes) -> bytes:
        taken = self._part(part, MAX_BYTES - self._answer_bytes)
        self._answer_bytes += len(taken)
        return taken

    def _part(self, part: bytes, most: int) -> bytes:
        """As much of it as may be kept and there is room for."""
        taken = part[:most]
        if not self._contents.grow(self, len(taken)):
            taken = b""
        self._cut = self._cut or len(taken) < len(part)
        return taken


class Contents:
    """Of one gateway process."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self.space = Space(room_bytes)
        """Of those that run and those that wait; responses that are to be stored take of it too."""
        self._waiting: deque[tuple[int, Taken]] = deque()
        self.dropped = 0
        """Requests of which nothing is kept, for want of room or of a database."""

    @property
    def used_bytes(self) -> int:
        return self.space.used_bytes

    def begin(self, id: str, grant: Grant, operation: str, body: bytes) -> Capture | None:
        """Begin to take up a request; None: nothing is kept of it."""
        if not grant.keeps_content:
            return None
        capture = Capture(self, id, grant, operation)
        if not self.space.take(grant.tenant_id, capture.bytes):
            self.dropped += 1
            return None
        capture.asked(body)
        return capture

    def grow(self, capture: Capture, more: int) -> bool:
        """Whether there is room for so many bytes more."""
        if not self.space.take(capture.tenant_id, more):
            return False
        capture.bytes += more
        return True

    def ended(self, capture: Capture, taken: Taken) -> None:
        self._waiting.append((capture.bytes, taken))

    def dropped_by_itself(self, capture: Capture) -> None:
        self.space.give_back(capture.tenant_id, capture.bytes)

    def take(self, most: int, most_bytes: int) -> list[Taken]:
        """The oldest of those that wait to be written: they take no room any more."""
        found: list[Taken] = []
        while self._waiting and len(found) < most:
            size, taken = self._waiting[0]
            if found and size > most_bytes:
                break
            self._waiting.popleft()
            self.space.give_back(taken.tenant_id, size)
            most_bytes -= size
            found.append(taken)
        return found


def _text(part: bytes | bytearray) -> str:
    """It may end within a character."""
    return part.decode(errors="ignore")
