"""Reads the commit of a push to the hub, and takes an adapter's two files out of its operations.

Each line of the body is a JSON object, `{"key": ..., "value": ...}`: a header, then the operations
in any order. A `file` holds its content in Base64, so that a line can have hundreds of megabytes:
it is decoded as it is read, and only the JSON around the content is parsed. An `lfsFile` names a
large object that was sent before. Files that do not belong to an adapter are left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters.checks.findings import shown
from tenants.adapters.checks.streams import COPY_BYTES
from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused, too_large
from tenants.adapters.uploads.selection import select

MAX_LINES = 1024
"""Clients send a few hundred files in one commit at most."""
SHORT_BYTES = 512 << 10
"""A line up to this is parsed whole. A configuration has a few KiB, a README some hundreds."""
OID = re.compile(r"[0-9a-f]{64}")
_LONG_CONTENT = re.compile(rb'"content"\s*:\s*"(?=[A-Za-z0-9+/=]*\Z)')
"""Finds where the content begins in a line that is only partly read."""
_IGNORED = frozenset({"header", "deletedFile", "deletedFolder"})
"""Operations without effect on the new version."""


@dataclass(frozen=True, slots=True)
class CommitContents:
    """What a commit has besides the files that it holds.

    `oid` is the SHA-256 by which it names the weights if they were sent before, `parent` the commit
    that it follows; both may be empty. `missing` names the files of an adapter that it leaves as
    they were, `left_out` the paths of others.
    """

    oid: str
    parent: str
    missing: list[str]
    left_out: list[str]


def unpack(commit: IO[bytes], max_bytes: int, targets: Mapping[str, IO[bytes]]) -> CommitContents:
    """Write the files to `targets`, which has one for each of `inference.content.FILES`.

    Raises:
        UploadRefused: the commit is malformed, has no file of an adapter, or more than `max_bytes`.
    """
    found = _Found(targets, max_bytes)
    commit.seek(0)
    lines = 0
    while line := commit.readline(SHORT_BYTES):
        lines += 1
        if lines > MAX_LINES:
            raise _invalid(f"it has more than {MAX_LINES} lines")
        if len(line) == SHORT_BYTES and not line.endswith(b"\n"):
            found.add_long(line, commit)
        elif line.strip():
            found.add(*_operation(line))
    if not lines:
        raise _invalid("it is empty")
    contents = found.contents()
    for target in targets.values():
        target.flush()
    return contents


@dataclass
class _Found:
    """The adapter's files found in the lines so far."""

    targets: Mapping[str, IO[bytes]]
    max_bytes: int
    paths: list[str] = field(default_factory=list)
    oid: str = ""
    parent: str = ""

    def __post_init__(self) -> None:
        self.left = self.max_bytes

    def add(self, key: str, value: Mapping[str, Any]) -> None:
        """Add an operation that was read whole."""
        if key in _IGNORED:
            self.parent = str(value.get("parentCommit") or self.parent)
            return
        path = _text(value, "path")
        if key not in ("file", "lfsFile"):
            raise _invalid(f"it has the unsupported operation {shown(key)}")
        self.paths.append(path)
        if path not in FILES:
            return
        if key == "lfsFile":
            self._name_object(path, value)
        else:
            _require_base64(value)
            content = _decoded(_text(value, "content").encode("ascii", "replace"))
            self._spend(len(content))
            self.targets[path].write(content)

    def add_long(self, beginning: bytes, commit: IO[bytes]) -> None:
        """Add a file whose line begins with `beginning`, and read the rest of that line."""
        match = _LONG_CONTENT.search(beginning)
        if match is None:
            raise _invalid(f"it has a line of more than {SHORT_BYTES} bytes that is not a file")
        content = _Content(beginning[match.end() :], commit)
        # Its path may follow the content, so write it to the weights and undo that if it is not.
        target = self.targets[WEIGHTS]
        start = target.tell()
        for chunk in content:
            self._spend(len(chunk))
            target.write(chunk)
        key, value = _operation(beginning[: match.end()] + b'"' + content.rest)
        path = _text(value, "path")
        if key != "file" or value.get("content") != "":
            raise _invalid("it has a long string that is not the content of a file")
        _require_base64(value)
        if path == CONFIG:
            raise _invalid(f"{CONFIG} has more than {SHORT_BYTES} bytes")
        self.paths.append(path)
        if path != WEIGHTS:
            self.left += target.tell() - start
            target.seek(start)
            target.truncate()

    def contents(self) -> CommitContents:
        """What was found.

        Raises:
            UploadRefused: none of the two files is there, at the repository's top.
        """
        missing = [name for name in FILES if name not in self.paths]
        if any(map(_is_of_adapter, self.paths)):  # of another name or in another place
            missing = []
        elif len(missing) == len(FILES):
            message = f"The commit has neither {CONFIG} nor {WEIGHTS}, so it makes no version."
            raise UploadRefused(UploadRefusal.NOTHING_TO_KEEP, message)
        # With those that are as they were, so that the rules are those of an upload.
        selection = select([*self.paths, *missing])
        chosen = (selection.config, *selection.weights)
        if chosen != FILES:
            raise UploadRefused(
                UploadRefusal.ARCHIVE_PATH_REFUSED,
                f"The adapter must be {CONFIG} and {WEIGHTS} at the repository's top, but is "
                f"{', '.join(map(shown, chosen[:2]))}.",
            )
        return CommitContents(self.oid, self.parent, missing, selection.left_out_names())

    def _name_object(self, path: str, value: Mapping[str, Any]) -> None:
        oid = _text(value, "oid")
        if path != WEIGHTS or not OID.fullmatch(oid):
            raise _invalid(
                f"it has a large object for {path}: only {WEIGHTS} can be one, with its SHA-256"
            )
        self.oid = oid

    def _spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise too_large(self.max_bytes)


