"""Bodies and answers, for tenants that keep content: collected in memory here, written elsewhere.

No request waits for it. Content without room is dropped and counted: bodies and answers are cut at
MAX_BYTES, and all requests that run or wait to be written share ROOM_BYTES (`SharedCapacity`). So a
tenant with huge prompts costs another neither time nor content.
"""

from __future__ import annotations

from collections import deque

import msgspec

from inference.interfaces.directory import Grant
from inference.link.wire import Delta, Done
from inference.shared_capacity import SharedCapacity

MAX_BYTES = 256 << 10
"""Most bytes kept of a body, and of an answer."""
ROOM_BYTES = 64 << 20
"""Memory for content in one gateway process, at most a quarter for one tenant; up to twice as much
while many tenants need some of it."""
EACH_BYTES = 1 << 10
"""Memory that a request takes besides its texts."""


class KeptContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a request: its body, and its answer as text, as chunks of the stream, or as
    the whole response, each as its engine sent it. `cut`: there was more."""

    operation: str
    model: str
    request: str
    text: str = ""
    chunks: list[str] = []
    response: str = ""
    cut: bool = False


class TakenContent(msgspec.Struct, frozen=True):
    """A request's content to be written; `text` is `KeptContent` as JSON, `at` a unix time in
    seconds."""

    id: str
    tenant_id: int
    at: float
    text: bytes


class Capture:
    """Records one request and its answer."""

    def __init__(self, contents: RequestContents, id: str, grant: Grant, operation: str) -> None:
        self.id, self.tenant_id = id, grant.tenant_id
        self.bytes = EACH_BYTES
        """Bytes taken of the space."""
        self._contents, self._operation = contents, operation
        self._request, self._response = b"", b""
        self._generated = bytearray()
        self._chunks: list[bytes] = []
        self._answer_bytes = 0
        self._cut = False

    def asked(self, body: bytes) -> None:
        """Record the body."""
        self._request = self._part(body, MAX_BYTES)

    def add(self, delta: Delta) -> None:
        """Record a delta. Each token must come once."""
        if delta.text and not delta.chunks:
            self._generated += self._of_answer(delta.text.encode())
        for chunk in delta.chunks:
            if self._answer_bytes + len(chunk) > MAX_BYTES:
                self._cut = True  # half a chunk would be invalid
                break
            self._chunks.append(self._of_answer(chunk))

    def end(self, done: Done, model: str, at: float) -> None:
        """The request has ended: queue it to be written."""
        if done.response is not None:
            self._response = self._of_answer(done.response)
        kept = KeptContent(
            self._operation,
            model,
            _text(self._request),
            _text(self._generated),
            [_text(chunk) for chunk in self._chunks],
            _text(self._response),
            self._cut,
        )
        self._contents.ended(
            self, TakenContent(self.id, self.tenant_id, at, msgspec.json.encode(kept))
        )

    def drop(self) -> None:
        """Discard what was recorded."""
        self._contents.dropped_by_itself(self)

    def _of_answer(self, part: bytes) -> bytes:
        taken = self._part(part, MAX_BYTES - self._answer_bytes)
        self._answer_bytes += len(taken)
        return taken

    def _part(self, part: bytes, most: int) -> bytes:
        """The first `most` bytes of the part, or nothing if there is no room for them."""
        taken = part[:most]
        if not self._contents.grow(self, len(taken)):
            taken = b""
        self._cut = self._cut or len(taken) < len(part)
        return taken


class RequestContents:
    """The recorded content of one gateway process."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self.space = SharedCapacity[int](room_bytes)
        """Bytes used by requests that run or wait to be written, and by responses to be stored; by
        tenant id."""
        self._waiting: deque[tuple[int, TakenContent]] = deque()
        self.dropped = 0
        """Requests of which nothing is kept, because there was no room or no database."""

    def begin(self, id: str, grant: Grant, operation: str, body: bytes) -> Capture | None:
        """Begin to record a request; None if nothing is kept of it."""
        if not grant.keeps_content:
            return None
        capture = Capture(self, id, grant, operation)
        if not self.space.take(grant.tenant_id, capture.bytes):
            self.dropped += 1
            return None
        capture.asked(body)
        return capture

    def grow(self, capture: Capture, more: int) -> bool:
        """Take `more` bytes of the space for the capture; False if there is no room."""
        if not self.space.take(capture.tenant_id, more):
            return False
        capture.bytes += more
        return True

    def ended(self, capture: Capture, taken: TakenContent) -> None:
        self._waiting.append((capture.bytes, taken))

    def dropped_by_itself(self, capture: Capture) -> None:
        self.space.give_back(capture.tenant_id, capture.bytes)

    def take(self, most: int, most_bytes: int) -> list[TakenContent]:
        """Take out the oldest requests that wait to be written, at most `most`, and `most_bytes`
        unless the first alone is larger; gives their space back."""
        found: list[TakenContent] = []
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
    """Decode a part that may be cut within a character."""
    return part.decode(errors="ignore")
