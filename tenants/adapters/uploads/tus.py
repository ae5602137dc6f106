"""Headers of tus 1.0, the protocol of resumable uploads (tus.io/protocols/resumable-upload).

The core, and the extensions creation, expiration and termination. POST creates an upload, HEAD
returns how much has arrived, PATCH appends at that offset, DELETE gives it up. `intake` and
`tenants.api.endpoints.adapters.sessions` implement it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from django.conf import settings

from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

VERSION = "1.0.0"
EXTENSIONS = "creation,expiration,termination"
CONTENT_TYPE = "application/offset+octet-stream"
UPLOADS = re.compile(r"/api/v1/uploads(?:/([0-9a-f-]{36}))?")
"""The path of all uploads, and that of one by its id."""
ARCHIVE_BYTES = 64 << 10
"""The overhead that a tar or zip may add to the adapter's files."""
MAX_METADATA_BYTES = 4096
_KEY = re.compile(r"[!-+\--~]+")  # printable ASCII without space and comma


def max_bytes() -> int:
    """The largest upload in bytes."""
    limit: int = settings.MAX_ADAPTER_BYTES
    return limit + ARCHIVE_BYTES


def invalid(header: str, value: str | None, rule: str) -> UploadRefused:
    """The refusal of a header that breaks the protocol's rules."""
    problem = "is missing" if value is None else f"is {shown(value)}"
    return UploadRefused(UploadRefusal.HEADER_UNUSABLE, f"{header} {problem}: it must be {rule}.")


def number(headers: Mapping[str, str], name: str) -> int:
    """The value of a header that is a number of bytes.

    Raises:
        UploadRefused: it is missing, or not such a number.
    """
    text = headers.get(name)
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        raise invalid(name, text, "a number of bytes")
    return int(text)


def length(headers: Mapping[str, str]) -> int:
    """Upload-Length: the upload's total size in bytes.

    Raises:
        UploadRefused: it is missing, zero, or above `max_bytes`.
    """
    found = number(headers, "Upload-Length")
    if found > max_bytes():
        raise UploadRefused(
            UploadRefusal.PAYLOAD_TOO_LARGE,
            f"Upload-Length is {found} bytes, above this server's limit of {max_bytes()} bytes.",
        )
    if found == 0:
        raise invalid("Upload-Length", "0", "at least 1 byte")
    return found


def metadata(header: str) -> dict[str, str]:
    """Upload-Metadata: keys with values in Base64, `filename YS50YXI=,adapter cGlyYXRl`.

    Raises:
        UploadRefused: it is not of this form, too long, has a key twice, or a value is not UTF-8.
    """
    if len(header) > MAX_METADATA_BYTES:
        message = (
            f"Upload-Metadata has {len(header)} bytes; at most {MAX_METADATA_BYTES} are allowed."
        )
        raise UploadRefused(UploadRefusal.HEADER_UNUSABLE, message)
    found: dict[str, str] = {}
    for pair in header.split(",") if header.strip() else ():
        key, _, value = pair.strip().partition(" ")
        if not _KEY.fullmatch(key) or key in found:
            raise invalid(
                "Upload-Metadata", header, "pairs of a key, which occurs once, and its value"
            )
        found[key] = _decoded(key, value)
    return found


def flag(name: str, value: str) -> bool:
    """The value of a field that is `true` or `false`; empty means false.

    Raises:
        UploadRefused: it is neither.
    """
    if value not in ("", "true", "false"):
        message = f"{name} is {shown(value)}: it must be true or false."
        raise UploadRefused(UploadRefusal.FIELD_INVALID, message)
    return value == "true"


def _decoded(key: str, value: str) -> str:
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid(f"Upload-Metadata's {key}", value, "UTF-8 text in Base64") from error
    if "\0" in text:
        raise invalid(f"Upload-Metadata's {key}", value, "text without a null character")
    return text