class _Content:
    """The decoded bytes of a content that begins with `beginning` and continues in `commit`. After
    the iteration, `rest` is what follows the content on its line."""

    def __init__(self, beginning: bytes, commit: IO[bytes]) -> None:
        self._text, self._commit = beginning, commit
        self.rest = b""

    def __iter__(self) -> Iterator[bytes]:
        ended = False
        while not ended:
            more = self._commit.readline(COPY_BYTES)
            if not more:
                raise _invalid("it ends inside a file")
            content, quote, rest = more.partition(b'"')
            self._text += content
            if ended := bool(quote):
                self._finish(rest)
            whole = len(self._text) if ended else len(self._text) // 4 * 4
            chunk, self._text = self._text[:whole], self._text[whole:]
            if not ended and b"=" in chunk:
                raise _invalid("a file's content continues after its end")
            yield _decoded(chunk)

    def _finish(self, rest: bytes) -> None:
        if not rest.endswith(b"\n"):
            rest += self._commit.readline(SHORT_BYTES)
        if len(rest) >= SHORT_BYTES:
            raise _invalid("a line is too long after its content")
        self.rest = rest


def _is_of_adapter(path: str) -> bool:
    """Whether a file other than FILES has a name like theirs, such as `adapter_model.bin`."""
    name = path.rpartition("/")[2].lower()
    return path not in FILES and name.startswith(("adapter_config", "adapter_model"))


def _operation(line: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        read = load_object(line)
    except BadJson as error:
        raise _invalid(f"a line is not a valid JSON object: {error}") from None
    key, value = read.get("key"), read.get("value")
    if not isinstance(key, str) or not isinstance(value, dict):
        raise _invalid("a line does not have the form {key, value}")
    return key, value


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str):
        raise _invalid(f"an operation has no `{name}`")
    return text


def _require_base64(value: Mapping[str, Any]) -> None:
    if value.get("encoding") != "base64":
        raise _invalid("a file's content is not encoded in Base64")


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _invalid("a file's content is not valid Base64") from None


def _invalid(reason: str) -> UploadRefused:
    return UploadRefused(UploadRefusal.COMMIT_INVALID, f"The commit is invalid: {reason}.")
